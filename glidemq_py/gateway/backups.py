"""Regular backups of all queues of a gateway's prefix."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from glidemq_py._api.backup_schedule import BackupSchedule
from glidemq_py._api.job_queue import Queue
from glidemq_py._client.runtime import ASYNC_RUNTIME
from glidemq_py._client.transport import Transport
from glidemq_py._core.logs import get_logger
from glidemq_py._features.backup.manifest import BackupInfo
from glidemq_py._features.backup.store import BackupStore
from glidemq_py.errors import GlideMQError, GlideMQValidationError
from glidemq_py.gateway.names import listed_queues
from glidemq_py.gateway.options import GatewayOptions

_log = get_logger(__name__)

_LEAST_S: Final = 60.0
_MOST_S: Final = 600.0
_CHECKS: Final = 20
"""Checks per interval whether a backup is due."""


@dataclass(slots=True)
class BackupFigures:
    """Counts the backups of this process.

    Attributes:
        in_progress: Backups that are being made.
        successes: Those that were completed.
        failures: Those that failed, and checks that failed before.
        attempts: Those that were started, and checks that failed before.
        failing: Queues whose last check or backup failed, with the number of failures since the last one that did not.
        last_success: Time of the last success, epoch s; 0 without one.
        last_failure: Time of the last failure, epoch s; 0 without one.
        last_duration_s: Duration of the last attempt.
        last_size: Compressed size of the last complete backup, bytes.
    """

    in_progress: int = 0
    successes: int = 0
    failures: int = 0
    attempts: int = 0
    failing: dict[str, int] = field(default_factory=dict[str, int])
    last_success: float = 0.0
    last_failure: float = 0.0
    last_duration_s: float = 0.0
    last_size: int = 0

    @property
    def consecutive_failures(self) -> int:
        """The most failures in sequence of a queue, up to now."""
        return max(self.failing.values(), default=0)

    def succeeded(self, size: int) -> None:
        """Count a complete backup of this size."""
        self.successes += 1
        self.last_success, self.last_size = time.time(), size

    def failed(self, queue: str, *, was_started: bool) -> None:
        """Count a failure of a backup, or of the check before it."""
        self.attempts += not was_started
        self.failures += 1
        self.failing[queue] = self.failing.get(queue, 0) + 1
        self.last_failure = time.time()


class _CountedSchedule(BackupSchedule):
    figures: BackupFigures
    was_started = False

    async def _create(self, queue: Queue) -> BackupInfo:
        figures, start = self.figures, time.monotonic()
        figures.attempts += 1
        figures.in_progress += 1
        self.was_started = True
        try:
            info = await super()._create(queue)
        finally:
            figures.in_progress -= 1
            figures.last_duration_s = time.monotonic() - start
        figures.succeeded(info.size)
        return info


class Backups:
    """Backs up all queues whose backups are due, until `run` is cancelled. One process at a time backs up a queue.

    Args:
        options: Options of the gateway, with ``backup``.
        open_queue: Returns the open queue with a name.
        figures: Count the backups.

    Raises:
        GlideMQValidationError: If the destination is invalid.
        GlideMQValidationError: If the extra ``backup`` is not installed.
    """

    def __init__(
        self, options: GatewayOptions, open_queue: Callable[[str], Awaitable[Queue]], figures: BackupFigures
    ) -> None:  # fmt: skip
        assert options.backup is not None, "there is a destination"
        self._options, self._open_queue, self._destination = options, open_queue, options.backup
        self._figures = figures
        try:
            BackupStore(self._destination, options.backup_storage, ASYNC_RUNTIME, writes=True)
        except GlideMQValidationError as error:
            if error.option.startswith("storage_options"):
                option = error.option.replace("storage_options", "backup_storage")
                raise GlideMQValidationError(option, error.value, error.problem) from None
            if error.option != "destination":  # an environment variable that obstore reads
                raise
            raise GlideMQValidationError("backup", options.backup, error.problem) from None

    async def run(self, transport: Transport) -> None:
        """Back up.

        Args:
            transport: Connection to the server of the queues.
        """
        while True:
            try:
                for name in await listed_queues(transport, self._options.prefix):
                    await self._back_up(await self._open_queue(name))
            except GlideMQError as error:
                _log.warning("gateway: could not list the queues to back up: %s", error)
            except Exception:
                _log.exception("gateway: could not list the queues to back up")
            pause = min(max(self._options.backup_every / 1_000 / _CHECKS, _LEAST_S), _MOST_S)
            await asyncio.sleep(pause * random.uniform(0.9, 1.1))

    async def _back_up(self, queue: Queue) -> None:
        options, schedule = self._options, None
        try:
            schedule = _CountedSchedule(
                [queue], self._destination, every=options.backup_every, keep=options.backup_keep,
                storage_options=options.backup_storage,
            )  # fmt: skip
            schedule.figures = self._figures
            await schedule.run_due()
            self._figures.failing.pop(queue.name, None)  # also if another process has made the backup
        except GlideMQError as error:
            self._figures.failed(queue.name, was_started=schedule is not None and schedule.was_started)
            _log.warning("gateway: queue %r: could not back it up: %s", queue.name, error)
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of obstore's library is not an Exception
            self._figures.failed(queue.name, was_started=schedule is not None and schedule.was_started)
            _log.exception("gateway: queue %r: could not back it up", queue.name)
