"""How a handler can end its attempt other than by returning or failing: delay the job, or rate limit its group.

These methods only raise a signal, in coroutines and threads alike. The worker acts when the handler ends with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, cast

from glidemq_py._core.calls import administration
from glidemq_py._core.checks import check_choice, check_int, check_text
from glidemq_py._core.limits import MAX_COUNT
from glidemq_py._core.payload import check_line
from glidemq_py._core.times import Milliseconds, epoch_ms, to_instant, to_ms
from glidemq_py.errors import (
    DelayedError,
    GlideMQError,
    GlideMQValidationError,
    GroupRateLimitError,
    JobSignal,
    UnrecoverableError,
)

if TYPE_CHECKING:
    from glidemq_py._job.contents import JobContents
    from glidemq_py._job.job import Job

SAME: Final[Any] = object()
"""Default of the ``data`` argument: keep the job's data."""

STEP_KEY: Final = "step"
"""Key of the step in a job's data, here and in glide-mq for Node."""


def next_data(before: Any, next_step: str | None, data: Any) -> tuple[Any, bool]:
    """Return the job's data for its next attempt, and whether it must be stored.

    Raises:
        GlideMQValidationError: If ``next_step`` is invalid, if the data is not a mapping, or if it has a key ``step``
            that is not a step.
    """
    replace = data is not SAME
    if next_step is None:
        return (data, True) if replace else (None, False)
    if replace:
        before, current = data, step_of(before)
        given = step_of(before)
        if given not in (None, current, next_step):
            raise GlideMQValidationError(
                "next_step", next_step, f"the new data has a key {STEP_KEY!r} of its own ({given!r}); rename the key"
            )
    elif not isinstance(given := step_of(before), (str, NoneType)):
        raise GlideMQValidationError(
            "next_step",
            next_step,
            f"the job's data has a key {STEP_KEY!r} that is not a step ({given!r}); rename the key",
        )  # fmt: skip
    if before is not None and not isinstance(before, Mapping):
        raise GlideMQValidationError("next_step", next_step, "requires job data that is a mapping")
    return {**cast("Mapping[str, Any]", before or {}), STEP_KEY: next_step}, True


def step_of(data: Any) -> object:
    """Return the value of the key ``step``, or None."""
    return cast("Mapping[str, Any]", data).get(STEP_KEY) if isinstance(data, Mapping) else None


def delayed_error(
    job: JobContents[Any, Any, Any], when: Milliseconds | datetime, data: Any = None, replace: bool = False
) -> JobSignal:
    """Return the `DelayedError` that ``move_to_delayed`` raises."""
    delay = until = None
    if isinstance(when, datetime):
        until = max(1, epoch_ms(to_instant("when", when)))
    else:
        delay = to_ms("when", when)
    return job._own(DelayedError(delay, until, data, replace))


def data_of_step(job: Job[Any, Any, Any], next_step: str | None, data: Any) -> tuple[Any, bool]:
    """Return the result of `next_data` for the job.

    Raises:
        GlideMQValidationError: If ``next_step`` is invalid or does not fit the task's parameter ``step``.
    """
    if next_step is None:
        return next_data(None, None, data)
    check_text("next_step", next_step, maximum=1024)
    if job._check_step is not None:
        job._check_step(next_step)
    return next_data(job.data, next_step, data)


def move_to_failed(self: JobContents[Any, Any, Any], reason: str | Exception) -> NoReturn:
    """Fail the job permanently, without further attempts.

    The method always raises, so code after it does not run.

    Args:
        reason: The text of `failed_reason`, or the exception to fail with.

    Raises:
        UnrecoverableError: If ``reason`` is a string; otherwise the given exception is raised. Do not catch it.
        GlideMQValidationError: If ``reason`` is neither a non-empty string nor an exception.
        GlideMQError: If called outside the job's handler.
    """
    if isinstance(reason, JobSignal):
        raise GlideMQValidationError("reason", reason, "must be a string or an exception, not a job signal")
    if not isinstance(reason, Exception):
        check_line("reason", reason)
        if not reason:
            raise GlideMQValidationError("reason", reason, "must not be empty")
    self._in_handler("move_to_failed").discarded = True
    raise reason if isinstance(reason, Exception) else UnrecoverableError(reason)


async def report_tokens(self: JobContents[Any, Any, Any], tokens: int) -> None:
    """Report how many tokens (of a language model, for example) this attempt has used.

    The last report counts. It is stored with the job, and the worker's ``token_limiter`` counts it when the attempt
    ends.

    Args:
        tokens: Number of tokens, >= 0.

    Raises:
        GlideMQValidationError: If ``tokens`` is invalid.
        GlideMQError: If called outside the job's handler.
        JobNotFoundError: If the job does not exist.
        StaleAttemptError: If the job is now locked by another worker.
    """
    attempt, number = self._in_handler("report_tokens"), check_int("tokens", tokens, 0, MAX_COUNT)
    await self._write(administration.record_tokens(self._link.keys.meta, self._stored_id, number, self._token))
    attempt.tokens = number


def move_to_delayed(
    self: Job[Any, Any, Any], when: Milliseconds | datetime, *, next_step: str | None = None, data: Any = SAME
) -> NoReturn:
    """End this attempt and run the job again later. The attempt is not counted.

    The method always raises, so code after it does not run.

    Args:
        when: Time from now (ms or timedelta), or the time to run at (a datetime; naive is local time).
        next_step: New value of `step`. It is stored as the key ``step`` of the job's data, which must be a mapping
            without another use of that key.
        data: New data of the job; by default the data is kept.

    Raises:
        DelayedError: Always, unless another error is raised. Do not catch it.
        GlideMQValidationError: If an argument is invalid.
        GlideMQError: If called outside the job's handler.
    """
    self._in_handler("move_to_delayed")
    after, replace = data_of_step(self, next_step, data)
    raise delayed_error(self, when, after, replace)


def rate_limit_group(
    self: Job[Any, Any, Any],
    duration: Milliseconds,
    *,
    current_job: Literal["requeue", "fail"] = "requeue",
    position: Literal["front", "back"] = "front",
    extend: Literal["max", "replace"] = "max",
) -> NoReturn:
    """Rate limit the job's ordering group for a while, and end this attempt. The attempt is not counted.

    No job of the group starts until ``duration`` is over. The method always raises, so code after it does not run.

    Args:
        duration: How long, in ms or as a timedelta, > 0.
        current_job: "requeue" runs this job again after the limit; "fail" fails it permanently.
        position: "front" requeues the job as the next of its group; "back" behind the jobs that wait now.
        extend: "max" keeps an existing limit that ends later; "replace" overwrites it.

    Raises:
        GroupRateLimitError: Always, unless another error is raised. Do not catch it.
        GlideMQValidationError: If an argument is invalid.
        GlideMQError: If the job has no ``ordering``, or if called outside its handler.
    """
    self._in_handler("rate_limit_group")
    if self.ordering_key is None:
        raise GlideMQError(f"job {self.id!r} has no ordering group: it was added without `ordering`")
    signal = GroupRateLimitError(
        to_ms("duration", duration, minimum=1),
        check_choice("current_job", current_job, ("requeue", "fail")),
        check_choice("position", position, ("front", "back")),
        check_choice("extend", extend, ("max", "replace")),
    )
    raise self._own(signal)
