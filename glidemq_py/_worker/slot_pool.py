"""The slots of a worker that serves several queues: which queue may fetch next, and how many jobs.

Each queue has a fetch engine. They share the number of free slots. A list of queues is a strict order: a queue fetches
only while no earlier one has ready jobs. Weights share the slots by stride scheduling: each fetched job advances the
virtual time of its queue by 1 / weight, and the queue that is furthest behind fetches first.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable
from functools import partial
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final, cast

from glidemq_py._worker.fetch_calls import Call, Exchange
from glidemq_py._worker.fetch_engine import FetchEngine
from glidemq_py._worker.fetch_loop import FetchLoop

if TYPE_CHECKING:
    from glidemq_py._core.calls.working import ExchangeReply, WakeChannel
    from glidemq_py._job.run import Run
    from glidemq_py._worker.options import WorkerOptions

__all__ = ["PooledEngine", "PooledFetchLoop", "SlotPool"]


_PUMPED_AT_ONCE: Final = 16
"""Maximum number of queues that begin a call in one step."""


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

    def entered(self, engine: PooledEngine, pump: Callable[[], None]) -> None:
        """Register an engine whose queue may have ready jobs. Time in which it had none gives it no precedence."""
        if engine not in self.ready:
            engine.virtual_time = max(engine.virtual_time, self._time)
            self.ready[engine] = pump

    def fetched(self, engine: PooledEngine, count: int) -> None:
        """Charge an engine with its fetched jobs."""
        self._time = max(self._time, engine.virtual_time)
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
        mine, total, first = (engine.virtual_time, engine.position), engine.weight, True
        for each in self.ready:
            if each is not engine and not each.requested_slots and each.may_request:
                total += each.weight
                first = first and mine <= (each.virtual_time, each.position)
        share = int(self.free * engine.weight / total)
        return max(1, share) if first else share

    def pump(self, caller: PooledEngine | None = None) -> None:
        """Let the other queues fetch: a slot may be free, or a queue has no more ready jobs."""
        if self.free <= 0 or not self.ready:
            return
        able = (each for each in self.ready if each is not caller and each.may_request)
        if self.weighted:
            chosen = nsmallest(
                min(self.free, _PUMPED_AT_ONCE), able, key=lambda each: (each.virtual_time, each.position)
            )
        else:
            chosen = nsmallest(1, able, key=lambda each: each.position)
        for engine in chosen:
            self.ready[engine]()


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

    def next_call(self, now: float) -> Call | None:
        """See `FetchEngine.next_call`; within the slots that the pool grants."""
        pool = self._pool
        withheld = pool.free - pool.grant(self)
        pool.free -= withheld
        try:
            return super().next_call(now)
        finally:
            pool.free += withheld

    def replied(self, call: Exchange, runs: Iterable[Run], flags: int, exhausted: bool, now: float) -> bool:
        """See `FetchEngine.replied`."""
        fetched = list(runs)
        if fetched:
            self._pool.fetched(self, len(fetched))
        return super().replied(call, fetched, flags, exhausted, now)

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
        if call.want and reply.flags:
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
