"""Which jobs of a queue are listed: `JobFilter`; and failed jobs grouped by their error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from glidemq_py._core.calls import administration as calls
from glidemq_py._features.failures import Failure
from glidemq_py._job.job import Job
from glidemq_py._operate.conversion import data_of, shown_reason
from glidemq_py._operate.snapshots import record

HOURS: Final = 24
_HOUR_MS: Final = 3_600_000
_CUT: Final = "\N{HORIZONTAL ELLIPSIS}"
_COMPARED: Final = 1_000
_SPACE: Final = re.compile(r"\s+")
_VARYING: Final = re.compile(r"""[\w.+-]{1,64}@[\w.-]{1,200}|'[^']*'|"[^"]*"|\b[0-9a-fA-F-]{8,}\b|\d+""")


@record
class FailureGroup:
    """Failed jobs with the same name and the same kind of error.

    Attributes:
        name: Name of the jobs.
        error_type: Type of the exception; '' without one.
        shape: `shape_of` the message.
        failures: The failures, newest first.
        trend: Number of failures per hour of the last 24 hours, oldest first.
    """

    name: str
    error_type: str
    shape: str
    failures: tuple[Failure, ...]
    trend: tuple[int, ...]


def shape_of(error: str) -> str:
    """Return an error message without what differs from job to job: addresses, quoted texts, numbers and ids.

    It is one line: a form sends other line breaks than its page has.
    """
    return _VARYING.sub(_CUT, _SPACE.sub(" ", error[:_COMPARED]))


def group_failures(failures: Iterable[Failure], now: int) -> list[FailureGroup]:
    """Return the groups of these failures, the largest first; ``now`` is the end of the trend, epoch ms."""
    groups: dict[tuple[str, str, str], list[Failure]] = {}
    for each in failures:
        groups.setdefault((each.name, each.error_type, shape_of(each.error)), []).append(each)
    found: list[FailureGroup] = []
    for (name, error_type, shape), members in groups.items():
        members.sort(key=lambda each: -each.failed_at)
        trend = [0] * HOURS
        for each in members:
            back = max(0, now - each.failed_at) // _HOUR_MS
            if back < HOURS:
                trend[HOURS - 1 - back] += 1
        group = FailureGroup(name=name, error_type=error_type, shape=shape, failures=tuple(members), trend=tuple(trend))
        found.append(group)
    return sorted(found, key=lambda each: (-len(each.failures), -each.failures[0].failed_at))


@record
class JobFilter:
    """Which jobs of a queue to list; all criteria must match.

    Attributes:
        state: A state that `Queue.iter_jobs` accepts; None = all, one after the other.
        name: The complete job name.
        since: Earliest time at which the job was added, epoch ms.
        until: Latest time at which it was added, epoch ms.
        data: Keys and values that the job's data must contain at its top level.
        group: Its ordering key.
        fair_key: Its fair key.
        tags: Tags that it must have, all of them.
        error: A part of the message of its last failure.
        error_type: Exception type of its last failure; '' = none.
        error_shape: `shape_of` the message of its last failure.
    """

    state: str | None = None
    name: str | None = None
    since: int | None = None
    until: int | None = None
    data: Mapping[str, Any] | None = None
    group: str | None = None
    fair_key: str | None = None
    tags: tuple[str, ...] = ()
    error: str | None = None
    error_type: str | None = None
    error_shape: str | None = None

    @property
    def is_plain(self) -> bool:
        """True if the filter has a state at most: every job of a page matches."""
        return replace(self, state=None) == JobFilter()

    def conditions(self) -> list[calls.Condition]:
        """Return the conditions that the server applies."""
        if self.since is None and self.until is None:
            return []
        low: Any = False if self.since is None else self.since
        high: Any = False if self.until is None else self.until
        return [calls.Condition("timestamp", False, low, high)]

    def matches(self, job: Job) -> bool:
        """Return True if a job matches all criteria but its state."""
        exact = (self.name, job.name), (self.group, job.ordering_key), (self.fair_key, job.fair_key)
        if any(wanted not in (None, found) for wanted, found in exact):
            return False
        if (self.since is not None and job.timestamp < self.since) or (
            self.until is not None and job.timestamp > self.until
        ):
            return False
        if (self.tags and not set(self.tags) <= set(job.tags)) or not self._has_error(job):
            return False
        if not self.data:
            return True
        found = data_of(job)
        if not isinstance(found, dict):
            return False
        held = cast("dict[str, Any]", found)
        return all(key in held and held[key] == value for key, value in self.data.items())

    def _has_error(self, job: Job) -> bool:
        messages = job.failed_reason or "", shown_reason(job) or ""
        return (
            (self.error is None or any(self.error.lower() in message.lower() for message in messages))
            and (self.error_type is None or self.error_type == (job.failed_type or ""))
            and (self.error_shape is None or self.error_shape in map(shape_of, messages))
        )
