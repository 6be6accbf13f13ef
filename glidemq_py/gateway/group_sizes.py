"""`groupMaxSize`: the maximum size of a group, which is set right before the jobs that have it are added."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from glidemq_py._api.job_queue import Queue

__all__ = ["GroupSize", "forget_group_sizes", "group_size", "set_group_sizes"]

GroupSize = tuple[str, int]
"""A group and its maximum size."""

_KNOWN_S: Final = 2.0
_KEPT: Final = 1_000
_TOGETHER: Final = 250

_known: WeakKeyDictionary[Queue[Any, Any], dict[str, tuple[int, float]]] = WeakKeyDictionary()
"""Per queue: the size of a group that this process has set, and until when it is not set again."""


def group_size(given: Mapping[str, Any]) -> GroupSize | None:
    """Return the maximum size in the fields of a job; None if it has none, or no group."""
    group, size = given["groupId"], given["groupMaxSize"]
    return None if group is None or size is None else (group, size)


async def set_group_sizes(queue: Queue[Any, Any], sizes: Iterable[GroupSize | None]) -> None:
    """Set the maximum sizes of groups, for the jobs of all programs; of two sizes of one group, the last one.

    A size that this process has set in the last seconds is not set again.

    Raises:
        GlideMQConnectionError: If the server cannot be reached.
    """
    wanted = dict(each for each in sizes if each is not None)
    if not wanted:
        return
    known, now = _known.setdefault(queue, {}), time.monotonic()
    new = [(group, size) for group, size in wanted.items() if not _is_known(known.get(group), size, now)]
    for first in range(0, len(new), _TOGETHER):
        some = new[first : first + _TOGETHER]
        await asyncio.gather(*(queue.set_fair_key_limits(group, max_backlog=size) for group, size in some))
        if len(known) + len(some) > _KEPT:
            known.clear()
        for group, size in some:
            known[group] = size, now + _KNOWN_S


def forget_group_sizes(queue: Queue[Any, Any]) -> None:
    """Set all sizes again: the queue was deleted."""
    _known.pop(queue, None)


def _is_known(found: tuple[int, float] | None, size: int, now: float) -> bool:
    return found is not None and found[0] == size and now < found[1]
