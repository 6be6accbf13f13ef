"""The fetch engine: which calls a worker makes, in every order of replies, failures, results and wake-ups.

`Machine` drives the engine against a model of the server, which assigns jobs, stores results, loses replies and rejects
calls. The rules of the machine are the events of a worker.
"""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from glidemq_py import TokenLimiter
from glidemq_py._worker.fetch_engine import MAX_REFUSALS, FetchEngine
from tests.inside import (
    MAX_ROWS,
    Exchange,
    Failure,
    FinishedAttempt,
    Invalidate,
    Pipelined,
    Reattach,
    Step,
    Throttle,
    slot_pool,
    working,
)

EXHAUSTED, LIMITED = 2, 4
AnyCall = Exchange | Invalidate | Reattach


class FakeRun:
    def __init__(self, number: int, tokens: int):
        self.number = number
        self.suspect_limit = 0
        self.job = SimpleNamespace(id=str(number), _tokens_used=tokens)


def run_of(number: int, tokens: int = 0):
    return FakeRun(number, tokens)


def number(run: Any) -> int:
    return int(run.number)


def finished(run: Any) -> FinishedAttempt:
    return FinishedAttempt(working.completed(str(run.number), "", 1, 1, "null"), run, None, None)


def new_engine(slots: int, tokens: TokenLimiter | None = None, **options: Any) -> FetchEngine:
    return FetchEngine(slot_pool.SlotPool(slots), 0.0, lambda: 0.5, Throttle(tokens), **options)


def accepting_engine(slots: int, **options: Any) -> FetchEngine:
    engine = new_engine(slots, **options)
    engine.accepting = True
    return engine


def next_exchange(engine: FetchEngine, now: float = 0.0) -> Exchange:
    call = engine.next_call(now)
    assert isinstance(call, Exchange)
    return call


def fetched(engine: FetchEngine, call: Exchange, numbers: Iterable[int], flags: int = 0) -> list[Any]:
    runs = [run_of(each) for each in numbers]
    engine.replied(call, runs, flags, bool(flags & EXHAUSTED), 0.0)
    return runs


# -- single decisions -----------------------------------------------------------------------------------------------


def test_no_call_before_the_worker_accepts_jobs():
    engine = new_engine(3)
    assert engine.next_call(0.0) is None
    engine.accepting = True
    assert next_exchange(engine).want == 3


def test_one_call_reports_a_result_and_fetches_the_next_job():
    engine = accepting_engine(1)
    (first,) = fetched(engine, next_exchange(engine), [1])
    assert engine.next_call(0.0) is None  # the slot is occupied
    engine.job_ended(finished(first))
    call = next_exchange(engine)
    assert [each.run for each in call.batch] == [first]
    assert call.want == 1


def test_no_call_after_an_empty_reply_until_a_wake_up():
    engine = accepting_engine(2)
    fetched(engine, next_exchange(engine), [], EXHAUSTED)
    assert engine.idle
    assert engine.next_call(0.0) is None
    engine.wake()
    assert not engine.idle
    assert next_exchange(engine).want == 2


def test_wake_up_during_a_call_is_not_lost():
    engine = accepting_engine(2)
    call = next_exchange(engine)
    engine.wake()  # for a job that was added after the server had run the call
    fetched(engine, call, [], EXHAUSTED)
    assert next_exchange(engine).want == 2


def test_a_result_of_a_job_does_not_occupy_its_slot():
    engine = accepting_engine(2)
    first, second = fetched(engine, next_exchange(engine), [1, 2])
    engine.attempt_ended(finished(first))  # a timeout: its handler still runs
    assert next_exchange(engine).want == 0
    engine.free_slot(first)
    assert engine.pool.free == 1
    assert engine.running == {second}


def test_two_calls_in_flight_with_many_slots_each_for_half():
    engine = accepting_engine(20)
    assert [next_exchange(engine).want, next_exchange(engine).want] == [10, 10]
    assert engine.next_call(0.0) is None


