"""A job's hash as typed values. Parsing never raises: invalid fields keep their default, and others are ignored.

docs/reference/data-model.md describes the fields. Some are not written by Node peers: `failedType` (name of the
exception's type), `stacktrace` (JSON array of strings, newest last). Payloads (data, returnvalue, progress, signals)
are not decoded here.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self, cast

from glidemq_py._core.job_states import JobState

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
_TEXTS: Final = {
    "name": "name",
    "data": "data",
    "opts": "opts",
    "returnvalue": "returnvalue",
    "failedReason": "failed_reason",
    "failedType": "failed_type",
    "progress": "progress",
    "progressMessage": "progress_message",
    "suspendReason": "suspend_reason",
    "signals": "signals",
    "budgetKey": "budget_key",
}
_INTEGERS: Final = {
    "timestamp": "timestamp",
    "attemptsMade": "attempts_made",
    "delay": "delay",
    "priority": "priority",
    "rank": "rank",
    "scheduledFor": "scheduled_for",
    "processedOn": "processed_on",
    "finishedOn": "finished_on",
    "stalledCount": "stalled_count",
    "suspendedAt": "suspended_at",
    "suspendTimeout": "suspend_timeout",
    "fallbackIndex": "fallback_index",
}


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
