"""An in-memory server with the interface of `RespClient`, so that tests of the functions also run on it."""

from __future__ import annotations

from typing import Any

from glidemq_py.testing import RespClient, RespError
from tests.inside import MemoryServer

__all__ = ["MemoryClient"]


class MemoryClient(RespClient):
    """A `RespClient` with a separate in-memory server."""

    def __init__(self, server: MemoryServer | None = None):
        super().__init__("in-memory", 0)
        self.server = server or MemoryServer()

    def execute(self, *arguments: str | bytes | float) -> Any:
        try:
            return _shown(self.server.execute(*(_bytes(argument) for argument in arguments)))
        except RuntimeError as error:
            raise RespError(str(error)) from None

    def pipeline(self, commands: list[tuple[str | bytes | int | float, ...]]) -> list[Any]:
        replies: list[Any] = []
        for command in commands:
            try:
                replies.append(self.execute(*command))
            except RespError as error:
                replies.append(error)
        return replies

    def execute_everywhere(self, *arguments: str | bytes | float) -> list[Any]:
        return [self.execute(*arguments)]

    def primaries(self) -> list[tuple[str, int]]:
        return [("in-memory", 0)]

    def keys(self, pattern: str = "*") -> list[str]:
        return self.server.keys(pattern)

    def info(self, section: str = "default") -> dict[str, str]:
        return {"cluster_enabled": "0"} if section == "cluster" else {}


def _bytes(argument: str | bytes | float) -> bytes:
    return argument if isinstance(argument, bytes) else str(argument).encode("utf-8", "surrogateescape")


def _shown(reply: Any) -> Any:
    """Convert a reply to RESP2: flat arrays, floats as text."""
    if isinstance(reply, bytes):
        return reply.decode("utf-8", "surrogateescape")
    if isinstance(reply, list | tuple | set):
        return [_shown(each) for each in reply]
    if isinstance(reply, dict):
        return [_shown(part) for pair in reply.items() for part in pair]
    if isinstance(reply, float):
        return str(int(reply)) if reply.is_integer() else repr(reply)
    status = getattr(reply, "value", reply)
    return _shown(status) if isinstance(status, bytes) and status is not reply else status
