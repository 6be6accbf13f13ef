"""A round in which the partitions of a queue trade their shares of its concurrency.

The sum over the partitions of the larger of share and active jobs never exceeds the limit: shares are lowered first,
and then raised by the slots that have become free. A round that ends in between leaves less than the limit, and the
next one hands out the rest. Partitions reject a round that a later one has overtaken (docs/design/partitions.md,
"Shares").
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

from glidemq_py._core.calls import Call
from glidemq_py._features.partitions.shares import (
    NO_SHARE,
    UNLIMITED,
    PartitionLoad,
    fence_share,
    filled,
    lacks_share,
    open_share_round,
    set_share,
    wanted_shares,
)

__all__ = ["RoundEnd", "RoundResult", "ShareRound", "pause_between_rounds"]

_LEAST_PAUSE_MS: Final = 500
_PAUSE_PER_PARTITION_MS: Final = 30
_END_TOLERANCE_MS: Final = 1_000
"""A share whose end differs from that of the limit by more gets the right one."""
_FOLLOW_S: Final = (0.03, 0.07, 0.15)
"""Pauses before the jobs are counted again that ended since shares were lowered."""


def pause_between_rounds(partitions: int) -> int:
    """Return the least time between two rounds, ms: about 35 calls per second at most, for any number of partitions."""
    return max(_LEAST_PAUSE_MS, _PAUSE_PER_PARTITION_MS * partitions)


class RoundEnd(Enum):
    """How a round has ended."""

    NO_LIMIT = "no limit"
    TOO_EARLY = "too early"
    OVERTAKEN = "overtaken"
    COMPLETE = "complete"


class RoundResult(NamedTuple):
    """Result of a round.

    Attributes:
        end: How it has ended.
        wait: If it came too early, ms until one can be opened.
        above: If it was overtaken, the number that the next one must exceed.
        has_changed: Whether a share was changed.
        is_lacking: Whether a larger share would let more jobs run in a partition.
    """

    end: RoundEnd
    wait: int = 0
    above: int = 0
    has_changed: bool = False
    is_lacking: bool = False


class _OvertakenError(Exception):
    """A partition has rejected the round."""

    def __init__(self, epoch: int) -> None:
        super().__init__(epoch)
        self.epoch = epoch


@dataclass(slots=True)
class _State:
    """A partition during a round."""

    share: int
    ends_in: int
    active: int
    ready: int

    @property
    def demand(self) -> PartitionLoad:
        return PartitionLoad(self.share, self.active, self.ready)

    @property
    def bound(self) -> int:
        """The largest number of active jobs until the share changes."""
        return max(self.share, self.active)


class ShareRound:
    """One round of trading.

    Args:
        metas: Keys of all partitions that may have jobs, in their order.
        number: Number of their layout.
        call: Sends a call.
        together: Awaits several calls.
    """

    def __init__(
        self, metas: Sequence[str], number: int, call: Callable[[Call[Any]], Awaitable[Any]],
        together: Callable[[Iterable[Awaitable[Any]]], Awaitable[list[Any]]],
    ) -> None:  # fmt: skip
        self._metas = metas
        self._number = number
        self._call = call
        self._together = together
        self._epoch = self._limit = 0
        self._left = -1
        self._opened_at = 0.0
        self._states: list[_State] = []
        self._has_changed = False

    async def run(
        self, *, limit: int | None = None, ttl: int = 0, pause: int = 0, above: int = 0, spread: bool = False,
        sleep: Callable[[float], Awaitable[Any]] | None = None,
    ) -> RoundResult:  # fmt: skip
        """Trade the shares.

        Args:
            limit: The limit of the whole queue is set first; 0 = no limit; None = unchanged.
            ttl: See `open_share_round`.
            pause: See `open_share_round`.
            above: See `open_share_round`.
            spread: Change the shares even if no partition lacks any: they become equal, apart from slots in use.
            sleep: Wait shortly for jobs beyond lowered shares to end, and hand out their slots too; None = leave this
                to the next round.

        Raises:
            LayoutChangedError: The queue has another layout.
            GlideMQError: A call has failed. The sum of the shares is at most the limit.
        """
        self._opened_at = time.monotonic()
        opened = await self._call(
            open_share_round(self._metas[0], self._number, limit=limit, ttl=ttl, pause=pause, above=above)
        )
        if not opened.epoch:
            return RoundResult(RoundEnd.NO_LIMIT if opened.wait < 0 else RoundEnd.TOO_EARLY, wait=max(0, opened.wait))
        self._epoch, self._limit, self._left = opened.epoch, opened.limit, opened.left
        self._states = [_State(opened.share, opened.ends_in, opened.active, opened.ready)]
        try:
            await self._fence()
            if self._limit:
                await self._trade(spread=spread, sleep=sleep)
            else:
                await self._set({at: UNLIMITED for at in range(len(self._states)) if self._must_be_written(at)})
        except _OvertakenError as error:
            return RoundResult(RoundEnd.OVERTAKEN, above=error.epoch, has_changed=self._has_changed)
        lacking = any(lacks_share(state.demand) for state in self._states)
        return RoundResult(RoundEnd.COMPLETE, has_changed=self._has_changed, is_lacking=lacking)

    async def _fence(self) -> None:
        replies = await self._together(self._call(fence_share(meta, self._epoch)) for meta in self._metas[1:])
        for reply in replies:
            if reply.epoch != self._epoch:
                raise _OvertakenError(reply.epoch)
            self._states.append(_State(reply.share, reply.ends_in, reply.active, reply.ready))

    def _must_be_written(self, at: int) -> bool:
        """Return whether a share does not end when the limit does, or is one although there is no limit."""
        state = self._states[at]
        if state.share == NO_SHARE and self._limit:
            return False
        if not self._limit and state.share != UNLIMITED:
            return True
        left = self._ends_in()
        if min(left, state.ends_in) < 0:
            return left != state.ends_in
        return abs(left - state.ends_in) > _END_TOLERANCE_MS

    def _ends_in(self) -> int:
        if self._left < 0:
            return -1
        return max(0, self._left - int((time.monotonic() - self._opened_at) * 1000))

    async def _set(self, shares: dict[int, int]) -> None:
        """Set the shares of these partitions, and note their active jobs."""
        await self._together(self._set_one(at, share) for at, share in shares.items())

    async def _set_one(self, at: int, share: int) -> None:
        state, ends_in = self._states[at], self._ends_in()
        reply = await self._call(set_share(self._metas[at], self._epoch, state.share, share, ends_in))
        if reply.epoch != self._epoch:
            raise _OvertakenError(reply.epoch)
        self._has_changed = self._has_changed or share != state.share
        self._states[at] = _State(share, ends_in, reply.active, reply.ready)

    async def _trade(self, *, spread: bool, sleep: Callable[[float], Awaitable[Any]] | None) -> None:
        states = self._states
        wanted = [state.share for state in states]
        are_valid = UNLIMITED not in wanted and sum(wanted) <= self._limit
        if spread or not are_valid or any(lacks_share(state.demand) for state in states):
            wanted = wanted_shares(self._limit, [state.demand for state in states], self._epoch)
        await self._lower(wanted)
        await self._squeeze()
        await self._raise(wanted)
        if sleep is None:
            return
        for pause in _FOLLOW_S:
            giving = [at for at, state in enumerate(states) if state.active > state.share]
            if not giving or not any(state.share < wanted[at] for at, state in enumerate(states)):
                break
            await sleep(pause)
            await self._set({at: states[at].share for at in giving})
            await self._raise(wanted)

    async def _lower(self, wanted: Sequence[int]) -> None:
        lowered: dict[int, int] = {}
        for at, state in enumerate(self._states):
            if state.share == UNLIMITED:
                lowered[at] = NO_SHARE  # it is raised when the active jobs of all partitions are known
            elif state.share > wanted[at] or self._must_be_written(at):
                lowered[at] = min(state.share, wanted[at])
        await self._set(lowered)

    async def _squeeze(self) -> None:
        """Take shares that are not in use if jobs beyond other shares run: together they would exceed the limit."""
        excess = sum(state.bound for state in self._states) - self._limit
        lowered: dict[int, int] = {}
        for at, state in enumerate(self._states):
            if excess > 0 and state.share > state.active:
                lowered[at] = max(state.active, state.share - excess)
                excess -= state.share - lowered[at]
        await self._set(lowered)

    async def _raise(self, wanted: Sequence[int]) -> None:
        """Hand out free slots: to the smallest shares first."""
        states = self._states
        room = max(0, self._limit - sum(state.bound for state in states))
        least = [min(max(state.share, wanted[at]), state.bound) for at, state in enumerate(states)]
        caps = [max(least[at], wanted[at]) for at in range(len(states))]
        raised = filled(least, caps, room)
        await self._set({at: share for at, share in enumerate(raised) if share > states[at].share})