@pytest.mark.parametrize(("slots", "one_call"), [(5, False), (20, True)])
def test_one_call_in_flight_with_few_slots_or_batches(slots: int, one_call: bool):
    engine = accepting_engine(slots, one_call=one_call)
    next_exchange(engine)
    assert engine.next_call(0.0) is None


def test_a_call_has_a_limited_number_of_rows():
    engine = accepting_engine(1_000, one_call=True)
    runs: Any = []
    while len(runs) < 300:
        call = next_exchange(engine)
        assert call.want == MAX_ROWS
        runs += fetched(engine, call, range(len(runs), len(runs) + MAX_ROWS))
    for run in runs:
        engine.job_ended(finished(run))
    assert len(next_exchange(engine).batch) == MAX_ROWS


def test_due_job_of_a_full_worker_is_promoted_by_a_call_that_fetches_nothing():
    engine = accepting_engine(1)
    fetched(engine, next_exchange(engine), [1])
    engine.due_in(500, now=1.0)
    engine.due_in(900, now=1.0)
    assert engine.wake_at == 1.5
    engine.tick(1.4)
    assert engine.next_call(1.4) is None
    engine.tick(1.5)
    call = next_exchange(engine, 1.5)
    assert (call.want, call.batch) == (0, [])
    assert engine.wake_at is None


def test_rate_limited_worker_reports_but_does_not_fetch():
    engine = accepting_engine(2)
    (run,) = fetched(engine, next_exchange(engine), [1])
    engine.throttle.hold(1_000, now=0.0)
    engine.job_ended(finished(run))
    call = next_exchange(engine)
    assert (call.want, len(call.batch)) == (0, 1)
    fetched(engine, call, [])
    assert engine.next_call(0.5) is None
    assert engine.wake_at == 1.0
    engine.tick(1.0)
    assert next_exchange(engine, 1.0).want == 2


def test_used_up_token_limit_pauses_fetching_until_the_window_ends():
    limiter = TokenLimiter(max_tokens=10, duration=1_000, scope="both")
    engine = accepting_engine(1, tokens=limiter)
    call = next_exchange(engine)
    assert call.tokens == (10, 1_000, [])
    run = run_of(1, tokens=12)
    engine.replied(call, [run], 0, False, 0.0)
    engine.job_ended(finished(run))
    call = next_exchange(engine, 0.25)
    assert (call.want, call.tokens) == (0, (10, 1_000, [12]))
    assert engine.wake_at == pytest.approx(1.0)


def test_only_one_call_can_fetch_suspects():
    engine = accepting_engine(20)
    first, second = next_exchange(engine), next_exchange(engine)
    assert first.held == (0, 0, 0)
    assert second.held is None


def test_suspects_are_counted():
    engine = accepting_engine(4)
    call = next_exchange(engine)
    runs = [run_of(1), run_of(2)]
    runs[1].suspect_limit = 3
    engine.replied(call, runs, 0, False, 0.0)
    assert next_exchange(engine).held == (2, 1, 3)


def test_drained_is_reported_once_after_the_last_job():
    engine = accepting_engine(1)
    call = next_exchange(engine)
    run = run_of(1)
    assert not engine.replied(call, [run], 0, False, 0.0)
    engine.job_ended(finished(run))
    assert engine.replied(next_exchange(engine), [], EXHAUSTED, True, 0.0)
    engine.wake()
    assert not engine.replied(next_exchange(engine), [], EXHAUSTED, True, 0.0)


def test_withheld_slots_are_not_requested():
    engine = accepting_engine(4, one_call=True)
    engine.pool.free -= 3
    assert next_exchange(engine).want == 1
    engine.pool.free += 3
    assert engine.pool.free == 3


# -- failed calls ---------------------------------------------------------------------------------------------------


