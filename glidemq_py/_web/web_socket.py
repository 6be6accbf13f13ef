"""WebSockets under uvicorn, for servers whose application closes them itself."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

_QUIET: Final = logging.Logger("uvicorn", logging.CRITICAL + 1)  # noqa: LOG001  # on purpose in no hierarchy
"""A logger without handlers that ignores every record."""


class WebSocketProtocol(WSProtocol):
    """Closes connections whose clients do not read, and leaves open ones to the application at shutdown.

    uvicorn ends WebSockets at shutdown without waiting for what their application still sends. It closes a connection
    only after its buffer was sent, thus never if the client does not read.
    """

    write_timeout_s: float = 30.0
    """Time after which a connection with a full buffer is closed, unless the client reads."""
    answer_timeout_s: float = 2.0
    """Time for the client's answer when the application closes the connection."""
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Accept the connection."""
        self.logger = _QUIET  # uvicorn logs every handshake
        self.close_timeout = self.answer_timeout_s
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._cancel_deadline()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait until the client has read; `send` of the application waits meanwhile."""
        super().pause_writing()
        self._cancel_deadline()
        self._deadline = self.loop.call_later(self.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Continue to write."""
        self._cancel_deadline()
        super().resume_writing()

    def shutdown(self) -> None:
        """End a connection that is not open yet; the application closes the others."""
        if not self.handshake_complete:
            super().shutdown()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
