"""The entry of a scheduler: JSON text as peers write it (spec/data-model section 10), with a few keys of ours.

Ours: ``misfire``, ``dayMatch``, ``lastJobId`` with ``lastJobRun`` (the run that made that job), ``compression``,
``quiet``, and in the template ``text`` (data that only our serializer reads). Keys that are not known are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from glidemq_py._core import json_text as json
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions
from glidemq_py._core.stored_options import read_stored_options
from glidemq_py._features.schedulers.options import Schedule
from glidemq_py.errors import GlideMQValidationError, SerializationError

__all__ = [
    "Entry",
    "JobScheduler",
    "Template",
    "is_for_peers",
    "schedule_keys",
]

_LARGEST: Final = 2**53 - 1
_NOT_BY_PEERS: Final = ("ordering", "cost", "deduplication", "job_id", "delay")
"""Options of a template that a peer's tick leaves out (W79)."""


@dataclass(slots=True)
class Template:
    """What each job is: its name ('' = the scheduler's), its data as value or text, its options."""

    name: str
    data: Any
    has_data: bool
    text: str | None
    opts: str
    options: JobOptions


class Entry:
    """One stored scheduler. Reading raises `GlideMQValidationError` where it is no scheduler."""

    __slots__ = ("fields", "schedule")

    def __init__(self, text: str) -> None:
        try:
            fields: Any = json.loads(text, "scheduler")
        except SerializationError as error:
            raise GlideMQValidationError("scheduler", text, "is not JSON") from error
        if not isinstance(fields, dict):
            raise GlideMQValidationError("scheduler", text, "is no JSON object")
        self.fields = cast("dict[str, Any]", fields)
        self.schedule = _schedule(self.fields)

    @property
    def next_run(self) -> int:
        """Epoch ms; 0 while it waits for the end of its last job."""
        return self.number("nextRun")

    def number(self, key: str) -> int:
        """A whole number of the entry; 0 where there is none."""
        value = self.fields.get(key)
        return int(value) if isinstance(value, (int, float)) and 0 <= value <= _LARGEST else 0

    @property
    def waits(self) -> bool:
        """It waits for the end of the job that it has added."""
        return self.schedule.repeat_after_complete is not None and self.next_run == 0

    def goes_on_as(self, schedule: Schedule) -> bool:
        """Whether it goes on where it is under that schedule, since the times are the same."""
        return self.schedule.same_times(schedule) and (self.next_run != 0 or self.waits)

    @property
    def last_job_id(self) -> str | None:
        """The job of the last run, where it was ours that made it."""
        job_id, run = self.fields.get("lastJobId"), self.fields.get("lastJobRun")
        return job_id if isinstance(job_id, str) and run == self.fields.get("lastRun") else None

    @property
    def template(self) -> Template:
        """What its jobs are; junk counts as not given."""
        found = self.fields.get("template")
        given = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        name, opts, text = given.get("name"), given.get("opts"), given.get("text")
        written = json.dumps(opts) if isinstance(opts, dict) and opts else "{}"
        return Template(
            name=name if isinstance(name, str) else "",
            data=given.get("data"),
            has_data="data" in given,
            text=text if isinstance(text, str) else None,
            opts=written,
            options=NO_OPTIONS if written == "{}" else read_stored_options(written),
        )

    def changed(self, **keys: Any) -> str:
        """The text with some keys changed; None takes one away."""
        fields = self.fields | keys
        return json.dumps({key: value for key, value in fields.items() if key not in keys or value is not None})


def schedule_keys(schedule: Schedule) -> dict[str, Any]:
    """A schedule in the keys of an entry, in the order in which peers write them."""
    keys: dict[str, Any] = {
        "pattern": schedule.pattern,
        "every": schedule.every,
        "repeatAfterComplete": schedule.repeat_after_complete,
        "tz": schedule.tz,
        "startDate": schedule.start_date,
        "endDate": schedule.end_date,
        "limit": schedule.limit,
        "misfire": None if schedule.misfire == "fire_once" else schedule.misfire,
        "dayMatch": None if schedule.day_match == "and" else schedule.day_match,
    }
    return {key: value for key, value in keys.items() if value is not None}


def is_for_peers(schedule: Schedule, options: JobOptions, has_text: bool) -> bool:
    """Whether a peer's tick would do with it what we do."""
    cron = schedule.cron
    if cron is not None and (cron.has_seconds or cron.either_day):
        return False
    if schedule.misfire != "fire_once" or has_text:
        return False
    return all(getattr(options, name) is None for name in _NOT_BY_PEERS)


def _schedule(fields: dict[str, Any]) -> Schedule:
    def whole(key: str) -> Any:
        value = fields.get(key)
        return int(value) if isinstance(value, float) and value.is_integer() else value

    return Schedule(
        pattern=fields.get("pattern"),
        every=whole("every"),
        repeat_after_complete=whole("repeatAfterComplete"),
        tz=fields.get("tz") if fields.get("pattern") is not None else None,
        start_date=whole("startDate"),
        end_date=whole("endDate"),
        limit=whole("limit"),
        misfire=fields.get("misfire", "fire_once"),
        day_match=fields.get("dayMatch", "and"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobScheduler:
    """A scheduler of a queue. Times are epoch ms by the server's clock.

    Attributes:
        name: unique in its queue.
        schedule: when its jobs are due.
        job_name, data, options: what its jobs are; ``data`` is None where the template holds none.
        next_run: when the next job is due; None while it waits for the end of the last one.
        last_run: when it was fired last; None before the first run.
        iteration_count: runs so far.
        last_job_id: the job that ``repeat_after_complete`` made last.
        for_peers: Node peers see it and fire it too. False where it says something that they would not honour.
    """

    name: str
    schedule: Schedule
    job_name: str
    data: Any
    options: JobOptions
    next_run: int | None
    last_run: int | None
    iteration_count: int
    last_job_id: str | None
    for_peers: bool

    def preview(self, count: int = 10) -> list[datetime]:
        """The next instants from `next_run` on, in the schedule's zone, as `Schedule.preview`; none while it waits."""
        left = None if self.schedule.limit is None else self.schedule.limit - self.iteration_count
        return self.schedule.preview_from(self.next_run, count, left)
