"""Failed jobs grouped by their error, with how often it has occurred lately."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from glidemq_py._features.failures import Failure

HOURS: Final = 24
_HOUR_MS: Final = 3_600_000
_CUT: Final = "\N{HORIZONTAL ELLIPSIS}"
_COMPARED: Final = 1_000
_SPACE: Final = re.compile(r"\s+")
_VARYING: Final = re.compile(r"""[\w.+-]{1,64}@[\w.-]{1,200}|'[^']*'|"[^"]*"|\b[0-9a-fA-F-]{8,}\b|\d+""")


@dataclass(frozen=True, slots=True, kw_only=True)
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
