"""What a queue reports: states, outcomes of an add, counts, live workers, and a job's hash as typed values.

Parsing a hash never raises: invalid fields keep their default, and others are ignored.

docs/reference/data-model.md describes the fields. Some are not written by Node peers: `failedType` (name of the
exception's type), `stacktrace` (JSON array of strings, newest last). Payloads (data, returnvalue, progress, signals)
are not decoded here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final, Self, cast

from glidemq_py._core.checks import camel_case, check_choice, check_iterable
from glidemq_py.errors import GlideMQValidationError


class JobState(StrEnum):
    """State of a job; the value is the text stored in the job's hash."""

    WAITING = "waiting"
    ACTIVE = "active"
    DELAYED = "delayed"
    PRIORITIZED = "prioritized"
    COMPLETED = "completed"
    FAILED = "failed"
    WAITING_CHILDREN = "waiting-children"
    GROUP_WAITING = "group-waiting"
    SUSPENDED = "suspended"

    @property
    def is_finished(self) -> bool:
        """Return True for completed and failed."""
        return self is JobState.COMPLETED or self is JobState.FAILED


def check_states(states: object) -> str:
    """Return the states of an option ``states``, separated by spaces; '' for None, which allows all.

    Raises:
        GlideMQValidationError: If it is neither a state nor a non-empty iterable of states.
    """
    if states is None:
        return ""
    if isinstance(states, str):
        return check_choice("states", states, tuple(JobState))
    given = tuple(check_iterable("states", cast("Iterable[object]", states), "states"))
    if not given:
        raise GlideMQValidationError("states", states, "must not be empty; None allows every state")
    return " ".join(check_choice("states", state, tuple(JobState)) for state in given)


class JobOutcome(StrEnum):
    """Outcome of `add`."""

    ADDED = "added"
    """The job was stored."""
    DUPLICATE = "duplicate"
    """A job with this custom id already exists; it was not changed."""
    SKIPPED = "skipped"
    """Deduplication kept the existing job."""
    REPLACED = "replaced"
    """Deduplication replaced the existing job with this one."""
    STAGED = "staged"
    """Deduplication staged this job: it runs after the existing job, which is active, has ended."""


ADDED_OUTCOMES: Final = frozenset((JobOutcome.ADDED, JobOutcome.REPLACED, JobOutcome.STAGED))
"""Outcomes of an `add` that stored a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """Numbers of jobs in a queue by state.

    Attributes:
        waiting: ready to run.
        active: fetched by a worker.
        delayed: due later, including retries in their backoff.
        prioritized: ready, with a priority.
        group_waiting: waiting in ordering groups that are full, rate limited, or busy with an earlier job.
        completed: completed and kept.
        failed: failed without attempts left, and kept.
        suspended: waiting for a signal.
        waiting_children: parents waiting for their children.
        paused: True if the queue is paused.
    """

    waiting: int = 0
    active: int = 0
    delayed: int = 0
    prioritized: int = 0
    group_waiting: int = 0
    completed: int = 0
    failed: int = 0
    suspended: int = 0
    waiting_children: int = 0
    paused: bool = False

    @property
    def unfinished(self) -> int:
        """Return the number of jobs that have neither completed nor failed."""
        ready = self.waiting + self.active + self.delayed + self.prioritized + self.group_waiting
        return ready + self.suspended + self.waiting_children

    @property
    def total(self) -> int:
        """Return the number of all jobs."""
        return self.unfinished + self.completed + self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One live worker, as registered by its last heartbeat.

    Attributes:
        id: consumer name.
        host: host name.
        pid: process id.
        started_at: milliseconds since 1970.
        age: milliseconds since its start.
        active_jobs: number of active jobs at the last heartbeat.
        concurrency: maximum number of jobs that it runs at the same time; None = unknown, as of Node workers.
        memory: physical memory of its process at the last heartbeat, bytes; None = unknown.
        paused: True if it fetched no jobs at the last heartbeat: it was paused, or is quiet.
        stuck: number of slots that were occupied, at the last heartbeat, by handlers that had not ended although their
            attempts had: after a timeout, a cancellation or a lost lock.
    """

    id: str
    host: str
    pid: int
    started_at: int
    age: int
    active_jobs: int
    concurrency: int | None = None
    memory: int | None = None
    paused: bool = False
    stuck: int = 0


