"""Graceful shutdown on signals: one worker, or several components together."""

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
    """Anything with an async ``close``. If it accepts ``force``, a second signal passes ``force=True``."""

    async def close(self) -> None:
        """Close the component."""
        ...


@contextlib.contextmanager
def closing_on_signals(worker: Any) -> Generator[list[asyncio.Task[None]]]:
    """Close ``worker`` at the first SIGTERM or SIGINT, and with ``force`` at the second.

    Yields:
        The list of close tasks; empty until a signal arrives.
    """
    closing: list[asyncio.Task[None]] = []

    def on_signal(number: signal.Signals) -> None:
        name = signal.Signals(number).name
        if closing:
            _log.warning("%s: closing %r now; releasing %d running jobs", name, worker, worker.active_count)
        else:
            _log.info("%s: closing %r; waiting for %d running jobs", name, worker, worker.active_count)
        closing.append(asyncio.ensure_future(worker.close(force=bool(closing))))

    with on_termination(on_signal):
        yield closing


class GracefulShutdown:
    """Closes components together, on a signal or by `shutdown`.

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
        """Close all components concurrently; errors are logged. Idempotent."""
        results = await asyncio.gather(*(component.close() for component in self._components), return_exceptions=True)
        for component, result in zip(self._components, results, strict=True):
            if isinstance(result, BaseException):
                _log.error("closing %r failed: %r", component, result)
        self.dispose()

    async def wait(self) -> None:
        """Wait until all components are closed, or `dispose` is called."""
        await self._done.wait()

    def dispose(self) -> None:
        """Stop listening for signals without closing anything. `wait` returns; so does leaving the ``async with``."""
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
