"""The fetch engine: decides when a worker calls the server, as a state machine without I/O.

Events are methods: a reply, a failed call, a finished job, a wake-up, the time. The actions are what `next_call`
returns: the calls to make, until it returns None. `FetchLoop` makes the calls, runs the jobs and keeps the time, which
it passes as ``now`` (seconds of a monotonic clock). So the engine can be tested without a server, a clock or an event
loop.

Results that arrive while a call is in flight are reported by the next one, which also requests as many new jobs as
there are free slots. With many slots two calls may be in flight, each for half of them. There is no polling: after a
call has found no more ready jobs, the next one is made at a wake-up (`wake`) or at a due time (`wake_at`).

The lanes of a worker have an engine each, which share its slots: the pool decides how many jobs a call may request.

A failed call may have reported results and fetched jobs. So the engine then makes no exchange calls until it has, after
a pause, reported the results again, invalidated the pipelined call and found the jobs of lost replies (`Step`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from itertools import islice
from typing import TYPE_CHECKING, Final

from glidemq_py._core.calls.working import ExchangeFlags
from glidemq_py._worker.fetch_calls import (
    MAX_ROWS,
    EngineCall,
    Exchange,
    Failure,
    Invalidate,
    Pipelined,
    Reattach,
    Step,
    Throttle,
)

if TYPE_CHECKING:
    from glidemq_py._core.calls.working import Held
    from glidemq_py._job.run import FinishedAttempt, Run
    from glidemq_py._worker.slot_pool import SlotPool

TWO_CALLS_FROM: Final = 6
"""Minimum number of slots for two calls in flight."""
MAX_REFUSALS: Final = 5
"""Number of failed calls after which a result that makes the server function fail is given up."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 5.0


