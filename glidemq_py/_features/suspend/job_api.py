"""A handler that waits for something outside: it ends its attempt, and is run anew when a signal comes.

Nothing of a running handler is kept on the server: what resumes is the job, not the coroutine. See
docs/learn/suspend.md for how handlers are written that bear it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from glidemq_py._core.callables import check_callable
from glidemq_py._core.checks import check_text
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features.suspend.info import Signal, parse_signals, parse_signals_field
from glidemq_py.errors import JobSignal, SuspendError, UnsupportedOptionError

if TYPE_CHECKING:
    from glidemq_py._job.attempt import Attempt
    from glidemq_py._job.link import QueueLink

__all__ = ["MAX_SIGNAL_NAME", "JobSuspension"]

MAX_SIGNAL_NAME = 256
MAX_REASON = 4_096


class JobSuspension:
    """The part of `Job` that waits for signals."""

    id: str
    _attempt: Attempt | None
    _link: QueueLink
    _signals_text: str | None = None
    _waits: dict[str, int] | None = None
    """How often this run of the handler has asked for each name."""

    if TYPE_CHECKING:

        def _in_handler(self, what: str) -> Attempt: ...

        def _own(self, signal: JobSignal) -> JobSignal: ...

    @property
    def signals(self) -> tuple[Signal, ...]:
        """The signals that resumed it so far, oldest first; empty for a job that was never suspended."""
        return parse_signals_field(self._signals_text)

    def suspend(
        self,
        *,
        reason: str | None = None,
        timeout: Milliseconds | None = None,
        on_resume: Callable[[tuple[Signal, ...]], Any] | None = None,
    ) -> NoReturn:
        """End this attempt here and wait for `Queue.signal`, without spending an attempt. It always raises.

        When a signal comes, the job is ready again and its handler runs from its start, by any worker, with the
        signal in `signals`. A signal that came before the suspension resumes it at once.

        Args:
            reason: what it waits for, for people; at most 4,096 characters.
            timeout: ms or timedelta; the job fails for good if no signal has come by then. None = for ever.
            on_resume: called with `signals` instead of the handler, plain or async, where the same worker object
                resumes the job; an optimization that may not happen, so the handler must get there too. What it
                returns is the job's result, and the job's own `timeout` holds for it. Not in batches and sandboxes.

        Raises:
            SuspendError: the signal; let it pass.
            UnsupportedOptionError: ``on_resume``, in a batch or a sandbox.
            GlideMQValidationError, GlideMQError: it cannot be done.
        """
        self._in_handler("suspend")
        if on_resume is not None:
            check_callable("on_resume", on_resume, "signals")
            if self._link.no_continuations is not None:
                raise UnsupportedOptionError("on_resume", on_resume, self._link.no_continuations)
        signal = SuspendError(
            None if reason is None else check_text("reason", reason, maximum=MAX_REASON),
            None if timeout is None else to_ms("timeout", timeout, minimum=1),
            on_resume,
        )
        raise self._own(signal)

    async def wait_for_signal(
        self, name: str, *, reason: str | None = None, timeout: Milliseconds | None = None
    ) -> Signal:
        """The signal of that name: it is returned where it has come, else the job is suspended until one comes.

        The n-th call for a name in a run of the handler is for the n-th signal of that name. So a handler that is
        run from its start after each resumption, and asks in the same order, gets the same answers as before and
        comes one step further. Keep what comes before a wait free of effects, or repeatable.

        Args:
            name: of the signal; others are kept for the calls that ask for them.
            reason: for people; "signal <name>" by default.
            timeout: as for `suspend`; it begins anew where another signal resumes the job.

        Raises:
            SuspendError: it has not come yet; let it pass.
            GlideMQValidationError, GlideMQError: it cannot be done.
        """
        self._in_handler("wait_for_signal")
        check_text("name", name, maximum=MAX_SIGNAL_NAME)
        waits = self._waits = self._waits or {}
        asked = waits.get(name, 0)
        found = [signal for signal in self.signals if signal.name == name]
        if len(found) <= asked:
            # It may have come while the handler ran, or before it ran for the first time.
            reply = await self._link.transport.command("LRANGE", self._link.keys.signals(self.id), "0", "-1")
            received = parse_signals(item.decode("utf-8", "replace") for item in reply)
            found = [signal for signal in received if signal.name == name]
        if len(found) <= asked:
            self.suspend(reason=reason or f"signal {name}", timeout=timeout)
        waits[name] = asked + 1
        return found[asked]
