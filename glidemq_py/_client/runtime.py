"""Async and blocking runtimes, in which coroutines of queues wait; bases of tasks, services and blocking classes.

The logic of queues, jobs and events is written once, as coroutines. In an event loop they await a `Transport` of the
loop. The blocking API steps the same coroutines in the calling thread, and what they wait for runs in the portal
(portal.py). Therefore these coroutines wait by asyncio only in what they pass to `Runtime.there`. Background tasks
(`BackgroundTask`, `PeriodicTask`) run in an event loop only; a `BackgroundService` runs some of them without a worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from glidemq_py._client.failures import repeated_level
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import GlideMQError

T = TypeVar("T")
CoreT = TypeVar("CoreT")
_tasks: Any = asyncio  # public in "Extending asyncio", but not typed


class Background(Protocol):
    """Work that runs in the background."""

    def done(self) -> bool:
        """Return whether the work has ended."""
        ...

    def is_current(self) -> bool:
        """Return whether the caller is this work itself."""
        ...

    def is_cancelled(self) -> bool:
        """Return whether its task was cancelled, here or at the end of its event loop."""
        ...

    async def stop(self) -> None:
        """Stop the work: cancel a task and wait for it. A thread is not waited for; it ends by its own condition."""
        ...


class Runtime(Protocol):
    """Where a coroutine of a queue or job runs, and where it waits."""

    @property
    def is_blocking(self) -> bool:
        """True if the coroutine is stepped in a thread, and waits in the portal."""
        ...

    @property
    def current_loop(self) -> Callable[[], object]:
        """A function that returns the event loop in which the coroutine waits: the running one, or the portal's."""
        ...

    def there(self, work: Coroutine[Any, Any, T], unclaimed: Callable[[T], object] | None = None) -> Awaitable[T]:
        """Return an awaitable that runs ``work`` in the event loop in which the coroutine waits."""
        ...

    async def begin(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Start work in the event loop in which the coroutine waits, and return an awaitable of its result."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Background:
        """Run work that calls code of the user in the background, in a task or a thread of its own."""
        ...


class _Task:
    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def done(self) -> bool:
        return self._task.done()

    def is_current(self) -> bool:
        return self._task is asyncio.current_task()

    def is_cancelled(self) -> bool:
        return self._task.cancelling() > 0

    async def stop(self) -> None:
        await stop_task(self._task)


async def stop_task(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their end. A task of another event loop is cancelled there, without waiting."""
    ours: list[asyncio.Task[Any]] = []
    for task in tasks:
        loop = task.get_loop()
        if task.done():
            continue
        if loop is asyncio.get_running_loop():
            task.cancel()
            ours.append(task)
            continue
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(task.cancel)
    await asyncio.gather(*ours, return_exceptions=True)


def call_apart(function: Callable[..., T], *args: Any) -> T:
    """Call a listener outside of the current task, which it could cancel otherwise."""
    loop = asyncio._get_running_loop()
    task = None if loop is None else asyncio.current_task(loop)
    if task is None:
        return function(*args)
    _tasks._leave_task(loop, task)
    try:
        return function(*args)
    finally:
        _tasks._enter_task(loop, task)


async def wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, for at most ``seconds``. Return False if it was not set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


_unclaimed: set[asyncio.Task[Any]] = set()


async def uncancelled(work: Coroutine[Any, Any, T], unclaimed: Callable[[T], Any]) -> T:
    """Run work to its end even if the caller is cancelled; ``unclaimed`` then gets its result."""
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
    is_blocking = False
    current_loop = staticmethod(asyncio._get_running_loop)

    def there(self, work: Coroutine[Any, Any, T], unclaimed: Callable[[T], object] | None = None) -> Awaitable[T]:
        return work

    async def begin(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        task = asyncio.create_task(work)
        await asyncio.sleep(0)  # let it send its call
        return task

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Background:
        return _Task(asyncio.create_task(work, name=name))


ASYNC_RUNTIME: Runtime = _AsyncRuntime()


class Twin(Generic[CoreT]):
    """Base of a blocking class: holds the asynchronous object. ``python -m tools.generate_sync`` writes the rest."""

    __slots__ = ("_core",)

    def __init__(self, core: CoreT) -> None:
        """Create the blocking form of an object; for this package only."""
        self._core = core

    def __repr__(self) -> str:
        return repr(self._core)


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
        what: the work as an infinitive, such as "repair ordering groups", for the log.
        every: interval between calls, seconds.
        at_once: make the first call immediately, instead of after one interval.
    """

    _link: Any = None

    def __init__(self, name: str, queue: str, what: str, every: float, *, at_once: bool = True) -> None:
        super().__init__(f"{name}-{queue}")
        self._label = repr(queue)
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


class QueueTask(PeriodicTask):
    """A periodic task on a queue that is connected.

    Args:
        name: part of the task's name.
        link: the queue (QueueLink).
        what: the work as an infinitive, for the log.
        every: interval between calls, seconds.
        at_once: make the first call immediately, instead of after one interval.
    """

    def __init__(self, name: str, link: Any, what: str, every: float, *, at_once: bool = True) -> None:
        super().__init__(name, link.keys.name, what, every, at_once=at_once)
        self._link, self._label = link, link.label


class BackgroundService:
    """Runs tasks from its start until it is closed."""

    _title: ClassVar[str]
    """Its name in messages."""

    def __init__(self) -> None:
        self._tasks: Sequence[BackgroundTask] = ()

    async def _open(self) -> Sequence[BackgroundTask]:
        """Connect, and return the tasks to run."""
        raise NotImplementedError

    async def start(self) -> None:
        """Connect and start in the running event loop.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
            GlideMQError: If it was already started.
        """
        if self._tasks:
            raise GlideMQError(f"the {self._title} was already started; make a new one")
        self._tasks = await self._open()
        for task in self._tasks:
            task.start()

    async def run(self) -> None:
        """Start, and run until cancelled."""
        async with self:
            await asyncio.get_running_loop().create_future()

    async def close(self) -> None:
        """Stop. Idempotent."""
        await asyncio.shield(asyncio.gather(*(task.close() for task in self._tasks)))  # also if cancelled again

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
