"""Warnings that other machines cause, limited so that a client cannot fill the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Container
from typing import Any, Final

_INTERVAL_S: Final = 60.0


class RepeatedWarnings:
    """Logs the first warning of a kind at once, and then at most one line per minute with the number of the others.

    Args:
        logger: Logs them.
        interval: Time between two lines of a kind, s.
    """

    def __init__(self, logger: logging.Logger, interval: float = _INTERVAL_S) -> None:
        self._logger, self._interval = logger, interval
        self._kinds: dict[str, _Kind] = {}

    def warn(self, kind: str, message: str) -> None:
        """Log a warning, or count it.

        Args:
            kind: Its kind. Each is remembered until `forget` is called.
            message: Its text.
        """
        state = self._kinds.setdefault(kind, _Kind())
        now = time.monotonic()
        if state.logged_at is not None and now - state.logged_at < self._interval:
            state.count, state.last = state.count + 1, message
            if state.timer is None or state.loop_is_closed():
                state.call_later(self._interval - (now - state.logged_at), self._summarize)
            return
        state.count += 1
        self._log(state, message)

    def forget(self, known: Container[str]) -> None:
        """Forget all kinds but these, after logging their counts."""
        for kind in [kind for kind in self._kinds if kind not in known]:
            self._summarize(self._kinds.pop(kind))

    def close(self) -> None:
        """Log the counts."""
        for state in self._kinds.values():
            self._summarize(state)

    def _summarize(self, state: _Kind) -> None:
        if state.count:
            self._log(state, state.last)

    def _log(self, state: _Kind, message: str) -> None:
        """Log a message, and how many others were counted."""
        state.stop()
        count, state.count, state.logged_at = state.count, 0, time.monotonic()
        if count > 1:
            self._logger.warning("%s (the last of %d in the last minute)", message, count)
        else:
            self._logger.warning("%s", message)


class _Kind:
    """One kind of warning.

    Attributes:
        logged_at: Time of its last line, by ``time.monotonic``; None without one.
        count: Number of warnings since.
        last: The last of them.
        timer: Logs the count.
    """

    __slots__ = ("_loop", "count", "last", "logged_at", "timer")

    def __init__(self) -> None:
        self.logged_at: float | None = None
        self.count = 0
        self.last = ""
        self.timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop_is_closed(self) -> bool:
        return self._loop is None or self._loop.is_closed()

    def call_later(self, seconds: float, callback: Any) -> None:
        self.stop()
        with contextlib.suppress(RuntimeError):  # no event loop runs
            self._loop = asyncio.get_running_loop()
            self.timer = self._loop.call_later(seconds, callback, self)

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def address_of(transport: asyncio.BaseTransport | None) -> str:
    """Return the address of the peer for a log line."""
    peer = None if transport is None else transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else "an unknown address"  # pyright: ignore[reportUnknownArgumentType]
