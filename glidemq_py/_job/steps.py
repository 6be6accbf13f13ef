"""What a handler may decide about its own job beside returning and failing: later, not now, its group not now.

These methods do nothing by themselves: they raise a signal, in a coroutine and in a thread alike, and the worker does
what it says when the handler has ended with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, cast

from glidemq_py._core.calls import control
from glidemq_py._core.checks import check_choice, check_int, check_text
from glidemq_py._core.payload import check_line
from glidemq_py._core.times import Milliseconds, epoch_ms, to_instant, to_ms
from glidemq_py._features.limits.options import MAX_COUNT
from glidemq_py.errors import (
    DelayedError,
    GlideMQError,
    GlideMQValidationError,
    GroupRateLimitError,
    JobSignal,
    UnrecoverableError,
)

if TYPE_CHECKING:
    from glidemq_py._job.attempt import Attempt
    from glidemq_py._job.link import QueueLink

__all__ = ["SAME", "STEP_KEY", "JobSteps", "next_data"]

SAME: Final[Any] = object()
"""Stands for data that is not given."""

STEP_KEY: Final = "step"
"""Where a job's data has its step, here and in glide-mq for Node."""


def next_data(before: Any, next_step: str | None, data: Any) -> tuple[Any, bool]:
    """The data with which a job goes on, and whether it is to be written. Raises GlideMQValidationError."""
    replace = data is not SAME
    if next_step is None:
        return (data, True) if replace else (None, False)
    check_text("next_step", next_step, maximum=1024)
    if replace:
        before = data
    if before is not None and not isinstance(before, Mapping):
        raise GlideMQValidationError("next_step", next_step, "needs data that is a mapping")
    return {**cast("Mapping[str, Any]", before or {}), STEP_KEY: next_step}, True


class JobSteps:
    """The part of `Job` for its own handler."""

    id: str
    _attempt: Attempt | None
    _link: QueueLink

    if TYPE_CHECKING:

        @property
        def _token(self) -> tuple[int, int]: ...

        @property
        def data(self) -> Any:
            """See `Job`."""

        @property
        def opts(self) -> Mapping[str, Any]:
            """See `Job`."""
            ...

        async def _write(self, call: Any) -> None: ...

    _check_step: Callable[[str], None] | None = None
    """Rejects a step that does not fit the task's own parameter ``step``; None if it has no such parameter."""

    @property
    def step(self) -> str | None:
        """The ``next_step`` with which an earlier attempt ended; None before.

        In `data` and on the wire it is the key ``step``, as glide-mq for Node writes and reads it. The arguments of a
        task do not contain it, unless the task has a parameter of that name.

        Raises:
            JobDataError: the data cannot be read.
        """
        data: Any = self.data
        step: object = cast("Mapping[str, Any]", data).get(STEP_KEY) if isinstance(data, Mapping) else None
        return step if isinstance(step, str) else None

    def _next_data(self, next_step: str | None, data: Any) -> tuple[Any, bool]:
        """What `next_data` returns for this job. Raises GlideMQValidationError."""
        if next_step is None:
            return next_data(None, None, data)
        result = next_data(self.data, next_step, data)
        if self._check_step is not None:
            self._check_step(next_step)
        return result

    @property
    def ordering_key(self) -> str | None:
        """Key of the group it belongs to; None for a job without `ordering`."""
        ordering = self.opts.get("ordering")
        key = cast("Mapping[str, Any]", ordering).get("key") if isinstance(ordering, Mapping) else None
        return key if isinstance(key, str) and key else None

    def _in_handler(self, what: str) -> Attempt:
        if self._attempt is None or self._attempt.fence == 0:
            raise GlideMQError(f"{what} is for the handler that runs the job")
        return self._attempt

    def _own(self, signal: JobSignal) -> JobSignal:
        """Marked as this job's, since a batch has several."""
        signal.job_id = self.id
        return signal

    def move_to_delayed(
        self, when: Milliseconds | datetime, *, next_step: str | None = None, data: Any = SAME
    ) -> NoReturn:
        """End this attempt here and go on later, without spending an attempt. It always raises, so call it last.

        Args:
            when: how long from now (ms or timedelta), or at which moment (a datetime; naive is local time).
            next_step: what `step` returns from now on. It is written into the job's data, which must be a mapping, as
                ``step``.
            data: the job's data from now on; not given, it stays.

        Raises:
            DelayedError: the signal; let it pass.
            GlideMQValidationError, GlideMQError: it cannot be done.
        """
        self._in_handler("move_to_delayed")
        delay = until = None
        if isinstance(when, datetime):
            until = max(1, epoch_ms(to_instant("when", when)))
        else:
            delay = to_ms("when", when)
        after, replace = self._next_data(next_step, data)
        raise self._own(DelayedError(delay, until, after, replace))

    def rate_limit_group(
        self,
        duration: Milliseconds,
        *,
        current_job: Literal["requeue", "fail"] = "requeue",
        position: Literal["front", "back"] = "front",
        extend: Literal["max", "replace"] = "max",
    ) -> NoReturn:
        """Let no job of this job's group begin for a while, and end this attempt here without spending it.

        Args:
            duration: ms or timedelta, > 0.
            current_job: "requeue": this job goes on when the group does; "fail": it fails for good.
            position: "front": it is the group's next; "back": it goes behind those that wait now.
            extend: "max" keeps a later end that is set already, "replace" does not.

        Raises:
            GroupRateLimitError: the signal; let it pass.
            GlideMQValidationError: an argument cannot be. GlideMQError: the job belongs to no group.
        """
        self._in_handler("rate_limit_group")
        if self.ordering_key is None:
            raise GlideMQError(f"job {self.id!r} belongs to no group: it was added without `ordering`")
        signal = GroupRateLimitError(
            to_ms("duration", duration, minimum=1),
            check_choice("current_job", current_job, ("requeue", "fail")),
            check_choice("position", position, ("front", "back")),
            check_choice("extend", extend, ("max", "replace")),
        )
        raise self._own(signal)

    def move_to_failed(self, reason: str | Exception) -> NoReturn:
        """Fail here and for good, whatever attempts are left.

        Args:
            reason: what `failed_reason` will say, or the exception to fail with.

        Raises:
            UnrecoverableError: or the exception given; let it pass.
            GlideMQValidationError: the reason is neither; the attempt goes on as it was.
        """
        if isinstance(reason, JobSignal):
            raise GlideMQValidationError("reason", reason, "is no failure: it says what else becomes of the job")
        if not isinstance(reason, Exception):
            check_line("reason", reason)
            if not reason:
                raise GlideMQValidationError("reason", reason, "must not be empty")
        self._in_handler("move_to_failed").discarded = True
        raise reason if isinstance(reason, Exception) else UnrecoverableError(reason)

    async def report_tokens(self, tokens: int) -> None:
        """Say how many tokens (of a language model, say) this attempt has used; the last report counts.

        They are stored with the job, and counted by a worker's ``token_limiter`` when the attempt ends.

        Args:
            tokens: >= 0.

        Raises:
            GlideMQValidationError: not a number that can be. And what `Job.log` raises.
        """
        attempt, number = self._in_handler("report_tokens"), check_int("tokens", tokens, 0, MAX_COUNT)
        await self._write(control.note_tokens(self._link.keys.meta, self.id, number, self._token))
        attempt.tokens = number
