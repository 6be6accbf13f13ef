"""A cache of what pages read: each value is read at most once per interval, however many pages show it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar, cast

from glidemq_py._features.metrics import MetricsPoint
from glidemq_py._features.metrics_by_name import MetricsByName
from glidemq_py._operate.access import READINGS
from glidemq_py._operate.doctor import Diagnosis, Severity, examine
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.snapshots import QueueSnapshot

_P = ParamSpec("_P")
_T = TypeVar("_T")
_KEPT: Final = 5_000
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000
_QUARTER_MS: Final = 900_000
_SHOWN_MINUTES: Final = 60


@dataclass(frozen=True, slots=True)
class Rates:
    """Finished jobs of a queue per minute of the last hour, oldest first; ``recent``: of the last complete minute."""

    completed: tuple[int, ...]
    failed: tuple[int, ...]

    @property
    def recent(self) -> int:
        """Completed jobs of the last complete minute."""
        return self.completed[-2]


class Activity(NamedTuple):
    """Figures per minute of the last hour, oldest first, the current minute last.

    Attributes:
        times: When each minute begins, epoch ms.
        completed: Completed jobs.
        failed: Failed jobs.
        ready: Ready jobs in it; None if they were not read.
    """

    times: list[int]
    completed: list[int]
    failed: list[int]
    ready: list[int | None]


@dataclass(frozen=True, slots=True)
class Day:
    """Finished jobs of a queue per minute of the last 24 hours, and when they were read, epoch ms."""

    completed: tuple[MetricsPoint, ...]
    failed: tuple[MetricsPoint, ...]
    at: int


@dataclass(frozen=True, slots=True)
class Quarter:
    """Finished jobs of a quarter of an hour.

    Attributes:
        start: When it begins, epoch ms.
        completed: Number of completed jobs.
        failed: Number of failed jobs.
        duration: Mean running time of the completed jobs, ms; None without one.
    """

    start: int
    completed: int
    failed: int
    duration: int | None


class Reader:
    """Reads for pages. Values are at most `lifetime` old; one read at a time is made for the same value.

    Args:
        operator: its access is full; each page checks that of its user.
        lifetime: ms until a value is read again.
    """

    def __init__(self, operator: Operator, lifetime: int) -> None:
        self._operator = operator
        self._lifetime = lifetime
        self._values: OrderedDict[tuple[Any, ...], tuple[float, asyncio.Future[Any]]] = OrderedDict()
        self._ready: OrderedDict[int, dict[str, int]] = OrderedDict()

    async def shared(self, *key: Any, read: Callable[[], Awaitable[_T]], lifetime: int = 0) -> _T:
        """Return a value that is young enough, or read it. A failed read is not kept.

        Args:
            key: Kind of the value, name of the queue or "", and everything else that ``read`` depends on.
            read: Reads it.
            lifetime: ms until it is read again; at least that of all values.
        """
        held = self._values.get(key)
        if held is not None and (held[0] > time.monotonic() or not held[1].done()):
            self._values.move_to_end(key)
            return cast("_T", await asyncio.shield(held[1]))
        task = asyncio.ensure_future(read())
        self._values[key] = (time.monotonic() + max(lifetime, self._lifetime) / 1_000, task)
        self._values.move_to_end(key)
        if len(self._values) > _KEPT:
            self._values.popitem(last=False)
        try:
            return await asyncio.shield(task)
        except Exception:
            if self._values.get(key, (0, None))[1] is task:
                del self._values[key]
            raise

    def forget(self, queue: str) -> None:
        """Read everything about a queue again at the next request: it was changed."""
        for key in [key for key in self._values if key[1] in (queue, "")]:
            del self._values[key]

    async def read(
        self, method: Callable[Concatenate[Operator, _P], Awaitable[_T]], *given: _P.args, **named: _P.kwargs
    ) -> _T:
        """Return what a reading returns with these arguments, of which the first is the queue."""
        found = READINGS[method.__name__]
        return await self.shared(
            found.name, *(given or ("",)), *named.items(), lifetime=found.shared_ms,
            read=partial(method, self._operator, *given, **named),
        )  # fmt: skip

    async def queues(self) -> list[QueueSnapshot]:
        """Return all queues. Each costs the server about 0.1 ms, so a thousand are read every 6 s at most."""
        names = await self.read(Operator.list_queues)

        async def read() -> list[QueueSnapshot]:
            found = await self._operator.get_queues(names)
            self._ready[int(time.time() * 1_000) // _MINUTE_MS] = {each.name: each.ready for each in found}
            if len(self._ready) > _SHOWN_MINUTES:
                self._ready.popitem(last=False)
            return found

        return await self.shared("queues", "", read=read, lifetime=6 * len(names))

    def has_queues(self) -> bool:
        """Return True if `queues` returns without reading."""
        held = self._values.get(("queues", ""))
        return held is not None and held[1].done() and held[0] > time.monotonic()

    async def some_queues(self, names: Sequence[str]) -> list[QueueSnapshot]:
        """Return some queues."""
        return await self.shared("some queues", "", *names, read=partial(self._operator.get_queues, names))

    async def day(self, name: str) -> Day:
        """Return the counts of a queue in the last 24 hours; up to 10 s old."""

        async def read() -> Day:
            queue = await self._operator.queue(name)
            completed, failed = await asyncio.gather(queue.get_metrics("completed"), queue.get_metrics("failed"))
            return Day(completed.data, failed.data, round(time.time() * 1_000))

        return await self.shared("day", name, read=read, lifetime=10_000)

    async def rates(self, name: str) -> Rates:
        """Return the rates of a queue; up to 10 s old."""
        day = await self.day(name)
        return Rates(minutes_of(day.completed, day.at), minutes_of(day.failed, day.at))

    def activity(self, rates: Mapping[str, Rates]) -> Activity:
        """Return the last hour of several queues together. Ready jobs are known of minutes in which they were read."""
        last = int(time.time() * 1_000) // _MINUTE_MS
        minutes = range(last - _SHOWN_MINUTES + 1, last + 1)
        completed, failed = (
            [sum(each) for each in zip(*(getattr(of, kind) for of in rates.values()), strict=True)]
            for kind in ("completed", "failed")
        )
        ready = [
            None if held is None else sum(held.get(name, 0) for name in rates) for held in map(self._ready.get, minutes)
        ]
        return Activity([at * _MINUTE_MS for at in minutes], completed, failed, ready)

    async def by_name(self, name: str, window: int) -> list[MetricsByName]:
        """Return the figures per job name over the last ``window`` ms; empty if the queue keeps none.

        Those of an hour are up to 10 s old, those of more up to a minute.
        """

        async def read() -> list[MetricsByName]:
            return await (await self._operator.queue(name)).metrics_by_name.get(window, interval=None)

        return await self.shared("by name", name, window, read=read, lifetime=10_000 if window <= _HOUR_MS else 60_000)

    async def problems(self) -> list[Diagnosis]:
        """Return the warnings and errors of the server's configuration; up to a minute old."""

        async def read() -> list[Diagnosis]:
            found = await examine(self._operator)
            return [each for each in found if each.severity in (Severity.WARNING, Severity.ERROR)]

        return await self.shared("problems", "", read=read, lifetime=60_000)


