"""Which partition a job belongs to, by its options or its id."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from glidemq_py._core.job_options import JobOptions
from glidemq_py._partitions.layout import Layout, partition_of_key, split_partition_id
from glidemq_py.errors import GlideMQValidationError

_DIGITS: Final = re.compile(r"[0-9]+")


def routing_key(options: JobOptions) -> str | None:
    """Return the text whose hash chooses the partition of a new job; None if the job may be in any partition.

    Raises:
        GlideMQValidationError: A custom id has digits only: each partition counts its own ids.
        GlideMQValidationError: Options would choose different partitions.
    """
    ordering, deduplication = options.ordering, options.deduplication
    keys = {
        "ordering": None if ordering is None else ordering.key,
        "fair_key": options.fair_key,
        "deduplication": None if deduplication is None else deduplication.id,
        "job_id": options.job_id,
    }
    given = {name: key for name, key in keys.items() if key is not None}
    job_id = options.job_id
    if job_id is not None and _DIGITS.fullmatch(job_id) is not None:
        raise GlideMQValidationError("job_id", job_id, "must not be a number in a partitioned queue")
    if len(set(given.values())) > 1:
        first, *_, last = given
        raise GlideMQValidationError(
            last, given[last],
            f"must equal {first} ({given[first]!r}) in a partitioned queue: each chooses the job's partition",
        )  # fmt: skip
    return next(iter(given.values()), None)


class Numbers:
    """Chooses the partitions of jobs that are added together: those without a key go to one for ``rows`` jobs.

    Args:
        partitions: Number of partitions.
        following: Returns the next partition of jobs without a key.
        rows: Jobs without a key that go to the same partition.
        first: The first partition of such jobs, if it is known.
    """

    def __init__(
        self, partitions: int, following: Callable[[], int], rows: int, first: int | None = None
    ) -> None:  # fmt: skip
        self._partitions, self._following, self._rows = partitions, following, rows
        self._turn, self._left = (0, 0) if first is None else (first, rows)

    def next(self, key: str | None) -> int:
        """Return the partition of the next job, given its routing key."""
        if key is not None:
            return partition_of_key(key, self._partitions)
        if not self._left:
            self._turn, self._left = self._following(), self._rows
        self._left -= 1
        return self._turn


def candidates(job_id: str, layout: Layout) -> list[tuple[int, str]]:
    """Return the partitions that may have the job with this id, most likely first, and its id in each.

    An id that names no partition is that of partition 0, or a custom id: then its hash chose the partition, unless
    the job was added by a client that knows no partitions.
    """
    number, own = split_partition_id(job_id)
    if own != job_id:
        return [(number, own)] if number < layout.partitions else [(0, job_id)]
    if _DIGITS.fullmatch(job_id) is not None:
        return [(0, job_id)]
    return [(place, job_id) for place in dict.fromkeys([partition_of_key(job_id, layout.partitions), 0])]
