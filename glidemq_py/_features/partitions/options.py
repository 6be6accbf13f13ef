"""The result of `Queue.get_partitions`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QueuePartitions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePartitions:
    """The partitions of a queue at one moment.

    Attributes:
        count: number of partitions that get new jobs; 1 = the queue is not partitioned.
        serving: number of partitions that may have jobs: more than ``count`` while the queue shrinks.
        is_settled: False from a change of the number until no former partition has jobs any more whose keys belong to
            another one, and `Queue.set_partitions` has been called again.
        names: names of the ``serving`` partitions, as queues.
    """

    count: int
    serving: int
    is_settled: bool
    names: tuple[str, ...]
