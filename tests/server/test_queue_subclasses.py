"""Subclasses of `Queue` with constructors of their own, on partitioned queues."""

from typing import Any

import pytest

from glidemq_py import Job, Queue, sync


class Orders(Queue[dict[str, Any], None]):
    """A queue of an application: it knows its server, and adds by a name of its own."""

    def __init__(self, name: str, url: str):
        self.paused_by: list[str] = []
        super().__init__(name, url, default_job_options={"attempts": 3})

    async def order(self, customer: str) -> Job[dict[str, Any], None]:
        return await self.add("order", {"customer": customer}, ordering={"key": customer})

    async def pause(self, by: str = "nobody"):
        self.paused_by.append(by)
        await super().pause()


class BlockingOrders(sync.Queue):
    def __init__(self, name: str, url: str):
        super().__init__(name, url)


@pytest.mark.parametrize("give", ["plain", "cluster"])
async def test_a_queue_that_is_partitioned_while_it_is_open(give: str, request: pytest.FixtureRequest, queue_name: str):
    url: str = request.getfixturevalue("cluster_url" if give == "cluster" else "url")
    async with Orders(queue_name, url) as queue, Queue(queue_name, url, partitions=3) as operator:
        jobs = [await queue.order(f"customer-{number}") for number in range(12)]
        assert len({job.id.partition("||")[0] for job in jobs}) > 1
        assert all(job.opts["attempts"] == 3 for job in jobs)
        assert await queue.count() == 12
        await queue.pause(by="ann")
        assert queue.paused_by == ["ann"]
        assert await operator.is_paused()
    async with Orders(queue_name, url) as queue:
        assert await queue.count() == 12
        assert (await queue.settings.get_partitions()).count == 3


def test_a_blocking_queue(url: str, queue_name: str):
    with BlockingOrders(queue_name, url) as queue, sync.Queue(queue_name, url, partitions=3) as operator:
        assert operator.settings.get_partitions().count == 3
        queue.add_bulk([("n", at) for at in range(600)])
        assert queue.count() == 600
