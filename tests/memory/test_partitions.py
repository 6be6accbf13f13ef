"""A partitioned queue on the in-memory server, while the number of its partitions changes."""

from __future__ import annotations

from collections import defaultdict

from glidemq_py import Job, Queue, Worker
from glidemq_py._features.partitions.layout import split_partition_id
from glidemq_py.testing import MemoryServer


async def test_the_number_of_partitions_changes() -> None:
    server, order = MemoryServer(), defaultdict[str, list[int]](list)
    keys = [f"customer-{number}" for number in range(12)]

    async def handle(job: Job) -> None:
        order[job.data[0]].append(job.data[1])

    async def add(queue: Queue, number: int) -> list[Job]:
        return await queue.add_bulk([("n", [key, number], {"ordering": {"key": key}}) for key in keys])

    async def run() -> None:
        async with Worker("q", handle, server, concurrency=5) as worker:
            await worker.drain()

    async with Queue("q", server) as queue, Queue("q", server) as other:
        first = await add(other, 0)
        assert (await queue.set_partitions(4)).serving == 4
        again = await add(other, 1)
        assert {split_partition_id(job.id)[0] for job in [*first, *again]} == {0}
        await run()
        moved = await add(other, 2)
        assert {split_partition_id(job.id)[0] for job in moved} == {0, 1, 2, 3}
        await run()
        assert (await queue.set_partitions(4)).is_settled
        assert (await queue.set_partitions(2)).serving == 4
        await add(other, 3)
        await run()
        assert (await queue.get_job_counts()).completed == 48
        await queue.clean(0)
        assert (await queue.set_partitions(2)).serving == 2
        assert await other.count() == 0
    assert {key: order[key] for key in keys} == {key: [0, 1, 2, 3] for key in keys}