def test_results_of_a_lost_call_are_reported_before_reattaching():
    engine = accepting_engine(2)
    first, second = fetched(engine, next_exchange(engine), [1, 2])
    engine.job_ended(finished(first))
    lost = next_exchange(engine)
    assert engine.failed(lost, Failure.LOST, 1.0) == []
    assert engine.next_call(1.0) is None
    assert engine.wake_at == pytest.approx(1.05)
    again = next_exchange(engine, 1.05)
    assert (again.want, [each.run for each in again.batch], again.batch[0].sent) == (0, [first], True)
    fetched(engine, again, [])
    invalidate = engine.next_call(1.05)
    assert isinstance(invalidate, Invalidate)
    engine.invalidated()
    reattach = engine.next_call(1.05)
    assert isinstance(reattach, Reattach)
    assert (reattach.known, reattach.want) == ([second], 1)
    found = run_of(3)
    assert engine.reattached([found], "")
    assert engine.step is None
    assert engine.running == {second, found}


def test_pauses_between_attempts_to_reconnect_grow_up_to_a_limit():
    engine, now, pauses = accepting_engine(1), 0.0, []
    engine.failed(next_exchange(engine), Failure.LOST, now)
    for _ in range(9):
        assert engine.wake_at is not None
        pauses.append(round(engine.wake_at - now, 3))
        now = engine.wake_at
        call = engine.next_call(now)
        assert isinstance(call, Invalidate)
        engine.failed(call, Failure.LOST, now)
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_row_that_the_server_function_rejects_is_sent_alone_and_given_up():
    engine = accepting_engine(3)
    runs = fetched(engine, next_exchange(engine), [1, 2, 3])
    for run in runs:
        engine.job_ended(finished(run))
    given_up: list[FinishedAttempt] = []
    reported: list[int] = []
    now, sizes = 0.0, list[int]()
    while engine.finished or engine.step is not None:
        call = engine.next_call(now)
        if call is None:
            assert engine.wake_at is not None
            now = engine.wake_at
        elif isinstance(call, Invalidate):
            engine.invalidated()
        elif isinstance(call, Reattach):
            engine.reattached([], "")
        elif any(each.run is runs[0] for each in call.batch):
            sizes.append(len(call.batch))
            given_up += engine.failed(call, Failure.REJECTED, now)
        else:
            reported += [number(each.run) for each in call.batch]
            engine.replied(call, [], EXHAUSTED, True, now)
    assert [each.run for each in given_up] == [runs[0]]
    assert reported == [2, 3]
    assert sizes == [3] + [1] * (MAX_REFUSALS - 1)


def test_nothing_is_called_after_the_owner_closed_the_connection():
    engine = accepting_engine(1)
    (run,) = fetched(engine, next_exchange(engine), [1])
    engine.job_ended(finished(run))
    engine.failed(next_exchange(engine), Failure.CLOSED, 0.0)
    engine.wake()
    assert engine.next_call(9.0) is None
    assert engine.all_reported  # as far as possible
    assert len(engine.finished) == 1


def test_an_unexpected_error_while_reattaching_ends_the_attempt():
    engine = accepting_engine(1)
    engine.failed(next_exchange(engine), Failure.LOST, 0.0)
    invalidate = engine.next_call(9.0)
    assert isinstance(invalidate, Invalidate)
    engine.failed(invalidate, Failure.BROKEN, 9.0)
    assert next_exchange(engine, 9.0).want == 1


def test_pipelined_call_reserves_the_free_slots_until_its_reply():
    engine = accepting_engine(2)
    fetched(engine, next_exchange(engine), [], EXHAUSTED)
    pipelined = engine.next_pipelined()
    assert pipelined is not None
    assert (pipelined.want, engine.pool.free) == (2, 0)
    call = engine.pipelined_replied(pipelined)
    assert call is not None
    fetched(engine, call, [1])
    assert engine.pool.free == 1


def test_jobs_of_a_pipelined_call_are_released_by_a_paused_worker():
    engine = accepting_engine(2)
    fetched(engine, next_exchange(engine), [], EXHAUSTED)
    pipelined = engine.next_pipelined()
    assert pipelined is not None
    engine.accepting = False
    assert engine.pipelined_replied(pipelined) is None
    assert engine.pool.free == 2


def test_no_pipelined_call_for_a_worker_with_limits_of_its_own():
    assert accepting_engine(2, may_pipeline=False).next_pipelined() is None


