"""The slots of a worker of several queues: which queue may fetch, and how many jobs."""

import asyncio
import heapq
from collections import Counter
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from glidemq_py._worker.slot_pool import PRIORITIES_S, TURN_S, TURNS, SlotPool
from tests.inside import (
    Exchange,
    Failure,
    FinishedAttempt,
    Invalidate,
    Reattach,
    Throttle,
    batches,
    fetch_engine,
    working,
)

FetchEngine = fetch_engine.FetchEngine


def engines(slots: int, weights: list[int], *, weighted: bool) -> tuple[SlotPool, list[FetchEngine]]:
    pool = SlotPool(slots, weighted=weighted)
    made = [lane(pool, at, weight) for at, weight in enumerate(weights)]
    for engine in made:
        engine.accepting = True
    return pool, made


def lane(pool: SlotPool, position: int, weight: int) -> FetchEngine:
    return FetchEngine(pool, 0.0, lambda: 0.5, Throttle(), position=position, weight=weight)


class FakeResult:
    """The result of a job."""

    refusals = 0
    sent = False

    def __init__(self, run: Any):
        self.run = run


class FakeRun:
    """A job that a reply contains."""

    suspect_limit = 0


def call(engine: FetchEngine) -> Exchange:
    found = engine.next_call(0.0)
    assert isinstance(found, Exchange)
    return found


def reply(engine: FetchEngine, exchange: Exchange, jobs: int, flags: int = 0, now: float = 0.0) -> list[Any]:
    runs = [cast("Any", FakeRun()) for _ in range(jobs)]
    engine.replied(exchange, runs, flags, bool(flags), now)
    return runs


def test_later_queue_waits_while_an_earlier_one_may_have_jobs():
    pool, (first, second) = engines(4, [1, 1], weighted=False)
    assert second.next_call(0.0) is None
    asked = call(first)
    assert (asked.want, pool.free) == (4, 0)
    reply(first, asked, 1, flags=2)
    assert pool.free == 3
    assert call(second).want == 3


def test_queue_that_cannot_fetch_does_not_hold_later_ones():
    _, (first, second) = engines(2, [1, 1], weighted=False)
    first.throttle.hold(1_000, 0.0)
    assert call(second).want == 2


def test_free_slots_are_counted_once_for_all_queues():
    pool, made = engines(4, [1, 1, 1], weighted=True)
    calls = [call(engine) for engine in made]
    assert sum(each.want for each in calls) <= 4
    running = [reply(engine, each, each.want) for engine, each in zip(made, calls, strict=True)]
    for engine, runs in zip(made, running, strict=True):
        for run in runs:
            engine.free_slot(run)
    assert pool.free == 4


def test_weights_decide_over_a_single_slot():
    _, made = engines(1, [6, 3, 1], weighted=True)
    fetched = [0, 0, 0]
    for _ in range(100):
        at, asked = next((at, found) for at, engine in enumerate(made) if (found := engine.next_call(0.0)) is not None)
        assert isinstance(asked, Exchange)
        (run,) = reply(made[at], asked, 1)
        fetched[at] += 1
        made[at].free_slot(run)
    assert fetched == [60, 30, 10]


def served(made: list[FetchEngine], calls: int, now: float = 0.0) -> list[int]:
    """Return the positions of the queues that the next calls fetch from, whose jobs end at once."""
    order: list[int] = []
    for _ in range(calls):
        at, asked = next((at, found) for at, engine in enumerate(made) if (found := engine.next_call(now)) is not None)
        assert isinstance(asked, Exchange)
        order.append(at)
        for run in reply(made[at], asked, asked.want, now=now):
            made[at].free_slot(run)
    return order


@pytest.mark.parametrize("limited", [True, False])
def test_time_without_jobs_or_below_a_limit_gives_no_precedence(limited: bool):
    pool, made = engines(1, [1, 1], weighted=True)
    idle, busy = made
    if limited:
        idle.throttle.hold(1_000, 0.0)
    else:
        reply(idle, call(idle), 0, flags=2)
    for _ in range(50):
        (run,) = reply(busy, call(busy), 1)
        busy.free_slot(run)
    if limited:
        idle.tick(2.0)
    else:
        idle.wake()
    assert pool.free == 1
    assert 4 <= served(made, 10).count(0) <= 6


