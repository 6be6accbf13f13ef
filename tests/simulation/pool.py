"""Workers that serve several queues with one pool of slots, and the judgment of the order in which they start jobs."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from glidemq_py import Worker
from tests.simulation.network import Network, Source
from tests.simulation.producer import CARRIED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from glidemq_py import Job
    from tests.simulation.ledger import Ledger

__all__ = ["AGAIN", "POOL_QUEUES", "create_pool_worker", "judge_pool"]

AGAIN: Final = "again"
"""The queue whose completed jobs are requeued."""
WEIGHTS: Final = {"urgent": 3, "usual": 2, "bulky": 1}
POOL_QUEUES: Final = (*WEIGHTS, AGAIN)
CONCURRENCY: Final = 3
_SOON_MS: Final = 60
"""Time in which an idle worker starts a job, and a free slot goes to the first queue, if no message is lost."""


def create_pool_worker(
    network: Network, handle: Callable[[Job], Awaitable[str]], how: str, number: int, **options: Any
) -> Worker:
    """Return a worker of all queues of the pool; for the code of a party.

    Args:
        network: the network.
        handle: the handler.
        how: "list" = strict order, "weights" = shares.
        number: makes the name of the worker unique.
        options: of the worker.
    """
    queues: Any = list(POOL_QUEUES) if how == "list" else {**WEIGHTS, AGAIN: 1}
    worker = Worker(queues, handle, Source(network), concurrency=CONCURRENCY, middleware=[CARRIED], **options)
    worker.consumer = f"py-pool-{number}"
    return worker


def judge_pool(ledger: Ledger, how: str, workers: int, problems: list[str]):
    """Judge a run without faults: idle workers start jobs at once, a list is strict, and weights starve no queue."""
    ready: dict[str, dict[str, int]] = defaultdict(dict)
    active: set[str] = set()
    free_since: int | None = 0
    """Since when a slot is free and nothing is ready."""
    together: dict[str, int] = defaultdict(int)
    """Starts of each queue since all of the three have had ready jobs."""
    for event in ledger.log:
        queue, kind = event[b"queue"].decode(), event[b"event"]
        if queue not in POOL_QUEUES or kind != b"state":
            continue
        job_id, state, at = event[b"jobId"].decode(), event[b"state"].decode(), int(event[b"at"])
        since = ready[queue].pop(job_id, None)
        if state == "waiting":
            ready[queue][job_id] = at
            if free_since is not None and len(active) >= CONCURRENCY * workers:
                free_since = None
        elif state == "active":
            active.add(job_id)
            if since is not None:
                _judge_start(queue, job_id, at, since, how, ready, free_since, problems)
                _count_start(queue, how, ready, together, problems)
        else:
            active.discard(job_id)
        is_free = len(active) < CONCURRENCY * workers and not any(ready.values())
        if not is_free and len(active) >= CONCURRENCY * workers:
            free_since = None
        elif is_free and free_since is None:
            free_since = at


def _judge_start(
    queue: str,
    job_id: str,
    at: int,
    since: int,
    how: str,
    ready: dict[str, dict[str, int]],
    free_since: int | None,
    problems: list[str],
):
    if free_since is not None and free_since < since and at - since > _SOON_MS:
        problems.append(f"job {job_id} of the idle queue {queue!r} started {at - since} ms after its add")
    if how != "list":
        return
    for earlier in POOL_QUEUES[: POOL_QUEUES.index(queue)]:
        longest = min(ready[earlier].values(), default=at)
        if at - longest > _SOON_MS:
            problems.append(
                f"job {job_id} of {queue!r} started, but {earlier!r} has had a ready job for {at - longest} ms"
            )


def _count_start(queue: str, how: str, ready: dict[str, dict[str, int]], together: dict[str, int], problems: list[str]):
    if how != "weights":
        return
    if not all(ready[name] for name in WEIGHTS):
        together.clear()
        return
    together[queue] += 1
    total, weights = sum(together.values()), sum(WEIGHTS.values())
    for name, weight in WEIGHTS.items():
        behind = total * weight / weights - together[name]
        if behind > 4 * CONCURRENCY:
            problems.append(f"queue {name!r} got {together[name]} of {total} starts, with {weight} of {weights} shares")
            together.clear()
            return
