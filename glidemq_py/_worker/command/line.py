"""How a supervisor and its child processes talk: lines of text over a socket pair that the child inherits.

Words instead of signals: asking twice to drain is the same as once, whoever else signals the child (a service
manager signals every process of a service), and the end of the line says that the other side is gone.
Child: `loaded`, `server?`, `started`, `recycle REASON`, `broken JSON` (why it cannot start: a line, and the report).
Supervisor: `server URL`, `drain`, `hurry`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Self

__all__ = ["Line"]


class Line:
    """One end, in an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """The end of the pair that ``end`` is."""
        end.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=end))

    def say(self, word: str, rest: str = "") -> None:
        """Send a line; without effect when the other side is gone."""
        text = f"{word} {rest}".strip().replace("\n", " ")
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(f"{text}\n".encode())

    async def hear(self) -> tuple[str, str]:
        """The next line as (word, rest). ('', '') when the other side is gone."""
        try:
            line = await self._reader.readline()
        except (OSError, ValueError):
            return "", ""
        word, _, rest = line.decode(errors="replace").strip().partition(" ")
        return word, rest

    def hang_up(self) -> None:
        """Close this end."""
        self._writer.close()
