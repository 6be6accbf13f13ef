"""The list of queues of a prefix."""

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from glidemq_py import (
    Broadcast,
    FlowJob,
    FlowProducer,
    GlideMQValidationError,
    Job,
    Producer,
    Queue,
    Worker,
    list_queues,
)
from glidemq_py import sync as blocking
from glidemq_py.testing import RespClient
from tests.inside import queue_list
from tests.server.worker_support import PATIENCE


@pytest.fixture
def prefix(core_resp: RespClient) -> Iterator[str]:
    """A prefix of this test, since other tests list queues too."""
    name = f"p{secrets.token_hex(6)}"
    yield name
    for key in core_resp.keys(f"{name}:*"):
        core_resp.execute("UNLINK", key)


@pytest.fixture
def listed(core_url: str, prefix: str):
    async def names(**options: Any) -> list[str]:
        return await list_queues(core_url, prefix=prefix, **options)

    return names


async def noop(job: Job):
    return None


async def test_queue_with_only_a_scheduler_is_listed(core_url: str, prefix: str, listed: Any):
    async with Queue("reports", core_url, prefix=prefix) as queue:
        await queue.schedulers.upsert("nightly", pattern="0 3 * * *")
        assert await listed() == ["reports"]
    with blocking.Queue("blocking", core_url, prefix=prefix) as other:
        other.schedulers.upsert("nightly", pattern="0 3 * * *")
    assert await listed() == ["blocking", "reports"]


async def test_queue_is_listed_by_its_first_add(core_url: str, prefix: str, listed: Any):
    assert await listed() == []
    async with Queue("zebra", core_url, prefix=prefix) as queue:
        await queue.get_job_counts()
        assert await listed() == []  # nothing was added
        await queue.add("a")
        assert await listed() == ["zebra"]
        async with Producer("äpfel", core_url, prefix=prefix) as producer:
            await producer.add_bulk([("a", 1)])
        async with FlowProducer(core_url, prefix=prefix) as flows:
            await flows.add(FlowJob("p", "parents", children=[FlowJob("c", "children")]))
        with blocking.Queue("blocking", core_url, prefix=prefix) as other:
            other.add("a")
            assert blocking.list_queues(core_url, prefix=prefix) == await listed()
    assert await listed() == ["blocking", "children", "parents", "zebra", "äpfel"]
    assert "äpfel" not in await list_queues(core_url)


async def test_existing_queue_is_listed_when_it_is_opened(
    core_url: str, prefix: str, listed: Any, core_resp: RespClient
):
    """As one that only Node peers have used."""
    core_resp.execute("XADD", f"{prefix}:{{node}}:events", "*", "event", "added", "jobId", "1")
    core_resp.execute("XADD", f"{prefix}:{{more}}:events", "*", "event", "added", "jobId", "1")
    async with Queue("node", core_url, prefix=prefix) as queue:
        await queue.get_job_counts()
    with blocking.Queue("more", core_url, prefix=prefix) as other:
        assert other.count() == 0
    assert await listed() == ["more", "node"]


async def test_worker_lists_its_queues(core_url: str, prefix: str, listed: Any):
    names: list[str] = []
    async with (
        Worker("one", noop, core_url, prefix=prefix),
        Worker(["two", "three"], noop, core_url, prefix=prefix),
        asyncio.timeout(PATIENCE),
    ):
        while len(names) < 3:
            names = await listed()
    assert names == ["one", "three", "two"]


async def test_dead_letter_queue_is_listed_when_its_first_entry_is_delivered(core_url: str, prefix: str, listed: Any):
    async def fail(job: Job):
        raise ValueError

    async with (
        Queue("mail", core_url, prefix=prefix, dead_letter_queue="lost") as queue,
        Worker("mail", fail, core_url, prefix=prefix),
    ):
        assert "lost" not in await listed()
        await queue.add("a")
        async with asyncio.timeout(PATIENCE):
            names: list[str] = []
            while "lost" not in names:
                names = await listed()


async def test_broadcast_is_listed(core_url: str, prefix: str, listed: Any):
    async with Broadcast("news", core_url, prefix=prefix) as broadcast:
        await broadcast.publish("a", 1)
    async with Broadcast("news", core_url, prefix=prefix) as broadcast:
        await broadcast.is_paused()
    assert await listed() == ["news"]


async def test_obliterate_removes_the_queue_until_its_next_add(core_url: str, prefix: str, listed: Any):
    async with Queue("a", core_url, prefix=prefix) as queue, Queue("b", core_url, prefix=prefix) as other:
        await queue.add("a")
        await other.add("a")
        await queue.obliterate()
        assert await listed() == ["b"]
        await queue.add("a")
        assert await listed() == ["a", "b"]
        await queue.obliterate()
        await other.obliterate()
    assert await listed() == []


async def test_queues_of_peers_are_found_by_a_scan(core_url: str, prefix: str, listed: Any, core_resp: RespClient):
    run = core_resp.execute
    for name in ("n1", "n2"):
        run("XADD", f"{prefix}:{{{name}}}:stream", "*", "jobId", "1", "name", "x")
        run("HSET", f"{prefix}:{{{name}}}:job:1", "state", "waiting")
    run("SET", f"{prefix}:{{n3}}:id", "4")
    run("HSET", f"{prefix}:{{none}}:job:stream", "state", "waiting")
    run("RPUSH", f"{prefix}:{{none}}:log:id", "line")
    run("SET", f"{prefix}:{{flow:7}}:events", "foreign")
    run("SET", f"{prefix}x:{{no}}:id", "4")
    assert await listed() == []
    assert await listed(scan=True) == ["n1", "n2", "n3"]
    assert await listed() == ["n1", "n2", "n3"]
    with pytest.raises(GlideMQValidationError, match="scan"):
        await listed(scan=1)
    with pytest.raises(GlideMQValidationError, match="prefix"):
        await list_queues(core_url, prefix="a{b")
    run("UNLINK", f"{prefix}x:{{no}}:id")


async def test_many_queues_are_listed(core_url: str, prefix: str, listed: Any, core_resp: RespClient):
    names = [f"q{n:05}" for n in range(5_000)]
    for shard in queue_list.shard_keys(prefix):
        mine = [name for name in names if queue_list.shard_key(prefix, name) == shard]
        assert 200 < len(mine) < 450
        core_resp.execute("SADD", shard, *mine)
    assert await listed() == names


async def test_registration_is_not_repeated_by_a_process(
    core_url: str, prefix: str, core_resp: RespClient, listed: Any
):
    for _ in range(3):
        async with Queue("q", core_url, prefix=prefix) as queue:
            await queue.add("a")
    core_resp.execute("SREM", queue_list.shard_key(prefix, "q"), "q")
    async with Queue("q", core_url, prefix=prefix) as queue:
        await queue.add("a")
    assert await listed() == []  # it was listed a short time ago
    queue_list._registered.clear()
    async with Queue("q", core_url, prefix=prefix) as queue:
        await queue.add("a")
    assert await listed() == ["q"]


async def test_list_is_not_essential(core_url: str, prefix: str, core_resp: RespClient):
    """A foreign key in its place fails no add."""
    core_resp.execute("SET", queue_list.shard_key(prefix, "q"), "foreign")
    async with Queue("q", core_url, prefix=prefix) as queue:
        await queue.add("a")
        await queue.add_bulk([("a", 1)])
        assert await queue.count() == 2
