"""The slots of a worker that serves several queues: which queue may fetch next, and how many jobs.

Each queue has a fetch engine. They share the number of free slots. A list of queues is a strict order: a queue fetches
only while no earlier one has ready jobs. Weights share the slots by weighted fair queuing: each requested job advances
the virtual time of its queue by 1 / weight, and each free slot is for the queue that is furthest behind.

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

import contextlib
import math
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final, cast

from glidemq_py._core.calls.working import FETCHED_JOB, ExchangeFlags
from glidemq_py._worker.fetch_calls import EngineCall, Exchange, Failure
from glidemq_py._worker.fetch_engine import FetchEngine
from glidemq_py._worker.fetch_loop import FetchLoop

if TYPE_CHECKING:
    from glidemq_py._core.calls.working import ExchangeReply, WakeChannel
    from glidemq_py._job.run import FinishedAttempt, Run
    from glidemq_py._worker.options import WorkerOptions

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
_PRIORITY: Final = FETCHED_JOB.index("priority")
_SAME_TIME: Final = 1e-6
"""Virtual times that differ by less, in jobs, are equal: sums of fractions are not exact."""


class SlotPool:
    """The free slots of a worker, and the queues that have ready jobs.

    Args:
        slots: Maximum number of running jobs.
        weighted: True to share the slots by weight; False for strict order.
        turn_s: Mean turn of a queue.
    """

    def __init__(self, slots: int, *, weighted: bool, turn_s: float = TURN_S) -> None:
        self.slots = slots
        self.free = slots
        self.weighted = weighted
        self._turn_s = turn_s
        self.ready: dict[PooledEngine, Callable[[], None]] = {}
        """The engines whose queues may have ready jobs, each with the function that makes its next calls."""
        self._new: dict[PooledEngine, None] = {}
        """Those whose queues were empty before, and that have not requested jobs since."""
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
        self._turn: PooledEngine | None = None
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

    def share_by_weight(self, turn_s: float) -> None:
        """Share the slots by weight from now on, with this mean turn of a queue."""
        self.weighted = True
        self._turn_s = turn_s

    def entered(self, engine: PooledEngine, pump: Callable[[], None]) -> None:
        """Register an engine whose queue may have ready jobs."""
        if engine not in self.ready:
            self.ready[engine] = pump
            self._new[engine] = None

    def left(self, engine: PooledEngine) -> None:
        """Remove an engine whose queue has no ready jobs, or cannot be used."""
        self.ready.pop(engine, None)
        self._new.pop(engine, None)

    def jobs_ended(self, count: int, now: float) -> None:
        """Count the jobs that have ended, to know how many the worker completes per second."""
        self.now = now
        self._ended += count
        if self._since is None:
            self._since = now
        elif now - self._since >= _WINDOW_S:
            self._rate = self._ended / (now - self._since)
            self._ended, self._since = 0, now

    def replied(self, seconds: float, now: float) -> None:
        """Note how long a call took."""
        self.now = now
        self._call_s += (seconds - self._call_s) / 8 if self._call_s else seconds

    def found_priority(self, now: float) -> None:
        """Let a turn be a single call for a while: jobs of the partitions have priorities."""
        self._single_calls_until = now + PRIORITIES_S

    def charge(self, engine: PooledEngine, count: int) -> None:
        """Charge an engine with the jobs that it requests; a negative number refunds those that were not found."""
        engine.virtual_time += count / engine.weight
        if engine is self._turn:
            self._in_turn += count
        if count > 0:
            self._new.pop(engine, None)

    @property
    def late_s(self) -> float:
        """Time without a reply after which other queues use the slots that are kept free for a queue."""
        return max(_LATE_S, _LATE_CALLS * self._call_s)

    @property
    def is_full(self) -> bool:
        """True if jobs run in all slots; False if a call in flight may leave one free."""
        return self.free <= 0 and not any(each.requested_slots for each in self.ready)

    def grant(self, engine: PooledEngine) -> int:
        """Return how many jobs the engine may request now."""
        if self.free <= 0:
            return 0
        if not self.weighted:
            position = engine.position
            return 0 if any(each.position < position and each.may_request for each in self.ready) else self.free
        return self._grant(engine, self._able())

    def _able(self) -> list[PooledEngine]:
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

    def _grant(self, engine: PooledEngine, able: Sequence[PooledEngine]) -> int:
        if engine not in able:
            return 0
        return self._grant_in_turn(engine, able) if self._takes_turns else self._weighted_share(engine, able)

    # -- turns --------------------------------------------------------------------------------------------

    @property
    def _takes_turns(self) -> bool:
        return self._rate * TURNED_OVER_S >= self.slots

    def _grant_in_turn(self, engine: PooledEngine, able: Sequence[PooledEngine]) -> int:
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

    def _turn_of(self, engine: PooledEngine, able: Sequence[PooledEngine]) -> float:
        """Return the number of jobs in a turn of the engine."""
        count, weights = len(able), sum([each.weight for each in able])
        round_s = max(self._turn_s, _TURN_CALLS * self._call_s) * min(count, TURNS)
        turn = self._rate * round_s * engine.weight / weights
        return min(turn, engine.max_want) if self.now < self._single_calls_until else turn

    def _whose_turn(self, able: Sequence[PooledEngine]) -> PooledEngine:
        turn = self._turn
        if turn is not None and turn in able and self._in_turn < self._turn_of(turn, able):
            return turn
        self._turn, self._in_turn = min(able, key=_by_time), 0
        return self._turn

    def _new_ones(self, first: PooledEngine, able: Sequence[PooledEngine]) -> list[PooledEngine]:
        """Return the engines that need not wait for their turn: their queues were empty, and they are not ahead."""
        if not self._new:
            return []
        latest = first.virtual_time
        new = (each for each in self._new if each is not first and each.virtual_time <= latest)
        return sorted((each for each in new if each.may_call and each in able), key=_by_time)

    def _substitute(self, first: PooledEngine, able: Sequence[PooledEngine], free: int) -> PooledEngine | None:
        """Return the engine that uses the free slots while the one whose turn it is waits for replies, or None.

        Small calls wait as well: few slots are kept free until the reply.
        """
        if first.would_call_for(free) or (free < first.max_want and first.calls_in_flight):
            return None
        others = [each for each in able if each is not first and each.may_call]
        found = min(others, key=_by_time, default=None)
        return None if found is None or free < found.max_want else found

    # -- single slots -------------------------------------------------------------------------------------

    def _weighted_share(self, engine: PooledEngine, able: Sequence[PooledEngine]) -> int:
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

    def pump(self, caller: PooledEngine | None = None) -> None:
        """Let the other queues fetch: a slot may be free, or a queue has no more ready jobs."""
        self.kept_free = False
        if self.free <= 0 or not self.ready:
            return
        if not self.weighted:
            in_order = sorted((each for each in self.ready if each.may_call), key=_by_position)
            for engine in in_order:
                if engine is not caller and engine.would_call_for(self.grant(engine)):
                    self.ready[engine]()
                    break
            return
        able = self._able()
        called = False
        for engine in self._next(able):
            if engine is not caller and engine.would_call_for(self._grant(engine, able)):
                called = True
                self.ready[engine]()
        self.kept_free = not called and any(each.calls_in_flight for each in able)

    def _next(self, able: Sequence[PooledEngine]) -> list[PooledEngine]:
        """Return the engines that may get free slots, those that precede first."""
        if not able or not self._takes_turns:
            return nsmallest(min(self.free, _PUMPED_AT_ONCE), (each for each in able if each.may_call), key=_by_time)
        first = self._whose_turn(able)
        chosen = [*self._new_ones(first, able)[:_PUMPED_AT_ONCE], first]
        substitute = self._substitute(first, able, self.free)
        return chosen if substitute is None else [*chosen, substitute]


def _by_time(engine: PooledEngine) -> tuple[float, int]:
    return engine.virtual_time, engine.position


def _by_position(engine: PooledEngine) -> int:
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


class PooledEngine(FetchEngine):
    """A fetch engine that shares its slots with others.

    Args:
        pool: The slots.
        position: Position of the queue in the list.
        weight: Weight of the queue; 1 in a list.
        now: The time.
        chance: Returns a number from 0 to 1, for the length of pauses.
    """

    def __init__(
        self, pool: SlotPool, position: int, weight: int, now: float, chance: Callable[[], float], **options: Any
    ) -> None:
        self._pool = pool
        self.position = position
        self.weight = weight
        self.virtual_time = 0.0
        self._pump: Callable[[], None] | None = None
        self.queue = QueueOfEngines([self])
        """The engines of its queue: of all partitions, or this one."""
        self.drained_is_wanted: Callable[[], bool] = bool
        """Return True if `replied` must find out when the queue has been drained; False by default."""
        self._may_be_ready = False
        free = pool.free
        super().__init__(pool.slots, now, chance, may_pipeline=False, **options)
        pool.free = free

    def connect(self, pump: Callable[[], None]) -> None:
        """Set the function that makes the next calls."""
        self._pump = pump
        if self._may_be_ready:
            self._pool.entered(self, pump)

    @property
    def free(self) -> int:
        """Number of slots of the worker that are free."""
        return self._pool.free

    @free.setter
    def free(self, value: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._pool.free = value

    @property
    def jobs_may_be_ready(self) -> bool:
        """See `FetchEngine.jobs_may_be_ready`."""
        return self._may_be_ready

    @jobs_may_be_ready.setter
    def jobs_may_be_ready(self, value: bool) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._may_be_ready = value
        if not value:
            self._pool.left(self)
        elif self._pump is not None:
            self._pool.entered(self, self._pump)

    @property
    def may_request(self) -> bool:
        """True unless this queue cannot fetch now: it is paused, rate limited, or its last call failed."""
        if not self._may_be_ready or not self.accepting or self.step is not None:
            return False
        return not self.throttle.holding and not self.disconnected

    @property
    def may_call(self) -> bool:
        """True if this queue can fetch now, and another call of it may be in flight."""
        return self.may_request and self.calls_in_flight < self.max_calls

    def would_call_for(self, slots: int) -> bool:
        """Return True if `next_call` returns a call when the pool grants this number of slots.

        Two queues that make none would pump each other forever.
        """
        finished = len(self.finished)
        if self.calls_in_flight == 0:
            return slots > 0 or finished > 0 or self._promote
        return self.calls_in_flight < self.max_calls and max(slots, finished) >= self.second_at

    @property
    def together(self) -> Sequence[FetchEngine]:
        """See `FetchEngine.together`: those of the queue's partitions."""
        return self.queue.engines

    def next_call(self, now: float) -> EngineCall | None:
        """See `FetchEngine.next_call`; within the slots that the pool grants."""
        if self.calls_in_flight >= self.max_calls:
            return None
        pool = self._pool
        if pool.weighted:
            pool.jobs_ended(0, now)
        if self.calls_in_flight and max(pool.free, len(self.finished)) < self.second_at:
            return None
        withheld = pool.free - pool.grant(self)
        pool.free -= withheld
        try:
            call = super().next_call(now)
        finally:
            pool.free += withheld
        if isinstance(call, Exchange):
            if call.batch:
                pool.jobs_ended(len(call.batch), now)
            if call.want:
                pool.charge(self, call.want)
        return call

    def replied(self, call: Exchange, runs: Iterable[Run], flags: int, exhausted: bool, now: float) -> bool:
        """See `FetchEngine.replied`; returns True when all partitions of the queue have been drained."""
        fetched = list(runs)
        if self.unanswered_since is not None:
            self._pool.replied(now - self.unanswered_since, now)
        if call.want:
            self._pool.charge(self, len(fetched) - call.want)
        drained = super().replied(call, fetched, flags, exhausted, now)
        if self._busy and self.accepting and not self._may_be_ready and self._has_ended:
            # Jobs of other queues may run in all slots.
            if call.want:
                drained, self._busy = exhausted, not exhausted
            elif self.drained_is_wanted():
                self.wake()  # the call requested no jobs, so there may be some
        queue = self.queue
        queue.was_busy = queue.was_busy or drained
        queue.rounds += bool(fetched)
        return queue.take_drained()

    def reattached(self, runs: Collection[Run], cursor: str) -> bool:
        """See `FetchEngine.reattached`."""
        self.queue.rounds += bool(runs)
        return super().reattached(runs, cursor)

    @property
    def _has_ended(self) -> bool:
        return not self.calls_in_flight and self.is_drained

    @property
    def is_quiet(self) -> bool:
        """True if this worker runs no job of the queue or partition, and has found it empty since it ran the last."""
        if self.disconnected or not self.accepting:
            return not self.running
        return not (self._busy or self._may_be_ready) and self._has_ended

    def failed(self, call: EngineCall, failure: Failure, now: float) -> list[FinishedAttempt]:
        """See `FetchEngine.failed`."""
        if isinstance(call, Exchange):
            self._pool.charge(self, -call.want)
        return super().failed(call, failure, now)

    def unresponsive_seconds(self, now: float) -> float:
        """See `FetchEngine.unresponsive_seconds`. An idle queue makes no calls."""
        return 0.0 if self.unanswered_since is None else max(0.0, now - self.unanswered_since)

    def disconnect(self) -> None:
        """See `FetchEngine.disconnect`."""
        super().disconnect()
        self._pool.left(self)


