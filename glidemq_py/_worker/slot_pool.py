"""The slots of a worker that serves several queues: which queue may fetch next, and how many jobs.

Each queue has a fetch engine. They share the number of free slots. A list of queues is a strict order: a queue fetches
only while no earlier one has ready jobs. Weights share the slots by weighted fair queuing: each requested job advances
the virtual time of its queue by 1 / weight, and each free slot is for the queue that is furthest behind. That may be a
queue that has a call in flight: the slot then stays free until its reply, or short jobs would ignore the weights.

If jobs are so short that all slots are free again within 12 ms, dealing single slots would make many small calls. All
free slots then go to one queue, until it is ahead of the one that is furthest behind by the jobs that the worker
completes in `LEAD_S`. So calls are as large as those of a worker of one queue.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from glidemq_py._core.calls.working import ExchangeFlags
from glidemq_py._worker.fetch_calls import Call, Exchange, Failure
from glidemq_py._worker.fetch_engine import FetchEngine
from glidemq_py._worker.fetch_loop import FetchLoop

if TYPE_CHECKING:
    from glidemq_py._core.calls.working import ExchangeReply, WakeChannel
    from glidemq_py._job.run import Run
    from glidemq_py._worker.options import WorkerOptions
    from glidemq_py._worker.results import FinishedAttempt

__all__ = ["PooledEngine", "PooledFetchLoop", "SlotPool"]


LEAD_S: Final = 0.025
"""How far a queue may be ahead of the others: by the jobs that the worker completes in so many seconds."""
_SHORT: Final = 2
"""Number of times that all slots become free in `LEAD_S` if jobs are short."""
_PUMPED_AT_ONCE: Final = 16
"""Maximum number of queues that begin a call in one step."""
_SAME_TIME: Final = 1e-6
"""Virtual times that differ by less, in jobs, are equal: sums of fractions are not exact."""


class SlotPool:
    """The free slots of a worker, and the queues that have ready jobs.

    Args:
        slots: Maximum number of running jobs.
        weighted: True to share the slots by weight; False for strict order.
    """

    def __init__(self, slots: int, *, weighted: bool) -> None:
        self.slots = slots
        self.free = slots
        self.weighted = weighted
        self.ready: dict[PooledEngine, Callable[[], None]] = {}
        """The engines whose queues may have ready jobs, each with the function that makes its next calls."""
        self._time = 0.0
        """Virtual time of the worker: no queue that could fetch so far is further behind."""
        self._lead = 0.0
        self._leader: PooledEngine | None = None
        """The queue that has fetched last."""
        self._ended = 0
        self._since: float | None = None

    def resize(self, slots: int) -> None:
        """Change the maximum number of running jobs."""
        self.free += slots - self.slots
        self.slots = slots

    def entered(self, engine: PooledEngine, pump: Callable[[], None]) -> None:
        """Register an engine whose queue may have ready jobs."""
        if engine not in self.ready:
            self.ready[engine] = pump
            self._leader = None

    def jobs_ended(self, count: int, now: float) -> None:
        """Count the jobs that have ended, to know how many the worker completes in `LEAD_S`."""
        self._ended += count
        if self._since is None:
            self._since = now
        elif now - self._since >= LEAD_S:
            jobs = self._ended * LEAD_S / (now - self._since)
            self._lead = jobs if jobs >= _SHORT * self.slots else 0.0
            self._ended, self._since = 0, now

    def charge(self, engine: PooledEngine, count: int) -> None:
        """Charge an engine with the jobs that it requests; a negative number refunds those that were not found."""
        if count > 0:
            self._leader = engine
        engine.virtual_time += count / engine.weight

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
        able = self._able()
        if self._lead:
            return self.free if self._first(able) is engine else 0
        return self._weighted_share(engine, able)

    def _able(self) -> list[PooledEngine]:
        """Return the engines that can fetch now. Time in which one could not gives it no precedence."""
        able = [each for each in self.ready if each.may_request]
        if able:
            self._time = max(self._time, min(each.virtual_time for each in able))
            for each in able:
                each.virtual_time = max(each.virtual_time, self._time)
        return able

    def _first(self, able: Sequence[PooledEngine]) -> PooledEngine | None:
        """Return the engine that gets all free slots: the last one while its lead allows, else the furthest behind."""
        if not able:
            return None
        first, leader = min(able, key=_by_time), self._leader
        if leader is not None and leader.may_request:
            lead = self._lead / sum(each.weight for each in able)
            if leader.virtual_time - first.virtual_time <= lead:
                return leader
        return first

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
        if self.free <= 0 or not self.ready:
            return
        able = (each for each in self.ready if each is not caller and each.may_call)
        if self.weighted and self._lead:
            next_one = self._first(self._able())
            chosen = [each for each in (next_one,) if each is not None and each is not caller and each.would_call]
        elif self.weighted:
            first = nsmallest(min(self.free, _PUMPED_AT_ONCE), able, key=_by_time)
            chosen = [each for each in first if each.would_call]
        else:
            in_order = sorted(able, key=lambda each: each.position)
            chosen = list(islice((each for each in in_order if each.would_call), 1))
        for engine in chosen:
            self.ready[engine]()


def _by_time(engine: PooledEngine) -> tuple[float, int]:
    return engine.virtual_time, engine.position


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
            self._pool.ready.pop(self, None)
        elif self._pump is not None:
            self._pool.entered(self, self._pump)

    @property
    def may_request(self) -> bool:
        """True unless this queue cannot fetch now: it is paused, rate limited, or its last call failed."""
        return self._may_be_ready and self.may_fetch and self.step is None and not self.disconnected

    @property
    def may_call(self) -> bool:
        """True if this queue can fetch now, and another call of it may be in flight."""
        return self.may_request and self.calls_in_flight < self.max_calls

    @property
    def would_call(self) -> bool:
        """True if `next_call` returns a call. Two queues that make none would pump each other forever."""
        wanted, finished = self._pool.grant(self), len(self.finished)
        if self.calls_in_flight == 0:
            return wanted > 0 or finished > 0 or self._promote
        return max(wanted, finished) >= self._second_at

    def next_call(self, now: float) -> Call | None:
        """See `FetchEngine.next_call`; within the slots that the pool grants."""
        if self.calls_in_flight >= self.max_calls:
            return None
        pool = self._pool
        if pool.weighted:
            pool.jobs_ended(0, now)
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
        """See `FetchEngine.replied`."""
        fetched = list(runs)
        if call.want:
            self._pool.charge(self, len(fetched) - call.want)
        return super().replied(call, fetched, flags, exhausted, now)

    def failed(self, call: Call, failure: Failure, now: float) -> list[FinishedAttempt]:
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
        self._pool.ready.pop(self, None)


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
        return PooledEngine(
            self.pool, *self._place, self._loop.time(), random.random, one_call=options.batch is not None,
            tokens=options.token_limiter,
        )  # fmt: skip

    def _pump(self, now: float | None = None) -> None:
        super()._pump(now)
        self.pool.pump(self.engine)

    def _replied(self, call: Exchange, reply: ExchangeReply, runs: list[Run] | tuple[()]) -> None:
        if call.want and reply.flags & ExchangeFlags.FEWER:
            self.server_now = reply.now
        if runs and self.started is not None:
            self.started()
        super()._replied(call, reply, runs)
        self.pool.pump(self.engine)

    def pause(self) -> None:
        """See `FetchLoop.pause`."""
        super().pause()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.pool.pump, self.engine)
