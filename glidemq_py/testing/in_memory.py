"""What is on a server in memory: how test queues and test broadcasts come by theirs, and how workers find it."""

from __future__ import annotations

from typing import Any

from glidemq_py._client.memory import Clock, MemoryServer
from glidemq_py.errors import GlideMQValidationError

__all__ = ["InMemory", "server_of"]


class InMemory:
    """The base of a class that takes a name and a connection: on a server of its own, or on one that it shares.

    Attributes:
        server: where it is.
    """

    __test__ = False  # pytest: no test class

    def __init__(
        self, name: str = "test", server: MemoryServer | None = None, *, clock: Clock | None = None, **options: Any
    ) -> None:
        self.server = _own_server(server, clock)
        super().__init__(name, self.server, **options)  # type: ignore[call-arg]

    @property
    def clock(self) -> Clock:
        """The server's time."""
        return self.server.clock


def server_of(option: str, holder: object, queue: object, say: str) -> MemoryServer:
    """The server in memory on which a queue is. Raises GlideMQValidationError for any other, or none."""
    server: object = getattr(queue, "_connection", None)
    if not isinstance(server, MemoryServer):
        raise GlideMQValidationError(option, holder, f"must be {say}")
    return server


def _own_server(server: MemoryServer | None, clock: Clock | None) -> MemoryServer:
    """The server that was given, or one of its own with the clock. Raises GlideMQValidationError."""
    if server is None:
        return MemoryServer(Clock() if clock is None else clock)
    if not isinstance(server, MemoryServer):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise GlideMQValidationError("server", server, f"must be a MemoryServer, not {type(server).__name__}")
    if clock is not None:
        raise GlideMQValidationError("clock", clock, "cannot be given with a server, which has its own")
    return server