def test_the_end_of_a_pause_wakes_every_lane_of_its_queue():
    pool, throttle = SlotPool(4, weighted=True), Throttle()
    made = [FetchEngine(pool, 0.0, lambda: 0.5, throttle, position=at) for at in range(2)]
    for engine in made:
        engine.accepting = True
        reply(engine, call(engine), 0, flags=2)
    throttle.hold(1_000, 0.0)
    made[0].tick(2.0)
    assert [engine.jobs_may_be_ready for engine in made] == [True, True]


def test_queues_without_jobs_are_not_pumped():
    pool, (first, second) = engines(2, [1, 1], weighted=False)
    reply(first, call(first), 0, flags=2)
    pumped: list[int] = []
    second.pump = lambda: pumped.append(2)
    pool.pump(first)
    assert pumped == [2]
    assert first not in pool.ready


class Simulation:
    """Queues that always have ready jobs; calls and jobs take a random time.

    Args:
        slots: Slots of the worker.
        weights: Weights of the queues.
        job: Mean time of a job, seconds.
        call: Mean time of a call.
        ready: Number of jobs of each queue; None = without end.
    """

    def __init__(
        self, slots: int, weights: list[int], *, job: float, call: float = 1.0, ready: list[int] | None = None
    ):
        self._random = Random(1)
        self._job, self._call = job, call
        self._left = None if ready is None else list(ready)
        self._waits_since = [0.0] * len(weights)
        self.longest_wait = [0.0] * len(weights)
        """Longest time of each queue between two calls that fetch, while it had jobs and a slot became free."""
        self.furthest = 0.0
        """Largest distance of a queue from its share so far, in jobs."""
        self.calls = 0
        self._weights = weights
        self._events: list[tuple[float, int, Any]] = []
        self._count = 0
        self.now = 0.0
        self.fetched: Counter[int] = Counter()
        self.pool = SlotPool(slots, weighted=True)
        self.engines = [lane(self.pool, at, weight) for at, weight in enumerate(weights)]
        for engine in self.engines:
            engine.accepting = True
            engine.pump = partial(self._pump, engine)

    def run(self, jobs: int) -> list[float]:
        """Return the share of each queue in the fetched jobs."""
        for engine in self.engines:
            self._pump(engine)
        while self.fetched.total() < jobs and self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()
        return [self.fetched[at] / max(1, self.fetched.total()) for at in range(len(self.engines))]

    def _after(self, mean: float, action: Any):
        self._count += 1
        heapq.heappush(self._events, (self.now + mean * self._random.uniform(0.5, 1.5), self._count, action))

    def _pump(self, engine: FetchEngine):
        while (found := engine.next_call(self.now)) is not None:
            assert isinstance(found, Exchange)
            assert 0 <= found.want <= engine.max_want
            assert self.pool.free >= 0
            self.calls += 1
            at = engine.position
            if found.want:
                self.longest_wait[at] = max(self.longest_wait[at], self.now - self._waits_since[at])
                self._waits_since[at] = self.now
            self._after(self._call, partial(self._replied, engine, found))

    def _replied(self, engine: FetchEngine, found: Exchange):
        at, count = engine.position, found.want
        if self._left is not None:
            count = min(count, self._left[at])
            self._left[at] -= count
        self.fetched[at] += count
        if self._left is None:
            total, weights = self.fetched.total(), self._weights
            off = (abs(self.fetched[i] - total * weight / sum(weights)) for i, weight in enumerate(weights))
            self.furthest = max(self.furthest, *off)
        for run in reply(engine, found, count, 2 if count < found.want else 0, self.now):
            self._after(self._job, partial(self._ended, engine, run))
        self._after(0.0, partial(self._pump_all, engine))
        self.pool.pump(engine)

    def _ended(self, engine: FetchEngine, run: Any):
        engine.job_ended(cast("Any", FakeResult(run)))
        self._pump_all(engine)

    def _pump_all(self, engine: FetchEngine):
        self._pump(engine)
        self.pool.pump(engine)


