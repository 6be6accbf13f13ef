"""The background services of blocking code: a blocking service runs the asynchronous one in the portal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Generic, Self, TypeVar

from glidemq_py._api.backup_schedule import EVERY_MS, KEEP
from glidemq_py._api.backup_schedule import BackupSchedule as AsyncBackupSchedule
from glidemq_py._api.job_queue import Queue as AsyncQueue
from glidemq_py._client.portal import portal
from glidemq_py._client.runtime import BackgroundService
from glidemq_py._core.checks import check_iterable
from glidemq_py._core.forks import call_in_child, new_event, new_lock
from glidemq_py._core.misuse import BlockingOnly
from glidemq_py._core.times import Milliseconds
from glidemq_py._features.backup.area import MAX_SERVER_CPU
from glidemq_py._features.backup.manifest import BackupInfo
from glidemq_py._features.backup.store import Destination
from glidemq_py._worker.maintenance.queues import Maintenance as AsyncMaintenance
from glidemq_py._worker.maintenance.queues import Scheduler as AsyncScheduler
from glidemq_py.errors import ClosedError, GlideMQError, GlideMQValidationError
from glidemq_py.sync.queue_twin import Queue

__all__ = ["BackupSchedule", "BlockingService", "Maintenance", "Scheduler", "checked_queue", "checked_queues"]

ServiceT = TypeVar("ServiceT", bound=BackgroundService)


def checked_queue(option: str, queue: Any) -> Queue[Any, Any]:
    """Return a blocking queue; reject anything else."""
    if not isinstance(queue, Queue):
        kind = f"{type(queue).__module__}.{type(queue).__name__}"
        raise GlideMQValidationError(option, queue, f"must be a glidemq_py.sync.Queue, not {kind}")
    return queue  # pyright: ignore[reportUnknownVariableType]


def checked_queues(queues: Iterable[Queue[Any, Any]]) -> list[Queue[Any, Any]]:
    """Return the blocking queues of the option ``queues``, of which there must be one at least."""
    found = [checked_queue("queues", queue) for queue in check_iterable("queues", queues, "queues")]
    if not found:
        raise GlideMQValidationError("queues", [], "must contain at least one queue")
    return found


class BlockingService(BlockingOnly, Generic[ServiceT]):
    """Runs an asynchronous service in the portal.

    Args:
        queues: the queues of the service.
        make: creates the service for asynchronous queues; raises GlideMQValidationError.
    """

    _title: ClassVar[str]
    """Its name in messages."""

    def __init__(
        self, queues: Sequence[Queue[Any, Any]], make: Callable[[Sequence[AsyncQueue[Any, Any]]], ServiceT]
    ) -> None:
        make([queue._core for queue in queues])  # invalid options are rejected now
        self._queues = queues
        self._make = make
        self._changing = new_lock()
        self._was_started = False
        self._running: tuple[ServiceT, AsyncExitStack] | None = None
        self._ended = new_event()
        call_in_child(self)

    def _forked(self) -> None:
        self._running = None  # a child does not have the tasks

    def start(self) -> None:
        """Connect and start in the background.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
            GlideMQError: If it was already started.
            ClosedError: If a queue is closed.
        """
        with self._changing:
            if self._was_started:
                raise GlideMQError(f"the {self._title} was already started; make a new one")
            running = self._opened()
            try:
                portal().run(running[0].start())
            except BaseException:
                self._end(running)
                raise
            self._running, self._was_started = running, True

    def run(self) -> None:
        """Start, and run until interrupted, or until `close` is called in another thread."""
        with self:
            self._ended.wait()

    def close(self) -> None:
        """Stop, and let another process take over at once; a backup under way is left incomplete. Idempotent."""
        with self._changing:
            running, self._running = self._running, None
            self._ended.set()
            if running is not None:
                self._end(running)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _opened(self) -> tuple[ServiceT, AsyncExitStack]:
        """Create the service over queues of its own, without starting it."""
        for queue in self._queues:
            if queue._core._closed:
                raise ClosedError(f"queue {queue.name!r} is closed")
        stack = AsyncExitStack()

        async def create() -> ServiceT:
            return self._make([await _queue_here(queue, stack) for queue in self._queues])

        try:
            return portal().run(create()), stack
        except BaseException:
            portal().run(stack.aclose())
            raise

    @staticmethod
    def _end(running: tuple[ServiceT, AsyncExitStack]) -> None:
        service, stack = running

        async def end() -> None:
            try:
                await service.close()
            finally:
                await stack.aclose()

        portal().run(end())


async def _queue_here(queue: Queue[Any, Any], stack: AsyncExitStack) -> AsyncQueue[Any, Any]:
    """Return an asynchronous queue of the running loop with the name and options of a blocking one."""
    core, options = queue._core, queue.options
    return await stack.enter_async_context(
        AsyncQueue(
            queue.name, core._connection, prefix=options.prefix, compression=options.compression,
            serializer=options.serializer, events=options.events, dead_letter_queue=options.dead_letter_queue,
            partitions=None if core._layout_known else core._wanted_partitions,
        )
    )  # fmt: skip


class Maintenance(BlockingService[AsyncMaintenance]):
    """Run the maintenance tasks of queues that have leases but no worker.

    The blocking form of `glidemq_py.Maintenance`: the tasks run in the background, over connections of its own.
    ``with Maintenance(queues):`` runs during the block, ``Maintenance(queues).run()`` until interrupted. Start it after
    a fork: a forked process does not have it.

    Args:
        queues: The queues. Closing the maintenance does not close them, and closing them does not stop the maintenance.
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
        queues: Iterable[Queue[Any, Any]],
        *,
        lock_duration: Milliseconds = 30_000,
        stalled_interval: Milliseconds | None = None,
        max_stalled_count: int = 1,
    ) -> None:
        super().__init__(
            checked_queues(queues),
            lambda queues: AsyncMaintenance(
                queues, lock_duration=lock_duration, stalled_interval=stalled_interval,
                max_stalled_count=max_stalled_count,
            ),
        )  # fmt: skip

    def wake(self) -> None:
        """Look at the queues now, for example after a scheduler was created."""
        running = self._running
        if running is not None:
            portal().call(running[0].wake)


