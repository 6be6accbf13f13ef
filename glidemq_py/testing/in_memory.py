"""Base of the in-memory test classes: the server of a test queue or broadcast, and how workers find it."""

from __future__ import annotations

from typing import Any

from glidemq_py._client.memory import Clock, MemoryServer
from glidemq_py.errors import GlideMQValidationError

__all__ = ["InMemory", "server_of"]


class InMemory:
    """Base of classes that take a name and a connection: uses an in-memory server of its own or a shared one.

    Attributes:
        server: the in-memory server.
    """

    __test__ = False  # not a test class for pytest

    def __init__(
        self, name: str = "test", server: MemoryServer | None = None, *, clock: Clock | None = None, **options: Any
    ) -> None:
        self.server = _own_server(server, clock)
        super().__init__(name, self.server, **options)  # type: ignore[call-arg]

    @property
    def clock(self) -> Clock:
        """The server's clock."""
        return self.server.clock


def server_of(option: str, holder: object, queue: object, say: str) -> MemoryServer:
    """Return the in-memory server of a queue. Raises GlideMQValidationError if it has another connection."""
    server: object = getattr(queue, "_connection", None)
    if not isinstance(server, MemoryServer):
        raise GlideMQValidationError(option, holder, f"must be {say}")
    return server


def _own_server(server: MemoryServer | None, clock: Clock | None) -> MemoryServer:
    """Return the given server, or a new one with the clock. Raises GlideMQValidationError."""
    if server is None:
        return MemoryServer(Clock() if clock is None else clock)
    if not isinstance(server, MemoryServer):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise GlideMQValidationError("server", server, f"must be a MemoryServer, not {type(server).__name__}")
    if clock is not None:
        raise GlideMQValidationError("clock", clock, "options 'clock' and 'server' are mutually exclusive")
    return server
