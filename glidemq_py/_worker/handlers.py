"""The handlers of a worker: which one runs a job, and threads for handlers that are plain functions.

A job is handled by the task with its name, else by the worker's handler.

All threads share one queue, and results that arrive together are delivered to the event loop in one callback. This
costs several times less per job than an executor. Threads are added only while jobs wait for one: quick handlers share
a few threads, slow ones get one each, up to the concurrency.

`Continuations` keeps the functions that continue suspended jobs.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from glidemq_py._core.checks import check_callable
from glidemq_py._core.logs import get_logger
from glidemq_py._job.job import Job
from glidemq_py._job.run import Run
from glidemq_py.errors import GlideMQValidationError, SuspendError

_log = get_logger(__name__)

Handler = Callable[[Any], Any]


def is_async(function: Callable[..., Any]) -> bool:
    """Return True for coroutine functions, partials of them and objects whose ``__call__`` is one."""
    called = getattr(function, "__call__", None)  # noqa: B004 - inspects the method, not whether it exists
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def check_handler(function: Any, argument: str) -> Handler:
    """Return the function if it can be a handler.

    Args:
        function: The candidate.
        argument: Name of the argument it is called with, for error messages.

    Raises:
        GlideMQValidationError: If it cannot be called with one argument, or is a generator function.
    """
    if not callable(function):
        raise GlideMQValidationError("handler", function, 'must be a function, or a string such as "module:function"')
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise GlideMQValidationError("handler", function, "must return its result; generators are not supported")
    handler: Handler = check_callable("handler", function, argument)
    return handler


@dataclass(frozen=True, slots=True)
class Route:
    """A handler, called with the job.

    Attributes:
        handler: The function.
        in_thread: True to run it in a thread; False to await it on the event loop.
    """

    handler: Handler
    in_thread: bool

    @classmethod
    def to(cls, handler: Handler) -> Route:
        """Return the route of a user's handler."""
        return cls(handler, not is_async(handler))


class Routes:
    """The handlers of a worker.

    Args:
        default: Handler of job names without their own; None fails those jobs.
        by_name: Handlers by job name.
    """

    __slots__ = ("_by_name", "_default", "only")

    def __init__(self, default: Route | None, by_name: Mapping[str, Route]) -> None:
        self._default = default
        self._by_name = dict(by_name)
        self.only = None if by_name else default
        """The handler, if it is the only one."""

    def find(self, job_name: str) -> Route | None:
        """Return the handler of a job name, or None."""
        return self._by_name.get(job_name, self._default)


_GROW_AFTER_S = 0.002
_LOOP_CHECK_S = 10.0
"""Time between checks of an idle thread whether its event loop was closed."""

WorkT = TypeVar("WorkT")


class HandlerThreads(Generic[WorkT]):
    """Runs handlers in daemon threads.

    Args:
        size: Maximum number of threads.
        invoke: Runs a piece of work, in a thread.
        deliver: Called on the event loop with (work, result, error) for each piece that ended.
        name: First part of the threads' names.
    """

    def __init__(
        self,
        size: int,
        invoke: Callable[[WorkT], Any],
        deliver: Callable[[WorkT, Any, BaseException | None], None],
        name: str,
    ) -> None:
        self._size = size
        self._invoke = invoke
        self._deliver = deliver
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[WorkT | None] = queue.SimpleQueue()
        self._ended: deque[tuple[WorkT, Any, BaseException | None]] = deque()
        self._woken = False
        self._growing = False
        self._threads = 0

    def resize(self, size: int) -> None:
        """Change the maximum number of threads. Threads that exist are kept."""
        self._size = size

    def submit(self, work: WorkT) -> None:
        """Run ``work`` in a thread as soon as one is free."""
        self._waiting.put(work)
        if self._threads == 0:
            self._add_thread()
        if not self._growing and self._threads < self._size:
            self._growing = True
            self._loop.call_later(_GROW_AFTER_S, self._grow)

    def _grow(self) -> None:
        self._growing = False
        missing = min(self._waiting.qsize(), self._size - self._threads)
        for _ in range(missing):
            self._add_thread()
        if missing > 0 and self._threads < self._size:
            self._growing = True
            self._loop.call_later(_GROW_AFTER_S, self._grow)

    def _add_thread(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        take, invoke = self._take, self._invoke
        while (work := take()) is not None:
            context = contextvars.copy_context()
            try:
                result, error = context.run(invoke, work), None
            except BaseException as raised:
                # SystemExit and similar exceptions end the attempt, not the thread.
                result, error = None, raised
            self._ended.append((work, result, error))
            work = None
            if not self._woken:
                self._woken = True
                try:
                    self._loop.call_soon_threadsafe(self._deliver_all)
                except RuntimeError:
                    return  # the loop is closed

    def _take(self) -> WorkT | None:
        """Return the next piece of work; None to end the thread."""
        while True:
            try:
                return self._waiting.get(timeout=_LOOP_CHECK_S)
            except queue.Empty:
                if self._loop.is_closed():
                    return None

    def _deliver_all(self) -> None:
        self._woken = False
        ended = self._ended
        while ended:
            self._deliver(*ended.popleft())

    def close(self) -> None:
        """End idle threads; busy ones end after their handler."""
        for _ in range(self._threads):
            self._waiting.put(None)


_MAX_CONTINUATIONS: Final = 1_000
_KEPT_S: Final = 3_600.0
"""How long the function of a suspension without a timeout is kept."""
_GRACE_S: Final = 60.0


class _Continuation(NamedTuple):
    function: Callable[..., Any]
    job: Job
    fence: int
    until: float


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
        kept.job._steps_texts, kept.job._memo = run.job._steps_texts, None
        kept.job._waits = None
        kept.job.processed_on = run.job.processed_on
        function = kept.function
        if is_async(function):

            async def resume(_: Any) -> Any:
                return await function(signals)

            return Route(resume, in_thread=False)
        return Route(lambda _: function(signals), in_thread=True)
