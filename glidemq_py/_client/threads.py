"""Threads beside event loops: they run blocking functions, or loops of their own for blocking code and heartbeats."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
import weakref
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, Generic, TypeVar, cast

from glidemq_py._core.forks import call_in_child, keep, new_lock, new_rlock
from glidemq_py.errors import ClosedError, EventLoopError

T = TypeVar("T")

own_loops: Final[weakref.WeakSet[asyncio.AbstractEventLoop]] = weakref.WeakSet()
"""Loops without tasks of the user, which may be blocked for a while."""


def has_green_threads() -> bool:
    """Return whether gevent has replaced the threads of this process."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def may_start_threads() -> bool:
    """Return whether `in_thread` can start a thread."""
    if has_green_threads():
        return False
    executor = ThreadPoolExecutor(1)
    try:
        executor.submit(int)
    except RuntimeError:  # the interpreter ends
        return False
    finally:
        executor.shutdown(wait=False)
    return True


async def in_thread(function: Callable[..., T], *args: object) -> T:
    """Return the result of a function that runs in a thread of its own: the program may have filled the executor.

    Without threads it runs here if the loop is one of `own_loops`.

    Raises:
        EventLoopError: if there are no threads, because gevent has replaced them or the interpreter ends.
    """
    loop = asyncio.get_running_loop()
    if has_green_threads():
        if loop in own_loops:
            return function(*args)
        raise EventLoopError(
            "connection", "gevent has replaced the threads that asyncio needs",
            "use glidemq_py.sync, or a process without monkey.patch_all()",
        )  # fmt: skip
    executor, work, context = ThreadPoolExecutor(1), partial(function, *args), copy_context()
    try:
        running = loop.run_in_executor(executor, lambda: context.run(work))
    except RuntimeError as error:  # after threading._shutdown, which precedes the functions of atexit
        if loop in own_loops:
            return function(*args)
        raise EventLoopError(
            "connection", f"no thread can be started: {error}",
            "connect before the program ends, or use a queue of glidemq_py.sync",
        ) from error  # fmt: skip
    try:
        return await running
    finally:
        executor.shutdown(wait=False)


async def to_first_address(host: str, port: int, connect: Callable[[str], Awaitable[T]]) -> T:
    """Return ``connect`` of the first address of a host that answers: asyncio would resolve the name in the executor.

    Raises:
        OSError: none answers.
    """
    failure: OSError | None = None
    for *_, address in await in_thread(socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM):
        try:
            return await connect(str(address[0]))
        except OSError as error:
            failure = error
    raise failure or OSError(f"{host} has no address")


_TURN_S: Final = 0.05
"""How long a thread waits for another one that turns the loop, before it tries to do so itself, seconds."""


class Entry(Generic[T]):
    """Something that a calling thread waits for, and that begins in a loop of another thread."""

    __slots__ = ("_done", "_error", "_is_done", "_result", "is_entered", "thread")

    def __init__(self, thread: LoopThread) -> None:
        self.thread = thread
        self._done = allocate_lock()
        self._done.acquire()
        self._is_done = False
        self.is_entered = False
        self._result: Any = None
        self._error: BaseException | None = None

    def __await__(self) -> Generator[Entry[T], T, T]:
        return (yield self)

    def begin(self) -> None:
        """Begin; called in the loop."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Drop the work, whose result nobody awaits; called in the loop, or before `LoopThread.enter`."""
        self._is_done = True

    def _abandon(self) -> None:
        """Let the loop cancel it; called in the thread that has waited."""
        self.thread.call(self.cancel)

    # As those of a future, so that an entry can stand where one is expected.

    def done(self) -> bool:
        """Return whether it has ended."""
        return self._is_done

    def set_result(self, result: Any) -> None:
        """End it; called in the loop."""
        self._result = result
        self._end()

    def set_exception(self, error: BaseException) -> None:
        """End it with an error; called in the loop."""
        self._error = error
        self._end()

    def _end(self) -> None:
        self._is_done = True
        if self.thread.is_turned:
            self.thread.loop.stop()
        self._done.release()

    def wait(self) -> T:
        """Wait for the end in the calling thread; begin, unless this was done.

        An interruption of the thread ends the work too.
        """
        was_entered = self.is_entered
        try:
            if not was_entered:
                self.thread.enter(self)
            if self.thread.is_turned:
                self.thread.turn_until(self.done, self._done)
            elif not self._is_done:
                self._done.acquire()
        except BaseException:
            self._abandon()
            raise
        error = self._error
        if error is None:
            return cast("T", self._result)
        if not was_entered:
            self._error = None  # nobody waits again; it will refer to this frame
        try:
            raise error
        finally:
            del error  # which refers to this frame


