"""How code that waits does so: by suspending its task, or by blocking its thread.

What queues, jobs and events do is written once, in coroutines. In an event loop they await a `Transport` of the loop.
The blocking twins run the very same coroutines over a transport that blocks: one that never suspends is over after a
single step (`run_immediately`). For that, nothing in these coroutines may wait by asyncio itself; they use their
`Runtime`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

__all__ = [
    "ASYNC_RUNTIME",
    "BLOCKING_RUNTIME",
    "Background",
    "Runtime",
    "Signal",
    "iterate_now",
    "run_immediately",
    "stop_task",
]

T = TypeVar("T")


class Signal(Protocol):
    """A flag to wait for."""

    def set(self) -> None:
        """Raise it; whoever waits goes on."""
        ...

    def clear(self) -> None:
        """Lower it."""
        ...

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is up; False if ``seconds`` went by before."""
        ...


class Background(Protocol):
    """Work that goes on by itself."""

    def done(self) -> bool:
        """True if it has ended."""
        ...

    def is_current(self) -> bool:
        """True where it is this very work that asks."""
        ...

    async def stop(self) -> None:
        """End it: a task is cancelled and waited for. A thread ends by itself when it sees that it is not wanted."""
        ...


class Runtime(Protocol):
    """Waiting, one after the other, and in the background."""

    @property
    def current_loop(self) -> Callable[[], object]:
        """Returns the running event loop, or None; always None for code that blocks."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def lock(self) -> AbstractAsyncContextManager[Any]:
        """A lock, to be held with ``async with``."""
        ...

    def signal(self) -> Signal:
        """A flag that is down."""
        ...

    def limit(self, seconds: float) -> AbstractAsyncContextManager[Any]:
        """Raises TimeoutError in what takes longer; in a thread that is for the code itself to do."""
        ...

    async def begin(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Let work begin, and return where its end can be awaited. In a thread it has ended by then."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Background:
        """Let work go on in a task or a thread of its own."""
        ...


# -- of an event loop ------------------------------------------------------------------------------------------


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
    """Cancel a task and wait for its end. One of another event loop is cancelled there, and not waited for."""
    if task.done():
        return
    loop = task.get_loop()
    if loop is asyncio.get_running_loop():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(task.cancel)


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
        await asyncio.sleep(0)  # let it leave
        return task

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Background:
        return _Task(asyncio.create_task(work, name=name))


ASYNC_RUNTIME: Runtime = _AsyncRuntime()


# -- of threads ------------------------------------------------------------------------------------------------


class _ThreadSignal:
    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, seconds: float | None = None) -> bool:
        return self._event.wait(seconds)


class _ThreadLock:
    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()

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

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Background:
        return _Thread(work, name)


class _Ended(Awaitable[T]):
    """Something that has ended, to be awaited or not."""

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, Any, T]:
        yield from ()
        return self._value


BLOCKING_RUNTIME: Runtime = _BlockingRuntime()


def run_immediately(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, to its end.

    Raises:
        RuntimeError: it suspended: something in it waits for an event loop.
    """
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    work.close()
    raise RuntimeError(f"{work!r} waits for an event loop, and there is none here")


def iterate_now(items: AsyncIterator[Any], make: Callable[[Any], T]) -> Iterator[T]:
    """Iterate over what never suspends; ``make`` is applied to each item."""
    nothing: Any = object()
    try:
        while (item := run_immediately(_next(items, nothing))) is not nothing:
            yield make(item)
    finally:
        if isinstance(items, AsyncGenerator):
            run_immediately(items.aclose())


async def _next(items: AsyncIterator[Any], nothing: Any) -> Any:
    return await anext(items, nothing)
