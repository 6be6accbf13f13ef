"""The slots of a worker of several queues: which queue may fetch, and how many jobs."""

from __future__ import annotations

import heapq
from collections import Counter
from functools import partial
from random import Random
from typing import Any, cast

import pytest

from glidemq_py._worker.fetch_calls import Exchange, Failure
from glidemq_py._worker.slot_pool import PooledEngine, SlotPool


def engines(slots: int, weights: list[int], *, weighted: bool) -> tuple[SlotPool, list[PooledEngine]]:
    pool = SlotPool(slots, weighted=weighted)
    made = [PooledEngine(pool, at, weight, 0.0, lambda: 0.5) for at, weight in enumerate(weights)]
    for engine in made:
        engine.accepting = True
        engine.connect(lambda: None)
    return pool, made


class FakeRun:
    """A job that a reply contains."""

    suspect_limit = 0


def call(engine: PooledEngine) -> Exchange:
    found = engine.next_call(0.0)
    assert isinstance(found, Exchange)
    return found


def reply(engine: PooledEngine, exchange: Exchange, jobs: int, flags: int = 0) -> list[Any]:
    runs = [cast("Any", FakeRun()) for _ in range(jobs)]
    engine.replied(exchange, runs, flags, bool(flags), 0.0)
    return runs


def test_later_queue_waits_while_an_earlier_one_may_have_jobs() -> None:
    pool, (first, second) = engines(4, [1, 1], weighted=False)
    assert second.next_call(0.0) is None
    asked = call(first)
    assert (asked.want, pool.free) == (4, 0)
    reply(first, asked, 1, flags=2)
    assert pool.free == 3
    assert call(second).want == 3


def test_queue_that_cannot_fetch_does_not_hold_later_ones() -> None:
    _, (first, second) = engines(2, [1, 1], weighted=False)
    first.throttle.hold(1_000, 0.0)
    assert call(second).want == 2


def test_free_slots_are_counted_once_for_all_queues() -> None:
    pool, made = engines(4, [1, 1, 1], weighted=True)
    calls = [call(engine) for engine in made]
    assert sum(each.want for each in calls) <= 4
    running = [reply(engine, each, each.want) for engine, each in zip(made, calls, strict=True)]
    for engine, runs in zip(made, running, strict=True):
        for run in runs:
            engine.free_slot(run)
    assert pool.free == 4


def test_weights_decide_over_a_single_slot() -> None:
    _, made = engines(1, [6, 3, 1], weighted=True)
    fetched = [0, 0, 0]
    for _ in range(100):
        at, asked = next((at, found) for at, engine in enumerate(made) if (found := engine.next_call(0.0)) is not None)
        assert isinstance(asked, Exchange)
        (run,) = reply(made[at], asked, 1)
        fetched[at] += 1
        made[at].free_slot(run)
    assert fetched == [60, 30, 10]


def test_time_without_jobs_gives_no_precedence() -> None:
    _, made = engines(1, [1, 1], weighted=True)
    idle, busy = made
    reply(idle, call(idle), 0, flags=2)
    for _ in range(50):
        (run,) = reply(busy, call(busy), 1)
        busy.free_slot(run)
    idle.wake()
    order: list[int] = []
    for _ in range(10):
        at, asked = next((at, found) for at, engine in enumerate(made) if (found := engine.next_call(0.0)) is not None)
        assert isinstance(asked, Exchange)
        (run,) = reply(made[at], asked, 1)
        order.append(at)
        made[at].free_slot(run)
    assert 4 <= order.count(0) <= 6


def test_queues_without_jobs_are_not_pumped() -> None:
    pool, (first, second) = engines(2, [1, 1], weighted=False)
    reply(first, call(first), 0, flags=2)
    pumped: list[int] = []
    second.connect(lambda: pumped.append(1))
    pool.ready[second] = lambda: pumped.append(2)
    pool.pump(first)
    assert pumped == [2]
    assert first not in pool.ready


class Simulation:
    """Queues that always have ready jobs; calls and jobs take a random time."""

    def __init__(self, slots: int, weights: list[int], *, job: float) -> None:
        self._random = Random(1)
        self._job = job
        self._events: list[tuple[float, int, Any]] = []
        self._count = 0
        self._now = 0.0
        self.fetched: Counter[int] = Counter()
        self.pool = SlotPool(slots, weighted=True)
        self.engines = [PooledEngine(self.pool, at, weight, 0.0, lambda: 0.5) for at, weight in enumerate(weights)]
        for engine in self.engines:
            engine.accepting = True
            engine.connect(partial(self._pump, engine))

    def run(self, jobs: int) -> list[float]:
        """Return the share of each queue in the fetched jobs."""
        for engine in self.engines:
            self._pump(engine)
        while self.fetched.total() < jobs:
            self._now, _, action = heapq.heappop(self._events)
            action()
        return [self.fetched[at] / self.fetched.total() for at in range(len(self.engines))]

    def _after(self, mean: float, action: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (self._now + mean * self._random.uniform(0.5, 1.5), self._count, action))

    def _pump(self, engine: PooledEngine) -> None:
        while (found := engine.next_call(self._now)) is not None:
            assert isinstance(found, Exchange)
            self._after(1.0, partial(self._replied, engine, found))

    def _replied(self, engine: PooledEngine, found: Exchange) -> None:
        self.fetched[engine.position] += found.want
        for run in reply(engine, found, found.want):
            self._after(self._job, partial(self._ended, engine, run))
        self._after(0.0, partial(self._pump_all, engine))
        self.pool.pump(engine)

    def _ended(self, engine: PooledEngine, run: Any) -> None:
        engine.free_slot(run)
        self._pump_all(engine)

    def _pump_all(self, engine: PooledEngine) -> None:
        self._pump(engine)
        self.pool.pump(engine)


@pytest.mark.parametrize("job", [0.01, 1.0, 20.0], ids=["short", "medium", "long"])
@pytest.mark.parametrize("slots", [1, 2, 4, 10, 50])
def test_weights_share_any_number_of_slots(slots: int, job: float) -> None:
    shares = Simulation(slots, [6, 3, 1], job=job).run(3_000)
    assert shares == pytest.approx([0.6, 0.3, 0.1], abs=0.02)


def test_many_queues_share_few_slots() -> None:
    shares = Simulation(4, [1] * 40, job=1.0).run(4_000)
    assert shares == pytest.approx([1 / 40] * 40, abs=0.005)


def test_jobs_that_were_not_found_are_not_charged() -> None:
    _, (few, many) = engines(4, [1, 1], weighted=True)
    before = few.virtual_time
    reply(few, call(few), 1)
    assert few.virtual_time == before + 1
    failing = call(few)
    assert few.virtual_time == before + 1 + failing.want
    few.failed(failing, Failure.LOST, 0.0)
    assert few.virtual_time == before + 1
    assert call(many).want == 3  # the other queue cannot fetch
