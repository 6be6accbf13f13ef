"""Partitioned queues as one: their names, the sums of their counts, and changes of one partition after the other."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Final

from glidemq_py._client.transport import Transport
from glidemq_py._operate.snapshots import QueueSnapshot
from glidemq_py._partitions.layout import split_partition_id
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.stored import layout_or_name, whole_queues

_KEPT_S: Final = 60.0
_REMEMBERED: Final = 20_000
_LARGEST: Final = ("workers", "oldest_waiting")
"""Figures that are not summed: each worker serves all partitions."""


class Layouts:
    """The names of the partitions of queues; a name is looked up at most once a minute.

    Args:
        prefix: First part of every key.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._known: OrderedDict[str, tuple[float, tuple[str, ...]]] = OrderedDict()

    async def names(self, transport: Transport, name: str) -> tuple[str, ...]:
        """Return the names of the partitions of a queue; its own name if it has none."""
        known = self._known.get(name)
        if known is None or known[0] < time.monotonic():
            self._keep(name, await layout_or_name(transport, self._prefix, name))
        return self._known[name][1]

    async def whole(self, transport: Transport, names: Iterable[str]) -> list[str]:
        """Return the sorted names of the queues that have these names or partitions."""
        found = await whole_queues(transport, self._prefix, names)
        for name, layout in found.items():
            self._keep(name, layout)
        return sorted(found)

    def _keep(self, name: str, layout: tuple[str, ...]) -> None:
        self._known[name] = (time.monotonic() + _KEPT_S, layout)
        self._known.move_to_end(name)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


def sum_of(parts: Sequence[QueueSnapshot]) -> QueueSnapshot:
    """Return the snapshot of a partitioned queue, from those of its partitions."""
    counted = [each.name for each in fields(QueueSnapshot) if each.name not in ("name", "paused", "partitions")]
    return replace(parts[0], partitions=len(parts), **{
        name: (max if name in _LARGEST else sum)(getattr(part, name) for part in parts) for name in counted
    })  # fmt: skip


def by_partition(ids: Iterable[str], partitions: int) -> dict[int, list[tuple[str, str]]]:
    """Return ids by partition, each as its id in the partition and the one in the queue. Others are omitted."""
    found: dict[int, list[tuple[str, str]]] = {}
    for job_id in ids:
        number, own = split_partition_id(job_id) if partitions > 1 else (0, job_id)
        if number < partitions:
            found.setdefault(number, []).append((own, job_id))
    return found


async def in_turn(
    links: Sequence[QueueLink], position: str, change: Callable[[QueueLink, str], AsyncGenerator[tuple[int, str]]]
) -> AsyncGenerator[tuple[int, str]]:
    """Make a change in each partition, in steps. Yield the number of changed jobs, and where to continue.

    A step of a partitioned queue whose partition has no more jobs continues at the start of the next one.
    """
    first, own = 0, position
    if len(links) > 1 and position:
        number, _, own = position.partition("|")
        first = int(number)
    for at, link in enumerate(links[first:], first):
        async for done, following in change(link, own):
            if len(links) > 1:
                following = f"{at}|{following}" if following else f"{at + 1}|" if at + 1 < len(links) else ""
            yield done, following
        own = ""
