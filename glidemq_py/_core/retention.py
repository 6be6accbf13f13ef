"""The options `remove_on_complete` and `remove_on_fail`: which finished jobs are kept."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypedDict, cast

from glidemq_py._core.checked_options import Converted, OptionValue, option
from glidemq_py._core.checks import check_int, check_mapping
from glidemq_py._core.times import MAX_DURATION_MS
from glidemq_py.errors import GlideMQValidationError

_MAX_AGE_S: Final = MAX_DURATION_MS // 1_000
_MAX_COUNT: Final = 2**31 - 1


class KeepJobsDict(TypedDict, total=False):
    """`KeepJobs` as a mapping."""

    age: int | timedelta
    count: int


def _seconds(option: str, value: object) -> int:
    if isinstance(value, timedelta):
        whole, rest = divmod(value, timedelta(seconds=1))
        value = whole + bool(rest)
    return check_int(option, value, 1, _MAX_AGE_S, unit=" (seconds) or a timedelta")


class KeepJobs(OptionValue, kw_only=True):
    """Keep finished jobs up to a maximum age, a maximum number, or both.

    Args:
        age: maximum age in seconds (not milliseconds; glide-mq uses seconds too) or a timedelta; > 0.
        count: number of newest jobs to keep; > 0.

    Raises:
        GlideMQValidationError: an option is invalid, or neither was given.
    """

    age: Converted[int | None, int | timedelta | None] = option(_seconds, default=None)
    count: int | None = option(partial(check_int, minimum=1, maximum=_MAX_COUNT), default=None)

    def _check_given(self) -> None:
        if self.age is None and self.count is None:
            raise GlideMQValidationError("KeepJobs", {}, "requires 'age' (seconds), 'count', or both")


Retention = bool | int | KeepJobs
"""A validated retention option; 0 is converted to True."""
RetentionInput = bool | int | KeepJobs | KeepJobsDict
"""Accepted values of `remove_on_complete` and `remove_on_fail`."""


def parse_retention(option: str, value: object) -> Retention | None:
    """Return a valid retention option. 0 becomes True (keep none), because glide-mq reads 0 as "keep all"."""
    if value is None or value is True or value is False or isinstance(value, KeepJobs):
        return value
    if isinstance(value, int):
        return check_int(option, value, 0, _MAX_COUNT) or True
    if not isinstance(value, Mapping):
        raise GlideMQValidationError(
            option, value, "must be a bool, a number of jobs to keep, or {'age': seconds, 'count': number}"
        )
    given = check_mapping(option, cast("object", value), ("age", "count"))
    age, count = given.get("age"), given.get("count")
    if age is None and count is None:
        raise GlideMQValidationError(option, given, "requires 'age' (seconds), 'count', or both")
    age = None if age is None else _seconds(f"{option}.age", age)
    if count is not None and check_int(f"{option}.count", count, 0, _MAX_COUNT) == 0:
        return True  # keep none, regardless of age
    return KeepJobs(age=age, count=count)


def read_retention(stored: Any) -> Any:
    """Return a stored retention as glide-mq for Node reads it: 0 means keep all. This package never writes 0."""
    if not isinstance(stored, Mapping):
        return stored or False
    return KeepJobs.from_wire(cast("Mapping[str, Any]", stored)) or False


def retention_to_wire(value: Retention) -> bool | int | dict[str, Any]:
    """Return the option as in the opts JSON. True replaces 0, which a Node peer would read as "keep all"."""
    return value.to_wire() if isinstance(value, KeepJobs) else value


def kept(value: Retention | None) -> int | tuple[int, int]:
    """Return the option in the form of reports: 0 = keep the job, 1 = delete it, or (count, age in seconds)."""
    if value is None or value is False:
        return 0
    if value is True:
        return 1
    if isinstance(value, KeepJobs):
        return (value.count or 0, value.age or 0)
    return (value, 0)
