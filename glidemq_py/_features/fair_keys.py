"""Fair keys: limits, state, and which keys a partitioned queue serves first (``lua/features/fair_keys``)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from glidemq_py._core.calls import Call, call, declared
from glidemq_py._core.calls.working import ExchangeReply, Preferred
from glidemq_py._core.checks import check_int, parse_nested
from glidemq_py._core.keys import validate_job_name
from glidemq_py._core.limits import (
    MAX_COUNT,
    NAME_PREFIX,
    FairKeyDefaults,
    FairKeyInfo,
    NameLimits,
    RateLimit,
    check_weight,
    validate_fair_key,
)
from glidemq_py._core.misuse import known_methods
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import Area, added_limits, added_rates, known, rate_of
from glidemq_py.errors import GlideMQValidationError

MAX_PREFERENCE: Final = 100
"""Most turns by which a key may be served early."""
_KEYS: Final = 16
"""Keys that a worker prefers at a time; the server reads no more (lua/features/fair_keys/fetch_fair.lua)."""


class RecentKeys:
    """The fair keys of the last jobs that a worker has fetched.

    Args:
        turns: Turns by which these keys may be served early.
        slots: Number of jobs that the worker runs at the same time. It prefers at most as many keys.
    """

    def __init__(self, turns: int, slots: int) -> None:
        self._turns = turns
        self._most = min(slots, _KEYS)
        self._keys: dict[str, None] = {}
        """In the order of their last jobs."""

    def add(self, keys: Iterable[str | None]) -> None:
        """Remember the keys of fetched jobs; None is a job without a key."""
        known = self._keys
        for key in keys:
            if key is not None:
                known.pop(key, None)
                known[key] = None
        for key in list(known)[: -self._most]:
            del known[key]

    def preferring(self, build: Callable[..., Call[ExchangeReply]]) -> Callable[..., Call[ExchangeReply]]:
        """Return a builder of exchange calls that prefer the keys."""

        def build_with_keys(*arguments: Any, **options: Any) -> Call[ExchangeReply]:
            preferred = Preferred(self._turns, tuple(reversed(self._keys))) if self._keys else None
            return build(*arguments, preferred=preferred, **options)

        return build_with_keys


_PAGE: Final = 500
_EACH_KEY: Final = ""


@declared("fair_key")
class FairKeyRow(NamedTuple):
    """State of one fair key; 0 = no such limit."""

    key: str
    backlog: int
    active: int
    weight: int
    concurrency: int
    rate_max: int
    rate_ms: int
    max_backlog: int
    paused: int
    limited_until: int


@call("set_fair_limits", repeatable=True)
def set_fair_limits(
    key: str,
    *,
    weight: int | Literal[False] = False,
    concurrency: int | Literal[False] = False,
    rate: tuple[int, int] | int = False,
    max_backlog: int | Literal[False] = False,
    paused: Literal["yes", "no", False] = False,
    named: bool = False,
    hold: int | Literal[False] = False,
) -> int:
    """Set the limits of a fair key: False = unchanged, 0 = remove the limit. ``rate`` is (jobs, ms).

    ``key``: '' = each key. ``named``: ``key`` is the name of jobs (lua/features/fair_keys/limited_names.lua).
    ``hold``: ms for which none of its jobs starts.
    """
    ...


@call("fair_keys", repeatable=True)
def fair_keys(key: str | Literal[False], after: str = "", count: int = 1, *, named: bool = False) -> list[FairKeyRow]:
    """Return the state of ``key`` ('': the limits of each key), or of the keys with ready jobs after ``after``.

    ``named``: ``key`` is the name of jobs.
    """
    ...


def _info(row: FairKeyRow) -> FairKeyInfo:
    return FairKeyInfo(
        key=row.key,
        backlog=row.backlog,
        active=row.active,
        weight=row.weight,
        concurrency=row.concurrency or None,
        rate_limit=rate_of(row.rate_max, row.rate_ms),
        max_backlog=row.max_backlog or None,
        paused=bool(row.paused),
        limited_until=row.limited_until or None,
    )


async def _infos(link: QueueLink) -> AsyncIterator[FairKeyInfo]:
    after = ""
    while True:
        rows = await link.call(fair_keys, False, after, _PAGE)
        for row in rows:
            if not row.key.startswith(NAME_PREFIX):
                yield _info(row)
        if len(rows) < _PAGE:
            return
        *_, last = rows
        after = last.key


def rate_setting(rate_limit: RateLimit | Mapping[str, Any] | Literal[False] | None) -> tuple[int, int] | int:
    """Return None as False (unchanged), False as 0 (remove), and a limit as (jobs, ms)."""
    if rate_limit is None or rate_limit is False:
        return False if rate_limit is None else 0
    limit = parse_nested("rate_limit", rate_limit, RateLimit)
    return limit.max, limit.duration


def _count(option: str, value: int | Literal[False] | None) -> int | Literal[False]:
    """Return None as False (unchanged) and False as 0 (remove); check a number."""
    if value is None:
        return False
    return 0 if value is False else check_int(option, value, 1, MAX_COUNT)


@known_methods
class FairKeys(Area):
    """``queue.fair_keys``: fair shares of keys, and their limits."""

    __slots__ = ()

    async def set_limits(
        self,
        key: str,
        *,
        weight: int | None = None,
        concurrency: int | Literal[False] | None = None,
        rate_limit: RateLimit | Mapping[str, Any] | Literal[False] | None = None,
        max_backlog: int | Literal[False] | None = None,
    ) -> None:
        """Set the weight and the limits of a fair key. They take effect immediately; active jobs keep running.

        Args:
            key: the fair key; it need not have jobs.
            weight: how many jobs of the key are served per job of a key with weight 1, 1..1_000; None = unchanged.
            concurrency: number of jobs of the key that may be active at a time, >= 1; None = unchanged, False =
                remove the limit.
            rate_limit: number of jobs of the key that may start per window: `RateLimit` or
                ``{"max": jobs, "duration": ms}``; None = unchanged, False = remove the limit.
            max_backlog: number of ready jobs of the key at which `Queue.add` rejects more, >= 1; None = unchanged,
                False = remove the limit.

        Raises:
            GlideMQValidationError: an argument is invalid, or none was given.
        """
        name = validate_fair_key("key", key)
        if weight is None and concurrency is None and rate_limit is None and max_backlog is None:
            problem = "give at least one of 'weight', 'concurrency', 'rate_limit' and 'max_backlog'"
            raise GlideMQValidationError("weight", None, problem)
        heavy = False if weight is None else check_weight("weight", weight)
        number, most = _count("concurrency", concurrency), _count("max_backlog", max_backlog)
        rate = rate_setting(rate_limit)
        await self._set(name, weight=heavy, concurrency=number, rate=rate, max_backlog=most)

    async def _set(self, key: str, **limits: Any) -> None:
        name = validate_fair_key("key", key)
        await self._queue._at(name, lambda link: link.call(set_fair_limits, name, **limits), changes=True)

    async def set_defaults(
        self,
        *,
        concurrency: int | Literal[False] | None = None,
        rate_limit: RateLimit | Mapping[str, Any] | Literal[False] | None = None,
        max_backlog: int | Literal[False] | None = None,
    ) -> None:
        """Set limits of each fair key. They take effect immediately, also for new keys; active jobs keep running.

        A limit that `fair_keys.set_limits` sets for a key applies to that key instead.

        Args:
            concurrency: number of jobs of a key that may be active at a time, >= 1; None = unchanged, False =
                remove the limit.
            rate_limit: number of jobs of a key that may start per window: `RateLimit` or
                ``{"max": jobs, "duration": ms}``; None = unchanged, False = remove the limit.
            max_backlog: number of ready jobs of a key at which `Queue.add` rejects more, >= 1; None = unchanged,
                False = remove the limit.

        Raises:
            GlideMQValidationError: an argument is invalid, or none was given.
        """
        if concurrency is None and rate_limit is None and max_backlog is None:
            problem = "give at least one of 'concurrency', 'rate_limit' and 'max_backlog'"
            raise GlideMQValidationError("concurrency", None, problem)
        number, most = _count("concurrency", concurrency), _count("max_backlog", max_backlog)
        rate = rate_setting(rate_limit)
        await self._queue._change(lambda link: link.call(
            set_fair_limits, _EACH_KEY, concurrency=number, rate=rate, max_backlog=most))  # fmt: skip

    async def get_defaults(self) -> FairKeyDefaults:
        """Return the limits of each fair key that has none of its own."""
        link = await self._queue._first()
        (row,) = await link.call(fair_keys, _EACH_KEY)
        found = _info(row)
        return FairKeyDefaults(
            concurrency=found.concurrency, rate_limit=found.rate_limit, max_backlog=found.max_backlog
        )

    async def pause(self, key: str) -> None:
        """Start no more jobs of a fair key. Active jobs keep running, other keys are not affected. Idempotent.

        Raises:
            GlideMQValidationError: ``key`` is invalid.
        """
        await self._set(key, paused="yes")

    async def resume(self, key: str) -> None:
        """Start jobs of a paused fair key again. Idempotent.

        Raises:
            GlideMQValidationError: ``key`` is invalid.
        """
        await self._set(key, paused="no")

    async def get(self, key: str) -> FairKeyInfo:
        """Return the backlog, the active jobs and the limits of a fair key; zeros if it is not known.

        Raises:
            GlideMQValidationError: ``key`` is invalid.
        """
        name = validate_fair_key("key", key)
        (row,) = await self._queue._at(name, lambda link: link.call(fair_keys, name))
        return _info(row)

    def iter(self) -> AsyncIterator[FairKeyInfo]:
        """Iterate over the fair keys that have ready jobs, in the order of their names.

        Makes one short server call per 500 keys. Keys that get or lose their jobs meanwhile may be missing.
        """
        return self._queue._merged(_infos, lambda info: info.key.encode("utf-8", "surrogateescape"))


@known_methods
class LimitsOfNames(Area):
    """Limits of the jobs with a name."""

    __slots__ = ()

    async def set_for_name(
        self,
        name: str,
        *,
        concurrency: int | Literal[False] | None = None,
        rate_limit: RateLimit | Mapping[str, Any] | Literal[False] | None = None,
    ) -> None:
        """Limit the jobs with a name, on all workers of the queue. Takes effect immediately; active jobs keep running.

        Jobs with a ``fair_key`` or ``ordering`` are not affected: they have the limits of their key or group.

        Args:
            name: name of the jobs.
            concurrency: number of jobs with this name that may be active at a time, >= 1; jobs that were active before
                the name had a limit are not counted. None = unchanged, False = remove the limit.
            rate_limit: number of jobs with this name that may start per window: `RateLimit` or
                ``{"max": jobs, "duration": ms}``; None = unchanged, False = remove the limit.

        Raises:
            GlideMQValidationError: an argument is invalid, or none was given.
        """
        validate_job_name(name)
        if concurrency is None and rate_limit is None:
            raise GlideMQValidationError("concurrency", None, "give at least one of 'concurrency' and 'rate_limit'")
        number, rate = _count("concurrency", concurrency), rate_setting(rate_limit)

        async def limit(link: QueueLink) -> None:
            share = link.share("concurrency", number) if number else number
            paced = (link.share("rate_limit.max", rate[0]), rate[1]) if isinstance(rate, tuple) else rate
            await link.call(set_fair_limits, name, concurrency=share, rate=paced, named=True)

        await self._queue._change(limit)

    async def get_for_name(self, name: str) -> NameLimits:
        """Return the limits of the jobs with a name, and how many of them are waiting for the limits and active.

        Raises:
            GlideMQValidationError: ``name`` is invalid.
        """
        validate_job_name(name)
        rows = await self._queue._each(lambda link: link.call(fair_keys, name, named=True))
        found = [_info(row) for (row,) in rows]
        return NameLimits(
            name=name,
            backlog=sum(each.backlog for each in found),
            active=sum(each.active for each in found),
            concurrency=added_limits([each.concurrency for each in found]),
            rate_limit=added_rates([each.rate_limit for each in found]),
            limited_until=max(known(each.limited_until for each in found), default=None),
        )
