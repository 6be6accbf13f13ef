"""`Schedule`: when the jobs of a scheduler are due. Pure arithmetic on epoch ms."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Final, Literal, TypedDict
from zoneinfo import ZoneInfo

from glidemq_py._core.checks import Converted, OptionValue, check_bool, check_choice, check_int, option
from glidemq_py._core.times import Milliseconds, epoch_ms, to_instant, to_ms
from glidemq_py._features.schedulers.cron import (
    HORIZON_YEARS,
    CronPattern,
    DayMatch,
    as_datetime,
    next_instant,
    parse_cron,
)
from glidemq_py.errors import GlideMQValidationError, MissingOptionError

Misfire = Literal["fire_once", "fire_all", "skip"]
Overlap = Literal["allow", "skip", "buffer_one"]
_KINDS: Final = ("every", "pattern", "repeat_after_complete")
_MAX_RUNS: Final = 2**53 - 1
_MAX_PREVIEW: Final = 10_000
_NO_ZONES: Final = frozenset({"localtime", "Factory", "posixrules"})


class ScheduleDict(TypedDict, total=False):
    """The keyword options of a `Schedule`."""

    pattern: str | None
    every: Milliseconds | None
    repeat_after_complete: Milliseconds | None
    tz: str | ZoneInfo | None
    start_date: datetime | int | None
    end_date: datetime | int | None
    limit: int | None
    immediately: bool
    misfire: Misfire
    day_match: DayMatch
    overlap: Overlap
    skip_without_worker: bool


def check_zone(option: str, tz: object) -> str:
    """Return the name of an IANA time zone.

    Raises:
        GlideMQValidationError: the zone is not installed on this machine.
    """
    name = tz.key if isinstance(tz, ZoneInfo) else tz
    if not isinstance(name, str) or not name:
        raise GlideMQValidationError(option, tz, "must be the name of an IANA time zone, or a ZoneInfo with a key")
    try:
        if name not in _NO_ZONES:
            _zone_of(name)
            return name
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        pass
    raise GlideMQValidationError(option, tz, "is no IANA time zone of this machine; if it has none: pip install tzdata")


def _zone_of(name: str | None) -> tzinfo:
    """Return a time zone. UTC needs no time zone database."""
    return UTC if name in (None, "UTC") else ZoneInfo(name)


def _instant(option: str, value: object) -> int:
    if isinstance(value, datetime):
        return epoch_ms(to_instant(option, value))
    if isinstance(value, bool) or not isinstance(value, int):
        raise GlideMQValidationError(option, value, f"must be a datetime or epoch ms, not {type(value).__name__}")
    return check_int(option, value, 0, 2**42 - 1)


def _pattern(_: str, value: str) -> str:
    return value  # parsed in `_check_given`: its meaning depends on `day_match`


class Schedule(OptionValue, kw_only=True):
    """The times at which jobs are due. Pass exactly one of ``every``, ``pattern`` and ``repeat_after_complete``.

    Args:
        pattern: a cron pattern: five fields, six with the seconds first, or a macro such as ``@daily``.
        every: interval between jobs, in ms (> 0) or as a timedelta, counted from ``start_date`` or from creation.
        repeat_after_complete: delay of the next job after the previous one completed or failed, in ms (> 0) or as a
            timedelta.
        tz: IANA time zone of the pattern, a name or a ZoneInfo; default UTC.
        start_date: no job is due before this time; a datetime (a naive one is local time) or epoch ms.
        end_date: no job is due after this time; a datetime (a naive one is local time) or epoch ms.
        limit: maximum number of runs, >= 1.
        immediately: run once now; later runs are not shifted. Not allowed with ``start_date``.
        misfire: handling of due times missed while no process was running: "fire_once" adds one job for all of them,
            "fire_all" one job for each, "skip" none. Not allowed with ``repeat_after_complete``, which misses nothing.
        day_match: whether a day must match both day fields of the pattern ("and", as in glide-mq), or one of them if
            both are restricted ("or", as in crontab).
        overlap: handling of a due time at which the job of an earlier one is unfinished: "allow" adds its job, "skip"
            does not, "buffer_one" adds one job for all these due times when the earlier job has finished. Not allowed
            with ``repeat_after_complete``, whose jobs never overlap, or ``misfire="fire_all"``, whose jobs do.
        skip_without_worker: add no job at a due time at which no worker of the queue is registered. Workers of Node
            clients and of clients of the gateway count. Not allowed with ``repeat_after_complete``.

    Raises:
        GlideMQValidationError: an option is invalid.
    """

    pattern: str | None = option(_pattern, default=None)
    every: Converted[int | None, Milliseconds | None] = option(to_ms, default=None, minimum=1)
    repeat_after_complete: Converted[int | None, Milliseconds | None] = option(to_ms, default=None, minimum=1)
    tz: Converted[str | None, str | ZoneInfo | None] = option(check_zone, default=None)
    start_date: Converted[int | None, datetime | int | None] = option(_instant, default=None)
    end_date: Converted[int | None, datetime | int | None] = option(_instant, default=None)
    limit: int | None = option(check_int, default=None, minimum=1, maximum=_MAX_RUNS)
    immediately: bool = option(check_bool, default=False, stored=False)
    misfire: Misfire = option(check_choice, default="fire_once", omit_default=True, choices=Misfire)
    day_match: DayMatch = option(check_choice, default="and", omit_default=True, choices=("and", "or"))
    overlap: Overlap = option(check_choice, default="allow", omit_default=True, choices=Overlap)
    skip_without_worker: bool = option(check_bool, default=False, omit_default=True)

    def _check_given(self) -> None:
        named = [name for name in _KINDS if getattr(self, name) is not None]
        if not named:
            raise MissingOptionError("schedule", None, f"requires one of {', '.join(map(repr, _KINDS))}")
        if len(named) > 1:
            first, second = named[:2]
            problem = f"options {first!r} and {second!r} are mutually exclusive"
            raise GlideMQValidationError(second, getattr(self, second), problem)
        if self.pattern is not None:
            self.__dict__["pattern"] = parse_cron(self.pattern, self.day_match).text
        else:
            for name, value in (("tz", self.tz), ("day_match", None if self.day_match == "and" else self.day_match)):
                if value is not None:
                    raise GlideMQValidationError(name, value, "requires 'pattern'")
        if self.start_date is not None and self.end_date is not None and self.end_date < self.start_date:
            raise GlideMQValidationError("end_date", self.end_date, "must not be before start_date")
        if self.immediately and self.start_date is not None:
            raise GlideMQValidationError("immediately", True, "is not supported with 'start_date'")
        for name in ("misfire", "skip_without_worker", "overlap") if self.repeat_after_complete is not None else ():
            if name in self.__dict__ and getattr(self, name) != self._defaults[name]:
                problem = "is not supported with 'repeat_after_complete'"
                raise GlideMQValidationError(name, getattr(self, name), problem)
        if self.overlap != "allow" and self.misfire == "fire_all":
            raise GlideMQValidationError("overlap", self.overlap, "is not supported with misfire='fire_all'")

    @property
    def cron(self) -> CronPattern | None:
        """The parsed pattern, or None."""
        return None if self.pattern is None else parsed(self.pattern, self.day_match)

    def same_times(self, other: Schedule) -> bool:
        """Return True if both schedules are due at the same times."""
        names = ("every", "pattern", "repeat_after_complete", "tz", "start_date", "end_date", "day_match")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    # -- instants -------------------------------------------------------------------------------------------

    def first(self, now: int) -> int | None:
        """Return the first due time of a scheduler created ``now``, or None. All times are epoch ms."""
        start = self.start_date
        if self.immediately:
            at: int | None = now
        elif self.pattern is not None:
            at = self._match(max(now, start or 0) - 1)
        elif self.every is not None:
            at = now + self.every if start is None else max(start, start - (start - now) // self.every * self.every)
        else:
            at = max(now, start or 0)
        return self._within(at)

    def following(self, at: int, now: int) -> int | None:
        """Return the first due time after ``now`` of a scheduler that is due ``at``, which is not after ``now``."""
        if self.pattern is not None:
            return self._within(self._match(now))
        assert self.every is not None
        return self._within(at + ((now - at) // self.every + 1) * self.every)

    def after(self, at: int) -> int | None:
        """Return the due time after ``at``; None for ``repeat_after_complete``, which depends on a job."""
        return None if self.repeat_after_complete is not None else self.following(at, at)

    def preview(self, count: int = 10, *, after: datetime | int | None = None) -> list[datetime]:
        """Return the next due times as datetimes in the schedule's time zone; fewer if the schedule ends before.

        Args:
            count: maximum number of due times, 1..10,000.
            after: start of the preview, a datetime or epoch ms; default: the current time of this machine.
        """
        now = epoch_ms(datetime.now(UTC)) if after is None else _instant("after", after)
        return self.preview_from(self.first(now), count, self.limit)

    def preview_from(self, at: int | None, count: int, left: int | None) -> list[datetime]:
        """Return the `preview` of a scheduler due ``at`` (None: it waits) with ``left`` runs left (None: no limit)."""
        most = check_int("count", count, 1, _MAX_PREVIEW)
        if left is not None:
            most = min(most, left)
        zone, found = _zone_of(self.tz), list[datetime]()
        while at is not None and len(found) < most:
            found.append(as_datetime(at, zone))
            at = self.after(at)
        return found

    def _match(self, after: int) -> int | None:
        cron = self.cron
        assert cron is not None
        at = next_instant(cron, _zone_of(self.tz), after)
        if at is None and after >= 0 and self.end_date is None:
            raise GlideMQValidationError("pattern", self.pattern, f"does not match within {HORIZON_YEARS} years")
        return at

    def _within(self, at: int | None) -> int | None:
        return None if at is None or (self.end_date is not None and at > self.end_date) else at


@lru_cache(maxsize=1024)
def parsed(pattern: str, day_match: str) -> CronPattern:
    """Return the parsed form of a valid pattern; cached."""
    return parse_cron(pattern, day_match)
