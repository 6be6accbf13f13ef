"""The number of connections for blocking commands that a process has per server."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections import Counter
from collections.abc import Hashable
from typing import Final

from glidemq_py._core.forks import new_rlock

__all__ = ["BLOCKING_READS", "WORKER_READS", "Reservation", "claim_read", "reserve_read"]

BLOCKING_READS: Final = 3
"""Number of connections for blocking reads per process and server. With the clients for calls, heartbeats and wake-up
channels, that makes six; with a direct connection too, because then the channels count as one of these."""
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
    """

    def __init__(self, server: Hashable, *, yields: bool = False) -> None:
        self._end = weakref.finalize(self, _give_back, server)
        self._loop = asyncio._get_running_loop()
        self.server = server
        self.yields = yields
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

    @property
    def may_be_claimed(self) -> bool:
        """True if another use can get this connection."""
        return self.yields and self._end.alive and not self.is_claimed


def _give_back(server: Hashable) -> None:
    with _lock:
        _reserved[server] -= 1
        if _reserved[server] <= 0:
            del _reserved[server]


def reserve_read(server: Hashable, most: int = BLOCKING_READS, *, yields: bool = False) -> Reservation | None:
    """Reserve a connection for blocking reads from a server; None if ``most`` are reserved."""
    with _lock:
        for each in [each for each in list(_reservations) if each.is_left]:
            each.release()
        if _reserved[server] >= most:
            return None
        _reserved[server] += 1
    return Reservation(server, yields=yields)


def claim_read(server: Hashable) -> Reservation:
    """Reserve a connection for other blocking commands. If all are reserved, one that yields is given back soon."""
    with _lock:
        _reserved[server] += 1
        if _reserved[server] > BLOCKING_READS:
            held = (each for each in list(_reservations) if each.server == server and each.may_be_claimed)
            given_up = next(held, None)
            if given_up is not None:
                given_up.is_claimed = True
    return Reservation(server)


def _forget_parent() -> None:
    for each in list(_reservations):
        each.detach()
    _reserved.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