@pytest.mark.parametrize("job", [0.01, 1.0, 20.0], ids=["short", "medium", "long"])
@pytest.mark.parametrize("slots", [1, 2, 4, 10, 50])
def test_weights_share_any_number_of_slots(slots: int, job: float):
    shares = Simulation(slots, [6, 3, 1], job=job).run(1_500)
    assert shares == pytest.approx([0.6, 0.3, 0.1], abs=0.02)


def test_many_queues_share_few_slots():
    shares = Simulation(4, [1] * 40, job=1.0).run(2_000)
    assert shares == pytest.approx([1 / 40] * 40, abs=0.005)


@pytest.mark.parametrize("slots", [6, 50, 200])
def test_calls_for_short_jobs_are_as_large_as_those_of_one_queue(slots: int):
    weighted = Simulation(slots, [6, 3, 1], job=0.00001, call=0.001)
    single = Simulation(slots, [1], job=0.00001, call=0.001)
    for each in (weighted, single):
        each.run(max(3_000, 100 * slots))
    assert weighted.calls <= 1.4 * single.calls
    assert weighted.now <= 1.2 * single.now


CALL_S = 0.001


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    slots=st.sampled_from([1, 2, 5, 10, 50, 100]),
    weights=st.lists(st.integers(1, 20), min_size=2, max_size=6),
    job=st.sampled_from([0.000_01, 0.000_5, 0.002, 0.02, 0.2]),
)
def test_shares_hold_within_a_round_and_no_queue_starves(slots: int, weights: list[int], job: float):
    simulation = Simulation(slots, weights, job=job, call=CALL_S)
    jobs = 1_000
    shares = simulation.run(jobs)
    rate = jobs / simulation.now
    # What the worker completes in a round, and two calls per queue: those may go beyond a turn.
    total, two_calls = sum(weights), 2 * simulation.engines[0].max_want
    in_round = TURN_S * min(TURNS, len(weights)) * rate
    bound = 2 * in_round + two_calls * len(weights) + total / min(weights) + 2
    assert simulation.furthest <= bound
    # The time in which the others get their share of what this queue had in its turn, and two calls of each.
    for at, weight in enumerate(weights):
        behind = (in_round + two_calls * total / weight + two_calls * len(weights)) / rate
        assert simulation.longest_wait[at] <= 2 * (behind + 2 * CALL_S + 2 * job)
    assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize("call", [0.001, 0.01, 0.03])
@pytest.mark.parametrize("job", [0.000_01, 0.005])
def test_calls_stay_large_with_many_queues_and_slow_calls(job: float, call: float):
    several = Simulation(50, [1] * 8, job=job, call=call)
    single = Simulation(50, [1], job=job, call=call)
    for each in (several, single):
        each.run(5_000)
    assert several.calls <= 2.1 * single.calls
    assert several.now <= 1.2 * single.now


def in_turns(slots: int, queues: int) -> tuple[SlotPool, list[FetchEngine]]:
    """Return engines whose worker completes short jobs, so that they take turns."""
    pool, made = engines(slots, [1] * queues, weighted=True)
    pool.jobs_ended(0, -1.0)
    pool.jobs_ended(100 * slots, 0.0)
    return pool, made


def test_queue_whose_turn_it_is_gets_all_slots():
    _, (first, *others) = in_turns(50, 8)
    for each in (first, *others):
        reply(each, call(each), 0)
    wanted = [call(first).want, call(first).want]
    assert wanted == [25, 25]
    assert all(each.next_call(0.0) is None for each in others)


