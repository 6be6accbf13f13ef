"""The slots of a worker: which of its lanes may fetch next, and how many jobs.

A lane is a queue, or a part of one. The only lane of a worker may fill all free slots. A list of queues is a strict
order: a queue fetches only while no earlier one has ready jobs. Weights share the slots by weighted fair queuing: each
requested job advances the virtual time of its queue by 1 / weight, and each free slot is for the queue that is furthest
behind.

If jobs end in all slots within `TURNED_OVER_S`, dealing single slots would make many small calls. Queues then take
turns: one gets all free slots, for as many jobs as the worker completes in the time of a turn. Its calls report and
fetch at the same time, so they are as large as those of a worker of one queue. The next turn is that of the queue that
is furthest behind. A queue that was empty does not wait for a turn: its first call gets its share of the slots. While
jobs of partitions have priorities, a turn is a single call: an urgent job waits for one call of each other partition.

A slot may be kept free for a queue whose calls are in flight, or short jobs would ignore the weights and every reply
would be followed by small calls of other queues. That ends with the reply, or when the reply is late: then the others
use the slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from heapq import nsmallest
from typing import Any, Final, Protocol

TURN_S: Final = 0.0125
"""Mean turn of up to `TURNS` queues, unless calls are slow. Turns of more queues are shorter."""
TURNS: Final = 8
_TURN_CALLS: Final = 4
"""A turn is at least so many times as long as a call, as it begins and ends with small calls."""
TURNED_OVER_S: Final = 0.25
"""Queues take turns if jobs end in all slots within this time."""
PRIORITIES_S: Final = 60.0
"""How long turns are single calls after a job with a priority."""
_WINDOW_S: Final = 0.025
"""Time over which ended jobs are counted."""
_LATE_S: Final = 0.02
"""Time without a reply, at least, after which other queues use the slots that are kept free for a queue."""
_LATE_CALLS: Final = 4
"""A reply is late after so many times the usual time."""
_PUMPED_AT_ONCE: Final = 16
"""Maximum number of queues that begin a call in one step."""
_SAME_TIME: Final = 1e-6
"""Virtual times that differ by less, in jobs, are equal: sums of fractions are not exact."""


class Sharer(Protocol):
    """The fetch engine of a lane, as the pool sees it; see `FetchEngine`."""

    position: int
    weight: int
    virtual_time: float
    pump: Callable[[], object]
    max_want: int
    second_at: int
    requested_slots: int
    calls_in_flight: int
    unanswered_since: float | None

    @property
    def finished(self) -> Collection[Any]:
        """Results that are not reported yet."""
        ...

    @property
    def may_request(self) -> bool:
        """True if the lane can fetch."""
        ...

    @property
    def may_call(self) -> bool:
        """True if it can fetch with another call."""
        ...

    def would_call_for(self, slots: int) -> bool:
        """Return True if it makes a call when it may fill so many slots."""
        ...


class SlotPool:
    """The free slots of a worker, and the lanes that may have ready jobs.

    Args:
        slots: Maximum number of running jobs.
        weighted: True to share the slots by weight; False for strict order.
        turn_s: Mean turn of a lane.
    """

    def __init__(self, slots: int, *, weighted: bool = False, turn_s: float = TURN_S) -> None:
        self.slots = slots
        self.free = slots
        """Number of slots that neither run a job, nor are withheld, nor may be filled by a call in flight."""
        self.engines: list[Sharer] = []
        """The engines of all lanes."""
        self.is_shared = False
        """True if the pool has several lanes; a single one takes all free slots."""
        self.weighted = weighted
        self._turn_s = turn_s
        self.ready: dict[Sharer, None] = {}
        """The engines whose lanes may have ready jobs."""
        self.new: dict[Sharer, None] = {}
        """Those whose lanes were empty before, and that have not requested jobs since."""
        self.now = 0.0
        """The time of the last event."""
        self.kept_free = False
        """True if `pump` left slots free for a queue whose calls are in flight."""
        self.waits_for_late = False
        """True while a timer runs that calls `pump` when a reply is late."""
        self.changed: Callable[[], None] | None = None
        """Called after each change of an engine; None if nothing waits for one."""
        self._time = 0.0
        """Virtual time of the worker: no queue that could fetch so far is further behind."""
        self._turn: Sharer | None = None
        """The queue whose turn it is, or was last."""
        self._in_turn = 0
        """Number of jobs that it has requested in its turn."""
        self._rate = 0.0
        """Jobs that the worker completes per second."""
        self._call_s = 0.0
        """Usual time from a call to its reply."""
        self._ended = 0
        self._since: float | None = None
        self._single_calls_until = -math.inf

    def resize(self, slots: int) -> None:
        """Change the maximum number of running jobs."""
        self.free += slots - self.slots
        self.slots = slots

    def share(self, turn_s: float) -> None:
        """Share the slots of several lanes by weight from now on, with this mean turn of a lane."""
        self.weighted = True
        self._turn_s = turn_s

    def join(self, engine: Sharer) -> None:
        """Add a lane."""
        self.engines.append(engine)
        self.is_shared = len(self.engines) > 1

    def leave(self, engine: Sharer) -> None:
        """Remove a lane."""
        self.engines.remove(engine)

    def left(self, engine: Sharer) -> None:
        """Remove an engine whose queue has no ready jobs, or cannot be used."""
        self.ready.pop(engine, None)
        self.new.pop(engine, None)

    def jobs_ended(self, count: int, now: float) -> None:
        """Count the jobs that have ended, to know how many the worker completes per second."""
        self.now = now
        self._ended += count
        if self._since is None:
            self._since = now
        elif now - self._since >= _WINDOW_S:
            self._rate = self._ended / (now - self._since)
            self._ended, self._since = 0, now

    def requested(self, engine: Sharer, want: int, reported: int, now: float) -> None:
        """Note a call of an engine that requests jobs and reports others."""
        if reported:
            self.jobs_ended(reported, now)
        if want:
            self.charge(engine, want)

    def replied(self, engine: Sharer, more: int, now: float) -> None:
        """Note a reply: how long it took, and how many more jobs it has than the call requested, at most 0."""
        self.now = now
        self.charge(engine, more)
        if engine.unanswered_since is not None:
            seconds = now - engine.unanswered_since
            self._call_s += (seconds - self._call_s) / 8 if self._call_s else seconds

    def found_priority(self, now: float) -> None:
        """Let a turn be a single call for a while: jobs of the partitions have priorities."""
        self._single_calls_until = now + PRIORITIES_S

    def charge(self, engine: Sharer, count: int) -> None:
        """Charge an engine with the jobs that it requests; a negative number refunds those that were not found."""
        engine.virtual_time += count / engine.weight
        if engine is self._turn:
            self._in_turn += count
        if count > 0:
            self.new.pop(engine, None)

    @property
    def late_s(self) -> float:
        """Time without a reply after which other queues use the slots that are kept free for a queue."""
        return max(_LATE_S, _LATE_CALLS * self._call_s)

    @property
    def is_full(self) -> bool:
        """True if jobs run in all slots; False if a call in flight may leave one free."""
        return self.free <= 0 and not any(each.requested_slots for each in self.engines)

    def grant(self, engine: Sharer, now: float) -> int:
        """Return how many jobs the engine may request now."""
        if not self.weighted:
            return self._in_order(engine)
        self.jobs_ended(0, now)
        return self._grant(engine, self._able()) if self.free > 0 else 0

    def _in_order(self, engine: Sharer) -> int:
        position = engine.position
        if self.free <= 0 or any(each.position < position and each.may_request for each in self.ready):
            return 0
        return self.free

    def _able(self) -> list[Sharer]:
        """Return the engines that can fetch now. Time in which one could not gives it no precedence."""
        able = [each for each in self.ready if each.may_request]
        if not able:
            return able
        lowest = min([each.virtual_time for each in able])
        if lowest >= self._time:
            self._time = lowest
        else:
            for each in able:
                each.virtual_time = max(each.virtual_time, self._time)
        earliest = self.now - self.late_s
        return [each for each in able if (since := each.unanswered_since) is None or since >= earliest] or able

    def _grant(self, engine: Sharer, able: Sequence[Sharer]) -> int:
        if engine not in able:
            return 0
        return self._grant_in_turn(engine, able) if self._takes_turns else self._weighted_share(engine, able)

    # -- turns --------------------------------------------------------------------------------------------

    @property
    def _takes_turns(self) -> bool:
        return self._rate * TURNED_OVER_S >= self.slots

    def _grant_in_turn(self, engine: Sharer, able: Sequence[Sharer]) -> int:
        """Return how many jobs an engine may request while the queues take turns."""
        first = self._whose_turn(able)
        free = self.free
        new = self._new_ones(first, able)
        weights = sum([each.weight for each in able]) if new else 0
        for each in new:
            share = min(free, max(1, int(self.slots * each.weight / weights)))
            if each is engine:
                return share
            free -= share
        if engine is first or engine is self._substitute(first, able, free):
            return free
        if len(engine.finished) < engine.second_at:
            return 0
        # It is about to report as many results as a call of its own turn has: fetching with them saves a call.
        lead = (engine.virtual_time - min([each.virtual_time for each in able])) * engine.weight
        return free if lead < self._turn_of(engine, able) else 0

    def _turn_of(self, engine: Sharer, able: Sequence[Sharer]) -> float:
        """Return the number of jobs in a turn of the engine."""
        count, weights = len(able), sum([each.weight for each in able])
        round_s = max(self._turn_s, _TURN_CALLS * self._call_s) * min(count, TURNS)
        turn = self._rate * round_s * engine.weight / weights
        return min(turn, engine.max_want) if self.now < self._single_calls_until else turn

    def _whose_turn(self, able: Sequence[Sharer]) -> Sharer:
        turn = self._turn
        if turn is not None and turn in able and self._in_turn < self._turn_of(turn, able):
            return turn
        self._turn, self._in_turn = min(able, key=_by_time), 0
        return self._turn

    def _new_ones(self, first: Sharer, able: Sequence[Sharer]) -> list[Sharer]:
        """Return the engines that need not wait for their turn: their queues were empty, and they are not ahead."""
        if not self.new:
            return []
        latest = first.virtual_time
        new = (each for each in self.new if each is not first and each.virtual_time <= latest)
        return sorted((each for each in new if each.may_call and each in able), key=_by_time)

    def _substitute(self, first: Sharer, able: Sequence[Sharer], free: int) -> Sharer | None:
        """Return the engine that uses the free slots while the one whose turn it is waits for replies, or None.

        Small calls wait as well: few slots are kept free until the reply.
        """
        if first.would_call_for(free) or (free < first.max_want and first.calls_in_flight):
            return None
        others = [each for each in able if each is not first and each.may_call]
        found = min(others, key=_by_time, default=None)
        return None if found is None or free < found.max_want else found

    # -- single slots -------------------------------------------------------------------------------------

    def _weighted_share(self, engine: Sharer, able: Sequence[Sharer]) -> int:
        """Deal the free slots one by one to the queue that is furthest behind; return how many this one gets."""
        weight, own_time, position = engine.weight, engine.virtual_time, engine.position
        most = min(self.free, engine.max_want)
        last = own_time + (most - 1) / weight
        rivals = [
            (each.virtual_time, each.weight, each.position < position)
            for each in able
            if each.virtual_time <= last and each is not engine
        ]
        low, high = 0, most
        while low < high:  # at most log2(slots) steps
            count = (low + high + 1) // 2
            if count + _slots_before(rivals, own_time + (count - 1) / weight, self.free - count) <= self.free:
                low = count
            else:
                high = count - 1
        return low

    def pump(self, caller: Sharer | None = None) -> None:
        """Let the other lanes fetch: a slot may be free, or a lane has no more ready jobs."""
        self.kept_free = False
        if self.free <= 0 or not self.ready:
            return
        if not self.weighted:
            in_order = sorted((each for each in self.ready if each.may_call), key=_by_position)
            for engine in in_order:
                if engine is not caller and engine.would_call_for(self._in_order(engine)):
                    engine.pump()
                    break
            return
        able = self._able()
        called = False
        for engine in self._next(able):
            if engine is not caller and engine.would_call_for(self._grant(engine, able)):
                called = True
                engine.pump()
        self.kept_free = not called and any(each.calls_in_flight for each in able)

    def _next(self, able: Sequence[Sharer]) -> list[Sharer]:
        """Return the engines that may get free slots, those that precede first."""
        if not able or not self._takes_turns:
            return nsmallest(min(self.free, _PUMPED_AT_ONCE), (each for each in able if each.may_call), key=_by_time)
        first = self._whose_turn(able)
        chosen = [*self._new_ones(first, able)[:_PUMPED_AT_ONCE], first]
        substitute = self._substitute(first, able, self.free)
        return chosen if substitute is None else [*chosen, substitute]


def _by_time(engine: Sharer) -> tuple[float, int]:
    return engine.virtual_time, engine.position


def _by_position(engine: Sharer) -> int:
    return engine.position


def _slots_before(rivals: Sequence[tuple[float, int, bool]], time: float, limit: int) -> int:
    """Return how many slots these queues get before a slot with this virtual time; stop counting above ``limit``.

    Each is given by its virtual time, its weight, and True if it precedes at the same time.
    """
    count = 0
    for start, weight, precedes in rivals:
        ahead = (time - start) * weight
        if ahead > -_SAME_TIME:
            whole = round(ahead)
            if abs(ahead - whole) < _SAME_TIME:
                count += whole + precedes
            else:
                count += math.ceil(ahead)
            if count > limit:
                break
    return count
