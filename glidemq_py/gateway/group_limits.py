"""Limits of groups in other commands: `groupMaxSize` of jobs, and `group` of PULL.

They are set right before the jobs are added or fetched.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.calls import pieces
from glidemq_py._core.limits import MAX_COUNT, FairKeyDefaults, RateLimit
from glidemq_py.gateway.table import Field, Kind, check_nested

__all__ = ["GroupSize", "forget_group_limits", "group_size", "set_group_defaults", "set_group_sizes"]

GroupSize = tuple[str, int]
"""A group and its maximum size."""

_KNOWN_S: Final = 2.0
_KEPT: Final = 1_000
_TOGETHER: Final = 250

_known: WeakKeyDictionary[Queue[Any, Any], dict[str, tuple[int, float]]] = WeakKeyDictionary()
"""Per queue: the size of a group that this process has set, and until when it is not set again."""
_Defaults = tuple[int | None, tuple[int, int] | None]
_defaults: WeakKeyDictionary[Queue[Any, Any], tuple[_Defaults, float]] = WeakKeyDictionary()
"""Per queue: the limits of each group that this process has set, and until when they are not set again."""

_GROUP: Final = (
    Field("affinity"), Field("concurrency", Kind.POSITIVE, minimum=1, maximum=MAX_COUNT), Field("limit", Kind.MAP),
)  # fmt: skip
_LIMIT: Final = (
    Field("max", Kind.POSITIVE, minimum=1, maximum=MAX_COUNT, required=True),
    Field("duration", Kind.POSITIVE, minimum=1, maximum=31_536_000_000, required=True),
)  # fmt: skip


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
    for some in pieces(new, _TOGETHER):
        await asyncio.gather(*(queue.fair_keys.set_limits(group, max_backlog=size) for group, size in some))
        if len(known) + len(some) > _KEPT:
            known.clear()
        for group, size in some:
            known[group] = size, now + _KNOWN_S


async def set_group_defaults(queue: Queue[Any, Any], given: Mapping[Any, Any]) -> None:
    """Set the limits of each group to those of a fetch, for the fetches of all programs; what is missing is no limit.

    Limits that this process has set in the last seconds are not set again.

    Raises:
        CommandError: If a limit is invalid.
        GlideMQConnectionError: If the server cannot be reached.
    """
    wanted, now = _defaults_of(given), time.monotonic()
    known = _defaults.get(queue)
    if known is not None and known[0] == wanted and now < known[1]:
        return
    concurrency, rate = wanted
    # Nothing is written for a client that gives an empty map, if there are no limits.
    if wanted != (None, None) or (known or await queue.fair_keys.get_defaults() != FairKeyDefaults()):
        await queue.fair_keys.set_defaults(
            concurrency=concurrency or False, rate_limit=False if rate is None else RateLimit(*rate)
        )
    _defaults[queue] = wanted, now + _KNOWN_S


def _defaults_of(given: Mapping[Any, Any]) -> _Defaults:
    found = check_nested("group", _GROUP, given)
    limit = found["limit"]
    if limit is None:
        return found["concurrency"], None
    rate = check_nested("group.limit", _LIMIT, limit)
    return found["concurrency"], (rate["max"], rate["duration"])


def forget_group_limits(queue: Queue[Any, Any]) -> None:
    """Set all sizes and limits again: the queue was deleted."""
    _known.pop(queue, None)
    _defaults.pop(queue, None)


def _is_known(found: tuple[int, float] | None, size: int, now: float) -> bool:
    return found is not None and found[0] == size and now < found[1]
