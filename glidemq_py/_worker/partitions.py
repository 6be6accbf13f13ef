"""The partitions among the queues of a worker: each is a lane, and together they have the weight of their queue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from glidemq_py._core.keys import QueueKeys
from glidemq_py._features.limits.options import RateLimit
from glidemq_py._features.partitions.layout import Partition, shares
from glidemq_py._worker.components import ServedQueue, WorkerComponents
from glidemq_py._worker.slot_pool import TURN_S
from glidemq_py.errors import GlideMQValidationError, UnsupportedOptionError

__all__ = ["turn_of", "with_partitions"]

_PARTITION_TURN_S: Final = 0.05
"""Mean turn of a partition. Their jobs are those of one queue, so larger calls are worth more than short turns."""


def turn_of(queues: Sequence[ServedQueue]) -> float:
    """Return the mean turn of these queues; see `slot_pool`."""
    names = {None if queue.partition is None else queue.partition.queue_name for queue in queues}
    return TURN_S if None in names or len(names) > 1 else _PARTITION_TURN_S


def with_partitions(
    opening: WorkerComponents, layouts: Mapping[str, Sequence[str]], left: Mapping[str, int] | None = None
) -> WorkerComponents:
    """Return the worker with the partitions of its queues in place of those queues.

    Args:
        opening: The worker; without ``several``, of its only queue.
        layouts: Names of the partitions of each queue that has any.
        left: How many of these, the last ones, are not partitions any more, and need no share of a limit.

    Raises:
        UnsupportedOptionError: If the worker has an option that needs a queue without partitions.
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
    _check_options(opening, first)
    # Each queue keeps its share: its weight is divided by the number of its partitions, and all become integers.
    common = math.lcm(*(len(names) for names in layouts.values()))
    lanes: list[ServedQueue] = []
    for queue in several:
        names = layouts.get(queue.keys.name)
        if names is None:
            lanes.append(replace(queue, weight=queue.weight * common))
            continue
        weight = queue.weight * common // len(names)
        limiters = _divided(opening.options.limiter, queue.keys.name, len(names), (left or {}).get(queue.keys.name, 0))
        lanes += (
            ServedQueue(
                QueueKeys(queue.keys.prefix, name), queue.options, weight, Partition(number, queue.keys.name), limiter
            )
            for number, (name, limiter) in enumerate(zip(names, limiters, strict=True))
        )
    return replace(opening, several=tuple(lanes), weighted=True)


def _divided(limiter: RateLimit | None, queue: str, partitions: int, left: int) -> Sequence[RateLimit | None]:
    """Return the share of each partition in the limiter of a worker; one job for those that are left."""
    if limiter is None:
        return [None] * partitions
    try:
        parts = [*shares("limiter", limiter.max, partitions - left), *(1 for _ in range(left))]
        return [RateLimit(each, limiter.duration) for each in parts]
    except GlideMQValidationError as error:
        raise UnsupportedOptionError(error.option, error.value, f"{error.problem} of queue {queue!r}") from None


def _check_options(opening: WorkerComponents, name: str) -> None:
    limiter = opening.options.token_limiter
    if limiter is not None:
        raise UnsupportedOptionError("token_limiter", limiter, f"is not supported: queue {name!r} is partitioned")