MAX_STACKTRACES: Final = 10
"""Maximum number of stack traces of a job; the newest are kept."""

_INTEGER_DIGITS: Final = 18
_USAGE: Final = "usage:"


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """One job as stored. Times are milliseconds since 1970, durations milliseconds.

    The name is empty if the hash has none: such a hash was created by a write after the job's removal.
    """

    id: str
    name: str = ""
    data: str | None = None
    opts: str = "{}"
    state: JobState | None = None
    timestamp: int | None = None
    attempts_made: int = 0
    delay: int = 0
    priority: int = 0
    rank: int | None = None
    processed_on: int | None = None
    finished_on: int | None = None
    returnvalue: str | None = None
    failed_reason: str | None = None
    failed_type: str | None = None
    stacktrace: tuple[str, ...] = ()
    stalled_count: int = 0
    progress: str | None = None
    progress_message: str | None = None
    scheduled_for: int | None = None
    suspended_at: int | None = None
    suspend_reason: str | None = None
    suspend_timeout: int | None = None
    signals: str | None = None
    fallback_index: int = 0
    budget_key: str | None = None
    usage: Mapping[str, str] | None = None
    fields_read: Collection[str] = ()
    """Names of the requested fields, present or not."""

    @classmethod
    def parse(cls, job_id: str, fields: Mapping[str, str | None]) -> Self:
        """Return the record of a job's hash fields, all or some of them. Never raises.

        Args:
            job_id: id from the key; the `id` field of the hash is not trusted.
            fields: text by field name; None and "" mean absent.
        """
        record = cls(id=job_id, fields_read=fields.keys())
        for field, text in fields.items():
            if not text:
                continue
            if (slot := _TEXTS.get(field)) is not None:
                setattr(record, slot, text)
            elif (slot := _INTEGERS.get(field)) is not None:
                number = whole_number(text)
                if number is not None:
                    setattr(record, slot, number)
            else:
                record._take(field, text)
        return record

    def _take(self, field: str, text: str) -> None:
        """Store one of the less common fields."""
        if field == "state":
            self.state = _STATES.get(text)
        elif field == "stacktrace":
            self.stacktrace = (_strings(text) or ())[-MAX_STACKTRACES:]
        elif field.startswith(_USAGE):
            self.usage = {**(self.usage or {}), field[len(_USAGE) :]: text}


_STATES: Final = {state.value: state for state in JobState}
_SLOTS: Final = {camel_case(each.name): each for each in fields(JobRecord) if each.name not in ("id", "state", "usage")}
_TEXTS: Final = {stored: each.name for stored, each in _SLOTS.items() if str(each.type).startswith("str")}
_INTEGERS: Final = {stored: each.name for stored, each in _SLOTS.items() if str(each.type).startswith("int")}


def whole_number(text: str) -> int | None:
    """Return a decimal integer, or None. Fractions and exponents (peers store `1.5` unchanged) are truncated."""
    if len(text) <= _INTEGER_DIGITS and text.isascii() and text.isdigit():
        return int(text)
    number = _number(text)
    return None if number is None else int(number)


def _number(text: str) -> float | None:
    # float() also accepts "nan", "1_0", " 1 " and non-ASCII digits, which no peer writes.
    if len(text) > 32 or not set(text) <= _NUMBER_CHARACTERS:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) < 2.0**63 else None


_NUMBER_CHARACTERS: Final = frozenset("0123456789+-.eE")


def _strings(text: str) -> tuple[str, ...] | None:
    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, list):
        return None
    items = cast("list[object]", parsed)
    strings = tuple(item for item in items if isinstance(item, str))
    return strings if len(strings) == len(items) else None