def test_no_pipelined_call_while_the_worker_waits_for_the_end_of_a_limit():
    engine = accepting_engine(2)
    fetched(engine, next_exchange(engine), [], LIMITED)
    engine.due_in(100, 0.0)
    assert engine.next_pipelined() is None
    engine.tick(0.1)
    assert next_exchange(engine, 0.1).want == 2


def test_pipelined_call_while_a_job_is_delayed():
    engine = accepting_engine(2)
    fetched(engine, next_exchange(engine), [], EXHAUSTED)
    engine.due_in(100, 0.0)
    assert engine.next_pipelined() is not None


def test_closing_retires_pipelined_calls_and_tries_once():
    engine = accepting_engine(2)
    fetched(engine, next_exchange(engine), [], EXHAUSTED)
    assert engine.next_pipelined() is not None
    engine.accepting = False
    engine.invalidate_pipelined()
    invalidate = engine.next_call(0.0)
    assert isinstance(invalidate, Invalidate)
    engine.failed(invalidate, Failure.LOST, 0.0)
    assert engine.step is None


def test_abandoned_recovery_leaves_no_call_to_wait_for():
    engine = accepting_engine(2)
    (run,) = fetched(engine, next_exchange(engine), [1], EXHAUSTED)
    engine.accepting = False
    engine.invalidate_pipelined()
    assert isinstance(engine.next_call(0.0), Invalidate)
    engine.job_ended(finished(run))
    assert engine.next_call(0.0) is None
    engine.abandon_recovery()
    assert engine.calls_in_flight == 0
    call = next_exchange(engine)  # the result is reported
    assert ([each.run for each in call.batch], call.want) == ([run], 0)
    assert not engine.is_drained
    fetched(engine, call, [])
    assert engine.is_drained
    assert engine.is_recovered


def test_recovery_calls_in_flight_do_not_delay_a_drained_worker():
    engine = accepting_engine(2)
    engine.failed(next_exchange(engine), Failure.LOST, 0.0)
    assert isinstance(engine.next_call(9.0), Invalidate)
    assert engine.is_drained
    assert not engine.is_recovered
    engine.invalidated()
    assert isinstance(engine.next_call(9.0), Reattach)
    assert engine.is_drained
    assert not engine.is_recovered
    engine.reattached([], "")
    assert engine.is_recovered


def test_pending_results_are_reported_after_an_abandoned_pause():
    engine = accepting_engine(1)
    (run,) = fetched(engine, next_exchange(engine), [1])
    engine.job_ended(finished(run))
    engine.failed(next_exchange(engine), Failure.LOST, 0.0)
    engine.accepting = False
    engine.abandon_recovery()
    assert engine.step is Step.PAUSE
    assert [each.run for each in next_exchange(engine, 9.0).batch] == [run]


def reattach_after(engine: FetchEngine) -> Reattach:
    engine.failed(next_exchange(engine), Failure.LOST, 0.0)
    assert isinstance(engine.next_call(9.0), Invalidate)
    engine.invalidated()
    call = engine.next_call(9.0)
    assert isinstance(call, Reattach)
    return call


def test_reattaching_continues_until_its_cursor_is_empty():
    engine = accepting_engine(3)
    assert reattach_after(engine).want == 3
    found = [run_of(each) for each in range(3)]
    assert engine.reattached(found, "5-0")
    more = engine.next_call(9.0)
    assert isinstance(more, Reattach)
    assert (more.cursor, set(more.known), more.want) == ("5-0", set(found), MAX_ROWS)
    assert not engine.reattached([run_of(3)], "")  # no slot is free: released
    assert engine.step is None
    assert engine.running == set(found)


def test_worker_that_is_resumed_while_it_reattaches_does_not_exceed_its_slots():
    engine = accepting_engine(3)
    engine.accepting = True
    engine.failed(next_exchange(engine), Failure.LOST, 0.0)
    assert isinstance(engine.next_call(9.0), Invalidate)
    engine.accepting = False
    engine.invalidated()
    call = engine.next_call(9.0)
    assert isinstance(call, Reattach)
    assert call.want == MAX_ROWS
    engine.accepting = True
    assert not engine.reattached([run_of(each) for each in range(4)], "")
    assert (engine.pool.free, engine.running) == (3, set())


