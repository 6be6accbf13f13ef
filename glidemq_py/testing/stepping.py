"""Base of the test workers: workers on an in-memory server that the test advances step by step.

A test can borrow the worker of a service: its jobs go to the test's server until the test ends.
"""

from __future__ import annotations

import math
import os
import socket
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from glidemq_py._api.job_queue import Queue
from glidemq_py._client.memory import Clock, MemoryServer
from glidemq_py._client.transport import Connection
from glidemq_py._core import json_text as json
from glidemq_py._core.checks import check_int
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.queue_options import QueueOptions
from glidemq_py._core.times import MAX_DURATION_MS, Milliseconds
from glidemq_py._job.job import Job
from glidemq_py._worker.base_worker import BaseWorker, close_queues
from glidemq_py._worker.fetch_loop import FetchLoop
from glidemq_py._worker.lane import Lane
from glidemq_py._worker.maintenance.queues import Background
from glidemq_py._worker.opening import WorkerComponents
from glidemq_py.errors import GlideMQError, GlideMQValidationError

__all__ = ["Borrowing", "JobRun", "Stepping", "run_until_empty", "run_until_idle"]


@dataclass(slots=True)
class _Place:
    """The connection, queue and keys that a worker uses."""

    connection: Connection
    queue_name: str
    options: QueueOptions
    keys: QueueKeys
    queues: dict[bool, Queue] = field(default_factory=dict[bool, "Queue"])

    @classmethod
    def of(cls, worker: BaseWorker) -> _Place:
        return cls(worker._connection, worker.queue_name, worker._queue_options, worker._keys, worker._queues)

    def apply(self, worker: BaseWorker) -> None:
        worker._connection, worker.queue_name = self.connection, self.queue_name
        worker._queue_options, worker._keys, worker._queues = self.options, self.keys, self.queues


class Borrowing:
    """Redirects a worker's jobs to a queue of a test, until `end`.

    The most recent borrowing that has not ended is in effect. A borrowing that was never ended (its test failed before
    it closed the test worker) does not block later ones.

    Args:
        worker: a worker that is not running.
        queue: the queue to which its tasks add their jobs until `end`.

    Raises:
        GlideMQError: if the worker is running.
    """

    def __init__(self, worker: BaseWorker, queue: Queue) -> None:
        if worker.is_running:
            raise GlideMQError(f"{worker!r} is running; TestWorker.of needs a worker that is not")
        if worker._selection.several:
            raise GlideMQError(f"{worker!r} has several queues; TestWorker.of needs a worker of one queue")
        self._worker = worker
        owner = _BORROWED.get(worker)
        if owner is None:
            owner = _BORROWED[worker] = _Borrowed(_Place.of(worker))
        prefix = queue.options.prefix
        options = worker._queue_options.with_changes(prefix=prefix)
        self.place: Final = _Place(queue._connection, queue.name, options, QueueKeys(prefix, queue.name))
        owner.borrowings.append(weakref.ref(self))
        owner.apply(worker)

    async def end(self) -> None:
        """Restore the worker, and close the queue that its tasks used meanwhile. Idempotent."""
        owner = _BORROWED.get(self._worker)
        if owner is not None:
            owner.borrowings = [each for each in owner.borrowings if each() not in (None, self)]
            owner.apply(self._worker)
            if not owner.borrowings:
                del _BORROWED[self._worker]
        queues, self.place.queues = self.place.queues, {}
        await close_queues(queues)


class _Borrowed:
    """The active borrowings of one worker, oldest first."""

    def __init__(self, own: _Place) -> None:
        self._own = self._applied = own
        self.borrowings: list[weakref.ref[Borrowing]] = []

    def apply(self, worker: BaseWorker) -> None:
        """Redirect the worker to its most recent borrowing, or restore it if there is none."""
        living = [found for each in self.borrowings if (found := each()) is not None]
        self._applied = living[-1].place if living else self._own
        self._applied.apply(worker)


_BORROWED: Final[weakref.WeakKeyDictionary[BaseWorker, _Borrowed]] = weakref.WeakKeyDictionary()


