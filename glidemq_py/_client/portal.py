"""Where blocking code waits: an event loop in a thread, which is entered to send and to wait, and for nothing else.

The logic of queues, jobs and events is written once, as coroutines. A blocking method steps its coroutine in the
calling thread (`drive`), so middleware, serializers, listeners and tracers run there. What it waits for (`there`) runs
in the portal: one loop per process, made again in a forked child. No code of the user runs in it, and every thread may
enter it, also one that runs an event loop of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar, cast

from glidemq_py._client.loop_transport import LoopConnection, LoopTransport, next_of
from glidemq_py._client.runtime import Background, Runtime
from glidemq_py._client.threads import Entry, ProcessThread, Work
from glidemq_py._client.transport import BlockingConnection, open_transport
from glidemq_py._core.calls import Call
from glidemq_py.errors import ClosedError, EventLoopError

T = TypeVar("T")

portal: Final = ProcessThread("portal", may_be_turned=True)
"""Returns the portal of this process."""


def there(work: Coroutine[Any, Any, T], unclaimed: Callable[[T], object] | None = None) -> Awaitable[T]:
    """Return an awaitable that runs ``work`` in the portal, for a coroutine that `drive` steps, or in the portal.

    ``unclaimed`` gets the result if the waiting thread is interrupted after the end of the work.
    """
    thread = portal()
    return work if thread.is_here() else Work(thread, work, unclaimed)


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the calling thread, which blocks whenever the coroutine awaits work in the portal.

    Raises:
        EventLoopError: if called in the portal.
        RuntimeError: if the coroutine awaits anything else.
    """
    if portal().is_here():
        work.close()
        raise EventLoopError("connection", "blocking code cannot run in the portal", "await the asynchronous method")
    try:
        entry: Any = _step(work.send, None)
        while True:
            if not isinstance(entry, Entry):
                work.close()
                raise RuntimeError(f"{work!r} waits for an event loop, but none is running here")
            try:
                result: Any = entry.wait()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
            except BaseException as error:
                entry = _step(work.throw, error)
            else:
                entry = _step(work.send, result)
    except StopIteration as end:
        return cast("T", end.value)


def _step(step: Callable[[Any], Any], value: Any) -> Any:
    if asyncio._get_running_loop() is None:
        return step(value)
    # The running loop would register the asynchronous generators of this coroutine, and close them at its own end.
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(None, None)
    try:
        return step(value)
    finally:
        sys.set_asyncgen_hooks(*hooks)


def iterate(items: AsyncIterator[Any], make: Callable[[Any], T]) -> Iterator[T]:
    """Iterate over an async iterator as `drive`; ``make`` is applied to each item."""
    nothing: Any = object()
    try:
        while (item := drive(next_of(items, nothing))) is not nothing:
            yield make(item)
    finally:
        if isinstance(items, AsyncGenerator):
            with contextlib.suppress(ClosedError):  # the interpreter ends
                drive(items.aclose())


class BlockingTransport:
    """A connection for threads: a `Transport` of the portal with methods that block.

    Args:
        connection: as given by the user.
        check: check the server's configuration.

    Raises:
        GlideMQConnectionError: if the server cannot be reached now.
        ConnectionRejectedError: see `open_transport`.
    """

    def __init__(self, connection: BlockingConnection, *, check: bool = True) -> None:
        self.transport = LoopTransport("the connection", _opener(connection, check), BLOCKING_RUNTIME)
        drive(self.transport.connected())

    def call(self, call: Call[T]) -> T:
        """See `Transport.call`."""
        return drive(self.transport.call(call))

    def call_all(self, calls: Sequence[Call[T]]) -> list[T]:
        """See `Transport.call_all`."""
        return drive(self.transport.call_all(calls))

    def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`."""
        return drive(self.transport.command(*args))

    def send_reads(self, key: str | None, commands: Sequence[Sequence[str | bytes]]) -> list[Any]:
        """See `Transport.send_reads`."""
        return drive(self.transport.send_reads(key, commands))

    def close(self) -> None:
        """See `Transport.close`."""
        drive(self.transport.close())


def _opener(connection: BlockingConnection, check: bool) -> Callable[[LoopConnection], Awaitable[None]]:
    async def open_(loop: LoopConnection) -> None:
        loop.transport = await open_transport(connection, check=check)

    return open_


class _Thread:
    def __init__(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._thread = threading.Thread(target=drive, args=(work,), name=name, daemon=True)
        self._thread.start()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def is_current(self) -> bool:
        return self._thread is threading.current_thread()

    def is_cancelled(self) -> bool:
        return False

    async def stop(self) -> None:
        return None


class _BlockingRuntime:
    there = staticmethod(there)

    @property
    def is_blocking(self) -> bool:
        return not portal().is_here()

    @staticmethod
    def current_loop() -> asyncio.AbstractEventLoop:
        return portal().loop

    async def begin(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        thread = portal()
        return asyncio.ensure_future(work) if thread.is_here() else thread.enter(Work(thread, work))

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> Background:
        return _Thread(work, name)


BLOCKING_RUNTIME: Runtime = _BlockingRuntime()
