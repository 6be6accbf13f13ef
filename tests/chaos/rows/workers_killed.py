"""One of four workers is killed (SIGKILL) every two seconds, and replaced."""

from tests.chaos.run import ChaosRun

NUMBER = 1
TITLE = "one of 4 workers killed every 2 s"
JOBS = 20_000
LOCK_MS, INTERVAL_MS = 2_000, 1_000
LIMIT_S = (LOCK_MS + INTERVAL_MS) / 1000 + 1


def play(run: ChaosRun):
    run.start_server()
    options = {"lock_duration": LOCK_MS, "stalled_interval": INTERVAL_MS, "concurrency": 5}
    workers = [run.fleet.worker(options=options, work_ms=30) for _ in range(4)]
    for worker in workers:
        worker.wait_ready()
    for _ in range(2):
        run.fleet.producer(rate=100)
    kills = 0
    for _ in run.faults(3, jobs=JOBS):
        index = run.random.randrange(len(workers))
        victim = workers[index]
        victim.wait_active()
        run.killed(victim.kill(), LIMIT_S)
        kills += 1
        workers[index] = run.fleet.replace_worker(victim)
    run.note(f"{kills} workers killed")