Outcome = Literal["completed", "failed", "retrying", "delayed", "suspended", "waiting-children"]

_NEVER: Final = 9_999_999_999_999
_ATTEMPTS: Final = 10_000
_MOST: Final = 2**53
_OUTCOMES: Final[tuple[Outcome, ...]] = (
    "completed", "failed", "retrying", "delayed", "suspended", "waiting-children",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One attempt made by a `TestWorker`.

    Attributes:
        job: the job as the handler received it.
        outcome: ``completed``, ``failed`` (no more retries), ``retrying``, ``delayed``, ``suspended`` or
            ``waiting-children``.
        result: return value of the handler, if it completed.
        error: exception of the handler, if it raised one.
    """

    job: Job
    outcome: Outcome
    result: Any = None
    error: BaseException | None = None

    def __repr__(self) -> str:
        start = f"JobRun(job={self.job!r}, outcome={self.outcome!r}"
        try:
            return f"{start}, result={self.result!r}, error={self.error!r})"
        except BaseException:  # by an object of the application
            return f"{start}, result={object.__repr__(self.result)}, error={object.__repr__(self.error)})"


class Stepping(BaseWorker):
    """A worker that runs jobs only while a step is awaited: nothing happens in the background.

    Attributes:
        runs: all attempts made so far.
    """

    __test__ = False  # not a test class for pytest

    server: MemoryServer
    runs: list[JobRun]
    _borrowing: Borrowing | None = None

    def _step_on(self, server: MemoryServer) -> None:
        """Prepare for steps. Must be called once, at the end of the constructor."""
        self.server = server
        self.runs = []
        self._due: dict[FetchLoop, _DueTime] = {}
        self._enough = math.inf
        self._moved = server.clock.moved
        self._life.is_paused = True
        for outcome in _OUTCOMES:
            self.on(outcome, _Recorder(self, outcome))

    def _take_over(self, worker: BaseWorker, queue: Queue) -> None:
        """Use the options, sandbox and lifespan of a worker, whose tasks add to the queue until `close`.

        Raises:
            GlideMQError: if the worker is running.
        """
        self._borrowing = Borrowing(worker, queue)
        self.options, self._queue_options = worker.options, worker._queue_options
        self._lifespan, self._sandbox = worker._lifespan, worker._sandbox

    @property
    def clock(self) -> Clock:
        """The server's clock."""
        return self.server.clock

    def _prepare(self) -> WorkerComponents:
        return replace(super()._prepare(), in_background=False)

    async def start(self) -> None:
        """Connect and enter the lifespan. The first step does so automatically. Raises the errors of `Worker.start`."""
        await super().start()
        await self._prepare_parts()

    async def _prepare_parts(self) -> None:
        """Prepare the partitions that the worker did not serve before."""
        present = self._parts_of_queue()
        self._due = {each.fetching: self._due.get(each.fetching) or await self._registered(each) for each in present}

    async def _registered(self, part: Lane) -> _DueTime:
        due = _DueTime()
        part.fetching.due_in = due.set
        # Keeps it in `Queue.get_workers` until it is closed: it sends no heartbeats, and the clock may jump.
        about = {"addr": socket.gethostname(), "pid": os.getpid(), "startedAt": self.clock.now(), "activeJobs": 0}
        await part.link.transport.call(part.source.heartbeat(json.dumps(about), MAX_DURATION_MS, []))
        return due

    def _parts_of_queue(self) -> Sequence[Lane]:
        """Return what serves the queue, or each of its partitions. Each step goes through them in turn."""
        assert self._life.lanes is not None
        return self._life.lanes.lanes

    async def close(self, timeout: Milliseconds | None = None, *, force: bool = False) -> None:
        """Leave the lifespan, disconnect, and restore the worker given to `of`.

        Raises the errors of `Worker.close`.
        """
        try:
            await super().close(timeout, force=force)
        finally:
            if self._borrowing is not None:
                await self._borrowing.end()

    async def _ready(self) -> list[Lane]:
        """Start, or serve the present partitions of the queue."""
        if self._life.lanes is None:
            await self.start()
        elif not self._life.is_closing:
            await self._life.lanes.follow(self._keys)
            await self._prepare_parts()
        if self._life.is_closing:
            raise GlideMQError(f"{self!r} is closed")
        return list(self._parts_of_queue())

    # -- steps ----------------------------------------------------------------------------------------------

    async def run_one(self) -> JobRun | None:
        """Fetch one job, run one attempt, and report its result. Return None if no job is ready."""
        before = len(self.runs)
        for part in await self._ready():
            engine = part.fetching.engine
            usual = engine.max_want, engine.max_calls
            engine.max_want = engine.max_calls = 1
            try:
                await self._exchange_with(part, once=True)
            finally:
                engine.max_want, engine.max_calls = usual
            if len(self.runs) > before:
                return self.runs[before]
        return None

    async def run_until_idle(self, limit: int = _ATTEMPTS) -> list[JobRun]:
        """Run all jobs that are ready, including those that become ready meanwhile. The clock does not move.

        Schedulers that are due fire first.

        Args:
            limit: maximum number of attempts.

        Returns:
            The attempts, in the order in which they ended.

        Raises:
            GlideMQError: if there were more than ``limit`` attempts, for instance because jobs add one another forever.
        """
        check_int("limit", limit, 1, _MOST)
        before = len(self.runs)
        self._enough = before + limit
        try:
            parts = await self._ready()
            while True:
                found = len(self.runs)
                for part in parts:
                    await self._exchange_with(part)
                if len(parts) == 1 or len(self.runs) == found or len(self.runs) - before > limit:
                    break
        finally:
            self._enough = math.inf
        if len(self.runs) - before > limit:
            raise GlideMQError(f"jobs are still ready after {len(self.runs) - before} attempts")
        return self.runs[before:]

    def _recorded(self, run: JobRun) -> None:
        self.runs.append(run)
        if len(self.runs) > self._enough and self._life.lanes is not None:
            self._life.lanes.pause()

    async def run_until_empty(self, limit: int = _ATTEMPTS) -> list[JobRun]:
        """Run all jobs, and advance the clock to the next due time whenever no job is ready: delays, retries, limits.

        Schedulers never end, so the clock is not advanced for them; they fire when the clock passes their time.

        Args:
            limit: maximum number of attempts.

        Returns:
            The attempts, in the order in which they ended.

        Raises:
            GlideMQError: if jobs were still due after ``limit`` attempts.
        """
        return await run_until_empty(self, limit=limit)

    async def drain(self) -> None:
        """Run all jobs as `run_until_empty` does, then close.

        Raises:
            GlideMQError: if jobs are still due after very many attempts.
        """
        await self.run_until_empty()
        await self.close()

    async def recover_stalled(self) -> list[str]:
        """Recover stalled jobs, as every worker does periodically. Return the ids of the jobs that are ready again.

        Advance the clock by the lock duration first: a job stalls when its lock expires.
        """
        recovered: list[str] = []
        self.on("stalled", recovered.append)
        try:
            for part in await self._ready():
                await _tasks_of(part).recovery.run_once()
        finally:
            self.off("stalled", recovered.append)
        return recovered

    async def _exchange_with(self, part: Lane, *, once: bool = False) -> None:
        fetching, engine, tasks = part.fetching, part.fetching.engine, _tasks_of(part)
        self._catch_up()
        while await tasks.schedulers.fire() == 0:
            pass  # more schedulers are due now
        self._due[fetching].clear()
        try:
            fetching.resume()
            if once:
                fetching.pause()
            await fetching.until(
                lambda: (
                    engine.is_drained and engine.is_recovered and not (engine.jobs_may_be_ready and engine.may_fetch)
                )
            )
        finally:
            fetching.pause()
        await tasks.outbox.run_once()
        await tasks.sleepers.run_once()

    async def _next_due(self) -> int | None:
        """Return the time until the next due job, milliseconds; None if no job will become due."""
        parts = await self._ready()
        self._catch_up()
        return _earliest([await self._next_due_of(part) for part in parts])

    async def _next_due_of(self, part: Lane) -> int | None:
        times: list[int] = []
        # (A used-up limit has a due time even if no job waits for it.)
        due = self._due[part.fetching].milliseconds
        if due is not None and not await part.source.is_drained(part.link):
            times.append(due)
        if part.fetching.engine.throttle.holding:
            times.append(max(1, math.ceil(part.fetching.paused_ms)))
        first = await part.link.command("ZRANGE", part.link.keys.suspended, "0", "0", "WITHSCORES")
        deadline = next(iter(first.values())) if first else _NEVER
        if deadline < _NEVER:
            times.append(max(1, int(deadline) - self.clock.now()))
        return min(times) if times else None

    def _catch_up(self) -> None:
        """Apply clock advances to pauses of this worker, which are timed by the event loop."""
        moved = self.clock.moved - self._moved
        if not moved:
            return
        self._moved += moved
        applied: list[object] = []  # the partitions of a queue are paused together
        for part in self._parts_of_queue():
            throttle = part.fetching.engine.throttle
            part.fetching.advance(0 if any(throttle is each for each in applied) else moved)
            applied.append(throttle)


def _tasks_of(part: Lane) -> Background:
    assert part.background is not None
    return part.background


class _DueTime:
    """Replaces the exchange's timer: stores the earliest due time instead of waiting for it."""

    def __init__(self) -> None:
        self.milliseconds: int | None = None

    def set(self, milliseconds: int) -> None:
        if self.milliseconds is None or milliseconds < self.milliseconds:
            self.milliseconds = milliseconds

    def clear(self) -> None:
        self.milliseconds = None

    cancel = clear


class _Recorder:
    """An event listener that records one outcome."""

    def __init__(self, worker: Stepping, outcome: Outcome) -> None:
        self._worker = worker
        self._outcome: Outcome = outcome

    def __call__(self, job: Job, what: Any = None) -> None:
        if self._outcome == "completed":
            self._worker._recorded(JobRun(job=job, outcome="completed", result=what))
        else:
            self._worker._recorded(JobRun(job=job, outcome=self._outcome, error=what))


async def run_until_idle(*workers: Stepping, limit: int = _ATTEMPTS) -> list[JobRun]:
    """Call `TestWorker.run_until_idle` for several workers whose jobs add jobs to each other's queues.

    Raises the errors of `TestWorker.run_until_idle`.
    """
    _check_workers(workers)
    runs: list[JobRun] = []
    while True:
        more = [run for worker in workers for run in await worker.run_until_idle(limit)]
        runs += more
        if not more:
            return runs
        if len(runs) > limit:
            raise GlideMQError(f"jobs are still ready after {len(runs)} attempts")


async def run_until_empty(*workers: Stepping, limit: int = _ATTEMPTS) -> list[JobRun]:
    """Call `TestWorker.run_until_empty` for several workers whose jobs add jobs to each other's queues.

    Raises:
        GlideMQError: if jobs were still due after ``limit`` attempts.
        GlideMQValidationError: if the workers have different clocks, or one is not a test worker.
    """
    _check_workers(workers)
    clocks = {id(worker.clock): worker.clock for worker in workers}
    if len(clocks) != 1:
        raise GlideMQValidationError("workers", workers, "must be workers of one server")
    (clock,) = clocks.values()
    runs: list[JobRun] = []
    moves = 0
    while True:
        runs += await run_until_idle(*workers, limit=limit)
        due = _earliest([await worker._next_due() for worker in workers])
        if due is None:
            return runs
        moves += 1
        if len(runs) >= limit or moves > 10 * limit:
            raise GlideMQError(f"jobs are still due after {len(runs)} attempts; the next one in {due} ms")
        clock.advance(due)


def _check_workers(workers: Iterable[object]) -> None:
    for worker in workers:
        if not isinstance(worker, Stepping):
            raise GlideMQValidationError("workers", worker, "must be a TestWorker or a TestBroadcastWorker")


def _earliest(times: Iterable[int | None]) -> int | None:
    return min((max(1, time) for time in times if time is not None), default=None)
