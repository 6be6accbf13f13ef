"""Bad jobs beside good ones: they kill their process, leak memory, never return, are large. All workers are killed."""

import math
import signal
import time
from functools import partial

from tests.chaos.ledger import COMPLETED
from tests.chaos.run import ChaosRun

NUMBER = 11
TITLE = "poison, leaking and endless jobs, 1 MiB payloads beside small ones, all workers killed in one deploy"
WORKERS, CONCURRENCY, MAX_STALLED = 4, 8, 1
DEATHS = int(math.log2(CONCURRENCY)) + 1 + MAX_STALLED
"""docs/learn/guarantees.md: process deaths caused by one poison job."""
MEMORY_LIMIT = "160M"
SHARE = 80
"""Throughput of the other jobs beside bad ones, in percent of that before."""
CALM_S = 4.0
LEAKING = 16
"""More than fit into a process with `MEMORY_LIMIT` (worker_target.LEAKED_BYTES)."""


def play(run: ChaosRun):
    run.start_server()
    options = {
        "concurrency": CONCURRENCY, "max_stalled_count": MAX_STALLED, "lock_duration": 1_000, "stalled_interval": 1_000,
    }  # fmt: skip
    arguments = ("--processes", "1", "--max-memory", MEMORY_LIMIT, "--log-level", "info")

    workers = WORKERS if run.long else WORKERS // 2

    def start():
        for _ in range(workers):
            run.fleet.worker(*arguments, options=options)
        for worker in run.fleet.workers[-workers:]:
            worker.wait_ready()

    start()
    run.fleet.producer(rate=60)
    run.fleet.producer(rate=2, payload=(1 << 20) - 1_000, kinds=("plain",))
    run.progress(100)
    begin = time.monotonic()
    run.ledger.wait(lambda: False, CALM_S * (3 if run.long else 1))
    before, calm = _rate(run, begin), run.control.slowdown(begin, time.monotonic())
    poisoned = 0
    for _ in run.faults(1, every=10, progress=30):
        begin = time.monotonic()
        bad = [run.fleet.producer(1, kinds=(kind,)).name + "-1" for kind in ("poison", "endless")]
        run.fleet.producer(LEAKING, kinds=("leaking",))
        poisoned += 1
        for job_id in bad:
            ended = run.ledger.wait(partial(_has_failed, run, job_id), 120)
            run.expect(ended, f"job {job_id} ({run.ledger.attempted.get(job_id)}) has not failed")
        beside = _rate(run, begin, CALM_S)
        slower = max(1.0, run.control.slowdown(begin, time.monotonic()) / calm)
        run.bound("throughput of the others", beside / before * 100, SHARE, "%", slowdown=slower, least=True)
    was_recycled = run.ledger.wait(lambda: _logged(run, "recycled: "), 60)
    run.expect(was_recycled, f"no process was recycled at {MEMORY_LIMIT} of memory")
    recycled = _logged(run, "recycled: ")
    run.bound("process deaths per poison job", _logged(run, "restarting in") / max(1, poisoned), DEATHS, "")
    run.note(f"{poisoned} poison jobs; {recycled} processes recycled at {MEMORY_LIMIT}")
    # A deploy that kills everything: the supervisors' children die with them.
    for worker in run.fleet.workers:
        worker.send(signal.SIGKILL)
    for worker in run.fleet.workers:
        worker.process.wait()
    start()
    run.expect(run.progress(20, 60), "no job was completed after all workers were killed")
    run.fleet.finish_producers(stop=True)


def _rate(run: ChaosRun, begin: float, least_s: float = 0.0) -> float:
    """Return the completed jobs per second since a time, after at least so many seconds."""
    run.ledger.wait(lambda: False, begin + least_s - time.monotonic())
    run.ledger.sync()
    now = time.monotonic()
    done = sum(begin < step.at <= now for steps in run.ledger.ends[COMPLETED].values() for step in steps)
    return done / (now - begin)


def _has_failed(run: ChaosRun, job_id: str) -> bool:
    return run.client.execute("ZSCORE", run.key("failed"), job_id) is not None


def _logged(run: ChaosRun, text: str) -> int:
    return sum(text in line for worker in run.fleet.workers for line in worker.lines())