class Work(Entry[T]):
    """A coroutine, as an entry."""

    __slots__ = ("_coroutine", "_task", "_unclaimed")

    def __init__(
        self, thread: LoopThread, coroutine: Coroutine[Any, Any, T], unclaimed: Callable[[T], object] | None = None
    ) -> None:
        super().__init__(thread)
        self._coroutine = coroutine
        self._unclaimed = unclaimed
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """See `Entry.begin`."""
        if not self._is_done:
            self._task = self.thread.loop.create_task(self._coroutine, name="glidemq-entered")
            self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """See `Entry.cancel`."""
        task = self._task
        if task is not None:
            if not task.cancel() and self._unclaimed is not None and not task.cancelled() and task.exception() is None:
                self._unclaimed(task.result())  # it had ended
        elif not self._is_done:
            self._coroutine.close()
            super().cancel()

    def _ended(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.set_exception(ClosedError("the connection was closed"))
        elif (error := task.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(task.result())


class LoopThread:
    """An event loop in a daemon thread.

    Args:
        name: what it is for, for the thread's name.
        may_be_turned: if no thread can be started (gevent has replaced them, the interpreter ends), let the threads
            that wait turn the loop, instead of raising RuntimeError.
    """

    def __init__(self, name: str, *, may_be_turned: bool) -> None:
        self.is_turned = may_be_turned and has_green_threads()
        # Not uvloop: one of its callbacks that waits for the interpreter while that ends crashes the process.
        self.loop = asyncio.SelectorEventLoop()
        self._entries: deque[Entry[Any]] = deque()
        self._waker = 0
        """The thread that wakes up the loop, whose signal handlers may enter too; 0 = none."""
        self._context = Context()  # not that of a caller, which would live on in tasks of the loop
        self._turn = new_rlock()
        self._thread = threading.Thread(target=self.loop.run_forever, name=f"glidemq-{name}", daemon=True)
        own_loops.add(self.loop)
        if not self.is_turned:
            try:
                self._thread.start()
            except RuntimeError:  # can't create new thread at interpreter shutdown
                if not may_be_turned:
                    self.loop.close()
                    raise
                self.is_turned = True

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call a function in the loop, without waiting for it."""
        with contextlib.suppress(RuntimeError):  # it is closed
            self.loop.call_soon_threadsafe(function, *args, context=self._context)

    def enter(self, entry: Entry[T]) -> Entry[T]:
        """Begin an entry in the loop; all that arrive before the loop wakes up begin together.

        Raises:
            ClosedError: if the interpreter ends: its threads do not run any more.
        """
        if sys.is_finalizing() and not self.is_turned:
            entry.cancel()
            raise ClosedError("the interpreter ends")
        entry.is_entered = True
        self._entries.append(entry)
        here = threading.get_ident()
        if self._waker in (0, here):
            try:
                self._waker = here
                self.loop.call_soon_threadsafe(self._begin, context=self._context)
            except BaseException:  # interrupted before the loop was woken: entries of other threads rely on it
                self.call(self._begin)
                raise
        return entry

    def _begin(self) -> None:
        self._waker = 0
        entries = self._entries
        while entries:
            entry = entries.popleft()
            try:
                entry.begin()
            except Exception as error:
                entry.set_exception(error)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result. An interruption of the caller cancels it.

        Raises:
            EventLoopError: if called in the loop's own thread, which would wait for itself.
        """
        if self.is_here():
            work.close()
            raise EventLoopError("connection", "the thread of the portal cannot wait for itself", "await the coroutine")
        return Work(self, work).wait()

    def is_here(self) -> bool:
        """Return whether the caller runs in this loop."""
        if asyncio._get_running_loop() is not self.loop:
            return False
        return not self.is_turned or asyncio.current_task() is not None

    def turn_until(self, done: Callable[[], bool], ended: LockType) -> None:
        """Run the loop in the calling thread, unless another one does, until ``done`` returns True.

        For a loop that has no thread; ``ended`` is released then.
        """
        while not done():
            if self._turn.acquire(blocking=False):
                try:
                    self.loop.run_forever()  # until an entry has ended
                finally:
                    self._turn.release()
            elif ended.acquire(timeout=_TURN_S):
                ended.release()


class ProcessThread:
    """A `LoopThread` of the process: started at first use, and made again in a forked child.

    Args:
        name: as for `LoopThread`.
        may_be_turned: as for `LoopThread`.
    """

    def __init__(self, name: str, *, may_be_turned: bool) -> None:
        self._name = name
        self._may_be_turned = may_be_turned
        self._thread: LoopThread | None = None
        self._starting = new_lock()
        call_in_child(self)

    def __call__(self) -> LoopThread:
        """Return the thread of this process."""
        found = self._thread
        if found is None:
            with self._starting:
                found = self._thread = self._thread or LoopThread(self._name, may_be_turned=self._may_be_turned)
        return found

    def _forked(self) -> None:
        """See `Forkable`. Forget the thread of the parent."""
        keep(self._thread)
        self._thread = None
