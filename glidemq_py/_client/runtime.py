"""Async and blocking runtimes: waiting suspends the task, or blocks the thread; and the base of background tasks.

The logic of queues, jobs and events is written once, as coroutines. In an event loop they await a `Transport` of the
loop. The blocking API runs the same coroutines over a blocking transport: a coroutine that never suspends completes in
a single step (`run_immediately`). Therefore these coroutines must not wait by asyncio directly; they use their
`Runtime`. Background tasks (`BackgroundTask`, `PeriodicTask`) run in an event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from glidemq_py._client.reachability import repeated_level
from glidemq_py._core.forks import new_event, new_lock
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import GlideMQError

__all__ = [
    "ASYNC_RUNTIME",
    "BLOCKING_RUNTIME",
    "Background",
    "BackgroundTask",
    "PeriodicTask",
    "Runtime",
    "Signal",
    "iterate_now",
    "run_immediately",
    "stop_task",
    "uncancelled",
]

T = TypeVar("T")


class Signal(Protocol):
    """A flag to wait for."""

    def set(self) -> None:
        """Set the flag and wake up all waiters."""
        ...

    def clear(self) -> None:
        """Clear the flag."""
        ...

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until the flag is set. Return False if ``seconds`` passed first."""
        ...


class Background(Protocol):
    """Work that runs in the background."""

    def done(self) -> bool:
        """Return whether the work has ended."""
        ...

    def is_current(self) -> bool:
        """Return whether the caller is this work itself."""
        ...

    async def stop(self) -> None:
        """Stop the work: cancel a task and wait for it. A thread is not waited for; it ends by its own condition."""
        ...


class Runtime(Protocol):
    """Waiting, locking and background work."""

    @property
    def current_loop(self) -> Callable[[], object]:
        """A function that returns the running event loop or None; always None for blocking code."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for ``seconds``."""
        ...

    def lock(self) -> AbstractAsyncContextManager[Any]:
        """Return a new lock, used with ``async with``."""
        ...

    def signal(self) -> Signal:
        """Return a new, cleared flag."""
        ...

    def limit(self, seconds: float) -> AbstractAsyncContextManager[Any]:
        """Return a context that raises TimeoutError after ``seconds``. In a thread it has no effect."""
        ...

    async def begin(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Start work and return an awaitable of its result. In a thread the work is complete on return."""
        ...

    async def uncancelled(self, work: Coroutine[Any, Any, T], unclaimed: Callable[[T], Any]) -> T:
        """Run work to its end even if the caller is cancelled; ``unclaimed`` then gets its result."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Background:
        """Run work in the background, in a task or a thread of its own."""
        ...


# -- asyncio ---------------------------------------------------------------------------------------------------


class _LoopSignal:
    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, seconds: float | None = None) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        return self._event.is_set()


class _Task:
    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def done(self) -> bool:
        return self._task.done()

    def is_current(self) -> bool:
        return self._task is asyncio.current_task()

    async def stop(self) -> None:
        await stop_task(self._task)


