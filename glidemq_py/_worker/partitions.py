"""The partitions among the queues of a worker: each is a lane, and together they have the weight of their queue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.limits import RateLimit
from glidemq_py._partitions.layout import Partition, shares
from glidemq_py._worker.components import ServedQueue, WorkerComponents
from glidemq_py._worker.slot_pool import TURN_S
from glidemq_py.errors import GlideMQValidationError

_PARTITION_TURN_S: Final = 0.05
"""Mean turn of a partition. Their jobs are those of one queue, so larger calls are worth more than short turns."""


def turn_of(queues: Sequence[ServedQueue]) -> float:
    """Return the mean turn of these queues; see `slot_pool`."""
    names = {None if queue.partition is None else queue.partition.queue_name for queue in queues}
    return TURN_S if None in names or len(names) > 1 else _PARTITION_TURN_S


def with_partitions(opening: WorkerComponents, layouts: Mapping[str, Sequence[str]]) -> WorkerComponents:
    """Return the worker with the partitions of its queues in place of those queues.

    Args:
        opening: The worker; without ``several``, of its only queue.
        layouts: Names of the partitions of each queue that has any.

    Raises:
        GlideMQValidationError: If the worker has an option that needs a queue without partitions.
        GlideMQValidationError: If the queues are served in strict order.
    """
    if not layouts:
        return opening
    several = opening.several or (ServedQueue(opening.keys, opening.queue_options, 1),)
    first = next(iter(layouts))
    if len(several) > 1 and not opening.weighted:
        raise GlideMQValidationError(
            "queue_name", [queue.keys.name for queue in several],
            f"must be a mapping of names to weights: {first!r} is partitioned, which strict order does not support",
        )  # fmt: skip
    # Each queue keeps its share: its weight is divided by the number of its partitions, and all become integers.
    common = math.lcm(*(len(names) for names in layouts.values()))
    lanes: list[ServedQueue] = []
    for queue in several:
        names = layouts.get(queue.keys.name)
        if names is None:
            lanes.append(replace(queue, weight=queue.weight * common))
            continue
        weight = queue.weight * common // len(names)
        limiters, tokens = _limiters(opening, queue.keys.name, len(names))
        lanes += (
            ServedQueue(
                QueueKeys(queue.keys.prefix, name), queue.options, weight, Partition(number, queue.keys.name),
                limiters[number], tokens[number],
            )
            for number, name in enumerate(names)
        )  # fmt: skip
    return replace(opening, several=tuple(lanes), weighted=True)


def _limiters(
    opening: WorkerComponents, queue: str, partitions: int
) -> tuple[Sequence[RateLimit | None], Sequence[int | None]]:
    """Return the share of each partition in the limiter and the token limiter of a worker."""
    limiter, tokens = opening.options.limiter, opening.options.token_limiter
    none = [None] * partitions
    jobs = none if limiter is None else [
        RateLimit(each, limiter.duration) for each in _divided("limiter", limiter.max, queue, partitions)
    ]  # fmt: skip
    if tokens is None or tokens.scope == "worker":
        return jobs, none
    return jobs, _divided("token_limiter", tokens.max_tokens, queue, partitions)


def _divided(option: str, total: int, queue: str, partitions: int) -> list[int]:
    """Return the share of each partition."""
    if total < partitions:
        problem = f"must be at least {partitions}, the number of partitions of queue {queue!r}"
        raise GlideMQValidationError(option, total, problem)
    return shares(option, total, partitions)
