"""Ordering groups that a Node peer's own library blocks are repaired by our workers while that library is loaded."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Job, Maintenance, Queue, Worker
from glidemq_py.options import OrderingDict
from glidemq_py.testing import RespClient
from tests.inside import libraries, link_of, wake_channel
from tests.inside import queues as maintaining
from tests.server.worker_support import until, with_timeout
from tests.wire_library.support import CONSUMER, WireQueue, load

DOCUMENTED = (Path(__file__).parents[1] / "lua" / "documented.lua").read_text(encoding="utf-8")
ORDERING: OrderingDict = {"key": "k", "concurrency": 1}


class Node(WireQueue):
    """A Node client with its own library, and its registered worker."""

    library = "documented_"

    def register(self):
        self.make_group()
        self.resp.execute("XGROUP", "CREATECONSUMER", self.key("stream"), "workers", CONSUMER)
        self.redis("SET", f"w:{CONSUMER}", "{}")


@pytest.fixture(name="node")
def node_fixture(core_resp: RespClient, queue_name: str) -> Node:
    core_resp.execute_everywhere("FUNCTION", "LOAD", "REPLACE", DOCUMENTED)
    return Node(core_resp, queue_name)


def _revoke(node: Node, jobs: list[str]) -> list[str]:
    assert node.revoke(jobs[0]) == "revoked"
    return jobs[1:]


def _remove(node: Node, jobs: list[str]) -> list[str]:
    assert node.remove(jobs[0]) == 1
    return jobs[1:]


def _remove_within(node: Node, jobs: list[str]) -> list[str]:
    assert node.remove(jobs[2]) == 1
    return [jobs[0], jobs[1], *jobs[3:]]


BLOCKS = [_revoke, _remove, _remove_within]


def _reject(node: Node):
    """An add that Node's library rejects for its cost: the sequence is consumed."""
    node.redis("HINCRBY", "ordering", "k", 1)


@pytest.mark.parametrize("block", BLOCKS)
async def test_blocked_group_is_repaired(
    core_url: str, queue_name: str, node: Node, block: Callable[[Node, list[str]], list[str]]
):
    ran: list[str] = []

    async def handle(job: Job):
        ran.append(job.id)

    async with Queue(queue_name, core_url) as queue:
        jobs = [(await queue.add("task", ordering=ORDERING)).id for _ in range(4)]
        _reject(node)
        jobs.append((await queue.add("task", ordering=ORDERING)).id)
        node.register()
        left = block(node, jobs)
        repair = libraries.GroupRepair(link=link_of(queue), blocked=0)
        async with Worker(queue_name, handle, core_url):
            await with_timeout(_repaired(repair, lambda: ran == left))


async def _repaired(repair: libraries.GroupRepair, reached: Callable[[], bool]):
    while not reached():
        await repair.run_once()
        await asyncio.sleep(0.01)


async def test_busy_group_is_not_repaired(core_url: str, queue_name: str, node: Node):
    """A group whose next job is delayed is blocked, too; groups without progress are checked less and less often."""
    release = asyncio.Event()

    async def handle(job: Job):
        await release.wait()

    async with Queue(queue_name, core_url) as queue, Worker(queue_name, handle, core_url, concurrency=4):
        for delay in (0, 0, 0):
            await queue.add("task", ordering=ORDERING, delay=delay)
        await queue.add("late", ordering={"key": "late"}, delay=3_600_000)
        await queue.add("task", ordering={"key": "late"})
        node.register()
        await with_timeout(until(lambda: node.redis("ZCARD", "groupq:k") == 2))
        repair = libraries.GroupRepair(link=link_of(queue), blocked=0, full=0)
        before = node.group("k"), node.group("late")
        for _ in range(3):
            assert await repair.run_once() == []
        assert (node.group("k"), node.group("late")) == before
        release.set()


@pytest.mark.parametrize("kind", ["worker", "third worker", "worker of several queues", "maintenance"])
async def test_group_that_a_client_without_workers_blocked_is_repaired(
    url: str, resp: RespClient, queue_name: str, kind: str, monkeypatch: pytest.MonkeyPatch
):
    resp.execute_everywhere("FUNCTION", "LOAD", "REPLACE", DOCUMENTED)
    load(resp)  # a library of the name that Node clients use is the only sign of them
    monkeypatch.setattr(libraries.GroupRepair.__init__, "__kwdefaults__", {"blocked": 0, "full": 300_000})
    monkeypatch.setattr(libraries, "_POLL_S", 0.02)
    monkeypatch.setattr(wake_channel, "EXAMINED_S", 0.02)
    monkeypatch.setattr(maintaining, "_IDLE_S", 0.02)
    monkeypatch.setattr(maintaining, "_BUSY_S", 0.02)
    node, ran = Node(resp, queue_name), list[str]()

    async def handle(job: Job):
        ran.append(job.id)

    async with Queue(queue_name, url) as queue, contextlib.AsyncExitStack() as stack:
        jobs = [(await queue.add("task", ordering=ORDERING)).id for _ in range(3)]
        assert node.revoke(jobs[0]) == "revoked"
        if kind == "maintenance":
            await stack.enter_async_context(Maintenance([queue]))
            async with asyncio.timeout(60):
                while len(ran) < 2:
                    for lease in await queue.fetch(3):
                        ran.append(lease.id)
                        await lease.complete()
                    await asyncio.sleep(0.02)
        else:
            for _ in range(2 if kind == "third worker" else 0):  # they have the blocking reads of the process
                await stack.enter_async_context(Worker(f"{queue_name}-other", handle, url))
            names = [queue_name, f"{queue_name}-other"] if kind == "worker of several queues" else queue_name
            await stack.enter_async_context(Worker(names, handle, url))
            await with_timeout(until(lambda: len(ran) == 2))
    assert ran == jobs[1:]


async def test_groups_are_not_checked_without_clients_of_node(private_server: Any, queue_name: str):
    server = private_server()
    with server.client() as resp:
        node = Node(resp, queue_name)
        await _check_nothing(server.url, node)


async def _check_nothing(url: str, node: Node):
    async with Queue(node.name, url) as queue:
        await queue.add("task", ordering=ORDERING)
        assert await libraries.GroupRepair(link=link_of(queue), blocked=0).run_once() == []
        assert not node.redis("EXISTS", "group-watch")
        assert not node.redis("EXISTS", "lock:groups")


async def test_one_worker_checks_groups_at_a_time(core_url: str, queue_name: str, node: Node):
    async with Queue(queue_name, core_url) as queue:
        await queue.add("task", ordering=ORDERING)
        node.register()
        await libraries.GroupRepair(link=link_of(queue)).run_once()
        holder = node.redis("GET", "lock:groups")
        await libraries.GroupRepair(link=link_of(queue)).run_once()
        assert node.redis("GET", "lock:groups") == holder
