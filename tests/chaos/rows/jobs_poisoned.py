"""Jobs that kill their process or never return, large payloads, and a deploy that kills all workers."""

import math
import re
import signal
from functools import partial

from tests.chaos.run import ChaosRun

NUMBER = 11
TITLE = "poison and endless jobs, 1 MiB payloads, all workers killed in one deploy"
CONCURRENCY, MAX_STALLED = 8, 1
DEATHS = int(math.log2(CONCURRENCY)) + 1 + MAX_STALLED
"""docs/learn/guarantees.md: process deaths caused by one poison job."""


def play(run: ChaosRun) -> None:
    run.start_server()
    options = {
        "concurrency": CONCURRENCY, "max_stalled_count": MAX_STALLED, "lock_duration": 1_000, "stalled_interval": 1_000,
    }  # fmt: skip
    for _ in range(2):
        run.fleet.worker("--processes", "1", options=options)
    for worker in run.fleet.workers:
        worker.wait_ready()
    run.fleet.producer(rate=60)
    run.fleet.producer(rate=2, payload=(1 << 20) - 1_000, kinds=("plain",))
    poisoned = 0
    for _ in run.faults(1, every=10, progress=30):
        run.fleet.producer(1, kinds=("poison",))
        run.fleet.producer(1, kinds=("endless",))
        poisoned += 1
        poison = run.fleet.producers[-2].name + "-1"
        ended = run.ledger.wait(partial(_has_failed, run, poison), 120)
        run.expect(ended, f"the poison job {poison} has not failed")
    deaths = sum(len(re.findall("restarting in", "\n".join(worker.lines()))) for worker in run.fleet.workers)
    run.bound("process deaths per poison job", deaths / max(1, poisoned), DEATHS, "")
    # A deploy that kills everything: the supervisors' children die with them.
    for worker in run.fleet.workers:
        worker.send(signal.SIGKILL)
    for worker in run.fleet.workers:
        worker.process.wait()
    for _ in range(2):
        run.fleet.worker(options=options).wait_ready()
    run.expect(run.progress(20, 60), "no job was completed after all workers were killed")
    run.fleet.finish_producers(stop=True)


def _has_failed(run: ChaosRun, job_id: str) -> bool:
    return run.client.execute("ZSCORE", run.key("failed"), job_id) is not None
