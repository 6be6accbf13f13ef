"""The partitions of a flow's jobs, if their queues have any.

A job with a routing key goes to the partition of its key, as with `Queue.add`. The others of a flow that takes one call
stay together, so that it takes one: in the partition of the first job of their queue. Larger flows are divided.

Flows of queues without partitions cost nothing: the call names the layout that the producer knows, none at first, and
the server refuses another one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._core.names import partition_home
from glidemq_py._features.flows.plan import ROWS, Planned
from glidemq_py._features.flows.references import References
from glidemq_py._job.link import QueueLink
from glidemq_py._partitions.layout import Layout, Partition, partition_of_key
from glidemq_py._partitions.routing import Numbers, routing_key

LinkOf = Callable[[str, Partition | None], QueueLink]


class FlowPlaces:
    """Chooses the partitions of flows.

    Args:
        references: The layouts that are known.
        link_of: Returns the link of a queue, given its name and which partition it is.
    """

    def __init__(self, references: References, link_of: LinkOf) -> None:
        self._references, self._link_of = references, link_of
        self._turns: dict[str, int] = {}

    async def choose(self, plan: Sequence[Planned], *, refusal: LayoutChangedError | None = None) -> None:
        """Set the links of the jobs of a plan, and the numbers of the layouts that they were chosen by.

        Args:
            plan: The jobs.
            refusal: Error of the partition that has refused the known layouts, which are read again.

        Raises:
            GlideMQValidationError: If a custom id is not accepted by a partitioned queue.
            GlideMQValidationError: If options would choose different partitions.
            LayoutChangedError: If a queue is being obliterated.
        """
        by_queue: dict[str, list[Planned]] = {}
        for job in plan:
            by_queue.setdefault(job.link.queue_name, []).append(job)
        for queue, jobs in by_queue.items():
            layout = self._references.known(queue)
            if refusal is not None:
                layout = await self._references.layout(queue, fresh=True, refused=refusal.queue == queue)
            if layout is None:
                plain = self._link_of(queue, None)
                for job in jobs:
                    job.link, job.layout = plain, 0 if partition_home(queue) is None else False
                continue
            links = [self._link_of(name, Partition(number, queue)) for number, name in enumerate(layout.names)]
            for job, number in zip(jobs, self._numbers(queue, layout, jobs), strict=True):
                job.link, job.layout = links[number], layout.number

    def _numbers(self, queue: str, layout: Layout, jobs: Sequence[Planned]) -> list[int]:
        """Return the partition of each job of a queue."""
        keys = [routing_key(job.options) for job in jobs]
        first = None if keys[0] is None else partition_of_key(keys[0], layout.partitions)
        numbers = Numbers(layout.partitions, lambda: self._next(queue, layout), ROWS, first)
        return [*map(numbers.next, keys)]

    def _next(self, queue: str, layout: Layout) -> int:
        before = self._turns.get(queue)
        turn = random.randrange(layout.partitions) if before is None else (before + 1) % layout.partitions
        self._turns[queue] = turn
        return turn