class Scheduler(BlockingService[AsyncScheduler]):
    """Add the due jobs of a queue's schedulers.

    The blocking form of `glidemq_py.Scheduler`: it runs in the background, over connections of its own. Every worker
    adds these jobs too. Use this class if only workers of other languages run, or if jobs must be added while no worker
    runs.

    ``with Scheduler(queue):`` runs during the block, ``Scheduler(queue).run()`` until interrupted. Start it after a
    fork: a forked process does not have it.

    Args:
        queue: The queue with the schedulers. Closing the scheduler does not close the queue, and closing the queue does
            not stop the scheduler.

    Raises:
        GlideMQValidationError: If ``queue`` is not a `Queue`.
    """

    _title = "scheduler"

    def __init__(self, queue: Queue[Any, Any]) -> None:
        super().__init__([checked_queue("queue", queue)], lambda queues: AsyncScheduler(queues[0]))


class BackupSchedule(BlockingService[AsyncBackupSchedule]):
    """Create backups of queues at an interval, and delete old ones.

    The blocking form of `glidemq_py.BackupSchedule`: it runs in the background, over connections of its own.
    ``with BackupSchedule(queues, destination):`` runs during the block, ``schedule.run()`` until interrupted. Several
    processes may run the same schedule: a backup is due when the newest one in the store is older than the interval,
    and one process at a time backs up a queue. A failed backup is logged and retried after a minute. Start it after a
    fork: a forked process does not have it.

    Args:
        queues: The queues. Closing the schedule does not close them, and closing them does not stop the schedule.
        destination: A directory, a URL such as ``s3://bucket/prefix``, or a store of obstore.
        every: Time from the start of one backup to the start of the next, ms or timedelta, at least a minute; 6 hours.
        keep: Number of complete backups per queue to keep, at least 1.
        max_server_cpu: See `Queue.backups.create`.
        storage_options: See `Queue.backups.create`.

    Raises:
        GlideMQValidationError: If an argument is invalid.
        GlideMQValidationError: If obstore, the extra ``backup``, is not installed.
    """

    _title = "schedule of backups"

    def __init__(
        self,
        queues: Iterable[Queue[Any, Any]],
        destination: Destination,
        *,
        every: Milliseconds = EVERY_MS,
        keep: int = KEEP,
        max_server_cpu: float = MAX_SERVER_CPU,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            checked_queues(queues),
            lambda queues: AsyncBackupSchedule(
                queues, destination, every=every, keep=keep, max_server_cpu=max_server_cpu,
                storage_options=storage_options,
            ),
        )  # fmt: skip

    def run_due(self) -> list[BackupInfo]:
        """Create the backups that are due now, one queue after the other, and return them.

        Raises:
            BackupError: If the store fails.
            GlideMQError: If the server cannot be reached or rejects a call.
        """
        running = self._running
        if running is not None:
            return portal().run(running[0].run_due())
        opened = self._opened()
        try:
            return portal().run(opened[0].run_due())
        finally:
            self._end(opened)
