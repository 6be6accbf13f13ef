"""Options of the failure log: a value that validates itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypedDict

from glidemq_py._core.checks import check_bool, check_int, parse_nested
from glidemq_py.errors import GlideMQValidationError

__all__ = ["FailureLogDict", "FailureLogOptions", "parse_failure_log"]

MAX_PER_MINUTE: Final = 1_000_000


class FailureLogDict(TypedDict, total=False):
    """`FailureLogOptions` as a mapping."""

    per_minute: int
    retries: bool
    tracebacks: bool


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class FailureLogOptions:
    """Options of the failure log (logger ``glidemq_py.failures``).

    Args:
        per_minute: Number of failures logged one by one per minute, outcome, job name and error type, 0..1_000_000. A
            summary line counts the others at the end of the minute and when the worker closes.
        retries: Also log failed attempts that are retried, not only failed jobs.
        tracebacks: Log failed jobs with their traceback (``exc_info``).

    Raises:
        GlideMQValidationError: If a field is invalid. The error names the field and its value.
    """

    per_minute: int
    retries: bool
    tracebacks: bool

    def __init__(self, *, per_minute: int = 5, retries: bool = True, tracebacks: bool = True) -> None:
        keep = object.__setattr__
        keep(self, "per_minute", check_int("per_minute", per_minute, 0, MAX_PER_MINUTE))
        keep(self, "retries", check_bool("retries", retries))
        keep(self, "tracebacks", check_bool("tracebacks", tracebacks))


def parse_failure_log(option: str, value: Any) -> FailureLogOptions | None:
    """Return the options for True, a mapping or a `FailureLogOptions`, and None for False.

    Raises:
        GlideMQValidationError: If the value is invalid. The error names ``option`` and the value.
    """
    if isinstance(value, bool):
        return FailureLogOptions() if value else None
    if value is None or isinstance(value, (int, float, str)):
        raise GlideMQValidationError(
            option, value, "must be True, False, a FailureLogOptions or a mapping of its fields"
        )
    return parse_nested(option, value, FailureLogOptions, needed=0)
