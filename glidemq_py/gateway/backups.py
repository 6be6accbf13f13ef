"""Regular backups of all queues of a gateway's prefix."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from glidemq_py._api.backup_schedule import BackupSchedule
from glidemq_py._api.job_queue import Queue
from glidemq_py._client.runtime import ASYNC_RUNTIME
from glidemq_py._client.transport import Transport
from glidemq_py._core.logs import get_logger
from glidemq_py._features.backup.store import BackupStore
from glidemq_py._features.queue_list import find_queues
from glidemq_py.errors import GlideMQError, GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py.gateway.options import GatewayOptions

__all__ = ["Backups"]

_log = get_logger(__name__)

_LEAST_S: Final = 60.0
_MOST_S: Final = 600.0
_CHECKS: Final = 20
"""Checks per interval whether a backup is due."""


class Backups:
    """Backs up all queues whose backups are due, until `run` is cancelled. One process at a time backs up a queue.

    Args:
        options: Options of the gateway, with ``backup``.
        open_queue: Returns the open queue with a name.

    Raises:
        GlideMQValidationError: If the destination is invalid.
        UnsupportedOptionError: If the extra ``backup`` is not installed.
    """

    def __init__(self, options: GatewayOptions, open_queue: Callable[[str], Awaitable[Queue[Any, Any]]]) -> None:
        assert options.backup is not None, "there is a destination"
        self._options, self._open_queue, self._destination = options, open_queue, options.backup
        try:
            BackupStore(self._destination, options.backup_storage, ASYNC_RUNTIME, writes=True)
        except GlideMQValidationError as error:
            if error.option != "destination":
                raise
            raise GlideMQValidationError("backup", options.backup, error.problem) from None

    async def run(self, transport: Transport) -> None:
        """Back up.

        Args:
            transport: Connection to the server of the queues.
        """
        while True:
            try:
                for name in await find_queues(transport, self._options.prefix):
                    await self._back_up(await self._open_queue(name))
            except GlideMQError as error:
                _log.warning("gateway: could not list the queues to back up: %s", error)
            pause = min(max(self._options.backup_every / 1_000 / _CHECKS, _LEAST_S), _MOST_S)
            await asyncio.sleep(pause * random.uniform(0.9, 1.1))

    async def _back_up(self, queue: Queue[Any, Any]) -> None:
        options = self._options
        schedule = BackupSchedule(
            [queue], self._destination, every=options.backup_every, keep=options.backup_keep,
            storage_options=options.backup_storage,
        )  # fmt: skip
        try:
            await schedule.run_due()
        except GlideMQError as error:
            _log.warning("gateway: queue %r: could not back it up: %s", queue.name, error)
