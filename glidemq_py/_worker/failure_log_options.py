"""Options of the failure log: a value that validates itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

from glidemq_py._core.checked_options import CheckedOptions, option
from glidemq_py._core.checks import check_bool, check_int, parse_nested
from glidemq_py.errors import GlideMQValidationError

__all__ = ["FailureLogDict", "FailureLogOptions", "parse_failure_log"]

MAX_PER_MINUTE: Final = 1_000_000


class FailureLogDict(TypedDict, total=False):
    """`FailureLogOptions` as a mapping."""

    per_minute: int
    retries: bool
    tracebacks: bool


@dataclass(frozen=True, init=False)
class FailureLogOptions(CheckedOptions):
    """Options of the failure log (logger ``glidemq_py.failures``).

    Args:
        per_minute: Number of failures logged one by one per minute, outcome, job name and error type, 0..1_000_000. A
            summary line counts the others at the end of the minute and when the worker closes.
        retries: Also log failed attempts that are retried, not only failed jobs.
        tracebacks: Log failed jobs with their traceback (``exc_info``).

    Raises:
        GlideMQValidationError: If a field is invalid. The error names the field and its value.
    """

    per_minute: int = option(partial(check_int, minimum=0, maximum=MAX_PER_MINUTE), 5)
    retries: bool = option(check_bool, True)
    tracebacks: bool = option(check_bool, True)

    if TYPE_CHECKING:

        def __init__(self, **given: Unpack[FailureLogDict]) -> None: ...


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
