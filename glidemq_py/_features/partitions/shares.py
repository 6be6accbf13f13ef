"""The shares of partitions in the concurrency of their queue: what each one gets, and the calls that trade them.

The server functions are in lua/features/partitions/functions/shares.lua; `share_round` sends them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, declared, reader

__all__ = [
    "NO_SHARE",
    "UNLIMITED",
    "FencedShare",
    "OpenedRound",
    "PartitionLoad",
    "ShareSet",
    "fence_share",
    "filled",
    "lacks_share",
    "open_share_round",
    "set_share",
    "wanted_shares",
]

NO_SHARE: Final = 0
UNLIMITED: Final = -1
_ROOMY: Final = 4
"""From this limit per partition on, those without jobs keep one slot, so that they start their first job at once."""


@declared("open_share_round_reply")
class OpenedRound(NamedTuple):
    """Reply of `open_share_round`: the limit of the whole queue, and the state of partition 0."""

    epoch: int
    """Number of the round; 0 = it was not opened."""
    limit: int
    """0 = no limit."""
    left: int
    """Milliseconds until the limit ends; -1 = never."""
    wait: int
    """Milliseconds until a round can be opened; -1 = the queue has no limit."""
    share: int
    ends_in: int
    active: int
    ready: int


@declared("fence_share_reply")
class FencedShare(NamedTuple):
    """Reply of `fence_share`: the state of a partition."""

    epoch: int
    """Number of the round; another one if the partition has rejected it."""
    share: int
    """`NO_SHARE`, `UNLIMITED`, or a number of jobs."""
    ends_in: int
    """Milliseconds until the share ends; -1 = never."""
    active: int
    ready: int
    """Number of jobs that could start."""


@declared("set_share_reply")
class ShareSet(NamedTuple):
    """Reply of `set_share`."""

    epoch: int
    """Number of the round; another one if the partition has rejected it."""
    active: int
    ready: int


_read_opened: Final = reader(OpenedRound)
_read_fenced: Final = reader(FencedShare)
_read_set: Final = reader(ShareSet)


def open_share_round(
    meta: str, number: int, *, limit: int | None = None, ttl: int = 0, pause: int = 0, above: int = 0
) -> Call[OpenedRound]:
    """Begin a round of trading at partition 0, and set the limit of the whole queue unless ``limit`` is None.

    Args:
        meta: Key of partition 0.
        number: Number of the layout. Another one raises `LayoutChangedError`.
        limit: Number of jobs; 0 = no limit.
        ttl: Milliseconds until the limit that applied before applies again; 0 = never.
        pause: Least time since the last round, ms, unless a limit is set.
        above: The number of the round is larger.
    """
    request = requests.open_share_round(
        number=number, limit=False if limit is None else limit, ttl=ttl, pause=pause, above=above
    )
    return Call("open_share_round", meta, request, _read_opened, repeatable=True)


def fence_share(meta: str, epoch: int) -> Call[FencedShare]:
    """Let a partition take part in a round, and reject earlier ones from then on."""
    return Call("fence_share", meta, requests.fence_share(epoch=epoch), _read_fenced, repeatable=True)


def set_share(meta: str, epoch: int, before: int, share: int, ends_in: int) -> Call[ShareSet]:
    """Replace the share of a partition in a round, if it is still ``before``."""
    request = requests.set_share(epoch=epoch, before=before, share=share, ends_in=ends_in)
    return Call("set_share", meta, request, _read_set, repeatable=True)


class PartitionLoad(NamedTuple):
    """Share, active and ready jobs of a partition."""

    share: int
    active: int
    ready: int


def lacks_share(load: PartitionLoad) -> bool:
    """Return whether a larger share would let more jobs run."""
    return load.share != UNLIMITED and load.ready > 0 and load.active + load.ready > load.share


def filled(levels: Sequence[int], caps: Sequence[int], room: int) -> list[int]:
    """Return the levels after ``room`` units were added one by one, each to the lowest level that is below its cap."""
    found = list(levels)
    while room > 0:
        growing = [at for at, level in enumerate(found) if level < caps[at]]
        if not growing:
            break
        lowest = min(found[at] for at in growing)
        group = [at for at in growing if found[at] == lowest]
        next_level = min([caps[at] for at in group] + [found[at] for at in growing if found[at] > lowest])
        step = min(next_level - lowest, room // len(group))
        if step == 0:
            for at in group[:room]:
                found[at] += 1
            break
        for at in group:
            found[at] += step
        room -= step * len(group)
    return found


def wanted_shares(limit: int, loads: Sequence[PartitionLoad], turn: int) -> list[int]:
    """Return the share that each partition should have. The sum is the limit.

    Those with jobs get equal shares, but not more than they need. The rest is spread over all, so that they can
    start further jobs at once. Partition 0 has at least one: Node peers read its share, and none would be no limit.

    Args:
        limit: Limit of the whole queue, > 0.
        loads: The partitions.
        turn: Number of the round: who comes first if the limit is below the number of partitions with jobs.
    """
    count = len(loads)
    needs = [min(limit, load.active + load.ready) for load in loads]
    idle = 1 if limit >= _ROOMY * count else 0
    floors = [1 if need or number == 0 else idle for number, need in enumerate(needs)]
    if sum(floors) > limit:
        busy = [number for number in range(1, count) if floors[number]]
        first = turn % len(busy)
        chosen = {0, *[*busy[first:], *busy[:first]][: limit - 1]}
        return [1 if number in chosen else 0 for number in range(count)]
    shares = filled(floors, [max(pair) for pair in zip(floors, needs, strict=True)], limit - sum(floors))
    spare = [share - need for share, need in zip(shares, needs, strict=True)]
    spread = filled(spare, [limit] * count, limit - sum(shares))
    return [share + more - had for share, more, had in zip(shares, spread, spare, strict=True)]
