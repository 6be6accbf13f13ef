"""A queue is created with partitions while its workers run, one of which is killed every 2 s."""

from typing import Final

from tests.chaos.run import ChaosRun
from tests.chaos.settings import KINDS

NUMBER = 21
TITLE = "a queue is created with 8 partitions while its 3 workers run, one is killed every 2 s"
LOCK_MS, INTERVAL_MS = 2_000, 1_000
IDLE_MS = 30_000
"""Time within which stalled jobs of other workers are found in a partition that is idle otherwise."""
LIMIT_S = (LOCK_MS + IDLE_MS) / 1000 + 2
PARTITIONS = 8
OTHER_KEYS: Final = frozenset(("ordered", "fair", "fair_delayed"))
"""Kinds whose key is another one than the id: each would choose the partition of the job."""
DIVIDED: Final = frozenset(("limited",))
"""Kinds with a limit, which cannot be smaller than the number of partitions."""


def play(run: ChaosRun):
    run.start_server()
    options = {"lock_duration": LOCK_MS, "stalled_interval": INTERVAL_MS, "concurrency": 10}
    workers = [run.fleet.worker(options=options, work_ms=20) for _ in range(3)]
    for worker in workers:
        worker.wait_ready()
    kinds = tuple(kind for kind in KINDS if kind not in OTHER_KEYS | DIVIDED)
    with run.queue(partitions=PARTITIONS) as queue:
        run.partitioned(queue.settings.get_partitions().names)
    for _ in range(2):
        run.fleet.producer(rate=75, kinds=kinds)
    for _ in run.faults(5):
        index = run.random.randrange(len(workers))
        victim = workers[index]
        victim.wait_active()
        run.killed(victim.kill(), LIMIT_S)
        workers[index] = run.fleet.replace_worker(victim)
    run.checks.append(lambda: _check_spread(run))


def _check_spread(run: ChaosRun):
    """Each partition has had jobs, and the whole queue counts them all."""
    counts = {name: sum(int(run.client.execute("ZCARD", run.key(end, name))) for end in ("completed", "failed"))
              for name in run.names}  # fmt: skip
    run.expect(all(counts.values()), f"partitions without jobs: {counts}")
    with run.queue() as queue:
        found = queue.get_job_counts()
        assert queue.settings.get_partitions().names == run.names
    run.expect(found.completed + found.failed == sum(counts.values()), f"not all are served: {counts}")