@pytest.mark.parametrize(("found_at", "calls"), [(None, 10), (1.0, 1), (1.0 - PRIORITIES_S, 10)])
def test_next_turn_begins_after_as_many_jobs_as_the_worker_completes_in_a_turn(found_at: float | None, calls: int):
    """Turns are single calls while jobs have priorities."""
    pool, made = in_turns(10, 3)
    for each in made:
        reply(each, call(each), 0)
    pool.jobs_ended(3_900, 1.0)
    if found_at is not None:
        pool.found_priority(found_at)
    order = served(made, 60, 1.0)
    # 3,900 jobs per second are 49 jobs per turn, 5 per call.
    assert order == ([0] * calls + [1] * calls + [2] * calls) * (20 // calls)


def test_queue_that_was_empty_gets_its_share_during_the_turn_of_another():
    pool, (busy, idle) = in_turns(10, 2)
    reply(idle, call(idle), 0, flags=2)
    reply(busy, call(busy), 0)
    idle.wake()
    assert call(busy).want == 5  # the rest is kept for the other
    assert call(idle).want == 5
    assert pool.free == 0


def test_report_of_many_results_fetches_for_its_own_queue():
    _, (first, second) = in_turns(50, 2)
    for each in (first, second):
        reply(each, call(each), 0)
    old = reply(first, call(first), 25)
    call(first)
    assert first.next_call(0.0) is None
    second.running.update(old)
    first.running.clear()
    for run in old:
        second.job_ended(cast("Any", FakeResult(run)))
    asked = call(second)
    assert (len(asked.batch), asked.want) == (25, 25)


@pytest.mark.parametrize("short_jobs", [True, False])
def test_slots_are_not_kept_for_a_queue_whose_reply_is_late(short_jobs: bool):
    pool, (hung, other) = in_turns(4, 2) if short_jobs else engines(4, [1, 1], weighted=True)
    for each in (hung, other):
        reply(each, call(each), 0)
    pool.charge(other, 2)  # so the next slot is for the first queue
    pool.free = 1
    assert call(hung).want == 1
    pool.free = 1
    assert (other.next_call(0.0), pool.kept_free) == (None, False)
    pool.pump()
    assert pool.kept_free
    found = other.next_call(pool.late_s + 0.001)
    assert isinstance(found, Exchange)
    assert found.want == 1


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    slots=st.sampled_from([1, 5, 10, 50]),
    weights=st.lists(st.integers(1, 1_000), min_size=2, max_size=6),
    job=st.sampled_from([0.000_01, 0.002, 0.2]),
    data=st.data(),
)
def test_slots_of_idle_queues_go_to_the_others(slots: int, weights: list[int], job: float, data: Any):
    ready = [data.draw(st.sampled_from([0, 1, 30, 500])) for _ in weights]
    simulation = Simulation(slots, weights, job=job, call=CALL_S, ready=ready)
    simulation.run(sum(ready) + 1)
    assert [simulation.fetched[at] for at in range(len(weights))] == ready
    assert simulation.pool.free == slots
    alone = Simulation(slots, [1], job=job, call=CALL_S, ready=[sum(ready)])
    alone.run(sum(ready) + 1)
    # Each queue costs a call that finds it empty, and a report of its last results.
    assert simulation.now <= 1.5 * alone.now + len(weights) * 4 * CALL_S + 4 * job


def test_jobs_that_were_not_found_are_not_charged():
    _, (few, many) = engines(4, [1, 1], weighted=True)
    before = few.virtual_time
    reply(few, call(few), 1)
    assert few.virtual_time == before + 1
    failing = call(few)
    assert few.virtual_time == before + 1 + failing.want
    few.failed(failing, Failure.LOST, 0.0)
    assert few.virtual_time == before + 1
    assert call(many).want == 3  # the other queue cannot fetch


# -- batches ----------------------------------------------------------------------------------------------------


