"""The time of an in-memory server: moved by the test, or running with the machine's."""

from __future__ import annotations

import time
from collections.abc import Callable

from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError

__all__ = ["Clock"]


class Clock:
    """The time that an in-memory server goes by: delays, retries, limits, locks, ages, entry ids.

    Args:
        start: epoch ms at which it begins; None for the machine's time now.
        running: it goes on with the machine's time; otherwise it stands still until `advance`.

    Raises:
        GlideMQValidationError: ``start`` is no time.
    """

    def __init__(self, start: int | None = None, *, running: bool = False) -> None:
        given: object = start
        if start is not None and (isinstance(given, bool) or not isinstance(given, int) or start < 0):
            raise GlideMQValidationError("start", start, "must be epoch milliseconds")
        self.running = running
        self._micros = time.time_ns() // 1000 if start is None else start * 1000
        self._since = time.monotonic_ns()
        self.moved = 0
        """Milliseconds by which it was advanced in all."""
        self._told: list[Callable[[], None]] = []

    def now(self) -> int:
        """Epoch ms."""
        return self.micros() // 1000

    def micros(self) -> int:
        """Epoch microseconds."""
        return self._micros + ((time.monotonic_ns() - self._since) // 1000 if self.running else 0)

    def advance(self, by: Milliseconds) -> int:
        """Move on by ms or a timedelta; whoever waits on the server looks again. Returns the time then, epoch ms.

        Raises GlideMQValidationError: time cannot go back.
        """
        milliseconds = to_ms("by", by)
        self.moved += milliseconds
        self._micros += milliseconds * 1000
        for tell in tuple(self._told):
            tell()
        return self.now()

    def on_advance(self, tell: Callable[[], None]) -> None:
        """Have ``tell`` called after every `advance`."""
        self._told.append(tell)

    def __repr__(self) -> str:
        return f"<Clock {self.now()}{' running' if self.running else ''}>"
