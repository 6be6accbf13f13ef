"""FLUSHALL in the middle of the work: the queue is rebuilt, and later jobs are not affected."""

import os
import time

from tests.chaos.run import EVENTS_KEPT, ChaosRun

NUMBER = 6
TITLE = "FLUSHALL under load"
IDLE_S = 5.0


def play(run: ChaosRun):
    run.start_server()
    run.fleet_of(2, jobs=400)
    flushes = 0
    for _ in run.faults(2, every=5, progress=80):
        run.client.execute("FLUSHALL")
        # A job whose add was attempted later is of the new data, and must not be lost.
        run.ledger.sync()
        run.flushed_at = at = time.monotonic()
        with run.queue() as queue:
            queue.settings.set_event_retention(EVENTS_KEPT)
        run.serving("rebuilt: workers fetched again after", at, 2, run.fleet.workers)
        flushes += 1
    run.progress(2_000 if run.long else 100)  # all of these must end
    run.finish_adding()
    run.wait_drained()
    before = [_cpu_seconds(worker.process.pid) for worker in run.fleet.workers]
    run.ledger.wait(lambda: False, IDLE_S)
    after = [_cpu_seconds(worker.process.pid) for worker in run.fleet.workers]
    shares = [(late - early) / IDLE_S * 100 for early, late in zip(before, after, strict=True)]
    run.bound("CPU of an idle worker", max(shares), 5, "%")
    run.note(f"{flushes} times FLUSHALL")


def _cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
