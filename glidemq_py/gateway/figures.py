"""Figures of a gateway process: its memory, its jobs that were added, fetched and reported, and how long that took.

And `SharedRead`: reads of all queues, which many clients may request at the same time, and which cost a call per queue.
Each caller gets the result of a read that began after its request, so it sees what was changed before. One read runs at
a time, and all requests that arrive during it share the next one. Reads take at most a fifth of the time, so that a
client that repeats them does not delay the others.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from glidemq_py._worker.heartbeat import resident_memory
from glidemq_py.gateway.table import Given

BUCKETS_S: Final = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of the histograms, as bunqueue has them."""
_WINDOW_S: Final = 60
_TIMED: Final[Mapping[str, str]] = {"pushed": "push", "pulled": "pull", "completed": "ack"}


def _acknowledged(given: Given, answer: Given) -> int:
    ignored: Given = answer.get("data") or {}
    return len(set(given["ids"])) - len(set(ignored.get("ignoredIds", ())))


def _in_time(given: Given, answer: Given) -> int:
    return int("data" not in answer)  # an outcome that came too late has data


_COUNTED: Final[Mapping[str, tuple[str, Callable[[Given, Given], int]]]] = {
    "PUSH": ("pushed", lambda given, answer: 1),
    "PUSHB": ("pushed", lambda given, answer: len(answer["ids"])),
    "PUSHF": ("pushed", lambda given, answer: len(answer["data"]["jobs"])),
    "PULL": ("pulled", lambda given, answer: int(answer["job"] is not None)),
    "PULLB": ("pulled", lambda given, answer: len(answer["jobs"])),
    "ACK": ("completed", _in_time),
    "ACKB": ("completed", _acknowledged),
    "FAIL": ("failed", _in_time),
}
"""What the jobs of a command are counted as, and their number."""


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
        self.totals = dict.fromkeys((kind for kind, _ in _COUNTED.values()), 0)
        self.durations = {name: Histogram() for name in _TIMED.values()}
        self._started = time.monotonic()
        self._seconds: dict[str, dict[int, int]] = {kind: {} for kind in self.totals}

    @property
    def uptime_ms(self) -> int:
        """Time since the start, ms."""
        return round((time.monotonic() - self._started) * 1_000)

    def executed(self, command: str, given: Given, answer: Given, seconds: float) -> None:
        """Count a command that succeeded."""
        counted = _COUNTED.get(command)
        if counted is None:
            return
        kind, count = counted
        jobs = count(given, answer)
        self.totals[kind] += jobs
        second = int(time.monotonic())
        recent = self._seconds[kind]
        if second in recent:
            recent[second] += jobs
        else:
            recent[second] = jobs
            if len(recent) > _WINDOW_S + 1:
                del recent[next(iter(recent))]
        if kind in _TIMED and not given.get("timeout"):
            self.durations[_TIMED[kind]].add(seconds)

    def rate(self, kind: str) -> float:
        """Return the jobs per second of the last minute."""
        oldest = time.monotonic() - _WINDOW_S
        span = max(1.0, min(_WINDOW_S, time.monotonic() - self._started))
        return round(sum(jobs for second, jobs in self._seconds[kind].items() if second >= oldest) / span, 2)


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


T = TypeVar("T")

_PAUSE_PART: Final = 4.0
"""Length of the pause after a read, as a multiple of the read's duration."""
_SHORT_S: Final = 0.005
"""A shorter read needs no pause."""
_MOST_PAUSE_S: Final = 2.0
KEPT_S: Final = 10.0
"""How old the numbers of a health check may be before they are read again."""
_WAIT_S: Final = 1.0
"""How long a check waits for new numbers before it is answered with the last ones."""


class SharedRead(Generic[T]):
    """A read that concurrent callers share.

    Args:
        read: Reads.
    """

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._waiting: asyncio.Task[T] | None = None
        """The read that has not begun."""
        self._last: asyncio.Task[T] | None = None
        self._free_at = 0.0
        self._found: T | None = None
        self._read_at: float | None = None
        """When the last read has ended."""

    async def get(self) -> T:
        """Return the result of a read that begins after this call. Raises the errors of the read."""
        return await asyncio.shield(self._begin())

    async def latest(self) -> T | None:
        """Return the last result; a new one if it is older than `KEPT_S` and the new one is there soon."""
        reading = self._last
        is_old = self._read_at is None or time.monotonic() - self._read_at >= KEPT_S
        if is_old and (reading is None or reading.done()):
            reading = self._begin()
        if reading is not None:
            await asyncio.wait((reading,), timeout=_WAIT_S)
        return self._found

    def _begin(self) -> asyncio.Task[T]:
        task = self._waiting
        if task is None:
            task = self._waiting = self._last = asyncio.create_task(self._run(self._last), name="gateway-shared-read")
            task.add_done_callback(_ignore_result)
        return task

    async def close(self) -> None:
        """Stop reading. Idempotent."""
        tasks = {task for task in (self._waiting, self._last) if task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, before: asyncio.Task[T] | None) -> T:
        if before is not None and not before.done():
            await asyncio.wait((before,))
        await asyncio.sleep(max(0.0, self._free_at - time.monotonic()))
        self._waiting = None
        began = time.monotonic()
        try:
            self._found = found = await self._read()
            return found
        finally:
            self._read_at = now = time.monotonic()
            took = now - began
            self._free_at = now + min(_MOST_PAUSE_S, _PAUSE_PART * took) if took >= _SHORT_S else now


def _ignore_result(task: asyncio.Task[T]) -> None:
    """Retrieve the error of a read whose callers have left."""
    if not task.cancelled():
        task.exception()
