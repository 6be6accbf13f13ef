"""The lanes of one worker: in every order of events they fill the slots in their order, and no lane starves.

Each lane has a queue without end or with some jobs. The machine answers their calls, ends their jobs, pauses lanes and
loses replies; `SlotPool` must hand out every slot once, to the lane whose turn it is.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from glidemq_py._worker.fetch_calls import Throttle
from glidemq_py._worker.fetch_engine import FetchEngine
from glidemq_py._worker.slot_pool import SlotPool
from tests.inside import Exchange, Failure, FinishedAttempt, Invalidate, Reattach, working

EXHAUSTED = 2
CALL_S = 0.001


class Run:
    """A fetched job."""

    suspect_limit = 0

    def __init__(self, lane: int):
        self.lane = lane
        self.job = SimpleNamespace(id="1", _tokens_used=0)


def finished(run: Any) -> FinishedAttempt:
    return FinishedAttempt(working.completed("1", "", 1, 1, "null"), run, None, None)


class Lanes(RuleBasedStateMachine):
    weighted = True

    @initialize(slots=st.integers(1, 12), weights=st.lists(st.integers(1, 5), min_size=1, max_size=4))
    def begin(self, slots: int, weights: list[int]):
        self.now = 0.0
        self.pool = SlotPool(slots, weighted=self.weighted, lanes=len(weights))
        self.engines: list[FetchEngine] = []
        self.ready = [0] * len(weights)
        self.calls: list[tuple[int, Any]] = []
        self.running: list[Run] = []
        self.urgent: dict[int, int] = {}
        """Lanes with an urgent job: how many calls of others have fetched since it was added."""
        for at, weight in enumerate(weights):
            engine = FetchEngine(
                self.pool, 0.0, lambda: 0.5, Throttle(), position=at, weight=weight, pump=partial(self.pump, at)
            )
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
        self.ready = [count + 50 for count in self.ready]
        self.pool.found_priority(self.now)
        for engine in self.engines:
            engine.wake()
        self.urgent[at] = 0
        self.pump_all()
        calls = 0
        while at in self.urgent:
            calls = self.urgent[at]
            self.step()
        weight = self.engines[at].weight
        assert calls <= 10 * sum(max(1, each.weight / weight) for each in self.engines), "it waits too long"

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
    def no_slot_is_left_to_nobody(self):
        """A slot is free only if no lane may have jobs, or a call is in flight whose reply lets the lanes go on."""
        if self.pool.free > 0 and any(each.may_request for each in self.engines):
            assert self.calls

    def teardown(self):
        """Every job is fetched."""
        self.recover()
        for engine in self.engines:
            engine.wake()
        self.pump_all()
        for _ in range(4_000):
            if not any(self.ready) and not self.calls and not self.running:
                break
            self.step()
        assert not any(self.ready)


class LanesInOrder(Lanes):
    weighted = False

    @precondition(lambda self: False)
    @rule()
    def run_on(self):  # type: ignore[override]
        """A later queue may starve."""


TestLanes = Lanes.TestCase
TestLanes.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLanesInOrder = LanesInOrder.TestCase
TestLanesInOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
