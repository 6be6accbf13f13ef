"""The lanes of one queue: a single one, or one for each of its parts.

They are paused together, and the queue counts as drained when all of them are. Before the event ``drained`` is emitted,
`QueueLanes` looks for jobs in all parts. Without that look, the event comes too early if the last running job ends
before the wake-up message of another job arrives.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Protocol

from glidemq_py._client.runtime import stop_task
from glidemq_py._core.logs import get_logger
from glidemq_py._worker.fetch_calls import Throttle
from glidemq_py._worker.listeners import Listeners
from glidemq_py._worker.wake_channel import with_ready_jobs
from glidemq_py.errors import GlideMQError

_log = get_logger(__name__)

_LOOK_S: Final = 2.0
"""Longest wait for the replies: a server that is down must not delay the event for long."""


class QuietLane(Protocol):
    """The fetch engine of a lane."""

    @property
    def is_quiet(self) -> bool:
        """True if it was found empty since its last job."""
        ...


class QueueLanes:
    """State shared by the lanes of one queue.

    Args:
        name: Name of the queue.
        listeners: Get the event ``drained``.
        throttle: The limits of the worker on this queue.
    """

    def __init__(self, name: str, listeners: Listeners, throttle: Throttle) -> None:
        self._name = name
        self._listeners = listeners
        self.throttle = throttle
        self.engines: list[QuietLane] = []
        self.wakes: list[Any] = []
        """The wake-up channels of the parts; those of a single lane find its jobs."""
        self.was_busy = False
        """True if a lane was drained, and the queue has not been since."""
        self.rounds = 0
        """Number of replies with jobs."""
        self._looked_after = -1
        """`rounds` when the last finished look began."""
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    def check_drained(self, is_lane_drained: bool = False) -> None:
        """Emit ``drained`` once all lanes are quiet, and a look finds no job in any part."""
        self.was_busy = self.was_busy or is_lane_drained
        if not self.was_busy or not all(each.is_quiet for each in self.engines):
            return
        must_look = len(self.wakes) > 1 and not self._closed and self._looked_after != self.rounds
        if must_look and self._listeners.wanted("drained"):
            if self._looking is None:
                self._looking = asyncio.create_task(self._look(), name=f"glidemq-drained-{self._name}")
            return
        self.was_busy = False
        self._listeners.emit("drained", queue=self._name)

    async def _look(self) -> None:
        rounds = self.rounds
        try:
            async with asyncio.timeout(_LOOK_S):
                for wake in await with_ready_jobs(self.wakes):
                    wake.found()
        except (GlideMQError, TimeoutError) as error:
            _log.debug("queue %r: looking for jobs in its partitions failed: %r", self._name, error)
        except Exception as error:
            _log.error("queue %r: looking for jobs in its partitions failed", self._name, exc_info=error)
        self._looking, self._looked_after = None, rounds
        self.check_drained()

    async def close(self) -> None:
        """Stop looking. Afterwards, the queue counts as drained when the last job of this worker has ended."""
        self._closed = True
        if self._looking is not None:
            await stop_task(self._looking)
            self.check_drained()
