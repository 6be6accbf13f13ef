"""The number of connections for blocking commands that a process has per server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final

from glidemq_py._core.forks import new_rlock

BLOCKING_READS: Final = 3
"""Number of connections for blocking reads per process and server. With the clients for calls, heartbeats and wake-up
channels, that makes five or six: the channels count as one of these."""
WORKER_READS: Final = 2
"""How many of them workers may have."""

_reserved: Counter[Hashable] = Counter()
_reservations: weakref.WeakSet[Reservation] = weakref.WeakSet()
_lock = new_rlock()
"""Reentrant: garbage collection inside may end a reservation."""


class Reservation:
    """One of the connections of a process and server, until `release` or the end of the object.

    Args:
        server: Identifies the server.
        yields: True if its user gives it back when another use claims it.
        claimed: Is called in the event loop of its user when another use claims it.
    """

    def __init__(self, server: Hashable, *, yields: bool = False, claimed: Callable[[], None] | None = None) -> None:
        self._end = weakref.finalize(self, _give_back, server)
        self._loop = asyncio._get_running_loop()
        self.server = server
        self.yields = yields
        self._claimed = claimed
        self.is_claimed = False
        """True if another use has claimed it."""
        with _lock:
            _reservations.add(self)

    def release(self) -> None:
        """Give it back. Idempotent."""
        self._end()

    def detach(self) -> None:
        """Make `release` do nothing: in a forked child, the reservation is the parent's."""
        self._end.detach()

    @property
    def is_left(self) -> bool:
        """True if its event loop was closed: connections end with their loop."""
        return self._loop is not None and self._loop.is_closed()

    def claim(self) -> None:
        """Ask its user to release it."""
        self.is_claimed = True
        if self._claimed is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._claimed)

    @property
    def is_costly(self) -> bool:
        """True if a claim makes its user start again in another form, as a worker does; others are claimed before."""
        return self._claimed is not None

    @property
    def may_be_claimed(self) -> bool:
        """True if another use can get this connection."""
        return self.yields and self._end.alive and not self.is_claimed


def _give_back(server: Hashable) -> None:
    with _lock:
        _reserved[server] -= 1
        if _reserved[server] <= 0:
            del _reserved[server]


def reserve_read(
    server: Hashable, most: int = BLOCKING_READS, *, yields: bool = False, claimed: Callable[[], None] | None = None
) -> Reservation | None:
    """Reserve a connection for blocking reads from a server; None if ``most`` are reserved. See `Reservation`."""
    with _lock:
        for each in [each for each in list(_reservations) if each.is_left]:
            each.release()
        if _reserved[server] >= most:
            return None
        _reserved[server] += 1
    return Reservation(server, yields=yields, claimed=claimed)


def claim_read(server: Hashable) -> Reservation:
    """Reserve a connection for other blocking commands. If all are reserved, one that yields is given back soon."""
    with _lock:
        _reserved[server] += 1
        if _reserved[server] > BLOCKING_READS:
            held = [each for each in list(_reservations) if each.server == server and each.may_be_claimed]
            if held:
                min(held, key=lambda each: each.is_costly).claim()
    return Reservation(server)


def _forget_parent() -> None:
    for each in list(_reservations):
        each.detach()
    _reserved.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
