"""The partitions of a flow's jobs, if their queues have any.

A job with a routing key goes to the partition of its key, as with `Queue.add`. The others of a flow that takes one call
stay together, so that it takes one: in the partition of the first job of their queue. Larger flows are divided.

Flows of queues without partitions cost nothing: the call names the layout that the producer knows, none at first, and
the server refuses another one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._features.flows.plan import ROWS, Planned
from glidemq_py._features.flows.references import References
from glidemq_py._features.partitions.changing import MOVED, keys_in_use
from glidemq_py._features.partitions.layout import Layout, Partition, partition_home
from glidemq_py._features.partitions.routing import moving_row, routing_key
from glidemq_py._job.link import QueueLink

__all__ = ["FlowPlaces"]

_KEYS_PER_CALL: Final = 500
LinkOf = Callable[[str, Partition | None], QueueLink]


class FlowPlaces:
    """Chooses the partitions of flows.

    Args:
        transport: The connection.
        prefix: First part of every key.
        references: The layouts that are known.
        link_of: Returns the link of a queue, given its name and which partition it is.
    """

    def __init__(self, transport: JobTransport, prefix: str, references: References, link_of: LinkOf) -> None:
        self._transport, self._references, self._link_of = transport, references, link_of
        self._prefix = prefix
        self._turns: dict[str, int] = {}

    async def choose(self, plan: Sequence[Planned], *, refusal: LayoutChangedError | None = None) -> None:
        """Set the links of the jobs of a plan, and the numbers of the layouts that they were chosen by.

        Args:
            plan: The jobs.
            refusal: Error of the partition that has refused the known layouts, which are read again.

        Raises:
            GlideMQValidationError: If a custom id is not accepted by a partitioned queue.
            UnsupportedOptionError: If options would choose different partitions.
            LayoutChangedError: If a known layout is outdated.
        """
        by_queue: dict[str, list[Planned]] = {}
        for job in plan:
            by_queue.setdefault(job.link.queue_name, []).append(job)
        for queue, jobs in by_queue.items():
            layout = self._references.known(queue)
            if refusal is not None:
                refusals = (refusal,) if refusal.queue == queue else ()
                layout = await self._references.layout(queue, fresh=True, refusals=refusals)
            if layout is None:
                plain = self._link_of(queue, None)
                for job in jobs:
                    job.link, job.layout = plain, 0 if partition_home(queue) is None else False
                continue
            links = [self._link_of(name, Partition(number, queue)) for number, name in enumerate(layout.served)]
            for job, number in zip(jobs, await self._numbers(queue, layout, jobs), strict=True):
                job.link, job.layout = links[number], layout.number

    async def _numbers(self, queue: str, layout: Layout, jobs: Sequence[Planned]) -> list[int]:
        """Return the partition of each job of a queue."""
        keys = [routing_key(job.options) for job in jobs]
        homes = await self._homes(layout, [(key, job.options) for key, job in zip(keys, jobs, strict=True) if key])
        numbers: list[int] = []
        number, room = (homes[keys[0]], ROWS) if keys[0] is not None else (0, 0)
        for key in keys:
            if key is not None:
                numbers.append(homes[key])
                continue
            if not room:
                number, room = self._next(queue, layout), ROWS
            numbers.append(number)
            room -= 1
        return numbers

    def _next(self, queue: str, layout: Layout) -> int:
        before = self._turns.get(queue)
        turn = random.randrange(layout.partitions) if before is None else (before + 1) % layout.partitions
        self._turns[queue] = turn
        return turn

    async def _homes(self, layout: Layout, keyed: Sequence[tuple[str, JobOptions]]) -> dict[str, int]:
        """Return the partition of each key: a former one, if that has jobs of the key."""
        found: dict[str, int] = {}
        former: dict[int, list[tuple[str, list[object]]]] = {}
        for key, options in keyed:
            *before, found[key] = layout.homes(key)
            row = moving_row(options, key) if before else None
            for number in before if row is not None else ():
                former.setdefault(number, []).append((key, row or []))
        states: dict[str, int] = {}
        for number, rows in former.items():
            meta = QueueKeys(self._prefix, layout.names[number]).meta
            for start in range(0, len(rows), _KEYS_PER_CALL):
                page = rows[start : start + _KEYS_PER_CALL]
                call = keys_in_use(meta, layout.number, [row for _, row in page])
                for (key, _), state in zip(page, await self._transport.call(call), strict=True):
                    if state > states.get(key, MOVED):
                        found[key], states[key] = number, state
        return found