def _has_priority(row: Sequence[Any]) -> bool:
    """Return whether a fetched job has a priority or rank. Rows of plain jobs are shorter."""
    return len(row) > _PRIORITY and row[_PRIORITY] not in ("0", False)


class QueueOfEngines:
    """The engines of one queue, which are those of its partitions.

    Args:
        engines: The engines.
    """

    def __init__(self, engines: list[PooledEngine]) -> None:
        self.engines = engines
        self.was_busy = False
        """True if a partition was drained, and the queue has not been since."""
        self.probe: Callable[[], None] | None = None
        """Starts a search for jobs in all partitions, which ends with `probed`; None if the queue has no partitions."""
        self.rounds = 0
        """Number of replies with jobs."""
        self._is_probing = False
        self._probed_round = -1
        """`rounds` when the last finished probe began."""

    def add(self, engine: PooledEngine) -> None:
        """Add the engine of another partition."""
        if engine not in self.engines:
            self.engines.append(engine)
        engine.queue = self

    def take_drained(self) -> bool:
        """Return True once, when all partitions have been drained.

        If the event `drained` has a listener, this starts the probe first, and `probed` returns True.
        """
        engines = self.engines
        if not self.was_busy or not all(each.is_quiet for each in engines):
            return False
        if self.probe is not None and self._probed_round != self.rounds and engines[0].drained_is_wanted():
            if not self._is_probing:
                self._is_probing = True
                self.probe()
            return False
        self.was_busy = False
        return True

    def probed(self, rounds: int) -> bool:
        """End a probe; ``rounds`` is the number when it began. Return the value of `take_drained`."""
        self._is_probing, self._probed_round = False, rounds
        return self.take_drained()


