"""All faults at once, in random order, through a proxy, on a durable server."""

import signal
import time

from tests.chaos.fault_proxy import FaultProxy
from tests.chaos.run import ChaosRun

NUMBER = 14
TITLE = "everything at once"
FAULTS = ("kill", "freeze", "stop", "server", "functions", "cut", "half_open", "delay")


def play(run: ChaosRun) -> None:
    server = run.start_server(appendonly="yes", appendfsync="always")
    proxy = run.closing(FaultProxy(server.port, seed=run.seed))
    run.use(server.url, run.client, parties=proxy.url)
    options = {"lock_duration": 2_000, "stalled_interval": 1_000}
    workers, producers = (10, 5) if run.long else (4, 2)
    run.fleet_of(workers, producers, jobs=500, rate=60, options=options, request_timeout=1_500, work_ms=20)
    frozen = None
    counts: dict[str, int] = {}
    faults = list(FAULTS)
    for number in run.faults(len(FAULTS), every=2, progress=40):
        if number % len(FAULTS) == 0:
            run.random.shuffle(faults)
        fault = faults[number % len(FAULTS)]
        counts[fault] = counts.get(fault, 0) + 1
        if frozen is not None:
            frozen.send(signal.SIGCONT)
            frozen = None
        victim = run.random.choice([worker for worker in run.fleet.workers if worker.alive])
        proxy.delay = (0.0, 0.0)
        match fault:
            case "kill":
                victim.kill()
                run.fleet.replace_worker(victim)
            case "freeze":
                victim.send(signal.SIGSTOP)
                frozen = victim
            case "stop":
                victim.stop(starting=True)
                run.fleet.replace_worker(victim)
            case "server":
                run.serving("served again after", run.restart(server), 5)
            case "functions":
                run.client.execute("FUNCTION", "FLUSH")
            case "cut":
                proxy.cut()
            case "half_open":
                proxy.half_open()
            case _:
                proxy.delay = (0.02, 0.1)
    if frozen is not None:
        frozen.send(signal.SIGCONT)
    proxy.delay = (0.0, 0.0)
    run.expect(run.progress(10, 60) or not _producing(run), "no job is completed after the last fault")
    run.note(", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    run.note(f"last fault at {time.monotonic() - run.began:.0f} s")


def _producing(run: ChaosRun) -> bool:
    return any(producer.alive for producer in run.fleet.producers)