def test_results_reported_again_include_their_tokens():
    engine = accepting_engine(1, tokens=TokenLimiter(max_tokens=100, duration=60_000, scope="both"))
    run = run_of(1, tokens=12)
    engine.replied(next_exchange(engine), [run], 0, False, 0.0)
    engine.job_ended(finished(run))
    engine.failed(next_exchange(engine), Failure.LOST, 0.0)
    assert next_exchange(engine, 9.0).tokens == (100, 60_000, [12])


def test_sent_result_behind_a_refused_one_is_reported_before_reattaching():
    engine = accepting_engine(6)
    refused, lost = fetched(engine, next_exchange(engine), [1, 2])
    engine.job_ended(finished(refused))
    first = next_exchange(engine)
    for run in [lost, *(run_of(each) for each in range(3, 6))]:
        engine.job_ended(finished(run))
    second = next_exchange(engine)
    engine.failed(second, Failure.LOST, 0.0)
    engine.failed(first, Failure.REJECTED, 0.0)
    assert [each.refusals for each in engine.finished] == [1, 0, 0, 0, 0]
    again = next_exchange(engine, 9.0)
    assert [each.run for each in again.batch] == [each.run for each in second.batch]
    fetched(engine, again, [])
    assert isinstance(engine.next_call(9.0), Invalidate)
    assert [each.run for each in engine.finished] == [refused]


def test_unresponsive_only_while_a_reply_is_expected():
    engine = accepting_engine(1)
    engine.reads = True
    call = next_exchange(engine, 2.0)
    assert engine.unresponsive_seconds(12.0) == 10.0
    engine.replied(call, [run_of(1)], 0, False, 12.0)
    assert engine.unresponsive_seconds(99.0) == 0.0  # its only slot runs a job


# -- every order of events ------------------------------------------------------------------------------------------


class Server:
    """The model of the server: ready jobs, jobs that are assigned to the worker, and their first results."""

    def __init__(self):
        self.added = 0
        self.ready: list[int] = []
        self.assigned: set[int] = set()
        self.results: dict[int, int] = {}
        self.invalidated_numbers: set[int] = set()

    def add(self, count: int):
        self.ready += range(self.added, self.added + count)
        self.added += count

    def report(self, batch: list[FinishedAttempt]):
        for each in batch:
            key = number(each.run)
            self.results[key] = self.results.get(key, 0) + 1
            self.assigned.discard(key)

    def fetch(self, want: int) -> list[int]:
        numbers, self.ready = self.ready[:want], self.ready[want:]
        self.assigned |= set(numbers)
        return numbers

    def unknown(self, known: set[int], want: int) -> tuple[list[int], str]:
        unknown = sorted(self.assigned - known)
        return unknown[:want], "more" if len(unknown) > want else ""


