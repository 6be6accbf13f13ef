"""Locks and events that work in a forked child, and a notification of objects there.

A child has only the thread that forked. A lock that another thread held at that moment would never be released in the
child, so locks made here are reset there. All locks of the package are made here.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Protocol


class Forkable(Protocol):
    """An object with state that a forked child must reset."""

    def _forked(self) -> None:
        """Reset the state; called once in the child, before any other thread runs there."""
        ...


_resettable: weakref.WeakSet[Any] = weakref.WeakSet()
_owners: weakref.WeakSet[Forkable] = weakref.WeakSet()


def new_lock() -> threading.Lock:
    """Return a lock that is free in a forked child."""
    lock = threading.Lock()
    _resettable.add(lock)
    return lock


def new_rlock() -> Any:
    """Return a reentrant lock that is free in a forked child."""
    lock = threading.RLock()
    _resettable.add(lock)
    return lock


def new_event() -> threading.Event:
    """Return an event that can be used in a forked child; it keeps its state."""
    event = threading.Event()
    _resettable.add(event)
    return event


def call_in_child(owner: Forkable) -> None:
    """Call ``owner._forked()`` in every forked child, as long as the owner exists."""
    _owners.add(owner)


def keep(parents: object) -> None:
    """Keep an object of the parent process, which must be neither closed nor garbage-collected in the child."""
    _kept.append(parents)


_kept: list[object] = []


def _after_fork() -> None:
    for each in list(_resettable):
        each._at_fork_reinit()  # as the standard library does for its own locks
    for owner in list(_owners):
        owner._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
