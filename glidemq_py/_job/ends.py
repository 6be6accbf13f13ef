"""The methods of `Job` with which a handler ends its attempt other than by returning or failing.

They raise a signal, in coroutines and threads alike. The worker acts when the handler ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from types import NoneType
from typing import Any, Final, Literal, NoReturn, cast

from glidemq_py._core.checks import check_choice, check_text
from glidemq_py._core.times import Milliseconds, epoch_ms, to_instant, to_ms
from glidemq_py._features.suspend import Signal, suspend_error
from glidemq_py._job.contents import JobContents
from glidemq_py._job.stored import STEP_KEY, StoredJob, step_of
from glidemq_py.errors import (
    DelayedError,
    GlideMQError,
    GlideMQValidationError,
    GroupRateLimitError,
    JobSignal,
)

SAME: Final[Any] = object()
"""Default of the ``data`` argument: keep the job's data."""


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


def delayed_error(
    job: JobContents, when: Milliseconds | datetime, data: Any = None, replace: bool = False
) -> JobSignal:
    """Return the `DelayedError` that ``move_to_delayed`` raises."""
    delay = until = None
    if isinstance(when, datetime):
        until = max(1, epoch_ms(to_instant("when", when)))
    else:
        delay = to_ms("when", when)
    return job._own(DelayedError(delay, until, data, replace))


def data_of_step(job: StoredJob, next_step: str | None, data: Any) -> tuple[Any, bool]:
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


def move_to_delayed(
    self: StoredJob, when: Milliseconds | datetime, *, next_step: str | None = None, data: Any = SAME
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
    self: StoredJob,
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


def suspend(
    self: StoredJob,
    *,
    reason: str | None = None,
    timeout: Milliseconds | None = None,
    on_resume: Callable[[tuple[Signal, ...]], Any] | None = None,
) -> NoReturn:
    """Suspend the job until `Queue.signal`. Always raises, which ends this attempt without counting it.

    When a signal comes, the job returns to waiting and any worker runs its handler again from the start, with the
    signal in `signals`. A signal that came before the suspension resumes the job at once.

    Args:
        reason: description of the awaited event, for people; at most 4,096 characters.
        timeout: ms or timedelta, at least 1 ms; if no signal comes within it, the job fails and is not retried.
            None = no limit.
        on_resume: plain or async function called with `signals` in place of the handler if the same worker object
            resumes the job. This is an optimization that may not happen: the handler must reach the same result.
            Its return value is the result of the job, and the `timeout` of the job applies. Not supported in
            sandboxes.

    Raises:
        SuspendError: always; do not catch it. In a batch handler, the job then fails with `GlideMQValidationError`.
        GlideMQValidationError: ``on_resume`` was given in a sandbox.
        GlideMQValidationError: an argument is invalid.
        GlideMQError: the job is not running in a handler.
    """
    self._in_handler("suspend")
    raise self._own(suspend_error(self._link, reason, timeout, on_resume))