class PooledFetchLoop(FetchLoop):
    """A fetch loop whose queue shares the slots of its worker; after each change, the other queues may fetch.

    Args:
        pool: The slots.
        position: Position of the queue in the list.
        weight: Weight of the queue.
        channel: Channel of its wake-ups.
        **options: As for `FetchLoop`.
    """

    engine: PooledEngine
    pool: SlotPool

    def __init__(
        self, *, pool: SlotPool, position: int, weight: int, channel: WakeChannel | None, **options: Any
    ) -> None:
        self.pool = pool
        self._place = position, weight
        self.server_now = 0
        """Server time of the last exchange that found fewer jobs than requested, epoch ms; 0 before the first."""
        self.started: Callable[[], None] | None = None
        """Called when jobs were fetched."""
        super().__init__(**options)
        self._exchange_call = partial(cast("Any", self._exchange_call), channel=channel)
        self.engine.connect(self.schedule_pump)

    def _make_engine(self, options: WorkerOptions) -> PooledEngine:
        engine = PooledEngine(
            self.pool, *self._place, self._loop.time(), random.random, one_call=options.batch is not None,
            tokens=options.token_limiter,
        )  # fmt: skip
        engine.drained_is_wanted = partial(self._listeners.wanted, "drained")
        return engine

    def _pump(self, now: float | None = None) -> None:
        super()._pump(now)
        self._pump_others(self.engine)

    def _pump_others(self, caller: PooledEngine | None) -> None:
        pool = self.pool
        pool.pump(caller)
        if pool.kept_free and not pool.waits_for_late:
            pool.waits_for_late = True
            self._loop.call_later(pool.late_s, self._on_late, context=self._context_vars)
        if pool.changed is not None:
            pool.changed()

    def _on_late(self) -> None:
        """Let other queues use the slots that are kept free if a reply is late."""
        self.pool.waits_for_late = False
        self.pool.now = self._loop.time()
        self._pump_others(None)

    def _replied(self, call: Exchange, reply: ExchangeReply, runs: list[Run] | tuple[()]) -> None:
        if call.want and reply.flags & ExchangeFlags.FEWER:
            self.server_now = reply.now
        if runs and self.started is not None:
            self.started()
        if self._link.partition is not None and any(map(_has_priority, reply.jobs)):
            self.pool.found_priority(self._loop.time())
        super()._replied(call, reply, runs)
        self._pump_others(self.engine)

    def pause(self) -> None:
        """See `FetchLoop.pause`."""
        super().pause()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._pump_others, self.engine)
