"""`BackupSchedule` for blocking code: creates backups of queues at an interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from glidemq_py._api.backup_schedule import EVERY_MS, KEEP
from glidemq_py._api.backup_schedule import BackupSchedule as AsyncBackupSchedule
from glidemq_py._client.portal import portal
from glidemq_py._core.times import Milliseconds
from glidemq_py._features.backup.area import MAX_SERVER_CPU
from glidemq_py._features.backup.manifest import BackupInfo
from glidemq_py._features.backup.store import Destination
from glidemq_py.sync.queue_twin import Queue
from glidemq_py.sync.services import BlockingService, checked_queues

__all__ = ["BackupSchedule"]


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

    def close(self) -> None:
        """Stop. A backup that is being made is left incomplete, and deleted by a later one. Idempotent."""
        super().close()
