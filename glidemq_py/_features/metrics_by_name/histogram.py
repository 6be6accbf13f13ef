"""Histograms of durations: compact, of bounded size, and merged by adding counts.

A bucket has the width of an eighth of its durations, so a percentile is off by at most a sixteenth. Durations below
16 ms have buckets of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_LONGEST: Final = 2**40
"""34 years, in ms."""


def bucket_of(milliseconds: int) -> int:
    """Return the number of the bucket of a duration."""
    if milliseconds < 8:
        return max(0, milliseconds)
    milliseconds = min(milliseconds, _LONGEST)
    shift = milliseconds.bit_length() - 4
    return (shift << 3) + (milliseconds >> shift)


def middle_of(bucket: int) -> float:
    """Return the duration in the middle of a bucket, ms."""
    if bucket < 16:
        return float(bucket)
    shift = (bucket >> 3) - 1
    return (((bucket & 7) + 8) << shift) + ((1 << shift) - 1) / 2


class Times:
    """Durations of jobs, in ms.

    Attributes:
        count: Number of durations.
        total: Their sum.
        buckets: Number of durations per bucket.
    """

    __slots__ = ("buckets", "count", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.buckets: dict[int, int] = {}

    def add(self, milliseconds: int, count: int = 1) -> None:
        """Add a duration, ``count`` times."""
        bucket = bucket_of(milliseconds)
        self.count += count
        self.total += milliseconds * count
        self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def merge(self, packed: Sequence[Any]) -> None:
        """Add durations in the form of `packed`. Malformed values are skipped."""
        numbers = [value if isinstance(value, int) and value >= 0 else 0 for value in packed]
        if len(numbers) < 2:
            return
        self.count += numbers[0]
        self.total += numbers[1]
        for bucket, count in zip(numbers[2::2], numbers[3::2], strict=False):
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def packed(self) -> list[int]:
        """Return the form of the wire: count, sum, then bucket and count by turns."""
        found = [self.count, self.total]
        for pair in sorted(self.buckets.items()):
            found += pair
        return found

    def percentile(self, percent: int) -> float:
        """Return the duration that so many percent of the durations do not exceed, ms; 0 without durations."""
        return _percentile(self.buckets, percent)


def _percentile(buckets: Mapping[int, int], percent: int) -> float:
    rank = -(-sum(buckets.values()) * percent // 100)
    for bucket, count in sorted(buckets.items()):
        rank -= count
        if rank <= 0:
            return middle_of(min(bucket, 512))
    return 0.0
