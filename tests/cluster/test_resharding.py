"""The slot of a queue moves to another node under load: every acknowledged job is completed exactly once."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import pytest

from glidemq_py import Queue, Worker
from glidemq_py.testing import ClusterProcess, server_binary
from tests.cluster.resharding import SlotMover
from tests.server.test_faults_server import Producers, assert_each_ended_once, work
from tests.server.worker_support import Raw, Told, soon


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[ClusterProcess]:
    """Three primaries of this file's own: slots move."""
    with ClusterProcess(server_binary("valkey-9.1")) as cluster:
        yield cluster


@pytest.fixture
def mover(own_cluster: ClusterProcess, queue_name: str) -> Iterator[SlotMover]:
    mover = SlotMover(own_cluster, queue_name)
    yield mover
    mover.close()


@asynccontextmanager
async def under_load(cluster: ClusterProcess, mover: SlotMover, name: str) -> AsyncGenerator[Producers]:
    """Producers and two workers inside; at the end, the ledger."""
    async with Queue(name, cluster.url) as queue:
        both = [Worker(name, work, cluster.url, concurrency=10) for _ in range(2)]
        told = Told(*both)
        await asyncio.gather(*(worker.start() for worker in both))
        async with Producers(queue) as producers:
            await producers.more(40)
            yield producers
            await producers.more(40)
        await told.wait("completed", len(producers.acknowledged))
        await soon(asyncio.gather(*(worker.close() for worker in both)), 60)
        with cluster.client() as client:
            assert_each_ended_once(Raw(client, name), told, producers.acknowledged)
        assert (await queue.check(settle=50)).findings == ()
        assert mover.leftovers() == {}
        assert told.count["stalled"] == 0
        assert producers.refused == 0


async def test_slot_moves_key_by_key_under_load(own_cluster: ClusterProcess, mover: SlotMover, queue_name: str):
    async with under_load(own_cluster, mover, queue_name) as producers:
        for _ in range(6):
            await mover.run(mover.begin)
            await mover.run(mover.move_keys)
            await mover.run(mover.end)
            await producers.more(40)
    assert mover.moved_keys > 300


async def test_slot_moves_atomically_under_load(own_cluster: ClusterProcess, mover: SlotMover, queue_name: str):
    async with under_load(own_cluster, mover, queue_name) as producers:
        for _ in range(4):
            await mover.run(mover.move_atomically)
            await producers.more(40)
