"""What a suspended job is to go on with if this worker resumes it: the ``on_resume`` of `Job.suspend`.

They live in this process alone. What is forgotten here (too many, too old, resumed elsewhere) costs nothing but a
run of the handler from its start, which is what happens without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from glidemq_py._job.job import Job
from glidemq_py._worker.routes import Route, is_async
from glidemq_py._worker.run import Run
from glidemq_py.errors import SuspendError

__all__ = ["Continuations"]

_MOST: Final = 1_000
_KEPT_S: Final = 3_600.0
"""For suspensions without a timeout."""
_GRACE_S: Final = 60.0


class _Continuation:
    __slots__ = ("fence", "function", "job", "until")

    def __init__(self, function: Callable[..., Any], job: Job[Any, Any], fence: int, until: float) -> None:
        self.function = function
        self.job = job
        self.fence = fence
        self.until = until


class Continuations:
    """At most a thousand, the oldest go first; each as long as its job may be suspended, or an hour."""

    def __init__(self) -> None:
        self._by_job: dict[str, _Continuation] = {}

    def __len__(self) -> int:
        return len(self._by_job)

    def keep(self, run: Run, signal: SuspendError) -> None:
        """The run ends with that signal."""
        if signal.on_resume is None:
            return
        now = time.monotonic()
        while self._by_job:
            oldest = next(iter(self._by_job))
            if len(self._by_job) < _MOST and self._by_job[oldest].until > now:
                break
            del self._by_job[oldest]
        kept_s = _KEPT_S if signal.timeout is None else signal.timeout / 1000 + _GRACE_S
        self._by_job.pop(run.job.id, None)
        self._by_job[run.job.id] = _Continuation(signal.on_resume, run.job, run.attempt.fence, now + kept_s)

    def route(self, run: Run) -> Route | None:
        """How the job goes on, if its suspension here is what this attempt comes right after."""
        kept = self._by_job.pop(run.job.id, None)
        signals = run.job.signals if kept is not None else ()
        if kept is None or not signals or run.attempt.fence != kept.fence + 1 or kept.until <= time.monotonic():
            return None
        # The function knows the job of the attempt that suspended itself: what it does with it is this attempt's.
        kept.job._attempt = run.attempt
        kept.job._signals_text = run.job._signals_text
        kept.job._waits = None
        kept.job.processed_on = run.job.processed_on
        function = kept.function
        if is_async(function):

            async def go_on(_: Any) -> Any:
                return await function(signals)

            return Route(go_on, in_thread=False)
        return Route(lambda _: function(signals), in_thread=True)
