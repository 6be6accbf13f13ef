"""The server is killed (SIGKILL) and restarted under load, with its append-only file synced always or every second."""

from tests.chaos.run import ChaosRun

NUMBER = 2
TITLE = "server killed and restarted under load, AOF"
VARIANTS = ("always", "everysec")


def play(run: ChaosRun, variant: str) -> None:
    server = run.start_server(appendonly="yes", appendfsync=variant)
    run.fleet_of(2, jobs=400)
    for _ in run.faults(3, every=3, progress=70):
        if variant == "everysec":
            run.excuse(1)
            run.expects_findings = True
        run.serving("served again after", run.restart(server), 3)
