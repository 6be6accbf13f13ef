"""Messages between a supervisor and its child processes: lines of text over a socket pair that the child inherits.

Messages instead of signals, because a repeated `drain` has no effect even if a service manager also signals every
process of the service, and because the end of the stream shows that the other process has ended.

Child: `loaded`, `server?`, `started`, `recycle REASON`, `broken JSON` (why it cannot start: a summary and a report),
`ended` (the workers are closed).
Supervisor: `server URL`, `drain`, `hurry`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Self

__all__ = ["Line"]


class Line:
    """One end of the connection, in an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """Create an end from a socket of the pair."""
        end.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=end))

    def say(self, word: str, rest: str = "") -> None:
        """Send a message; does nothing if the other process has ended."""
        text = f"{word} {rest}".strip().replace("\n", " ")
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(f"{text}\n".encode())

    async def hear(self) -> tuple[str, str]:
        """Return the next message as (word, rest); ('', '') if the other process has ended."""
        try:
            line = await self._reader.readline()
        except (OSError, ValueError):
            return "", ""
        word, _, rest = line.decode(errors="replace").strip().partition(" ")
        return word, rest

    def hang_up(self) -> None:
        """Close this end."""
        self._writer.close()
