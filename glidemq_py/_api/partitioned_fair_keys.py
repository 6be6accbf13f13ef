"""The fair keys of a partitioned queue, each of which has its jobs in one partition."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, cast

from glidemq_py._core.limits import FairKeyInfo

if TYPE_CHECKING:
    from glidemq_py._api.partitioned import PartitionedQueue


async def iter_fair_keys(self: PartitionedQueue) -> AsyncGenerator[FairKeyInfo]:
    """See `Queue.iter_fair_keys`; the keys of all partitions in the order of their names."""
    async with AsyncExitStack() as stack:
        found: dict[int, AsyncIterator[FairKeyInfo]] = {}
        for number, queue in enumerate(self.queues):
            infos = cast("AsyncGenerator[FairKeyInfo]", queue.iter_fair_keys())
            found[number] = await stack.enter_async_context(aclosing(infos))
        heads: dict[int, FairKeyInfo] = {}
        due = list(found)
        while True:
            for number in due:
                head = await anext(found[number], None)
                if head is not None:
                    heads[number] = head
            if not heads:
                return
            first = min(heads, key=lambda number: _bytes(heads[number].key))
            due = [first]
            yield heads.pop(first)


def _bytes(key: str) -> bytes:
    """Return the bytes by which the server orders keys."""
    return key.encode("utf-8", "surrogateescape")