async def stop_task(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end. A task of another event loop is cancelled there, without waiting."""
    if task.done():
        return
    loop = task.get_loop()
    if loop is asyncio.get_running_loop():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(task.cancel)


_unclaimed: set[asyncio.Task[Any]] = set()


async def uncancelled(work: Coroutine[Any, Any, T], unclaimed: Callable[[T], Any]) -> T:
    """See `Runtime.uncancelled`."""
    task = asyncio.ensure_future(work)

    def pass_on(ended: asyncio.Task[T]) -> None:
        _unclaimed.discard(ended)
        if not ended.cancelled() and ended.exception() is None:
            unclaimed(ended.result())

    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.cancelled():
            _unclaimed.add(task)
            task.add_done_callback(pass_on)
        raise


class _AsyncRuntime:
    current_loop = staticmethod(asyncio._get_running_loop)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def lock(self) -> AbstractAsyncContextManager[Any]:
        return asyncio.Lock()

    def signal(self) -> Signal:
        return _LoopSignal()

    def limit(self, seconds: float) -> AbstractAsyncContextManager[Any]:
        return asyncio.timeout(seconds)

    async def begin(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        task = asyncio.create_task(work)
        await asyncio.sleep(0)  # let it send its call
        return task

    async def uncancelled(self, work: Coroutine[Any, Any, T], unclaimed: Callable[[T], Any]) -> T:
        return await uncancelled(work, unclaimed)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Background:
        return _Task(asyncio.create_task(work, name=name))


ASYNC_RUNTIME: Runtime = _AsyncRuntime()


# -- threads ---------------------------------------------------------------------------------------------------


class _ThreadSignal:
    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = new_event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, seconds: float | None = None) -> bool:
        return self._event.wait(seconds)


class _ThreadLock:
    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = new_lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


class _Thread:
    __slots__ = ("_thread",)

    def __init__(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._thread = threading.Thread(target=run_immediately, args=(work,), name=name, daemon=True)
        self._thread.start()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def is_current(self) -> bool:
        return self._thread is threading.current_thread()

    async def stop(self) -> None:
        return None


class _BlockingRuntime:
    @staticmethod
    def current_loop() -> None:
        return None

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # blocking is the point

    def lock(self) -> AbstractAsyncContextManager[Any]:
        return _ThreadLock()

    def signal(self) -> Signal:
        return _ThreadSignal()

    def limit(self, seconds: float) -> AbstractAsyncContextManager[Any]:
        return contextlib.nullcontext()

    async def begin(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        return _Ended(await work)

    async def uncancelled(self, work: Coroutine[Any, Any, T], unclaimed: Callable[[T], Any]) -> T:
        return await work

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Background:
        return _Thread(work, name)


class _Ended(Awaitable[T]):
    """An awaitable of a value that is already available."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, Any, T]:
        yield from ()
        return self._value


BLOCKING_RUNTIME: Runtime = _BlockingRuntime()


def run_immediately(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, and return its result.

    Raises:
        RuntimeError: if it suspends, because it waits for an event loop.
    """
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    work.close()
    raise RuntimeError(f"{work!r} waits for an event loop, but none is running here")


def iterate_now(items: AsyncIterator[Any], make: Callable[[Any], T]) -> Iterator[T]:
    """Iterate over an async iterator that never suspends; ``make`` is applied to each item."""
    nothing: Any = object()
    try:
        while (item := run_immediately(_next(items, nothing))) is not nothing:
            yield make(item)
    finally:
        if isinstance(items, AsyncGenerator):
            run_immediately(items.aclose())


async def _next(items: AsyncIterator[Any], nothing: Any) -> Any:
    return await anext(items, nothing)


class BackgroundTask:
    """An asyncio task that runs from `start` to `close`.

    Args:
        name: suffix of the task's name.
    """

    def __init__(self, name: str) -> None:
        self._name = f"glidemq-{name}"
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task in the running event loop."""
        self._task = asyncio.create_task(self._repeat(), name=self._name)

    def end_with_loop(self) -> None:
        """Allow the started task to be pending when its event loop is closed: asyncio then logs no error."""
        with contextlib.suppress(AttributeError):  # a task of another class, made by a task factory
            self._task._log_destroy_pending = False  # type: ignore[union-attr]

    async def _repeat(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Stop the task and wait for its end."""
        if self._task is not None:
            await stop_task(self._task)


class PeriodicTask(BackgroundTask):
    """A task that calls `run_once` periodically, with 10% jitter so that workers do not poll in step.

    Args:
        name: part of the task's name.
        queue: name of the queue, for the task's name and the log.
        label: the queue as the log names it; None = its name.
        what: the work as an infinitive, such as "repair ordering groups", for the log.
        every: interval between calls, seconds.
        at_once: make the first call immediately, instead of after one interval.
    """

    _link: Any = None
    """The queue (QueueLink); subclasses set it."""

    def __init__(
        self, name: str, *, queue: str, what: str, every: float, at_once: bool = True, label: str | None = None
    ) -> None:
        super().__init__(f"{name}-{queue}")
        self._label = repr(queue) if label is None else label
        self._what = what
        self._every = every
        self._pause = 0.0 if at_once else every

    async def run_once(self) -> object:
        """Do the work once. It may set ``_pause`` to change the next interval. Raises GlideMQError."""
        raise NotImplementedError

    async def _repeat(self) -> None:
        pause = self._jittered()
        while True:
            if pause:
                await asyncio.sleep(pause)
            self._pause = self._every
            try:
                await self.run_once()
            except GlideMQError as error:
                pause = self._jittered()
                log = get_logger(type(self).__module__)
                level = repeated_level(getattr(self._link, "transport", None), error)
                log.log(level, "queue %s: could not %s: %s; retried in %.1f s", self._label, self._what, error, pause)
            except Exception as error:
                # A bug of ours must not end the task.
                pause = self._jittered()
                log = get_logger(type(self).__module__)
                message = "queue %s: could not %s; retried in %.1f s"
                log.error(message, self._label, self._what, pause, exc_info=error)
            else:
                pause = self._jittered()

    def _jittered(self) -> float:
        return self._pause * random.uniform(0.9, 1.1)
