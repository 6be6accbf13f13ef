"""The transport of jobs inside a sandbox: every call is forwarded to the worker, which makes it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from glidemq_py._client.failures import Interruptions
from glidemq_py._client.transport import BlockingTransport
from glidemq_py._core.calls.packing import Call
from glidemq_py._core.keys import QueueKeys
from glidemq_py._job.link import Outcome
from glidemq_py.errors import GlideMQError

__all__ = ["Ask", "SandboxTransport", "SandboxWaiter"]

T = TypeVar("T")

Ask = Callable[..., Awaitable[Any]]
"""(operation, arguments...) -> the worker's reply; raises the worker's error."""


class SandboxTransport:
    """A `Transport` that forwards calls to the worker."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.interruptions = Interruptions()

    async def call(self, call: Call[T]) -> T:
        """See `Transport.call`."""
        return call.decode(await self._ask("call", call.function, call.key, list(call.args), call.repeatable))

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`."""
        return await self._ask("command", *args)

    async def call_after(self, read: Sequence[str], call: Call[T], block: int) -> T:
        """Raise GlideMQError: not supported in a sandbox."""
        raise GlideMQError("a sandboxed handler has no connection of its own")

    def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """Raise GlideMQError: not supported in a sandbox."""
        raise GlideMQError("a sandboxed handler has no connection of its own")

    async def dedicated(self) -> SandboxTransport:
        """Raise GlideMQError: not supported in a sandbox."""
        raise GlideMQError("a sandboxed handler has no connection of its own")

    def for_thread(self) -> BlockingTransport:
        """Raise GlideMQError: not supported in a sandbox."""
        raise GlideMQError("a sandboxed handler has no connection of its own")

    async def close(self) -> None:
        """Do nothing: the worker owns the connection."""

    def abandon(self) -> None:
        """Do nothing: the worker owns the connection."""


class SandboxWaiter:
    """A `Waiter` that forwards waits to the worker."""

    def __init__(self, ask: Ask, prefix: str, name: str) -> None:
        self._ask = ask
        self._queue = (prefix, name)

    async def start(self) -> None:
        """Do nothing: the worker starts its own waiter."""

    async def wait(self, job_id: str, timeout_ms: int) -> Outcome:
        """See `Waiter.wait`."""
        return Outcome(*await self._ask("wait", *self._queue, job_id, timeout_ms))

    def beside(self, keys: QueueKeys) -> SandboxWaiter:
        """See `Waiter.beside`."""
        return SandboxWaiter(self._ask, keys.prefix, keys.name)

    async def close(self) -> None:
        """Do nothing: there are no resources."""
