"""`Maintenance` for blocking code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from glidemq_py._client.portal import portal
from glidemq_py._core.times import Milliseconds
from glidemq_py._worker.maintenance.queues import Maintenance as AsyncMaintenance
from glidemq_py.sync.queue_twin import Queue
from glidemq_py.sync.services import BlockingService, checked_queues

__all__ = ["Maintenance"]


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

    def close(self) -> None:
        """Stop, and let another process take over at once. Idempotent."""
        super().close()
