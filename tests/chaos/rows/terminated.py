"""Workers are stopped (SIGTERM) at any moment: nothing is stranded, and no attempt is spent."""

import time
from functools import partial

from tests.chaos.run import ChaosRun

NUMBER = 15
TITLE = "worker stopped (SIGTERM) at any moment"
STOPS = 500
WORKERS = 4
GRACE_MS = 500
EXIT_S = 1.0
"""After the grace period the jobs are released, the connections closed, and Python itself ends."""
DAY_MS = 86_400_000


def play(run: ChaosRun):
    run.start_server()
    # A stranded job would not be recovered for a day, so the queue would not drain.
    options = {"lock_duration": DAY_MS, "stalled_interval": 1_000}
    arguments = ("--shutdown-timeout", f"{GRACE_MS}ms")
    run.no_stalls = True

    def start():
        run.fleet.worker(*arguments, options=options, work_ms=run.random.choice((5, 100, 600)))

    for _ in range(WORKERS):
        start()
    run.fleet.workers[0].wait_ready()
    run.fleet.producer(rate=20)  # the starts of the workers need most of the processor
    stops = 0
    for _ in run.faults(6, every=0.05, progress=5, least=STOPS):
        alive = [worker for worker in run.fleet.workers if worker.alive]
        victim = run.random.choice(alive)
        match run.random.randrange(4):
            case 0:
                victim.wait_ready()
            case 1 | 2:
                victim.wait_ready()
                run.ledger.wait(partial(_runs, run, victim.name, run.random.randint(1, 4)), 1)
            case _:  # at any moment of its start
                run.ledger.wait(lambda: False, run.random.random() * 0.5)
        begin = time.monotonic()
        limit = GRACE_MS / 1000 + EXIT_S
        victim.stop(starting=True)
        run.took("exit after SIGTERM", begin, limit)
        stops += 1
        start()

    run.fleet.finish_producers(stop=True)

    def check():
        run.note(f"{stops} workers stopped")
        spent = [
            job_id
            for job_id, steps in run.ledger.started.items()
            if run.ledger.attempted.get(job_id) not in ("retried", "failing")
            and any(step.detail != "0" for step in steps)
        ]
        run.expect(not spent, f"attempts were counted: {spent[:10]}")

    run.checks.append(check)


def _runs(run: ChaosRun, party: str, jobs: int) -> bool:
    return len(run.ledger.active[party]) >= jobs
