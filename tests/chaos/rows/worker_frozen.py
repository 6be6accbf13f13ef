"""A worker is frozen (SIGSTOP) until its jobs were given to others, and continued: its results are stale."""

import signal
from functools import partial

from tests.chaos.run import ChaosRun

NUMBER = 7
TITLE = "worker frozen for more than its lock, then continued"
LOCK_MS = 1_000


def play(run: ChaosRun) -> None:
    run.start_server()
    options = {"lock_duration": LOCK_MS, "stalled_interval": 1_000, "concurrency": 5}
    run.fleet_of(3, jobs=400, rate=100, options=options, work_ms=30)
    for _ in run.faults(2, every=4, progress=80):
        victim = run.random.choice(run.fleet.workers)
        victim.wait_active(2)
        victim.send(signal.SIGSTOP)
        run.ledger.sync()
        held = frozenset(run.ledger.active[victim.name])
        runs = {job_id: len(run.ledger.started[job_id]) for job_id in held}
        recovered = run.ledger.wait(partial(_all_started_again, run, runs), 60)
        victim.send(signal.SIGCONT)
        run.expect(recovered, f"jobs of a frozen worker were not recovered: {sorted(held)}")
        run.progress(20)


def _all_started_again(run: ChaosRun, runs: dict[str, int]) -> bool:
    return all(len(run.ledger.started[job_id]) > count for job_id, count in runs.items())
