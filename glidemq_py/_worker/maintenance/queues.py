"""The maintenance tasks of queues.

- `Background`: the heartbeats and tasks of one queue of a worker.
- `Maintenance`: recovery, outbox, schedulers and flows of queues without a worker.
- `Scheduler`: schedulers only.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._api.partition_tasks import PartitionTasks
from glidemq_py._client.failures import repeated_level
from glidemq_py._client.runtime import BackgroundService, BackgroundTask, wait_for_event
from glidemq_py._client.shared_reads import glide_of
from glidemq_py._core.calls.administration import unlock
from glidemq_py._core.calls.working import maintenance_due
from glidemq_py._core.checks import check_iterable
from glidemq_py._core.logs import get_logger
from glidemq_py._core.times import Milliseconds
from glidemq_py._features.failure_policy import FailurePolicyTask
from glidemq_py._features.queue_list import QueueListTask
from glidemq_py._features.schedulers.firing import SchedulerTask
from glidemq_py._features.suspend import SuspendTimeoutsTask
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.failure_log import FailureLog
from glidemq_py._worker.fetch_calls import QueueSource
from glidemq_py._worker.fetch_loop import FetchLoop
from glidemq_py._worker.heartbeat import Heartbeat
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.maintenance.libraries import GroupRepair, PeerDetection, UnusedLibrariesTask, repair_idle_groups
from glidemq_py._worker.maintenance.outbox import OutboxTask, RemoteFlows, UnfinishedFlowsTask, WaitingParentsTask
from glidemq_py._worker.maintenance.stalled_jobs import StalledJobsTask
from glidemq_py._worker.opening import WorkerComponents
from glidemq_py._worker.options import WorkerOptions
from glidemq_py._worker.results import Outcomes
from glidemq_py._worker.runner import AttemptRunner
from glidemq_py._worker.wake_channel import HolderChannel
from glidemq_py.errors import ClosedError, GlideMQError, GlideMQValidationError

_log = get_logger(__name__)

_IDLE_S: Final = 60.0
"""Interval of the calls for an idle queue."""
_BUSY_S: Final = 20.0
"""Interval of the calls while the tasks of a queue run."""
_HOLD_MS: Final = 90_000
_SCHEDULER_LEAD_S: Final = 0.05
_LEAST_WATCH_S: Final = 1.0
"""Between two looks whether the holder of a queue fires its schedulers."""
_CLOSE_S: Final = 2.0
_POLL_S: Final = 1.0
"""Between two looks of a `Scheduler` whether the layout of its queue is new, and of one that is not called."""


class Maintenance(BackgroundService):
    """Run the maintenance tasks of queues that have leases but no worker.

    Every `Worker` does this for its queue: it recovers stalled jobs and expired leases, delivers dead-letter entries
    and results of children to other queues, fires schedulers, fails suspended jobs at their deadlines, and completes
    interrupted flows. Several processes may maintain the same queues: one of them holds a queue at a time, and another
    one takes over at most 90 seconds after it died, and fires schedulers that are late meanwhile. An idle queue costs
    one command a minute, and one per partition if it has some; new schedulers are noticed at once, a new job within a
    minute, which delays the recovery of jobs and leases by as much. So are partitions that another process adds.

    ``async with Maintenance(queues):`` runs during the block, ``await Maintenance(queues).run()`` until cancelled.

    Args:
        queues: The queues. Closing the maintenance does not close them.
        lock_duration: Time after the last heartbeat until a worker's job counts as stalled, ms or timedelta;
            30 seconds. A lease has a deadline of its own.
        stalled_interval: Time between checks for stalled jobs while a queue has active ones, ms or timedelta; None: the
            policy of the queue, else 30 seconds.
        max_stalled_count: Number of times a job may stall before it fails, for jobs without a policy of their worker or
            of the queue.

    Raises:
        GlideMQValidationError: If an argument is invalid.
    """

    _title = "maintenance"

    def __init__(
        self,
        queues: Iterable[Queue],
        *,
        lock_duration: Milliseconds = 30_000,
        stalled_interval: Milliseconds | None = None,
        max_stalled_count: int = 1,
    ) -> None:
        super().__init__()
        self._queue_tasks: list[PartitionTasks] = []
        self._queues = [_checked(queue) for queue in check_iterable("queues", queues, "queues")]
        if not self._queues:
            raise GlideMQValidationError("queues", [], "must contain at least one queue")
        if len(set(map(id, self._queues))) < len(self._queues):
            repeated = next(each for at, each in enumerate(self._queues) if each in self._queues[:at])
            raise GlideMQValidationError("queues", repeated.name, "is given twice")
        self._options = WorkerOptions(
            lock_duration=lock_duration, stalled_interval=stalled_interval, max_stalled_count=max_stalled_count
        )

    async def _open(self) -> Sequence[BackgroundTask]:
        self._queue_tasks = [self._tasks_of(queue) for queue in self._queues]
        for tasks in self._queue_tasks:
            await tasks.open()
        return self._queue_tasks

    def _tasks_of(self, queue: Queue) -> PartitionTasks:
        def make(link: QueueLink) -> BackgroundTask:
            is_first = link.keys.name == queue.name and queue._partition is None
            return _QueueTask(
                link, self._options, events=queue.options.events, read_layout=read_layout if is_first else None
            )

        def read_layout(number: int) -> None:
            if number != queue._known_layout:
                tasks.check()

        tasks = PartitionTasks(queue, make)
        return tasks

    def wake(self) -> None:
        """Look at the queues now, for example after their partitions have changed.

        A new or changed scheduler needs no call: the process that maintains its queue is told.
        """
        for tasks in self._queue_tasks:
            tasks.check()
            for task in tasks.tasks:
                if isinstance(task, _QueueTask):
                    task.wake()

    async def close(self) -> None:
        """Stop, and let another process take over at once. Idempotent."""
        await super().close()


class Scheduler(BackgroundService):
    """Add the due jobs of a queue's schedulers.

    Every `Worker` does this too. Use this class if only workers of other languages run, or if jobs must be added while
    no worker runs.

    ``async with Scheduler(queue):`` runs during the block, ``await Scheduler(queue).run()`` until cancelled.

    Args:
        queue: The queue with the schedulers, of all its partitions. Closing the scheduler does not close the queue.

    Raises:
        GlideMQValidationError: If ``queue`` is not a `Queue`.
    """

    _title = "scheduler"

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        if not isinstance(queue, Queue):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError("queue", queue, f"must be a Queue, not {type(queue).__name__}")
        self._queue = queue

    async def _open(self) -> Sequence[BackgroundTask]:
        quiet = not self._queue.options.events
        tasks = PartitionTasks(self._queue, lambda link: _CalledScheduler(link, quiet=quiet), every=_POLL_S)
        await tasks.open()
        return [tasks]


class _CalledScheduler(SchedulerTask):
    """Fires the schedulers of one queue, or one partition, and is called when they change."""

    def __init__(self, link: QueueLink, *, quiet: bool) -> None:
        self._channel = HolderChannel(link.transport, self.wake)
        super().__init__(link=link, quiet=quiet)

    async def fire(self) -> int:
        """See `SchedulerTask.fire`."""
        self._holder = await self._channel.open()
        wait = await super().fire()
        return wait if self._channel.hears else min(wait, int(_POLL_S * 1000))

    async def close(self) -> None:
        """See `BackgroundTask.close`."""
        await super().close()
        await self._channel.close()


def _checked(queue: Any) -> Queue:
    if not isinstance(queue, Queue):
        kind = f"{type(queue).__module__}.{type(queue).__name__}"
        raise GlideMQValidationError("queues", queue, f"must contain glidemq_py.Queue objects, not {kind}")
    return queue  # pyright: ignore[reportUnknownVariableType]


class _QueueTask(BackgroundTask):
    """Holds the maintenance of one queue, or one partition, and runs its tasks while it has work.

    Args:
        link: The queue.
        options: Options of the stalled jobs.
        events: Whether events are written.
        read_layout: Is called with the number of the layout of the queue's partitions, after each call for the queue.
    """

    def __init__(
        self, link: QueueLink, options: WorkerOptions, *, events: bool,
        read_layout: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(f"maintenance-{link.keys.name}")
        self._read_layout = read_layout
        self._link, self._options, self._events = link, options, events
        self._channel = HolderChannel(link.transport, self.wake)
        self._holder = ""
        self._lock = link.keys.stem + "lock:maintenance"
        self._running: AsyncExitStack | None = None
        self._scheduler: SchedulerTask | None = None
        self._is_beside_holder = False
        """Whether this process fires schedulers of a queue that another one maintains."""
        self._failures = 0
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """End the pause, and that of the schedulers, of which there may be new ones."""
        self._woken.set()
        if self._scheduler is not None:
            self._scheduler.wake()

    async def _repeat(self) -> None:
        while True:
            self._woken.clear()
            try:
                pause = await self._run_once()
                self._failures = 0
            except ClosedError:
                return
            except GlideMQError as error:
                self._failures += 1
                pause = min(_IDLE_S, 2.0 ** min(self._failures, 6))
                level = repeated_level(self._link.transport, error)
                _log.log(level, "queue %s: maintenance failed: %s; retried in %.0f s", self._link.label, error, pause)
            await wait_for_event(self._woken, pause)

    async def _run_once(self) -> float:
        self._holder = await self._channel.open()
        due = await self._link.call(maintenance_due, self._holder, _HOLD_MS)
        if self._read_layout is not None:
            self._read_layout(due.layout)
        if self._is_beside_holder or not due.held:
            await self._stop()
        if not due.held:
            if due.wait != 0:
                idle = _IDLE_S * random.uniform(0.9, 1.1)
                return idle if due.wait < 0 else min(idle, max(_LEAST_WATCH_S, due.wait / 1000))
            self._start_tasks([self._schedulers()])
            self._is_beside_holder = True
            return _IDLE_S * random.uniform(1.1, 1.2)
        if not due.busy:
            await repair_idle_groups(self._link)
        if due.busy or 0 <= due.wait <= _BUSY_S * 1000:
            if self._running is None:
                self._begin()
            return _BUSY_S
        await self._stop()
        return _IDLE_S if due.wait < 0 else max(_SCHEDULER_LEAD_S, min(_IDLE_S, due.wait / 1000 - _SCHEDULER_LEAD_S))

    def _schedulers(self) -> SchedulerTask:
        self._scheduler = SchedulerTask(
            link=self._link, quiet=not self._events, longest_s=_BUSY_S, holder=self._holder
        )  # fmt: skip
        return self._scheduler

    def _begin(self) -> None:
        link = self._link
        failure_log = FailureLog(link, worker_id=self._holder, options=self._options.log_failures)
        outbox = OutboxTask(link=link, expected=True)
        policy = FailurePolicyTask(link)
        source = QueueSource(link.keys, self._holder, self._options)
        tasks: list[BackgroundTask] = [
            outbox,
            policy,
            StalledJobsTask(
                link=link, source=source, options=self._options, listeners=Listeners(self), failure_log=failure_log,
                policy=policy, outbox_pending=outbox.wake,
            ),
            self._schedulers(),
            SuspendTimeoutsTask(link, outbox.wake, failure_log.signal_timed_out),
            *_tasks_beside_peers(link, outbox),
        ]  # fmt: skip
        self._start_tasks(tasks).callback(failure_log.close)

    def _start_tasks(self, tasks: Sequence[BackgroundTask]) -> AsyncExitStack:
        self._running = stack = AsyncExitStack()
        for task in tasks:
            stack.push_async_callback(task.close)
            task.start()
        return stack

    async def _stop(self) -> None:
        self._is_beside_holder = False
        running, self._running = self._running, None
        if running is not None:
            await running.aclose()

    async def close(self) -> None:
        """Stop the tasks and release the queue."""
        await super().close()
        await self._channel.close()
        await self._stop()
        with contextlib.suppress(GlideMQError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._link.transport.call(unlock(self._lock, self._holder))


def _tasks_beside_peers(link: QueueLink, outbox: OutboxTask) -> Iterator[BackgroundTask]:
    """Yield the tasks of flows and ordering groups, which mend what clients of other libraries leave."""
    yield UnfinishedFlowsTask(link=link)
    yield WaitingParentsTask(link=link, outbox_pending=outbox.wake)
    yield GroupRepair(link=link)
    if link.transport.is_cluster:
        yield RemoteFlows(link=link, outbox_pending=outbox.wake)


class Background:
    """Creates the heartbeats and tasks of one queue, and connects them with its fetch loop.

    Args:
        opening: The worker.
        link: The queue.
        source: Builds the calls.
        fetching: Fetches the jobs of the queue.
        runner: Runs them.
        outcomes: Builds the rows that report results.
        expects_outbox: True if the queue has a dead letter queue.
    """

    def __init__(
        self, opening: WorkerComponents, *, link: QueueLink, source: QueueSource, fetching: FetchLoop,
        runner: AttemptRunner, outcomes: Outcomes, expects_outbox: bool,
    ) -> None:  # fmt: skip
        options, listeners, control = opening.options, opening.listeners, opening.control
        self._link = link
        self._listeners = listeners
        self._outcomes = outcomes
        self.heartbeat = Heartbeat(
            connect=link.transport.elsewhere, source=source, consumer=opening.consumer,
            lock_duration=options.lock_duration, stalled_policy=options.stalled_policy, running=runner.running,
            lost=runner.lost,
            unresponsive_seconds=lambda: fetching.unresponsive_seconds, unsupported=fetching.refuse,
            commands=None if control is None else partial(control.run, link),
            about=None if control is None else control.about, layout=opening.layout_of(link.keys),
        )  # fmt: skip
        fetching.short_lock = self.heartbeat.expect
        self.outbox = OutboxTask(link=link, expected=expects_outbox)
        fetching.outbox_pending = self.outbox.wake
        self.policy = FailurePolicyTask(link)
        fetching.job_failed = self.policy.job_failed
        self.recovery = StalledJobsTask(
            link=link, source=source, options=options, listeners=listeners, failure_log=fetching.failure_log,
            policy=self.policy, outbox_pending=self.outbox.wake,
        )  # fmt: skip
        self.schedulers = SchedulerTask(
            link=link,
            quiet=not options.events,
            on_error=lambda error: listeners.emit("error", error),
            is_worker=True,
        )
        fetching.schedulers = self.schedulers.on_revision
        self.sleepers = SuspendTimeoutsTask(link, self.outbox.wake, fetching.failure_log.signal_timed_out)
        listeners.on("suspended", self.sleepers.suspended)
        self._others = AsyncExitStack()

    async def start(self) -> None:
        """Start the heartbeats and tasks; wait for the first heartbeat."""
        await self.heartbeat.start()
        link, transport = self._link, self._link.transport
        if glide := glide_of(transport):
            peers = PeerDetection(link, transport)
            self._outcomes.removal = peers.removal
            others: list[BackgroundTask] = [
                *_tasks_beside_peers(link, self.outbox), peers, UnusedLibrariesTask(glide), QueueListTask(link),
            ]  # fmt: skip
            for task in others:
                self._others.push_async_callback(task.close)
                task.start()
        for task in (self.recovery, self.policy, self.outbox, self.schedulers, self.sleepers):
            task.start()

    async def stop(self, limit: float = 5.0) -> None:
        """Stop recovery, schedulers, outbox and heartbeats; wait for at most ``limit`` seconds for a heartbeat."""
        tasks = (self.recovery, self.policy, self.schedulers, self.outbox)
        await asyncio.gather(*(task.close() for task in tasks), self.heartbeat.close(limit))

    async def close(self) -> None:
        """Stop the other tasks, and the heartbeats if they still run."""
        self._listeners.off("suspended", self.sleepers.suspended)
        await self._others.aclose()
        await self.sleepers.close()
        await self.heartbeat.close()
