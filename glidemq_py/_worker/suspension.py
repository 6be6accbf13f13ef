"""What a worker does with suspended jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from glidemq_py._job.job import Job
from glidemq_py._job.run import Run
from glidemq_py._worker.handlers import Route, is_async
from glidemq_py.errors import SuspendError

_MAX_CONTINUATIONS: Final = 1_000
_KEPT_S: Final = 3_600.0
"""How long the function of a suspension without a timeout is kept."""
_GRACE_S: Final = 60.0


class _Continuation:
    __slots__ = ("fence", "function", "job", "until")

    def __init__(self, function: Callable[..., Any], job: Job[Any, Any], fence: int, until: float) -> None:
        self.function = function
        self.job = job
        self.fence = fence
        self.until = until


class Continuations:
    """Up to 1,000 ``on_resume`` functions, oldest evicted first.

    Each is kept until the suspension times out, or for one hour if it has no timeout.
    """

    def __init__(self) -> None:
        self.kept: dict[str, _Continuation] = {}
        """The functions by job id."""

    def keep(self, run: Run, signal: SuspendError) -> None:
        """Keep the function of a run that ends with this `SuspendError`."""
        if signal.on_resume is None:
            return
        now = time.monotonic()
        while self.kept:
            oldest = next(iter(self.kept))
            if len(self.kept) < _MAX_CONTINUATIONS and self.kept[oldest].until > now:
                break
            del self.kept[oldest]
        kept_s = _KEPT_S if signal.timeout is None else signal.timeout / 1000 + _GRACE_S
        self.kept.pop(run.job.id, None)
        self.kept[run.job.id] = _Continuation(signal.on_resume, run.job, run.attempt.fence, now + kept_s)

    def route(self, run: Run) -> Route | None:
        """Return a route to the kept function if this attempt directly follows the suspension; else None."""
        kept = self.kept.pop(run.job.id, None)
        signals = run.job.signals if kept is not None else ()
        if kept is None or not signals or run.attempt.fence != kept.fence + 1 or kept.until <= time.monotonic():
            return None
        # The function has a reference to the job object of the suspended attempt: attach that to this attempt.
        kept.job._attempt = run.attempt
        kept.job._signals_text = run.job._signals_text
        kept.job._waits = None
        kept.job.processed_on = run.job.processed_on
        function = kept.function
        if is_async(function):

            async def resume(_: Any) -> Any:
                return await function(signals)

            return Route(resume, in_thread=False)
        return Route(lambda _: function(signals), in_thread=True)