async def test_a_batch_waits_for_calls_in_flight_and_for_ready_jobs():
    pool, (first, second) = engines(4, [1, 1], weighted=True)
    now = asyncio.get_running_loop().time()
    first.unanswered_since = now - 60.0
    pool.replied(first, 0, now)  # replies are slow, so none is late
    first.unanswered_since = None
    second.jobs_may_be_ready = False
    found = first.next_call(now)
    assert isinstance(found, Exchange)
    slots = batches.BatchSlots(pool)
    impatient = asyncio.ensure_future(slots.caught_up(False))
    await asyncio.sleep(0)
    assert not impatient.done()
    reply(first, found, 1, now=now)  # there may be more
    assert pool.changed is not None
    pool.changed()
    await asyncio.wait_for(impatient, 5)
    patient = asyncio.ensure_future(slots.caught_up(True))
    await asyncio.sleep(0)
    assert not patient.done()
    first.jobs_may_be_ready = False
    pool.changed()
    await asyncio.wait_for(patient, 5)
    assert pool.changed is None


async def test_a_batch_waits_for_a_report_that_fetches_although_no_job_was_ready():
    pool, (only,) = engines(4, [1], weighted=False)
    reply(only, call(only), 0, flags=2)
    only.request_call()
    report = call(only)
    assert (report.want, only.jobs_may_be_ready) == (4, False)
    waiting = asyncio.ensure_future(batches.BatchSlots(pool).caught_up(False))
    await asyncio.sleep(0)
    assert not waiting.done()
    reply(only, report, 0, flags=2)
    assert pool.changed is not None
    pool.changed()
    await asyncio.wait_for(waiting, 5)


async def test_a_batch_does_not_wait_for_a_late_reply():
    pool, (first, second) = engines(4, [1, 1], weighted=True)
    second.jobs_may_be_ready = False
    assert first.next_call(asyncio.get_running_loop().time()) is not None
    for patient in (False, True):
        await asyncio.wait_for(batches.BatchSlots(pool).caught_up(patient), 5)
    assert first.requested_slots == 4


# -- every order of events of several lanes ----------------------------------------------------------------------

EXHAUSTED = 2


class Run:
    """A fetched job."""

    suspect_limit = 0

    def __init__(self, lane: int):
        self.lane = lane
        self.job = SimpleNamespace(id="1", _tokens_used=0)


def finished(run: Any) -> FinishedAttempt:
    return FinishedAttempt(working.completed("1", "", 1, 1, "null"), run, None, None)


