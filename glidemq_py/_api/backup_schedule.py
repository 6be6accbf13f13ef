"""`BackupSchedule`: creates backups of queues at an interval."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._client.runtime import ASYNC_RUNTIME, BackgroundService, BackgroundTask, PeriodicTask, stop_task
from glidemq_py._core.calls.administration import lock, renew, unlock
from glidemq_py._core.checks import check_int, check_iterable
from glidemq_py._core.logs import get_logger
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features.backup.area import MAX_SERVER_CPU, check_share
from glidemq_py._features.backup.manifest import BackupInfo, time_of
from glidemq_py._features.backup.store import BackupStore, Destination
from glidemq_py.errors import GlideMQError, GlideMQValidationError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_log = get_logger(__name__)

EVERY_MS: Final = 6 * 60 * 60 * 1000
_SHORTEST_MS: Final = 60_000
KEEP: Final = 7
_CHECK_S: Final = 60.0
"""Interval of the checks whether a backup is due."""
_LOCK_MS: Final = 60_000


class BackupSchedule(BackgroundService):
    """Create backups of queues at an interval, and delete old ones.

    ``async with BackupSchedule(queues, destination):`` runs during the block, ``await schedule.run()`` until cancelled.
    Several processes may run the same schedule: a backup is due when the newest one in the store is older than the
    interval, and one process at a time backs up a queue. A failed backup is logged and retried after a minute.

    Args:
        queues: The queues. Closing the schedule does not close them.
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
        queues: Iterable[Queue],
        destination: Destination,
        *,
        every: Milliseconds = EVERY_MS,
        keep: int = KEEP,
        max_server_cpu: float = MAX_SERVER_CPU,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._queues = [self._checked(queue) for queue in check_iterable("queues", queues, "queues")]
        if not self._queues:
            raise GlideMQValidationError("queues", [], "must contain at least one queue")
        self._store = BackupStore(destination, storage_options, ASYNC_RUNTIME, writes=True)
        self._destination = destination
        self._options: dict[str, Any] = {
            "keep": check_int("keep", keep, 1, 100_000), "max_server_cpu": check_share(max_server_cpu),
            "storage_options": storage_options,
        }  # fmt: skip
        self._every = to_ms("every", every, minimum=_SHORTEST_MS)

    @staticmethod
    def _checked(queue: object) -> Queue:
        if not isinstance(queue, Queue):
            kind = f"{type(queue).__module__}.{type(queue).__name__}"
            raise GlideMQValidationError("queues", queue, f"must contain glidemq_py.Queue objects, not {kind}")
        return queue  # pyright: ignore[reportUnknownVariableType]

    async def run_due(self) -> list[BackupInfo]:
        """Create the backups that are due now, one queue after the other, and return them.

        Raises:
            BackupError: If the store fails.
            GlideMQError: If the server cannot be reached or rejects a call.
        """
        created = [await self._back_up(queue) for queue in self._queues]
        return [info for info in created if info is not None]

    async def _back_up(self, queue: Queue) -> BackupInfo | None:
        if not await self._is_due(queue):
            return None
        async with _held(queue) as held:
            # Another process may have finished between the two steps.
            if not held or not await self._is_due(queue):
                return None
            info = await self._create(queue)
        _log.info("queue %r: backup %s has %d jobs, %d bytes", queue.name, info.id, info.jobs, info.size)
        return info

    async def _create(self, queue: Queue) -> BackupInfo:
        return await queue.backups.create(self._destination, **self._options)

    async def _is_due(self, queue: Queue) -> bool:
        for backup in reversed(await self._store.backups(queue.name)):
            started = time_of(backup)
            if started is not None and await self._store.is_complete(queue.name, backup):
                return started + self._every <= time.time() * 1000
        return True

    async def _open(self) -> Sequence[BackgroundTask]:
        return [_BackupTask(self, queue, min(_CHECK_S, self._every / 1000)) for queue in self._queues]

    async def close(self) -> None:
        """Stop. A backup that is being made is left incomplete, and deleted by a later one. Idempotent."""
        await super().close()


class _BackupTask(PeriodicTask):
    def __init__(self, schedule: BackupSchedule, queue: Queue, every: float) -> None:
        super().__init__("backup", queue.name, "back up the queue", every)
        self._schedule = schedule
        self._of = queue

    async def run_once(self) -> None:
        await self._schedule._back_up(self._of)


@asynccontextmanager
async def _held(queue: Queue) -> AsyncGenerator[bool]:
    """Hold the lock of the queue's backups. Yield False if another process holds it."""
    link = await queue._first_connected()
    key, token = link.keys.backup_lock, secrets.token_hex(8)
    if not await link.transport.call(lock(key, token, _LOCK_MS)):
        yield False
        return

    async def renew_it() -> None:
        while True:
            await asyncio.sleep(_LOCK_MS / 3000)
            try:
                await link.transport.call(renew(key, token, _LOCK_MS))
            except GlideMQError as error:
                _log.warning("queue %r: could not renew the lock of its backups: %s", queue.name, error)

    renewing = asyncio.create_task(renew_it())
    try:
        yield True
    finally:
        await stop_task(renewing)
        await link.transport.call(unlock(key, token))
