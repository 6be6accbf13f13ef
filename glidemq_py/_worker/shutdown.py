"""Closing on signals: one worker, or several components together."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Generator
from typing import Any, Protocol, Self

from glidemq_py._core.logs import get_logger
from glidemq_py._worker.process_signals import on_termination

__all__ = ["GracefulShutdown", "closing_on_signals", "graceful_shutdown"]

_log = get_logger(__name__)


class Closable(Protocol):
    """Anything with an async ``close``; one that takes ``force`` is hurried by a second signal."""

    async def close(self) -> None:
        """Close it."""
        ...


@contextlib.contextmanager
def closing_on_signals(worker: Any) -> Generator[list[asyncio.Task[None]]]:
    """While inside: the first SIGTERM or SIGINT closes ``worker``, a second one with ``force``.

    Yields the list of these closings, empty until a signal arrives.
    """
    closing: list[asyncio.Task[None]] = []

    def on_signal(number: signal.Signals) -> None:
        name = signal.Signals(number).name
        if closing:
            _log.warning("%s: closing %r now; its %d running jobs return to waiting", name, worker, worker.active_count)
        else:
            _log.info("%s: closing %r when its %d running jobs have ended", name, worker, worker.active_count)
        closing.append(asyncio.ensure_future(worker.close(force=bool(closing))))

    with on_termination(on_signal):
        yield closing


class GracefulShutdown:
    """Closes components together, at a signal or when told to.

    ``async with graceful_shutdown(worker, queue) as shutdown: await shutdown.wait()``
    """

    def __init__(self, *components: Closable) -> None:
        self._components = components
        self._done = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._hurried: list[asyncio.Future[None]] = []
        self._stack = contextlib.ExitStack()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._closing is None:
            _log.info("%s: closing %d components", signal.Signals(number).name, len(self._components))
            self._closing = asyncio.ensure_future(self.shutdown())
            return
        for component in self._components:
            force: Any = component.close
            with contextlib.suppress(TypeError):
                self._hurried.append(asyncio.ensure_future(force(force=True)))

    async def shutdown(self) -> None:
        """Close every component at the same time; one that fails is logged. Idempotent."""
        results = await asyncio.gather(*(component.close() for component in self._components), return_exceptions=True)
        for component, result in zip(self._components, results, strict=True):
            if isinstance(result, BaseException):
                _log.error("closing %r failed: %r", component, result)
        self.dispose()

    async def wait(self) -> None:
        """Wait until everything is closed, or `dispose` was called."""
        await self._done.wait()

    def dispose(self) -> None:
        """Stop listening for signals and close nothing: `wait` returns, and so does the end of the ``async with``."""
        self._stack.close()
        self._done.set()

    async def __aenter__(self) -> Self:
        self._stack.enter_context(on_termination(self._on_signal))
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._done.is_set():
            await self.shutdown()


def graceful_shutdown(*components: Closable) -> GracefulShutdown:
    """Close ``components`` (workers, queues, queue events) together at SIGTERM or SIGINT; see `GracefulShutdown`."""
    return GracefulShutdown(*components)
