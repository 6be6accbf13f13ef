"""The stored entry of a scheduler, and the server calls for entries (``lua/features/schedulers/functions``).

An entry is JSON text in the format of glide-mq (docs/reference/data-model.md), with extra keys: ``misfire``,
``dayMatch``, ``lastJobId`` with ``lastJobRun`` (the run that added that job), ``overlap`` with ``buffered``,
``skipWithoutWorker``, ``skippedCount`` with ``lastSkipped``, ``pausedAt`` and ``pausedRun``, ``runs``,
``compression``, ``quiet``, and ``text`` in the template (data that only our serializer reads). Unknown keys are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from glidemq_py._core import json_text as json
from glidemq_py._core.calls import call, declared
from glidemq_py._core.calls.adding import Row
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions, read_stored_options
from glidemq_py._features.schedulers.options import Schedule
from glidemq_py.errors import GlideMQValidationError, SerializationError

RUNS_KEPT: Final = 20
"""Number of runs in an entry."""
_LARGEST: Final = 2**53 - 1
PAUSED: Final = 4_398_046_511_103
"""``nextRun`` of a paused scheduler, the largest time of the index: older versions do not fire it either."""
_NOT_BY_PEERS: Final = ("ordering", "cost", "fair_key", "deduplication", "job_id", "delay")
"""Options of a template that Node schedulers ignore."""


@dataclass(slots=True)
class Template:
    """The jobs of a scheduler: name ('' = that of the scheduler), data as value or text, and options."""

    name: str
    data: Any
    has_data: bool
    text: str | None
    opts: str
    options: JobOptions


class Entry:
    """One stored scheduler.

    Raises:
        GlideMQValidationError: the text is not a valid entry.
    """

    __slots__ = ("fields", "schedule", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            fields: Any = json.loads(text, "scheduler")
        except SerializationError as error:
            raise GlideMQValidationError("scheduler", text, "is not JSON") from error
        if not isinstance(fields, dict):
            raise GlideMQValidationError("scheduler", text, "must be a JSON object")
        self.fields = cast("dict[str, Any]", fields)
        self.schedule = _schedule(self.fields)

    @property
    def next_run(self) -> int:
        """Next due time, epoch ms; 0 while it waits for its last job."""
        return self.number("nextRun")

    def run_after_pause(self, now: int, catch_up: bool) -> int | None:
        """Return the next due time if the scheduler is resumed ``now``; 0: it waits; None: no due time is left."""
        schedule, planned = self.schedule, self.bounded(self.planned_run, now)
        if self.waits or planned > now or (catch_up and planned):
            return planned
        if schedule.repeat_after_complete is not None:
            return now
        return schedule.following(planned or now, now)

    def bounded(self, due: int, now: int) -> int:
        """Return a due time; an earlier one if it is further away than the interval: the clock was set back."""
        schedule = self.schedule
        start, every = min(due, schedule.start_date or 0), schedule.every
        if due <= now:
            return due
        if every is not None:
            return max(start, due - (due - now - 1) // every * every)
        if schedule.repeat_after_complete is not None:
            return min(due, max(start, now + schedule.repeat_after_complete))
        # Not the next match, which may have run before the step.
        first = schedule.first(now)
        second = None if first is None else schedule.after(first)
        return due if first is None or second is None or due <= second else first

    def number(self, key: str) -> int:
        """Return an integer of the entry, or 0 if it is missing or invalid."""
        value = self.fields.get(key)
        return int(value) if isinstance(value, (int, float)) and 0 <= value <= _LARGEST else 0

    @property
    def paused(self) -> bool:
        """True if it is paused."""
        return self.next_run >= PAUSED

    @property
    def planned_run(self) -> int:
        """`next_run`; of a paused scheduler, the one it had before."""
        return self.number("pausedRun") if self.paused else self.next_run

    @property
    def waits(self) -> bool:
        """True if it waits for its last job to finish."""
        return self.schedule.repeat_after_complete is not None and self.planned_run == 0

    def keeps_state_under(self, schedule: Schedule) -> bool:
        """Return True if the entry keeps its state under the new schedule because the times are the same."""
        return self.schedule.same_times(schedule) and (self.planned_run != 0 or self.waits)

    @property
    def last_job_id(self) -> str | None:
        """Id of the job of the last run; None if a Node client fired it."""
        job_id, run = self.fields.get("lastJobId"), self.fields.get("lastJobRun")
        return job_id if isinstance(job_id, str) and run == self.fields.get("lastRun") else None

    @property
    def buffered(self) -> bool:
        """True if a due time waits until the job of an earlier one has finished."""
        return self.schedule.overlap == "buffer_one" and self.fields.get("buffered") is True

    @property
    def runs(self) -> tuple[tuple[int, str], ...]:
        """The last runs, oldest first: due time and id of the job; invalid ones are skipped."""
        found: Any = self.fields.get("runs")
        rows = cast("list[object]", found)[-RUNS_KEPT:] if isinstance(found, list) else []
        return tuple(run for run in map(_run_of, rows) if run is not None)

    @property
    def template(self) -> Template:
        """The template of its jobs; invalid parts count as missing."""
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
        """Return the text with some keys changed; None removes a key."""
        fields = self.fields | keys
        return json.dumps({key: value for key, value in fields.items() if key not in keys or value is not None})


def _is_run(row: object) -> bool:
    return isinstance(row, list) and list(map(type, cast("list[object]", row))) == [int, str]


def _run_of(row: Any) -> tuple[int, str] | None:
    if not _is_run(row):
        return None
    at, job_id = row
    return at, job_id


def is_for_peers(schedule: Schedule, options: JobOptions, has_text: bool) -> bool:
    """Return True if Node clients would fire the scheduler in the same way."""
    cron = schedule.cron
    if cron is not None and (cron.has_seconds or cron.either_day):
        return False
    if schedule.misfire != "fire_once" or schedule.overlap != "allow" or schedule.skip_without_worker or has_text:
        return False
    return all(getattr(options, name) is None for name in _NOT_BY_PEERS)


def _schedule(fields: dict[str, Any]) -> Schedule:
    given: dict[str, Any] = {}
    for name, key, _ in Schedule._stored:
        value = fields.get(key)
        if value is not None:
            given[name] = int(value) if isinstance(value, float) and value.is_integer() else value
    if "pattern" not in given:
        given.pop("tz", None)
    return Schedule(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobScheduler:
    """A scheduler of a queue. Times are epoch ms by the server's clock.

    Attributes:
        name: name, unique in its queue.
        schedule: when its jobs are due.
        job_name: name of its jobs.
        data: data of its jobs; None if the template has none.
        options: options of its jobs.
        next_run: when the next job is due; None while it is paused, or waits for the last job to finish.
        last_run: when it was last fired; None before the first run.
        iteration_count: number of runs so far.
        last_job_id: id of the last job, for ``repeat_after_complete`` and with ``overlap`` "skip" or "buffer_one".
        skipped_count: number of due times skipped because of ``overlap="skip"`` or ``skip_without_worker``.
        last_skipped: when a due time was last skipped; None if never.
        buffered: with ``overlap="buffer_one"``, a due time (`next_run`) waits until the last job has finished.
        for_peers: Node clients see and fire it too. False if it is paused or uses a feature that they do not support.
        paused: it adds no jobs; see `Queue.schedulers.pause`.
        paused_since: when it was paused; None if it is not paused.
        last_runs: its last runs that added a job, at most 20, oldest first: pairs of due time and id of the job. Runs
            by Node clients are missing.
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
    skipped_count: int = 0
    last_skipped: int | None = None
    buffered: bool = False
    paused: bool = False
    paused_since: int | None = None
    last_runs: tuple[tuple[int, str], ...] = ()

    def preview(self, count: int = 10) -> list[datetime]:
        """Return the next due times from `next_run` on, as `Schedule.preview` does; none if that is None.

        Args:
            count: maximum number of due times, 1..10,000.
        """
        left = None if self.schedule.limit is None else self.schedule.limit - self.iteration_count
        return self.schedule.preview_from(self.next_run, count, left)


