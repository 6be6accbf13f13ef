"""A worker is frozen (SIGSTOP) for twice its lock, so that others get its jobs; its results are then stale."""

import signal
import time
from functools import partial

from tests.chaos.run import ChaosRun

NUMBER = 7
TITLE = "worker frozen for twice its lock, then continued"
LOCK_MS = 1_000


def play(run: ChaosRun):
    run.start_server()
    options = {"lock_duration": LOCK_MS, "stalled_interval": 1_000, "concurrency": 5}
    run.fleet_of(3, jobs=400, rate=100, options=options, work_ms=30)
    frozen: list[tuple[str, float, frozenset[str]]] = []
    for _ in run.faults(2, every=4, progress=80):
        victim = run.random.choice(run.fleet.workers)
        victim.wait_active(2)
        victim.send(signal.SIGSTOP)
        thaw_at = time.monotonic() + 2 * LOCK_MS / 1000
        run.ledger.sync()
        held = frozenset(run.ledger.active[victim.name])
        runs = {job_id: len(run.ledger.started[job_id]) for job_id in held}
        recovered = run.ledger.wait(partial(_all_started_again, run, runs), 60)
        run.ledger.wait(lambda: False, thaw_at - time.monotonic())
        frozen.append((victim.name, time.monotonic(), held))
        victim.send(signal.SIGCONT)
        run.expect(recovered, f"jobs of a frozen worker were not recovered: {sorted(held)}")
        run.progress(20)

    def check():
        late = [(name, job_id) for name, at, held in frozen for job_id in held if _accepted_late(run, name, at, job_id)]
        run.expect(not late, f"results of a frozen worker were accepted: {late[:5]}")
        jobs = sum(len(held) for _, _, held in frozen)
        run.note(f"{len(frozen)} times frozen, with {jobs} jobs; {run.ledger.stale.total()} stale results discarded")
        run.expect(run.ledger.stale, "no worker discarded a stale result")

    run.checks.append(check)


def _all_started_again(run: ChaosRun, runs: dict[str, int]) -> bool:
    return all(len(run.ledger.started[job_id]) > count for job_id, count in runs.items())


def _accepted_late(run: ChaosRun, party: str, at: float, job_id: str) -> bool:
    """Whether the worker completed its old attempt after it was continued, instead of one that it started since."""
    if any(step.party == party and step.at > at for step in run.ledger.started[job_id]):
        return False
    return any(step.party == party and step.at > at for step in run.ledger.ends["completed"][job_id])
