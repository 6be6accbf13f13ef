"""Children that are added with `parent=`, in the parent's queue and in others: waiting for them, their results, and the
effect of their failures.
"""

import asyncio
from typing import Any

import pytest

from glidemq_py import (
    Job,
    JobFailedError,
    JobState,
    Queue,
    Worker,
)
from glidemq_py.testing import RespClient
from tests.conftest import same_or_other
from tests.inside import check_parents
from tests.server.worker_support import EventRecorder, Raw

pytestmark = pytest.mark.usefixtures("clean_check")


@pytest.fixture
def parents(queue: Queue) -> Queue:
    return queue


children = same_or_other
"""The queue of the children: the parents' own, or another one."""


LOSE = """
local P, id, how = KEYS[1], ARGV[1], ARGV[2]
if how == 'failed' then
  redis.call('ZADD', P .. 'failed', '1', id)
  redis.call('HSET', P .. 'job:' .. id, 'state', 'failed', 'failedReason', 'in Node', 'finishedOn', '1')
elseif how == 'completed' then
  redis.call('ZADD', P .. 'completed', '1', id)
  redis.call('HSET', P .. 'job:' .. id, 'state', 'completed', 'returnvalue', '7', 'finishedOn', '1')
else
  redis.call('UNLINK', P .. 'job:' .. id)
end
redis.call('ZREM', P .. 'scheduled', id)
"""
"""A child ends as with a Node worker whose library does not notify parents of failures (in a cluster: of any
outcome).
"""


@pytest.mark.parametrize(("how", "policy", "end"), [
    ("failed", None, None), ("failed", "ignore", 1), ("failed", "remove", 1), ("gone", None, None),
    ("completed", None, 8),
])  # fmt: skip
async def test_unreported_outcome_of_a_child_is_detected(
    url: str, parents: Queue, children: Queue, resp: RespClient, how: str, policy: Any, end: Any
):
    """W43: it is found by looking after parents that have waited for long."""

    async def handle(job: Job):
        if job.name == "child":
            return job.data
        await children.add("child", 1, parent=job, job_id="a", on_failure="ignore")
        await children.add("child", 7, parent=job, job_id="b", delay=60_000, on_failure=policy)
        await job.move_to_waiting_children()
        return sum((await job.get_children_values()).values())

    job = await parents.add("wait")
    names = dict.fromkeys((parents.name, children.name))
    workers = [Worker(name, handle, url) for name in names]
    for worker in workers:
        await worker.start()
    owing = Raw(resp, children.name)
    while (  # noqa: ASYNC110
        await job.get_state() is not JobState.WAITING_CHILDREN
        or len(await job.get_open_children()) > 1
        or owing.run("XLEN", "outbox")
    ):
        await asyncio.sleep(0.01)
    resp.execute("EVAL", LOSE, 1, f"glide:{{{children.name}}}:", "b", how)
    assert not await check_parents(parents)
    if end is None:
        with pytest.raises(JobFailedError, match="child"):
            await job.wait_until_finished()
    else:
        assert await job.wait_until_finished() == end
    for worker in workers:
        await worker.close()


async def test_parent_fails_when_the_queue_of_its_children_is_obliterated(url: str, parents: Queue):
    async def handle(job: Job):
        await others.add("child", parent=job)
        await job.move_to_waiting_children()

    async with Queue(f"{parents.name}-c", url) as others, Worker(parents.name, handle, url) as worker:
        job = await parents.add("wait")
        await EventRecorder(worker).wait("waiting-children")
        while await job.get_state() is not JobState.WAITING_CHILDREN:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await others.obliterate()
        await check_parents(parents)
        with pytest.raises(JobFailedError, match="it is gone"):
            await job.wait_until_finished()


async def test_parent_keeps_its_priority(url: str, parents: Queue, resp: RespClient):
    """W51, for one that has begun."""
    order: list[str] = []

    async def handle(job: Job):
        order.append(job.name)
        if job.name == "parent":
            await parents.add("child", parent=job, job_id="c")
            await parents.add_bulk([("late",)] * 3)
            await job.move_to_waiting_children()

    async with Worker(parents.name, handle, url) as worker:
        recorded = EventRecorder(worker)
        await parents.add("parent", priority=3)
        await recorded.wait("completed", 5)
    assert order.index("parent", 1) < order.index("late") + 1
    assert Raw(resp, parents.name).pending() == []
