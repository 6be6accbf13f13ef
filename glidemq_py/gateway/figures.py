"""Figures of a gateway process: its memory, its jobs that were added, fetched and reported, and how long that took."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from glidemq_py._worker.heartbeat import resident_memory

__all__ = ["BUCKETS_S", "Figures", "Histogram", "ProcessMemory", "memory_mb", "process_memory"]

BUCKETS_S: Final = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of the histograms, as bunqueue has them."""
_WINDOW_S: Final = 60
_KINDS: Final[Mapping[str, str]] = {
    "PUSH": "pushed", "PUSHB": "pushed", "PUSHF": "pushed", "PULL": "pulled", "PULLB": "pulled", "ACK": "completed",
    "ACKB": "completed", "FAIL": "failed",
}  # fmt: skip
_TIMED: Final[Mapping[str, str]] = {"pushed": "push", "pulled": "pull", "completed": "ack"}


class Histogram:
    """Durations by bucket."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total_s = 0.0

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    @property
    def mean_ms(self) -> float:
        """Mean in ms; 0 without a duration."""
        return round(self.total_s / self.count * 1_000, 3) if self.count else 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds

    def quantile_ms(self, share: float) -> float:
        """Return the upper bound of the bucket of a quantile, ms; 0 without a duration."""
        wanted, seen = share * self.count, 0
        for bound, count in zip((*BUCKETS_S, BUCKETS_S[-1]), self.counts, strict=True):
            seen += count
            if count and seen >= wanted:
                return bound * 1_000
        return 0.0


class Figures:
    """Counts the jobs of the commands of this process.

    Attributes:
        totals: Jobs pushed, pulled, completed and failed since the start.
        durations: Histograms of push, pull (without waiting) and ack.
    """

    def __init__(self) -> None:
        self.totals = dict.fromkeys(_KINDS.values(), 0)
        self.durations = {name: Histogram() for name in _TIMED.values()}
        self._started = time.monotonic()
        self._seconds: dict[str, dict[int, int]] = {kind: {} for kind in self.totals}

    @property
    def uptime_ms(self) -> int:
        """Time since the start, ms."""
        return round((time.monotonic() - self._started) * 1_000)

    def executed(self, command: str, given: Mapping[str, Any], answer: Mapping[str, Any], seconds: float) -> None:
        """Count a command that succeeded."""
        kind = _KINDS.get(command)
        if kind is None:
            return
        jobs = _jobs_of(command, given, answer)
        self.totals[kind] += jobs
        second = int(time.monotonic())
        recent = self._seconds[kind]
        recent[second] = recent.get(second, 0) + jobs
        if len(recent) > _WINDOW_S + 1:
            del recent[next(iter(recent))]
        if kind in _TIMED and not given.get("timeout"):
            self.durations[_TIMED[kind]].add(seconds)

    def rate(self, kind: str) -> float:
        """Return the jobs per second of the last minute."""
        oldest = time.monotonic() - _WINDOW_S
        span = max(1.0, min(_WINDOW_S, time.monotonic() - self._started))
        return round(sum(jobs for second, jobs in self._seconds[kind].items() if second >= oldest) / span, 2)


def _jobs_of(command: str, given: Mapping[str, Any], answer: Mapping[str, Any]) -> int:
    if command == "PUSHB":
        return len(answer["ids"])
    if command == "PUSHF":
        return len(answer["data"]["jobs"])
    if command == "PULL":
        return int(answer["job"] is not None)
    if command == "PULLB":
        return len(answer["jobs"])
    if command == "ACKB":
        ignored: Mapping[str, Any] = answer.get("data") or {}
        return len(set(given["ids"])) - len(set(ignored.get("ignoredIds", ())))
    return int("data" not in answer)  # an outcome that came too late has data


_MIB: Final = 1_048_576


class ProcessMemory(NamedTuple):
    """The memory of a process, bytes.

    Attributes:
        resident: Physical memory, with the code and files that it maps; None if unknown.
        heap_used: Physical memory of its own data: objects, buffers, and stacks of threads; None except on Linux.
        heap_total: The same with what was swapped out.
    """

    resident: int | None
    heap_used: int | None
    heap_total: int | None


def process_memory() -> ProcessMemory:
    """Return the memory of this process."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file)
        used = _bytes(fields["RssAnon"])
        return ProcessMemory(resident_memory(), used, used + _bytes(fields.get("VmSwap", "0 kB")))
    except (OSError, KeyError):
        return ProcessMemory(resident_memory(), None, None)


def memory_mb() -> dict[str, float]:
    """Return what is known of the memory of this process, MiB, by the names of the HTTP API."""
    memory = process_memory()
    sizes = {"heapUsed": memory.heap_used, "heapTotal": memory.heap_total, "rss": memory.resident}
    return {name: round(size / _MIB, 1) for name, size in sizes.items() if size is not None}


def _bytes(text: str) -> int:
    return int(text.split()[0]) * 1_024
