"""Outbox entries that no worker wrote are delivered at once: their writer wakes an idle worker.

The periodic look of the outbox task is set to an hour here, so nothing but the wake-up can deliver in time.
"""

import pytest

from glidemq_py import FlowJob, FlowProducer, Job, Queue, Worker
from glidemq_py.errors import JobFailedError
from glidemq_py.options import DeadLetterOptionsDict
from glidemq_py.testing import RespClient
from tests.inside import check_parents
from tests.inside import maintenance_outbox as outbox_task
from tests.server.worker_support import Raw, until, with_timeout

AN_HOUR_S = 3_600.0


@pytest.fixture(autouse=True)
def _no_polling(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(outbox_task, "_POLL_S", AN_HOUR_S)
    monkeypatch.setattr(outbox_task, "_SELDOM_S", AN_HOUR_S)


async def handle(job: Job):
    return job.name


async def _idle(worker: Worker, queue: Queue):
    """Wait for a job, so that the delivery at the worker's start is over."""
    await with_timeout((await queue.add("first")).wait_until_finished())


@pytest.mark.parametrize("way", ["remove", "revoke", "drain"])
@pytest.mark.parametrize("policy", ["fail_parent", "ignore"])
async def test_operator_ends_a_cross_queue_child(core_url: str, queue_name: str, way: str, policy: str):
    async with (
        FlowProducer(core_url) as flows,
        Queue(f"{queue_name}-c", core_url) as children,
        Worker(queue_name, handle, core_url),
        Worker(children.name, handle, core_url) as worker,
    ):
        await _idle(worker, children)
        child = FlowJob("child", children.name, None, {"delay": 3_600_000, "on_failure": policy})
        node = await flows.add(FlowJob("parent", queue_name, None, None, [child]))
        (below,) = node.children
        if way == "remove":
            await below.job.remove()
        elif way == "revoke":
            await children.revoke(below.job.id)
        else:
            await children.drain(delayed=True)
        if policy == "ignore":
            assert await with_timeout(node.job.wait_until_finished()) == "parent"
        else:
            with pytest.raises(JobFailedError):
                await with_timeout(node.job.wait_until_finished())


async def test_child_queue_without_workers(core_url: str, queue_name: str, core_resp: RespClient):
    """A worker of the parent's queue delivers the outbox of the children's queue, when it looks after its parents."""
    async with (
        FlowProducer(core_url) as flows,
        Queue(queue_name, core_url) as queue,
        Worker(queue_name, handle, core_url),
    ):
        node = await flows.add(FlowJob("parent", queue_name, None, None, [FlowJob("child", f"{queue_name}-c")]))
        assert await node.children[0].job.remove()
        assert Raw(core_resp, f"{queue_name}-c").run("XLEN", "outbox") == 1
        await check_parents(queue)
        with pytest.raises(JobFailedError, match="removed"):
            await with_timeout(node.job.wait_until_finished())
        assert Raw(core_resp, f"{queue_name}-c").run("XLEN", "outbox") == 0


@pytest.mark.slow
async def test_very_many_parents_run_after_their_child(core_url: str, queue_name: str, core_resp: RespClient):
    """More than one call notifies: only a Node peer adds so many."""
    raw, parents = Raw(core_resp, queue_name), [f"p{number}" for number in range(1_100)]
    async with Queue(queue_name, core_url) as queue:
        child = await queue.add("child")
        for parent in parents:
            raw.run("HSET", f"job:{parent}", "id", parent, "name", "parent", "data", "{}", "opts", "{}", "timestamp", 1,
                    "state", "waiting-children")  # fmt: skip
            raw.run("SADD", f"deps:{parent}", raw.key(child.id))
        raw.run("SADD", f"parents:{child.id}", *(raw.key(parent) for parent in parents))
        raw.run("HSET", f"job:{child.id}", "parentIds", "[]", "parentQueues", "[]")
        async with Worker(queue_name, handle, core_url, concurrency=100):
            await with_timeout(until(lambda: raw.run("ZCARD", "completed") == 1 + len(parents)))
            await with_timeout(until(lambda: raw.run("XLEN", "outbox") == 0))
        assert {raw.job(parent)["depsCompleted"] for parent in parents} == {"1"}


async def test_dead_letter_of_a_revoked_job(core_url: str, queue_name: str, core_resp: RespClient):
    letters = f"{queue_name}-dead"
    dead: DeadLetterOptionsDict = {"name": letters, "on": ["revoked"]}
    async with (
        Queue(queue_name, core_url, dead_letter_queue=dead) as queue,
        Worker(queue_name, handle, core_url, dead_letter_queue=dead) as worker,
    ):
        await _idle(worker, queue)
        job = await queue.add("late", delay=3_600_000)
        await queue.revoke(job.id)
        await with_timeout(until(lambda: Raw(core_resp, letters).run("XLEN", "stream") == 1))


async def test_unknown_entry_kinds_back_off(
    core_url: str, queue_name: str, core_resp: RespClient, monkeypatch: pytest.MonkeyPatch
):
    """Every exchange reports them; the task looks less and less often."""
    rounds = 0
    look = outbox_task.OutboxTask.run_once

    async def counted(self: outbox_task.OutboxTask):
        nonlocal rounds
        rounds += 1
        await look(self)

    monkeypatch.setattr(outbox_task.OutboxTask, "run_once", counted)
    Raw(core_resp, queue_name).run("XADD", "outbox", "*", "kind", "of a later version")
    async with Queue(queue_name, core_url) as queue, Worker(queue_name, handle, core_url):
        for _ in range(200):
            await with_timeout((await queue.add("next")).wait_until_finished())
        assert rounds < 20
        assert Raw(core_resp, queue_name).run("XLEN", "outbox") == 1