class Lanes(RuleBasedStateMachine):
    """The lanes fill the slots in their order, and none starves.

    Each lane has a queue. The machine answers their calls, ends their jobs, pauses lanes and loses replies.
    """

    weighted = True

    @initialize(slots=st.integers(1, 12), weights=st.lists(st.integers(1, 5), min_size=1, max_size=4))
    def begin(self, slots: int, weights: list[int]):
        self.now = 0.0
        self.pool = SlotPool(slots, weighted=self.weighted)
        self.engines: list[FetchEngine] = []
        self.ready = [0] * len(weights)
        self.calls: list[tuple[int, Any]] = []
        self.running: list[Run] = []
        self.urgent: dict[int, int] = {}
        """Lanes with an urgent job: how many calls of others have fetched since it was added."""
        for at, weight in enumerate(weights):
            engine = lane(self.pool, at, weight)
            engine.pump = partial(self.pump, at)
            engine.accepting = True
            self.engines.append(engine)
        self.pump_all()

    # -- the loop --

    def pump(self, at: int):
        engine = self.engines[at]
        while (call := engine.next_call(self.now)) is not None:
            self.calls.append((at, call))
            if isinstance(call, Exchange) and call.want:
                self.requested(at)
        self.pool.pump(engine)

    def requested(self, at: int):
        if not self.weighted:
            assert not any(earlier.may_request for earlier in self.engines[:at]), "an earlier queue may have jobs"
        self.urgent.pop(at, None)
        for lane in self.urgent:
            self.urgent[lane] += 1

    def pump_all(self):
        for at in range(len(self.engines)):
            self.pump(at)

    def answer(self, at: int, call: Any):
        engine = self.engines[at]
        if isinstance(call, Invalidate):
            engine.invalidated()
        elif isinstance(call, Reattach):
            engine.reattached([], "")
        else:
            runs = [Run(at) for _ in range(min(call.want, self.ready[at]))]
            self.ready[at] -= len(runs)
            self.running += runs
            flags = 0 if self.ready[at] else EXHAUSTED
            engine.replied(call, runs, flags, bool(flags), self.now)  # type: ignore[arg-type]
        self.pump(at)

    # -- events --

    @rule(data=st.data(), count=st.integers(1, 30))
    def add_jobs(self, data: st.DataObject, count: int):
        at = data.draw(st.integers(0, len(self.engines) - 1))
        self.ready[at] += count
        self.engines[at].wake()
        self.pump(at)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def reply(self, data: st.DataObject):
        self.now += CALL_S
        self.answer(*self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1))))

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def lose_reply(self, data: st.DataObject):
        at, call = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        self.engines[at].failed(call, Failure.LOST, self.now)
        self.pump(at)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end_job(self, data: st.DataObject):
        run = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.engines[run.lane].job_ended(finished(run))
        self.pump(run.lane)

    @rule(data=st.data(), milliseconds=st.integers(1, 1_000))
    def rate_limit(self, data: st.DataObject, milliseconds: int):
        at = data.draw(st.integers(0, len(self.engines) - 1))
        self.engines[at].throttle.hold(milliseconds, self.now)
        self.pump_all()

    @rule(seconds=st.floats(0.001, 3.0))
    def pass_time(self, seconds: float):
        self.now += seconds
        for engine in self.engines:
            engine.tick(self.now)
        self.pump_all()

    @rule(slots=st.integers(1, 12))
    def resize(self, slots: int):
        self.pool.resize(slots)
        for engine in self.engines:
            engine.limit_calls(slots)
        self.pump_all()

    @rule(data=st.data())
    def run_on(self, data: st.DataObject):
        """Answer every call and end every job, until the urgent job of one lane is fetched: in its turn."""
        at = data.draw(st.integers(0, len(self.engines) - 1))
        self.recover()
        self.ready = [max(count, 20) for count in self.ready]
        self.pool.found_priority(self.now)
        for engine in self.engines:
            engine.wake()
        self.urgent[at] = 0
        self.pump_all()
        for _ in range(20 * sum(self.ready) + 200):
            if at not in self.urgent:
                break
            self.step()
        assert at not in self.urgent, "the lane starves"

    def step(self):
        self.now += CALL_S
        if self.calls:
            self.answer(*self.calls.pop(0))
        for run in self.running[:]:
            self.running.remove(run)
            self.engines[run.lane].job_ended(finished(run))
            self.pump(run.lane)
        for engine in self.engines:
            engine.tick(self.now)
        self.pump_all()

    def recover(self):
        """End all pauses, and let all steps after failed calls succeed."""
        for _ in range(200):
            times = [each.wake_at for each in self.engines if each.wake_at is not None]
            if not self.calls and not times:
                return
            self.now = max(self.now, *times) if times else self.now
            self.step()
        assert all(each.step is None and not each.throttle.holding for each in self.engines)

    # -- what must hold --

    @invariant()
    def every_slot_is_used_once(self):
        requested = sum(each.requested_slots for each in self.engines)
        assert self.pool.free == self.pool.slots - len(self.running) - requested
        assert sum(len(each.running) for each in self.engines) == len(self.running)

    @invariant()
    def no_slot_is_left_unused(self):
        """A slot is free only if no lane may have jobs, or a call is in flight whose reply lets the lanes go on."""
        if self.pool.free > 0 and any(each.may_request for each in self.engines):
            assert self.calls

    def teardown(self):
        """Every job is fetched."""
        self.recover()
        for engine in self.engines:
            engine.wake()
        self.pump_all()
        for _ in range(20 * sum(self.ready) + 200):
            if not any(self.ready) and not self.calls and not self.running:
                break
            self.step()
        assert not any(self.ready)


class LanesInOrder(Lanes):
    weighted = False

    @precondition(lambda self: False)
    @rule()
    def run_on(self):
        """A later queue may starve."""


TestLanes = Lanes.TestCase
TestLanes.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLanesInOrder = LanesInOrder.TestCase
TestLanesInOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
