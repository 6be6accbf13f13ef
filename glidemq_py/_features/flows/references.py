"""References to jobs of partitioned queues, and the choice of the partitions of a flow's jobs.

Users name the queue and an id that names the partition, such as ``emails`` and ``3||17``. Keys and records name the
partition, which is an ordinary queue, and the id in it. `References` translates both ways.

A job with a routing key goes to the partition of its key, as with `Queue.add`. The others of a flow that takes one call
stay together, so that it takes one: in the partition of the first job of their queue. Larger flows are divided.

Flows of queues without partitions cost nothing: the call names the layout that the producer knows, none at first, and
the server refuses another one.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls import pieces
from glidemq_py._core.keys import QueueKeys, partition_home
from glidemq_py._core.option_values import JobRef
from glidemq_py._features.flows import calls as flows
from glidemq_py._features.flows.plan import ROWS, Planned
from glidemq_py._partitions.layout import Layout, Partition, partition_of_key, split_partition_id
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.routing import Numbers, candidates, routing_key
from glidemq_py._partitions.stored import renewed_layout
from glidemq_py.errors import LayoutChangedError

_LAYOUT_S: Final = 10.0
"""Time for which the layout of a queue, or that it has none, is known without reading it again."""
_LAYOUTS_KEPT: Final = 1_000
_IDS_PER_CALL: Final = 500
_DIGITS: Final = re.compile(r"[0-9]+")


class References:
    """References to jobs, as seen over one connection.

    Args:
        transport: The connection.
        prefix: First part of every key.
    """

    def __init__(self, transport: JobTransport, prefix: str) -> None:
        self._transport, self._prefix = transport, prefix
        self._layouts: dict[str, tuple[float, Layout | None]] = {}

    async def layout(self, queue: str, *, fresh: bool = False, refused: bool = False) -> Layout | None:
        """Return the layout of a queue; None if it has no partitions. It may be ten seconds old.

        Args:
            queue: Name of the queue.
            fresh: True to read it now.
            refused: True if one of its partitions has refused the known one.
        """
        known = self._layouts.get(queue)
        now = time.monotonic()
        if known is not None and not fresh and now - known[0] < _LAYOUT_S:
            return known[1]
        keys = QueueKeys(self._prefix, queue)
        layout = await renewed_layout(self._transport, keys, None if known is None else known[1], refused=refused)
        if len(self._layouts) >= _LAYOUTS_KEPT:
            self._layouts.clear()
        self._layouts[queue] = now, layout
        return layout

    def known(self, queue: str) -> Layout | None:
        """Return the layout that was read last; None if none was read, or the queue has no partitions."""
        found = self._layouts.get(queue)
        return None if found is None else found[1]

    # -- from users to keys -------------------------------------------------------------------------------

    async def placed(self, refs: Iterable[JobRef]) -> dict[JobRef, JobRef]:
        """Return for each reference the queue that has the job, which may be a partition, and the id in it.

        Ids of digits are those of partition 0. Other ids cost a read of the queue's layout, and custom ids in a
        partitioned queue a call per partition that may have the job. A job that does not exist is placed where it
        would be.
        """
        found: dict[JobRef, JobRef] = {}
        by_queue: dict[str, list[JobRef]] = {}
        for ref in dict.fromkeys(refs):
            if _DIGITS.fullmatch(ref.id) is not None or partition_home(ref.queue) is not None:
                found[ref] = ref
            else:
                by_queue.setdefault(ref.queue, []).append(ref)
        for queue, mine in by_queue.items():
            layout = await self.layout(queue)
            unknown = await self._place(layout, mine, found)
            if unknown:
                fresh = await self.layout(queue, fresh=True)
                if fresh != layout:
                    await self._place(fresh, unknown, found)
        return found

    async def _place(self, layout: Layout | None, refs: Sequence[JobRef], found: dict[JobRef, JobRef]) -> list[JobRef]:
        """Place references to one queue. Return those whose job was not found."""
        if layout is None:
            found.update((ref, ref) for ref in refs)
            return [ref for ref in refs if split_partition_id(ref.id)[1] != ref.id]
        looked: dict[JobRef, list[JobRef]] = {}
        unknown: list[JobRef] = []
        for ref in refs:
            places = [JobRef(layout.names[number], own) for number, own in candidates(ref.id, layout)]
            found[ref] = places[0]
            if places[0].id == ref.id:  # no partition is named
                looked[ref] = places
        while looked:
            existing = await self.existing(places[0] for places in looked.values())
            following: dict[JobRef, list[JobRef]] = {}
            for ref, (place, *others) in looked.items():
                if place in existing:
                    found[ref] = place
                elif others:
                    following[ref] = others
                else:
                    unknown.append(ref)
            looked = following
        return unknown

    async def existing(self, places: Iterable[JobRef]) -> set[JobRef]:
        """Return those of the references whose job exists. Each names the partition and the id in it."""
        by_queue: dict[str, list[str]] = {}
        for queue, job_id in dict.fromkeys(places):
            by_queue.setdefault(queue, []).append(job_id)
        found: set[JobRef] = set()
        for queue, ids in by_queue.items():
            meta = QueueKeys(self._prefix, queue).meta
            for page in pieces(ids, _IDS_PER_CALL):
                answers = await self._transport.call(flows.depend(meta, [("", page, "")]))
                found |= {
                    JobRef(queue, job_id) for job_id, answer in zip(page, answers, strict=True) if answer.how != "gone"
                }
        return found

    # -- from keys to users -------------------------------------------------------------------------------

    async def shown(self, refs: Iterable[JobRef]) -> list[JobRef]:
        """Return references by the queue and the id that users know."""
        found: list[JobRef] = []
        for ref in refs:
            partition = await self.partition(ref.queue)
            found.append(ref if partition is None else JobRef(partition.queue_name, partition.id_of(ref.id)))
        return found

    async def partition(self, name: str) -> Partition | None:
        """Return the partition that has this name as a queue; None if it is a queue by itself.

        Only names of the form of a partition's cost a read, once per partitioned queue.
        """
        home = partition_home(name)
        if home is None:
            return None
        known = self._layouts.get(home)
        layout = None if known is None else known[1]  # names keep their positions
        if layout is None or name not in layout.names:
            layout = await self.layout(home, fresh=True)
        if layout is None or name not in layout.names:
            return None
        return Partition(layout.names.index(name), home)


def references_of(link: QueueLink[Any]) -> References:
    """Return the references over the connection of a queue."""
    found: References | None = link.references
    if found is None:
        found = link.references = References(link.transport, link.keys.prefix)
    return found


async def name_partition(link: QueueLink[Any]) -> None:
    """Let a link to a partition, opened by its name, show the names and ids that users know."""
    if link.partition is None and partition_home(link.keys.name) is not None:
        link.partition = await references_of(link).partition(link.keys.name)


def is_own(link: QueueLink[Any], queue: str) -> bool:
    """Return True if the queue of a reference is the given one, or the whole queue of a partition."""
    return queue in ("", link.keys.name, link.queue_name)


async def shown_ref(link: QueueLink[Any], queue: str, job_id: str) -> JobRef:
    """Return a reference by the queue and the id that users know."""
    (shown,) = await references_of(link).shown([JobRef(queue, job_id)])
    return shown


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