def minutes_of(points: tuple[MetricsPoint, ...], now: int) -> tuple[int, ...]:
    """Return the counts of the last sixty minutes, oldest first, the current minute last."""
    found = {point.timestamp // _MINUTE_MS: point.count for point in points[-_SHOWN_MINUTES:]}
    last = now // _MINUTE_MS
    return tuple(found.get(last - back, 0) for back in range(_SHOWN_MINUTES - 1, -1, -1))


def quarters_of(day: Day) -> list[Quarter]:
    """Return the quarters of an hour of the last 24 hours, oldest first, the current one last."""
    last = day.at - day.at % _QUARTER_MS
    starts = range(last - _DAY_MS + _QUARTER_MS, last + 1, _QUARTER_MS)
    completed, failed, spent = Counter[int](), Counter[int](), Counter[int]()
    for point in day.completed:
        start = point.timestamp - point.timestamp % _QUARTER_MS
        completed[start] += point.count
        spent[start] += point.count * point.avg_duration
    for point in day.failed:
        failed[point.timestamp - point.timestamp % _QUARTER_MS] += point.count
    found: list[Quarter] = []
    for start in starts:
        mean = round(spent[start] / completed[start]) if completed[start] else None
        found.append(Quarter(start, completed[start], failed[start], mean))
    return found
