"""Looks for jobs in all partitions of a queue before the event `drained` is emitted.

Without it, the event comes too early if the last running job ends before the wake-up message of another job arrives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from glidemq_py._client.runtime import stop_task
from glidemq_py._core.logs import get_logger
from glidemq_py._worker.slot_pool import QueueOfEngines
from glidemq_py._worker.wake_channel import ChannelWake, with_ready_jobs
from glidemq_py.errors import GlideMQError

_log = get_logger(__name__)

_PATIENCE_S: Final = 2.0
"""Longest wait for the replies: a server that is down must not delay the event for long."""


class DrainProbe:
    """Looks for jobs in the partitions of one queue. It occupies no slot of the worker.

    Args:
        queue: The engines of the partitions.
        name: Name of the queue, for the log.
        drained: Called when the queue has been drained.
    """

    def __init__(self, queue: QueueOfEngines, name: str, drained: Callable[[], None]) -> None:
        self._queue = queue
        self._name = name
        self._drained = drained
        self._wakes: list[ChannelWake] = []
        self._task: asyncio.Task[None] | None = None
        queue.probe = self._start

    def add(self, wake: ChannelWake) -> None:
        """Add a partition."""
        self._wakes.append(wake)

    def _start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"glidemq-drained-{self._name}")

    async def _run(self) -> None:
        rounds = self._queue.rounds
        for wake in await self._found():
            wake.found()
        self._end(rounds)

    def _end(self, rounds: int) -> None:
        if self._queue.probed(rounds):
            self._drained()

    async def _found(self) -> list[ChannelWake]:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await with_ready_jobs(self._wakes)
        except (GlideMQError, TimeoutError) as error:
            _log.debug("queue %r: looking for jobs in its partitions failed: %r", self._name, error)
        except Exception as error:
            _log.error("queue %r: looking for jobs in its partitions failed", self._name, exc_info=error)
        return []

    async def close(self) -> None:
        """Stop the probe. Afterwards, the queue counts as drained when the last job of this worker has ended."""
        self._queue.probe = None
        if self._task is not None and not self._task.done():
            await stop_task(self._task)
            self._end(self._queue.rounds)
