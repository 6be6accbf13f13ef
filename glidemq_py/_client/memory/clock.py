"""The clock of an in-memory server: advanced by the test, or running in real time."""

from __future__ import annotations

import time
from collections.abc import Callable

from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError

__all__ = ["Clock"]


class Clock:
    """The clock of an in-memory server. It controls delays, retries, limits, locks, ages and entry ids.

    Args:
        start: initial time, epoch ms; None uses the current time.
        running: the clock runs in real time; otherwise it changes only by `advance`.

    Raises:
        GlideMQValidationError: if ``start`` is not a valid time.
    """

    def __init__(self, start: int | None = None, *, running: bool = False) -> None:
        given: object = start
        if start is not None and (isinstance(given, bool) or not isinstance(given, int) or start < 0):
            raise GlideMQValidationError("start", start, "must be epoch milliseconds")
        self.running = running
        self._micros = time.time_ns() // 1000 if start is None else start * 1000
        self._since = time.monotonic_ns()
        self.moved = 0
        """Total of all advances, milliseconds."""
        self._listeners: list[Callable[[], None]] = []

    def now(self) -> int:
        """Return the time in epoch ms."""
        return self.micros() // 1000

    def micros(self) -> int:
        """Return the time in epoch microseconds."""
        return self._micros + ((time.monotonic_ns() - self._since) // 1000 if self.running else 0)

    def advance(self, by: Milliseconds) -> int:
        """Advance the clock and wake up pending blocking reads.

        Args:
            by: milliseconds or a timedelta.

        Returns:
            The new time, epoch ms.

        Raises:
            GlideMQValidationError: if ``by`` is negative or not a duration.
        """
        milliseconds = to_ms("by", by)
        self.moved += milliseconds
        self._micros += milliseconds * 1000
        for notify in tuple(self._listeners):
            notify()
        return self.now()

    def on_advance(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` after every `advance`."""
        self._listeners.append(notify)

    def __repr__(self) -> str:
        return f"<Clock {self.now()}{' running' if self.running else ''}>"