_PAGE = 100


@declared("scheduler")
class StoredRow(NamedTuple):
    """One stored entry."""

    name: str
    home: int
    """0: in the hash shared with Node clients; 1: in the hash for Python only."""
    text: str


class ReadReply(NamedTuple):
    """Reply of `schedulers_read`."""

    now: int
    rows: list[StoredRow]
    cursor: str


@declared("due_scheduler")
class DueRow(NamedTuple):
    """One entry that is due."""

    name: str
    home: int
    text: str
    last_job: tuple[str, str, str, int]
    """For repeat-after-complete: state of its job ('gone', or '' if it names none); when that job finished;
    ``<time>:<id>`` of the job whose end was reported; 1 if no job is unfinished."""


class DueReply(NamedTuple):
    """Reply of `schedulers_due`."""

    now: int
    rows: list[DueRow]
    wait: int
    """Milliseconds until the next entry may be due."""
    revision: int
    """As in the flags of an exchange; 0 = the queue never had a scheduler."""
    leader: str
    """The holder that fired last, for some seconds; '' = none."""


@declared("firing")
class FireRow(NamedTuple):
    """The jobs and the new state of one entry that was due."""

    name: str
    home: int
    expected: str
    text: str
    """'' = delete the entry."""
    due: int
    jobs: list[Row]
    instants: list[int]
    tracked: bool
    """Store the id of the job in the entry."""
    named: bool = False
    """Store the name of the scheduler in the job, whose end makes the scheduler due."""
    last_job_id: str = ""
    """If this job is unfinished, the jobs are not added: the next two values replace text and due. '' = none."""
    overlap_text: str = ""
    overlap_due: int = 0
    runs: str = ""
    """JSON text of the last runs, without brackets; those of the jobs are added to the entry, which must have none."""


class FireReply(NamedTuple):
    """Reply of `schedulers_fire`."""

    now: int
    outcomes: list[str | list[Any]]
    """For each row: 'busy', 'changed', 'overlap', or the results of its jobs as in `add`."""


@call("schedulers_read", repeatable=True)
def schedulers_read(name: str | None = None, cursor: str = "", count: int = _PAGE) -> ReadReply:
    """Return one scheduler, or one page of all schedulers."""
    ...


@call("schedulers_put")
def schedulers_put(
    name: str, home: int, expected: str, text: str, due: int, overlap: bool = False, event: str | None = None,
    workers: bool = False,
) -> str:  # fmt: skip
    """Replace the text of a scheduler ('' = none); returns 'ok', 'busy' or 'changed'. overlap: it limits overlaps.

    ``event``: name of the event to write; None = no event. ``workers``: it skips runs while no worker is registered.
    """
    ...


@call("schedulers_due", repeatable=True)
def schedulers_due(holder: str) -> DueReply:
    """Return the due entries for ``holder`` to fire."""
    ...


@call("schedulers_fire", repeatable=True)
def schedulers_fire(holder: str, rows: Sequence[FireRow], quiet: bool) -> FireReply:
    """Add the jobs of entries that have not changed since they were read. Repeatable: firing changes them."""
    ...
