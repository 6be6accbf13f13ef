"""`Scheduler`: adds the jobs of a queue's schedulers in a process without a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._api.partition_tasks import PartitionTasks
from glidemq_py._client.runtime import BackgroundService, BackgroundTask
from glidemq_py._features.schedulers.firing import SchedulerTask
from glidemq_py.errors import GlideMQValidationError

_POLL_S: Final = 1.0
"""A worker learns of changed schedulers when it fetches jobs; this class has to poll."""


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

    def __init__(self, queue: Queue[Any, Any]) -> None:
        super().__init__()
        if not isinstance(queue, Queue):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError("queue", queue, f"must be a Queue, not {type(queue).__name__}")
        self._queue = queue

    async def _open(self) -> Sequence[BackgroundTask]:
        quiet = not self._queue.options.events
        tasks = PartitionTasks(
            self._queue, lambda link: SchedulerTask(link=link, quiet=quiet, longest_s=_POLL_S), every=_POLL_S
        )
        await tasks.open()
        return [tasks]
