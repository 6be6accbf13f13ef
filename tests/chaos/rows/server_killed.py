"""The server is killed (SIGKILL) and restarted under load, with its append-only file synced always or every second.

With durable adds nothing is lost in either case.
"""

import time

from tests.chaos.run import ChaosRun

NUMBER = 2
TITLE = "server killed and restarted under load, AOF"
VARIANTS = ("always", "everysec", "durable")
RESTARTS = 5
LIMIT_S = 3.0
POSTPONED_S = 2.0
"""With everysec, Valkey appends to its log up to two seconds late while an earlier fsync of a slow disk runs."""


def play(run: ChaosRun, variant: str):
    server = run.start_server(appendonly="yes", appendfsync="everysec" if variant == "durable" else variant)
    if variant == "durable":
        run.durable_adds = True
        run.fleet.make_durable({"disk": True})
    run.fleet_of(2, jobs=400)
    restarts = 0
    for _ in run.faults(3, every=3, progress=70, least=RESTARTS):
        killed_at = time.monotonic()
        up_at = run.restart(server)
        if variant != "always":
            # Until the port is up again, all acknowledgements were those of the killed server. Durable adds are not
            # excused, but other changes are, a job's completion among them.
            run.excuse(killed_at - POSTPONED_S, up_at)
            run.expects_findings = True
        run.serving("workers fetched again after the port was up", up_at, LIMIT_S, run.fleet.workers)
        restarts += 1
    run.note(f"{restarts} restarts")
