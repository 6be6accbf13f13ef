"""Helpers of the tests of shares: jobs in a given partition, the shares on the server, and a handler that counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from glidemq_py import Job, Queue
from glidemq_py._features.partitions.shares import NO_SHARE, UNLIMITED


def parts(queue: Queue) -> tuple[Queue[Any, Any], ...]:
    assert queue._partitions is not None
    return queue._partitions.queues


async def fill(queue: Queue, partition: int, count: int) -> list[Job]:
    """Add jobs to a partition."""
    return await parts(queue)[partition].add_bulk([("n", partition)] * count)


class Shares:
    """The shares of a queue's partitions, and their active jobs, as they are on the server."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def read(self) -> list[tuple[int, int]]:
        """Return the share and the number of active jobs of each partition."""
        found: list[tuple[int, int]] = []
        for part in parts(self._queue):
            link = await part._connected()
            fields = await link.transport.command("HMGET", link.keys.meta, "globalConcurrency", "temporaryLimits")
            share = UNLIMITED if fields[0] is None else int(fields[0])
            if fields[1] is not None and fields[1].startswith(b"1|share|"):
                share = NO_SHARE
            found.append((share, (await part.get_job_counts()).active))
        return found

    async def bound(self) -> int:
        """Return the largest number of active jobs that the shares allow."""
        return sum(max(pair) for pair in await self.read())

    async def all(self) -> list[int]:
        return [share for share, _ in await self.read()]


@asynccontextmanager
async def limited(url: str, name: str, limit: int, partitions: int = 4) -> AsyncIterator[Queue]:
    async with Queue(name, url, partitions=partitions) as queue:
        await queue.set_global_concurrency(limit)
        yield queue


class Counted:
    """A handler that counts how many run at once."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running: Counter[int] = Counter()
        self.most = 0
        self.done = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.seconds: Callable[[], float] = lambda: 0.0

    async def __call__(self, job: Job) -> None:
        self.running[job.data] += 1
        total = self.running.total()
        self.most = max(self.most, total)
        assert total <= self.limit, f"{total} jobs run at once: {self.running}"
        try:
            await asyncio.sleep(self.seconds())
            await self.gate.wait()
        finally:
            self.running[job.data] -= 1
            self.done += 1
