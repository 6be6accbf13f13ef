"""`Scheduler` for blocking code: adds the jobs of a queue's schedulers in a process without a worker."""

from __future__ import annotations

from typing import Any

from glidemq_py._worker.maintenance.queues import Scheduler as AsyncScheduler
from glidemq_py.sync.queue_twin import Queue
from glidemq_py.sync.services import BlockingService, checked_queue

__all__ = ["Scheduler"]


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