class FetchEngine:
    """The state of fetching and reporting of one lane: a queue, or a part of one.

    Args:
        pool: The slots of the worker.
        now: The time.
        random: Returns a number from 0 to 1, for the length of pauses.
        throttle: The limits of the worker on this queue.
        position: Position of the lane in the worker's list.
        weight: Weight of the lane; 1 in a list.
        pump: Makes the next calls.
        one_call: Never make two calls at the same time. (The jobs of a batch must be in order.)
        may_pipeline: True if calls may be sent behind a blocking read.
        drained_is_wanted: Returns True if `replied` must find out when the queue has been drained.
    """

    def __init__(
        self,
        pool: SlotPool,
        now: float,
        random: Callable[[], float],
        throttle: Throttle,
        *,
        position: int = 0,
        weight: int = 1,
        pump: Callable[[], object] = bool,
        one_call: bool = False,
        may_pipeline: bool = True,
        drained_is_wanted: Callable[[], bool] = bool,
    ) -> None:
        self.pool = pool
        pool.join(self)
        self.position = position
        self.weight = weight
        self.virtual_time = 0.0
        """See `SlotPool`."""
        self.pump = pump
        self._random = random
        self._may_pipeline = may_pipeline
        self._drained_is_wanted = drained_is_wanted
        self.throttle = throttle
        throttle.waiting.append(self.wake)
        self.token_share: int | None = None
        """Of a part: its share of the tokens of the queue."""
        self._one_call = one_call
        self.max_calls = 1
        self.max_want = 1
        """Maximum number of jobs requested by one call."""
        self.second_at = 2
        """Number of jobs or results that are worth a second call."""
        self.limit_calls(pool.slots)
        self.accepting = False
        """False before the start, while the worker is paused, and when it closes. (Any thread may write it.)"""
        self.running: set[Run] = set()
        """Every job whose handler has not ended; each occupies a slot."""
        self.requested_slots = 0
        """Slots that a call in flight, or a pipelined one, may fill."""
        self.finished: deque[FinishedAttempt] = deque()
        """Results that are not reported yet."""
        self.calls_in_flight = 0
        """Number of calls in flight, without a pipelined one."""
        self.jobs_may_be_ready = False
        """False once a call has found no more ready jobs, until the next wake-up."""
        self._may_be_ready(True)
        self.wake_count = 0
        """Number of wake-ups so far."""
        self.idle = False
        """True while slots are free and no jobs are ready: the worker waits for a wake-up."""
        self.suspects_requested = False
        """True if a call in flight, or a pipelined one, may fetch suspects. Only one such call is made at a time."""
        self.has_suspects = False
        """True if one of this worker's jobs may be a suspect."""
        self.step: Step | None = None
        """The next step after a failed call; None in normal operation."""
        self.disconnected = False
        """True once the connection was closed by something other than this worker, or the queue cannot be used."""
        self.failures = 0
        """Number of attempts to reconnect since the last reply."""
        self.answered_at = now
        """Time of the last reply."""
        self.is_cut_off = False
        """True if a call has failed because of the connection, and none has succeeded since."""
        self.unanswered_since: float | None = None
        """Time of the oldest call without a reply since the last reply; None if there is none."""
        self.reads = False
        """True if an idle lane makes calls, about one per second."""
        self.pipelined: Pipelined | None = None
        """The pipelined call in flight."""
        self._number = 0
        self._busy = False
        self._promote = False
        self._due_at: float | None = None
        self._is_limited = False
        """True if the last call fetched fewer jobs than requested because of a limit of the queue."""
        self._pause_until = 0.0
        self._cursor = ""
        self._retry_steps = True
        self._step_call: EngineCall | None = None
        self._recovery_calls = 0
        """Number of `Invalidate` and `Reattach` calls in flight: 0 or 1."""

    # -- state --------------------------------------------------------------------------------------------

    @property
    def may_fetch(self) -> bool:
        """True unless this worker is paused or rate limited."""
        return self.accepting and not self.throttle.holding

    @property
    def may_request(self) -> bool:
        """True if jobs may be ready, unless this lane cannot fetch: it is paused, limited, or its last call failed."""
        return self.jobs_may_be_ready and self.may_fetch and self.step is None and not self.disconnected

    @property
    def may_call(self) -> bool:
        """True if this lane can fetch now, and another call of it may be in flight."""
        return self.may_request and self.calls_in_flight < self.max_calls

    def would_call_for(self, slots: int) -> bool:
        """Return True if `next_call` returns a call when the pool grants this number of slots.

        Two lanes that make none would pump each other forever.
        """
        finished = len(self.finished)
        if self.calls_in_flight == 0:
            return slots > 0 or finished > 0 or self._promote
        return self.calls_in_flight < self.max_calls and max(slots, finished) >= self.second_at

    @property
    def all_reported(self) -> bool:
        """True when every result so far is reported; handlers may still run."""
        # Invalidate and Reattach calls report nothing.
        return self.calls_in_flight == self._recovery_calls and (self.disconnected or not self.finished)

    @property
    def is_recovered(self) -> bool:
        """True when `all_reported`, and the jobs of lost replies have been found."""
        return self.step is None and self.all_reported

    @property
    def is_drained(self) -> bool:
        """True when no handler runs and `all_reported`."""
        return not self.running and self.all_reported

    @property
    def is_quiet(self) -> bool:
        """True if this worker runs no job of the lane, and has found it empty since it ran the last."""
        if self.disconnected or not self.accepting:
            return not self.running
        return not (self._busy or self.jobs_may_be_ready or self.calls_in_flight) and self.is_drained

    @property
    def wake_at(self) -> float | None:
        """The time at which `tick` must be called; None if there is none."""
        times = [self.throttle.until] if self.throttle.holding else []
        if self._due_at is not None:
            times.append(self._due_at)
        if self.step is Step.PAUSE and not self.calls_in_flight:
            times.append(self._pause_until)
        return min(times, default=None)

    def unresponsive_seconds(self, now: float) -> float:
        """Return the seconds since the oldest unanswered call, or since the last reply if no call is in flight.

        0 while no call is expected: the lane is idle and does not read, every slot runs a job, or the worker does not
        fetch. Also called from a thread.
        """
        if self.reads and (not self.may_fetch or self.pool.free + self.requested_slots <= 0):
            return 0.0
        if self.unanswered_since is None and not self.reads:
            return 0.0
        # After a long time without a free slot the last reply is old, so the time of the call counts.
        since = self.answered_at if self.unanswered_since is None else self.unanswered_since
        return max(0.0, now - since)

    # -- events of the worker -----------------------------------------------------------------------------

    def wake(self) -> None:
        """Fetch as soon as a slot is free: there may be ready jobs."""
        self._may_be_ready(True)
        self.wake_count += 1
        self.idle = False

    def _may_be_ready(self, ready: bool) -> None:
        if ready and not self.jobs_may_be_ready:
            self.pool.ready[self] = self.pool.new[self] = None
        elif not ready and self.jobs_may_be_ready:
            self.pool.left(self)
        self.jobs_may_be_ready = ready

    def due_in(self, milliseconds: int, now: float) -> None:
        """Note that a job is due in so many ms. Only the earliest time is kept."""
        due = now + milliseconds / 1000
        if self._due_at is None or due < self._due_at:
            self._due_at = due

    def due(self) -> None:
        """Fetch now, as a job is due."""
        if (self.pool.free <= 0 or self.throttle.holding) and not self.calls_in_flight and self.step is None:
            # No job can be fetched, but the call also promotes due jobs, which wakes up an idle worker.
            self._promote = True
            self._may_be_ready(True)
        else:
            self.wake()

    def request_call(self) -> None:
        """Make a call even if there is nothing to report or fetch."""
        self._promote = True

    def tick(self, now: float) -> None:
        """Process the times that have been reached."""
        if self._due_at is not None and self._due_at <= now:
            self._due_at = None
            self.due()
        if self.throttle.holding and self.throttle.until <= now:
            self.throttle.holding = False
            for wake in self.throttle.waiting:
                wake()

    def job_ended(self, finished: FinishedAttempt) -> None:
        """Report the result of a handler that has ended, and free its slot."""
        self.finished.append(finished)
        if finished.run in self.running:
            self.running.remove(finished.run)
            self.pool.free += 1

    def attempt_ended(self, finished: FinishedAttempt) -> None:
        """Report the result of an attempt that has ended without its handler, or was never started."""
        self.finished.append(finished)

    def free_slot(self, run: Run) -> None:
        """Free the slot of a handler whose attempt had ended before it."""
        if run in self.running:
            self.running.remove(run)
            self.pool.free += 1

    def limit_calls(self, slots: int) -> None:
        """Set how many calls a worker with so many slots makes at the same time, and for how many jobs."""
        self.max_calls = 1 if self._one_call or slots < TWO_CALLS_FROM else 2
        self.max_want = max(1, min(MAX_ROWS, -(-slots // self.max_calls)))
        self.second_at = max(2, slots // 3)

    # -- calls --------------------------------------------------------------------------------------------

    def next_call(self, now: float) -> EngineCall | None:
        """Return the next call to make, or None.

        Its result is passed to `replied`, `invalidated`, `reattached`, or `failed`.
        """
        if self.disconnected or self.calls_in_flight >= self.max_calls:
            return None
        if self.step is not None:
            return self._next_step(now)
        pool = self.pool
        free = pool.free
        if pool.is_shared:
            if self.calls_in_flight and max(free, len(self.finished)) < self.second_at:
                return None
            free = pool.grant(self, now)
        may_fetch = self.accepting and not self.throttle.holding
        wanted = free if self.jobs_may_be_ready and may_fetch else 0
        if self.calls_in_flight == 0:
            if wanted <= 0 and not self.finished and not self._promote:
                return None
        elif len(self.finished) < self.second_at and wanted < self.second_at:
            return None
        self._promote = False
        batch: list[FinishedAttempt] = []
        tokens = None
        if finished := self.finished:
            # One of the rows that made the function fail is sent alone: the failing one is identified.
            batch += islice(finished, 1 if finished[0].refusals else MAX_ROWS)
            for _ in batch:
                finished.popleft()
        if self.throttle.limit is not None:
            tokens = self.throttle.charge(self.throttle.limit, batch, now, self.token_share)
            may_fetch = may_fetch and not self.throttle.holding
        want = max(0, min(free, self.max_want)) if may_fetch else 0
        call = Exchange(want, batch, self.wake_count, self._held() if want else None, tokens)
        self.requested_slots += want
        pool.free -= want
        if pool.is_shared:
            pool.requested(self, want, len(batch), now)
        self.calls_in_flight += 1
        if self.unanswered_since is None:
            self.unanswered_since = now
        self.idle = False
        return call

    def _held(self) -> Held | None:
        """Return the counts of this worker's jobs and suspects; None if another call may already fetch suspects."""
        if self.suspects_requested:
            return None
        self.suspects_requested = True
        count = len(self.running) + len(self.finished) + self.requested_slots
        if not self.has_suspects:
            return count, 0, 0
        limits = [run.suspect_limit for run in self.running if run.suspect_limit]
        limits += [finished.run.suspect_limit for finished in self.finished if finished.run.suspect_limit]
        self.has_suspects = bool(limits)
        return count, len(limits), min(limits, default=0)

    def replied(self, call: Exchange, runs: Collection[Run], flags: int, exhausted: bool, now: float) -> bool:
        """Process the reply to a call: ``runs`` are the fetched jobs, which the caller starts.

        Args:
            call: The call.
            runs: The fetched jobs.
            flags: The reasons why no more jobs were fetched; 0 if more may be ready.
            exhausted: True if the queue has no more waiting jobs.
            now: The time.

        Returns:
            True if the queue has been drained: this worker's last job has ended and no other is ready.
        """
        pool, fetched = self.pool, len(runs)
        if pool.is_shared:
            pool.replied(self, fetched - call.want, now)
        self.calls_in_flight -= 1
        self.requested_slots -= call.want
        pool.free += call.want - fetched
        if call.held is not None:
            self.suspects_requested = False
        self.failures = 0
        self.is_cut_off = False
        self.answered_at = now
        self.unanswered_since = None
        if fetched:
            self._busy = True
            self.running.update(runs)
            for run in runs:
                if run.suspect_limit:
                    self.has_suspects = True
        if call.want:
            # A wake-up during the call may be for a job that was added after the server ran the call.
            if (ready := not flags or call.wake_count != self.wake_count) is not self.jobs_may_be_ready:
                self._may_be_ready(ready)
            self._is_limited = flags == ExchangeFlags.LIMITED
        if self.jobs_may_be_ready or not self.accepting:
            return False
        self.idle = pool.free > 0
        if not self._busy or self.calls_in_flight or not self.is_drained:
            return False
        if not call.want:  # jobs of other queues may run in all slots
            if self._drained_is_wanted():
                self.wake()
            return False
        self._busy = not exhausted
        return exhausted

    def failed(self, call: EngineCall, failure: Failure, now: float) -> list[FinishedAttempt]:
        """Process a failed call. Return the results that are given up because the server function rejects them."""
        self.calls_in_flight -= 1
        self.is_cut_off = self.is_cut_off or failure is Failure.LOST
        given_up: list[FinishedAttempt] = []
        if isinstance(call, Exchange):
            if self.pool.is_shared:
                self.pool.charge(self, -call.want)
            self._free_requested(call)
            given_up = self._keep(call.batch, failure)
        else:
            self._recovery_calls = 0
        if failure is Failure.CLOSED or self.disconnected:
            self.disconnect()
        elif not self.is_step(call):
            if self.step is not Step.PAUSE:  # else a second call failed as well
                self._pause(now)
        elif failure is Failure.LOST and self._retry_steps:
            self._pause(now)
        elif self.step is Step.REPORT and failure is Failure.REJECTED:
            self.step = Step.INVALIDATE
        else:
            self._end_steps()
        return given_up

    def is_step(self, call: EngineCall) -> bool:
        """Return True if this call follows a failed one."""
        return call is self._step_call

    def leave(self) -> None:
        """Give up the place in the pool and the throttle."""
        self.disconnect()
        self.pool.leave(self)
        self.throttle.waiting.remove(self.wake)

    def disconnect(self) -> None:
        """Make no more calls."""
        self.disconnected, self.step = True, None
        self.pool.left(self)

    def _keep(self, batch: list[FinishedAttempt], failure: Failure) -> list[FinishedAttempt]:
        """Keep results to report again. The fencing token makes a second report harmless."""
        given_up: list[FinishedAttempt] = []
        if failure is Failure.REJECTED:
            for finished in batch:
                finished.refusals += 1
            given_up = [each for each in batch if each.refusals >= MAX_REFUSALS]
            batch = [each for each in batch if each.refusals < MAX_REFUSALS]
        if failure is not Failure.CLOSED:
            for finished in batch:
                finished.sent = True
        self.finished.extendleft(reversed(batch))
        return given_up

    # -- after a failed call ------------------------------------------------------------------------------

    def _pause(self, now: float) -> None:
        pause = min(_FIRST_PAUSE_S * 2 ** min(self.failures, 10), _LAST_PAUSE_S)
        self.failures += 1
        self.step, self._retry_steps = Step.PAUSE, True
        self._pause_until = now + pause * (0.5 + self._random())

    def _end_steps(self) -> None:
        self.step = None
        self.wake()

    def _next_step(self, now: float) -> EngineCall | None:
        if self.calls_in_flight or (self.step is Step.PAUSE and now < self._pause_until):
            return None
        self.calls_in_flight += 1
        call = self._step_call = self._call_of_step(now)
        if not isinstance(call, Exchange):
            self._recovery_calls = 1
        return call

    def _call_of_step(self, now: float) -> EngineCall:
        if self.step in (Step.PAUSE, Step.REPORT):
            self.step = Step.REPORT
            batch = self._sent_results()
            if batch:
                limit = self.throttle.limit
                tokens = None if limit is None else self.throttle.charge(limit, batch, now, self.token_share)
                return Exchange(0, batch, self.wake_count, tokens=tokens)
            self.step = Step.INVALIDATE
        if self.step is Step.INVALIDATE:
            return Invalidate(self._number)
        known = [*self.running, *(finished.run for finished in self.finished)]
        # Without a free slot the found jobs are released.
        free = self.pool.free
        return Reattach(known, free if self.accepting and free > 0 else MAX_ROWS, self._cursor)

    def _sent_results(self) -> list[FinishedAttempt]:
        """Remove and return results of failed calls, without those that may make the function fail."""
        batch = [each for each in self.finished if each.sent and not each.refusals][:MAX_ROWS]
        if batch:
            reported = set(map(id, batch))
            self.finished = deque(each for each in self.finished if id(each) not in reported)
        return batch

    def invalidated(self) -> None:
        """Process the reply to an `Invalidate` call."""
        self.calls_in_flight -= 1
        self._recovery_calls = 0
        self.is_cut_off = False
        self._number += 1
        self._release_pipelined()
        if not self.disconnected:
            self.step, self._cursor = Step.REATTACH, ""

    def reattached(self, runs: Collection[Run], cursor: str) -> bool:
        """Process the reply to a `Reattach` call.

        Returns:
            True to start the jobs; False to release them, because the worker no longer fetches or has too few free
            slots.
        """
        self.calls_in_flight -= 1
        self._recovery_calls = 0
        self._cursor = cursor
        start = self.accepting and len(runs) <= self.pool.free
        if start:
            self._busy = self._busy or bool(runs)
            self.running.update(runs)
            self.pool.free -= len(runs)
            self.has_suspects = self.has_suspects or any(run.suspect_limit for run in runs)
        if not cursor:
            self._end_steps()
        return start

    def abandon_recovery(self) -> None:
        """Stop finding the jobs of lost replies; they stall and are recovered. Pending results are still reported.

        The caller cancels an `Invalidate` or `Reattach` call in flight and ignores its result.
        """
        self.calls_in_flight -= self._recovery_calls
        self._recovery_calls = 0
        if self.step in (Step.INVALIDATE, Step.REATTACH) or (self.step is Step.PAUSE and not self.finished):
            self._end_steps()

    # -- pipelined calls ----------------------------------------------------------------------------------

    def next_pipelined(self) -> Pipelined | None:
        """Return a call to send behind a blocking read, or None; it reserves all free slots until its reply.

        None also if the worker has limits of its own (they may change before the call runs), or runs batches (a batch
        may start before the call ends, and then no other job may be fetched), or waits for the end of a limit of the
        queue: nothing ends the read then, and the slots must be free at that time.
        """
        if self._is_limited and self._due_at is not None:
            return None
        want = min(self.pool.free, MAX_ROWS)
        if not self._may_pipeline or not self.may_fetch or want <= 0 or self.step is not None or self.disconnected:
            return None
        call = self.pipelined = Pipelined(want, self._number, self._held())
        self.requested_slots += want
        self.pool.free -= want
        return call

    def pipelined_replied(self, call: Pipelined) -> Exchange | None:
        """Process the reply to a pipelined call that was not invalidated; return the call to pass to `replied`.

        None if the jobs must be released: the worker no longer fetches.
        """
        if not self.may_fetch:
            self._release_pipelined()
            return None
        self.pipelined = None
        self.calls_in_flight += 1
        return Exchange(call.want, [], self.wake_count, call.held)

    def pipelined_ended(self, call: Pipelined) -> None:
        """Free the slots of a pipelined call that has failed."""
        if self.pipelined is call:
            self._release_pipelined()

    def pipelined_lost(self, now: float) -> None:
        """Find the jobs that a failed pipelined call may have fetched."""
        if self.step is None and not self.disconnected:
            self._pause(now)

    def invalidate_pipelined(self) -> None:
        """Invalidate pipelined calls, and find and release the jobs that one of them has fetched.

        If a call fails for that, this is not tried again.
        """
        if self.step is None and not self.disconnected:
            self.step, self._retry_steps = Step.INVALIDATE, False

    def _release_pipelined(self) -> None:
        call, self.pipelined = self.pipelined, None
        if call is not None:
            self._free_requested(call)

    def _free_requested(self, call: Exchange | Pipelined) -> None:
        self.requested_slots -= call.want
        self.pool.free += call.want
        if call.held is not None:
            self.suspects_requested = False
