"""Which partition a job belongs to, by its options or its id."""

from __future__ import annotations

import re
from typing import Final

from glidemq_py._core.job_options import JobOptions
from glidemq_py._features.partitions.layout import Layout, split_partition_id
from glidemq_py.errors import GlideMQValidationError, UnsupportedOptionError

__all__ = ["candidates", "moving_row", "routing_key"]

_DIGITS: Final = re.compile(r"[0-9]+")


def routing_key(options: JobOptions) -> str | None:
    """Return the text whose hash chooses the partition of a new job; None if the job may be in any partition.

    Raises:
        GlideMQValidationError: A custom id has digits only: each partition counts its own ids.
        UnsupportedOptionError: Options would choose different partitions.
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
        raise UnsupportedOptionError(
            last, given[last],
            f"must equal {first} ({given[first]!r}) in a partitioned queue: each chooses the job's partition",
        )  # fmt: skip
    return next(iter(given.values()), None)


def moving_row(options: JobOptions, key: str) -> list[object] | None:
    """Return the row ``routed_key`` of a new job; None if it may be added without regard to a former partition."""
    ordering, deduplication = options.ordering, options.deduplication
    if ordering is None and deduplication is None and options.job_id is None:
        return None
    dedup = False if deduplication is None else deduplication.to_row()
    return [key, options.job_id or False, ordering is not None, dedup]


def candidates(job_id: str, layout: Layout) -> list[tuple[int, str]]:
    """Return the partitions that may have the job with this id, most likely first, and its id in each.

    An id that names no partition is that of partition 0, or a custom id: then its hash chose the partition, unless
    the job was added by a client that knows no partitions.
    """
    number, own = split_partition_id(job_id)
    if own != job_id:
        return [(number, own)] if number < len(layout.served) else [(0, job_id)]
    if _DIGITS.fullmatch(job_id) is not None:
        return [(0, job_id)]
    return [(home, job_id) for home in dict.fromkeys([*layout.homes(job_id)[::-1], 0])]
