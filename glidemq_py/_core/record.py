"""A job's hash as typed values. Parsing never raises: invalid fields keep their default and are listed in `malformed`.

docs/reference/data-model.md describes the fields. Some are not written by Node peers: `eid` (id of the job's stream
entry), `fence` (counter of activations), `failedType` (name of the exception's type), `stacktrace` (JSON array of
strings, newest last). Payloads (data, returnvalue, progress, signals) are not decoded here.
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
_DEPENDENCY_DONE: Final = "depdone:"
_USAGE: Final = "usage:"


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """One job as stored. Times are milliseconds since 1970, durations milliseconds, cost is millitokens.

    `malformed` lists the hash fields with invalid text (the attribute has its default value), and `name` if the hash
    has no name: such a hash was created by a write after the job's removal. `extra` contains unknown fields, such as
    fields of users.
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
    ranked_as: str | None = None
    max_attempts: int = 0
    lifo: bool = False
    expire_at: int | None = None
    cost: int | None = None
    processed_on: int | None = None
    last_active: int | None = None
    finished_on: int | None = None
    returnvalue: str | None = None
    failed_reason: str | None = None
    failed_type: str | None = None
    stacktrace: tuple[str, ...] = ()
    stalled_count: int = 0
    progress: str | None = None
    progress_message: str | None = None
    revoked: bool = False
    eid: str | None = None
    fence: int = 0
    group_key: str | None = None
    ordering_key: str | None = None
    ordering_seq: int | None = None
    parent_id: str | None = None
    parent_queue: str | None = None
    parent_ids: tuple[str, ...] = ()
    parent_queues: tuple[str, ...] = ()
    deps_completed: int = 0
    deps_done: tuple[str, ...] = ()
    scheduler_name: str | None = None
    scheduled_for: int | None = None
    suspended_at: int | None = None
    suspend_reason: str | None = None
    suspend_timeout: int | None = None
    signals: str | None = None
    fallback_index: int = 0
    budget_key: str | None = None
    tpm_tokens: float | None = None
    flow_id: str | None = None
    usage: Mapping[str, str] | None = None
    extra: Mapping[str, str] | None = None
    malformed: tuple[str, ...] = ()
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
        bad: list[str] = []
        for field, text in fields.items():
            if not text:
                continue
            slot = _TEXTS.get(field)
            if slot is not None:
                setattr(record, slot, text)
                continue
            slot = _INTEGERS.get(field)
            if slot is not None:
                number = _integer(text)
                if number is None:
                    bad.append(field)
                else:
                    setattr(record, slot, number)
            elif not record._take(field, text):
                bad.append(field)
        if not record.name:
            bad.append("name")
        if bad:
            record.malformed = tuple(bad)
        return record

    def _take(self, field: str, text: str) -> bool:
        """Store one of the less common fields; return False if its text is invalid."""
        if field == "state":
            self.state = _STATES.get(text)
            return self.state is not None
        if field == "id":
            return text == self.id
        if field in _FLAGS:
            setattr(self, field, text == "1")
            return text in ("0", "1")
        if field in _LISTS:
            strings = _strings(text)
            if strings is None:
                return False
            setattr(self, _LISTS[field], strings[-MAX_STACKTRACES:] if field == "stacktrace" else strings)
            return True
        if field == "tpmTokens":
            self.tpm_tokens = _number(text)
            return self.tpm_tokens is not None
        if field.startswith(_DEPENDENCY_DONE):
            self.deps_done += (field[len(_DEPENDENCY_DONE) :],)
        elif field.startswith(_USAGE):
            self.usage = {**(self.usage or {}), field[len(_USAGE) :]: text}
        else:
            self.extra = {**(self.extra or {}), field: text}
        return True


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
    "eid": "eid",
    "rankedAs": "ranked_as",
    "groupKey": "group_key",
    "orderingKey": "ordering_key",
    "parentId": "parent_id",
    "parentQueue": "parent_queue",
    "schedulerName": "scheduler_name",
    "suspendReason": "suspend_reason",
    "signals": "signals",
    "budgetKey": "budget_key",
    "flowId": "flow_id",
}
_INTEGERS: Final = {
    "timestamp": "timestamp",
    "attemptsMade": "attempts_made",
    "delay": "delay",
    "priority": "priority",
    "rank": "rank",
    "maxAttempts": "max_attempts",
    "expireAt": "expire_at",
    "scheduledFor": "scheduled_for",
    "cost": "cost",
    "processedOn": "processed_on",
    "lastActive": "last_active",
    "finishedOn": "finished_on",
    "stalledCount": "stalled_count",
    "fence": "fence",
    "orderingSeq": "ordering_seq",
    "depsCompleted": "deps_completed",
    "suspendedAt": "suspended_at",
    "suspendTimeout": "suspend_timeout",
    "fallbackIndex": "fallback_index",
}
_FLAGS: Final = frozenset({"lifo", "revoked"})
_LISTS: Final = {"stacktrace": "stacktrace", "parentIds": "parent_ids", "parentQueues": "parent_queues"}


def _integer(text: str) -> int | None:
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


def whole_number(text: str) -> int | None:
    """Return the integer value of a field's text, or None if it is invalid."""
    return _integer(text)
