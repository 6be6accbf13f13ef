"""Ordering groups that a Node peer's own library blocks are repaired by our workers while such peers are registered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py._features.ordering_groups import OrderingDict
from glidemq_py._maintenance.peers import GroupRepair
from glidemq_py.testing import RespClient
from tests.lua.wire_support import CONSUMER, WireQueue
from tests.server.worker_support import until, with_timeout

DOCUMENTED = (Path(__file__).parents[1] / "lua" / "documented.lua").read_text(encoding="utf-8")
ORDERING: OrderingDict = {"key": "k", "concurrency": 1}


class Node(WireQueue):
    """A Node client with its own library, and its registered worker."""

    library = "documented_"

    def register(self) -> None:
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


def _reject(node: Node) -> None:
    """An add that Node's library rejects for its cost: the sequence is consumed."""
    node.redis("HINCRBY", "ordering", "k", 1)


@pytest.mark.parametrize("block", BLOCKS)
async def test_blocked_group_is_repaired(
    core_url: str, queue_name: str, node: Node, block: Callable[[Node, list[str]], list[str]]
) -> None:
    ran: list[str] = []

    async def handle(job: Job) -> Any:
        ran.append(job.id)

    async with Queue(queue_name, core_url) as queue:
        jobs = [(await queue.add("task", ordering=ORDERING)).id for _ in range(4)]
        _reject(node)
        jobs.append((await queue.add("task", ordering=ORDERING)).id)
        node.register()
        left = block(node, jobs)
        assert queue._link is not None
        repair = GroupRepair(link=queue._link, blocked=0)
        async with Worker(queue_name, handle, core_url):
            await with_timeout(_repaired(repair, lambda: ran == left))


async def _repaired(repair: GroupRepair, reached: Callable[[], bool]) -> None:
    while not reached():
        await repair.run_once()
        await asyncio.sleep(0.01)


async def test_busy_group_is_not_repaired(core_url: str, queue_name: str, node: Node) -> None:
    """A group whose next job is delayed is blocked, too; groups without progress are checked less and less often."""
    release = asyncio.Event()

    async def handle(job: Job) -> None:
        await release.wait()

    async with Queue(queue_name, core_url) as queue, Worker(queue_name, handle, core_url, concurrency=4):
        for delay in (0, 0, 0):
            await queue.add("task", ordering=ORDERING, delay=delay)
        await queue.add("late", ordering={"key": "late"}, delay=3_600_000)
        await queue.add("task", ordering={"key": "late"})
        node.register()
        await with_timeout(until(lambda: node.redis("ZCARD", "groupq:k") == 2))
        assert queue._link is not None
        repair = GroupRepair(link=queue._link, blocked=0, full=0)
        before = node.group("k"), node.group("late")
        for _ in range(3):
            assert await repair.run_once() == []
        assert (node.group("k"), node.group("late")) == before
        release.set()


async def test_groups_are_not_checked_without_node_workers(core_url: str, queue_name: str, node: Node) -> None:
    async with Queue(queue_name, core_url) as queue:
        await queue.add("task", ordering=ORDERING)
        assert queue._link is not None
        assert await GroupRepair(link=queue._link, blocked=0).run_once() == []
        assert not node.redis("EXISTS", "group-watch")
        assert not node.redis("EXISTS", "lock:groups")


async def test_one_worker_checks_groups_at_a_time(core_url: str, queue_name: str, node: Node) -> None:
    async with Queue(queue_name, core_url) as queue:
        await queue.add("task", ordering=ORDERING)
        node.register()
        assert queue._link is not None
        await GroupRepair(link=queue._link).run_once()
        holder = node.redis("GET", "lock:groups")
        await GroupRepair(link=queue._link).run_once()
        assert node.redis("GET", "lock:groups") == holder
