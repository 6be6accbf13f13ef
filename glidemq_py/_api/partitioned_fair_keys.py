"""The fair keys of a partitioned queue. While the number of partitions changes, a key may have jobs in several."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from glidemq_py._features.fair_keys.options import FairKeyInfo, validate_fair_key

if TYPE_CHECKING:
    from glidemq_py._api.partitioned import PartitionedQueue

__all__ = ["get_fair_key", "iter_fair_keys"]


async def get_fair_key(self: PartitionedQueue, key: str) -> FairKeyInfo:
    """See `Queue.get_fair_key`; the sum over the partitions that may have jobs of the key."""
    homes = self.layout.homes(validate_fair_key("key", key))
    return _merged(await self.together(self.queues[number].get_fair_key(key) for number in homes))


async def iter_fair_keys(self: PartitionedQueue) -> AsyncGenerator[FairKeyInfo]:
    """See `Queue.iter_fair_keys`; the keys of all partitions in the order of their names, each once."""
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
            first = min((head.key for head in heads.values()), key=_bytes)
            due = [number for number, head in heads.items() if head.key == first]
            parts = {number: heads.pop(number) for number in due}
            for number in self.layout.homes(first):
                if number not in parts:  # it has active jobs there, or none
                    parts[number] = await self.queues[number].get_fair_key(first)
            home = self.layout.homes(first)[-1]
            yield _merged([*(part for number, part in parts.items() if number != home), parts[home]])


def _bytes(key: str) -> bytes:
    """Return the bytes by which the server orders keys."""
    return key.encode("utf-8", "surrogateescape")


def _merged(parts: Sequence[FairKeyInfo]) -> FairKeyInfo:
    """Return the state of a key from those in its partitions. The last one is the present one: its limits apply."""
    return replace(
        parts[-1],
        backlog=sum(part.backlog for part in parts),
        active=sum(part.active for part in parts),
        paused=any(part.paused for part in parts),
        limited_until=max((part.limited_until for part in parts if part.limited_until is not None), default=None),
    )