class Machine(RuleBasedStateMachine):
    @initialize(slots=st.integers(1, 12), one_call=st.booleans())
    def begin(self, slots: int, one_call: bool):
        self.server = Server()
        self.engine = new_engine(slots, one_call=one_call)
        self.now = 0.0
        self.calls: list[AnyCall] = []
        self.executed: dict[AnyCall, tuple[list[int], int]] = {}  # fetched jobs and flags of calls without a reply
        self.pipelined: Pipelined | None = None
        self.pipelined_jobs: list[int] | None = None  # None: the server has not run the call
        self.started: set[int] = set()
        self.running: dict[int, Any] = {}
        self.ended_early: dict[int, Any] = {}
        self.acknowledged: set[int] = set()
        self.given_up: set[int] = set()
        self.engine.accepting = True
        self.pump()

    # -- the loop ------------

    def pump(self):
        while (call := self.engine.next_call(self.now)) is not None:
            if isinstance(call, Exchange):
                assert not self.acknowledged & {number(each.run) for each in call.batch}, "reported again"
            self.calls.append(call)

    def start(self, runs: Any):
        for run in runs:
            assert run.number not in self.started, "started twice"
            self.started.add(run.number)
            self.running[run.number] = run

    def release(self, runs: Any):
        for run in runs:
            self.engine.attempt_ended(finished(run))

    def answer(self, call: AnyCall):
        engine, server = self.engine, self.server
        if isinstance(call, Invalidate):
            server.invalidated_numbers.add(call.number)
            engine.invalidated()
        elif isinstance(call, Reattach):
            numbers, cursor = server.unknown({number(run) for run in call.known}, call.want)
            runs = [run_of(n) for n in numbers]
            if engine.reattached(runs, cursor):
                self.start(runs)
            else:
                self.release(runs)
        else:
            numbers, flags = self.execute(call)
            runs = [run_of(each) for each in numbers]
            engine.replied(call, runs, flags, bool(flags), self.now)
            self.acknowledged |= {number(each.run) for each in call.batch}
            self.start(runs)

    def execute(self, call: AnyCall) -> tuple[list[int], int]:
        """Run a call in the server, unless it was run before; return the fetched jobs and the flags."""
        if call not in self.executed:
            numbers: list[int] = []
            if isinstance(call, Exchange):
                self.server.report(call.batch)
                numbers = self.server.fetch(call.want)
            elif isinstance(call, Invalidate):
                self.server.invalidated_numbers.add(call.number)
            self.executed[call] = numbers, 0 if self.server.ready else EXHAUSTED
        return self.executed[call]

    @property
    def rejectable(self) -> list[Exchange]:
        return [call for call in self.calls if isinstance(call, Exchange) and call not in self.executed]

    # -- events --

    @rule(count=st.integers(1, 30))
    def add_jobs(self, count: int):
        self.server.add(count)
        self.engine.wake()
        self.pump()

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def execute_before_the_reply(self, data: st.DataObject):
        self.execute(data.draw(st.sampled_from(self.calls)))

    @precondition(lambda self: self.engine.step is not None)
    @rule()
    def reconnect(self):
        """Let all calls succeed until the jobs of lost replies are found."""
        for _ in range(1_000):
            if self.calls:
                self.answer(self.calls.pop())
            elif self.engine.step is None:
                return
            elif self.engine.wake_at is not None:
                self.now = max(self.now, self.engine.wake_at)
                self.engine.tick(self.now)
            self.pump()
            if self.engine.step is None:
                return
        raise AssertionError("it would never be reconnected")

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def reply(self, data: st.DataObject):
        self.answer(self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1))))
        self.pump()

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), executed=st.booleans())
    def lose_reply(self, data: st.DataObject, executed: bool):
        call = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        if executed:
            self.execute(call)
        assert self.engine.failed(call, Failure.LOST, self.now) == []
        self.pump()

    @precondition(lambda self: self.rejectable)
    @rule(data=st.data())
    def reject(self, data: st.DataObject):
        call = data.draw(st.sampled_from(self.rejectable))
        self.calls.remove(call)
        for each in self.engine.failed(call, Failure.REJECTED, self.now):
            self.given_up.add(number(each.run))
        self.pump()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end_job(self, data: st.DataObject):
        run = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        self.engine.job_ended(finished(run))
        self.pump()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end_attempt_early(self, data: st.DataObject):
        run = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        self.ended_early[run.number] = run
        self.engine.attempt_ended(finished(run))
        self.pump()

    @precondition(lambda self: self.ended_early)
    @rule(data=st.data())
    def end_handler(self, data: st.DataObject):
        run = self.ended_early.pop(data.draw(st.sampled_from(sorted(self.ended_early))))
        self.engine.free_slot(run)
        self.pump()

    @rule(seconds=st.floats(0.001, 10.0))
    def pass_time(self, seconds: float):
        self.now += seconds
        self.engine.tick(self.now)
        self.pump()

    @rule(milliseconds=st.integers(1, 5_000))
    def rate_limit(self, milliseconds: int):
        self.engine.throttle.hold(milliseconds, self.now)
        self.pump()

    @rule(milliseconds=st.integers(0, 5_000))
    def learn_due_time(self, milliseconds: int):
        self.engine.due_in(milliseconds, self.now)

    @rule()
    def pause(self):
        self.engine.accepting = False
        self.pump()

    @rule()
    def resume(self):
        self.engine.accepting = True
        self.engine.wake()
        self.pump()

    @precondition(lambda self: self.engine.idle and self.pipelined is None)
    @rule()
    def pipeline(self):
        self.pipelined = self.engine.next_pipelined()
        self.pipelined_jobs = None

    @precondition(lambda self: self.pipelined)
    @rule()
    def execute_pipelined(self):
        if self.pipelined is not None and self.pipelined_jobs is None:
            valid = self.pipelined.number not in self.server.invalidated_numbers
            self.pipelined_jobs = self.server.fetch(self.pipelined.want) if valid else []

    @precondition(lambda self: self.pipelined)
    @rule(lost=st.booleans())
    def pipelined_ends(self, lost: bool):
        if not lost:
            self.execute_pipelined()
        call, self.pipelined = self.pipelined, None
        assert call is not None
        numbers = self.pipelined_jobs or []
        if lost:
            self.engine.pipelined_ended(call)
            self.engine.pipelined_lost(self.now)
        elif self.engine.pipelined is call:
            runs = [run_of(each) for each in numbers]
            exchange = self.engine.pipelined_replied(call)
            if exchange is None:
                self.release(runs)
            else:
                flags = 0 if self.server.ready else EXHAUSTED
                self.engine.replied(exchange, runs, flags, bool(flags), self.now)
                self.start(runs)
        else:
            # It was invalidated. Jobs that it had fetched before were found by the reattaching.
            self.engine.pipelined_ended(call)
        self.pump()

    # -- what must hold --

    @invariant()
    def never_more_jobs_than_slots(self):
        engine = self.engine
        occupied = len(self.running) + len(self.ended_early)
        assert len(engine.running) == occupied <= engine.pool.slots
        assert engine.pool.free == engine.pool.slots - occupied - engine.requested_slots
        assert engine.pool.free >= 0

    @invariant()
    def calls_are_limited(self):
        engine = self.engine
        assert engine.calls_in_flight == len(self.calls) <= engine.max_calls
        suspects = sum(isinstance(call, Exchange) and call.held is not None for call in self.calls)
        pipelined = engine.pipelined is not None and engine.pipelined.held is not None
        assert suspects + pipelined <= 1

    @invariant()
    def waits_only_for_something_that_comes(self):
        """While there is work, a call is in flight, or the next step after a failed call has a time."""
        engine = self.engine
        if engine.step is not None:
            assert self.calls or engine.wake_at is not None
        elif engine.finished or (self.server.ready and engine.may_fetch and engine.pool.free > 0):
            assert self.calls
        elif engine.throttle.holding:
            assert engine.wake_at is not None

    def teardown(self):
        """Close the worker: then every job that it had fetched is reported or released, and no call is pending."""
        engine = self.engine
        engine.accepting = False
        self.execute_pipelined()
        engine.invalidate_pipelined()
        for run in self.ended_early.values():
            engine.free_slot(run)
        for _ in range(1_000):
            while self.running:
                engine.job_ended(finished(self.running.popitem()[1]))
            self.pump()
            if self.calls:
                self.answer(self.calls.pop())
            elif engine.is_drained and engine.is_recovered:
                break
            else:
                assert engine.wake_at is not None, "it would wait for ever"
                self.now = max(self.now, engine.wake_at)
                engine.tick(self.now)
        assert engine.is_drained
        assert engine.is_recovered
        assert not engine.finished
        assert self.started <= self.server.results.keys() | self.given_up
        assert self.server.assigned <= self.given_up
        assert engine.pool.free == engine.pool.slots


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


def test_the_steps_after_a_failed_call_have_an_order():
    assert list(Step) == [Step.PAUSE, Step.REPORT, Step.INVALIDATE, Step.REATTACH]
