"""Children that are added with `parent=`, in the parent's queue and in others: waiting for them, their results, and the
effect of their failures.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from glidemq_py import (
    BulkAddError,
    ChildFailedError,
    FailureReason,
    GlideMQValidationError,
    Job,
    JobFailedError,
    JobNotFoundError,
    JobRef,
    JobState,
    JobStateError,
    Queue,
    UnsupportedOptionError,
    Worker,
)
from glidemq_py._maintenance.flows import WaitingParentsTask
from glidemq_py.testing import RespClient
from tests.server.worker_support import PATIENCE, EventRecorder, Raw, with_timeout

pytestmark = pytest.mark.usefixtures("clean_check")


@pytest.fixture
async def parents(url: str, queue_name: str) -> AsyncIterator[Queue]:
    async with Queue(queue_name, url) as queue:
        yield queue


@pytest.fixture(params=["same", "other"])
async def children(request: pytest.FixtureRequest, url: str, parents: Queue) -> AsyncIterator[Queue]:
    """The queue of the children: the parents' own, or another one."""
    if request.param == "same":
        yield parents
    else:
        async with Queue(f"{parents.name}-c", url) as queue:
            yield queue


class Family:
    """Handles parents and children alike: a child returns its data or fails, a parent waits and adds up."""

    def __init__(self, children: Queue, **options: Any) -> None:
        self.children = children
        self.options = options
        self.calls: list[str] = []

    async def __call__(self, job: Job) -> Any:
        self.calls.append(job.name)
        if job.name == "child":
            if job.data == "bad":
                raise ValueError("bad child")
            return job.data
        for i, part in enumerate(job.data):
            await self.children.add("child", part, parent=job, job_id=f"{job.id}-{i}", **self.options)
        await job.move_to_waiting_children()
        return sum((await job.get_children_values()).values())


async def run(url: str, family: Family, parents: Queue, *jobs: Job) -> list[Any]:
    """Both queues are worked on until the jobs have ended; their results or errors."""
    names = dict.fromkeys((parents.name, family.children.name))
    workers = [Worker(name, family, url, concurrency=4) for name in names]
    try:
        for worker in workers:
            await worker.start()
        waits = (job.wait_until_finished(int(PATIENCE * 1000)) for job in jobs)
        return await with_timeout(asyncio.gather(*waits, return_exceptions=True))
    finally:
        for worker in workers:
            await worker.close()


async def test_handler_waits_for_its_children(url: str, parents: Queue, children: Queue) -> None:
    family = Family(children)
    job = await parents.add("sum", [1, 2, 3, 4])
    assert await run(url, family, parents, job) == [10]
    assert family.calls.count("child") == 4
    assert family.calls.count("sum") <= 2  # once, if the children are faster
    read = await parents.get_job(job.id)
    assert read is not None
    assert read.attempts_made == 0
    assert sorted((await read.get_children_values()).values()) == [1, 2, 3, 4]
    child = await children.get_job(f"{job.id}-0")
    assert child is not None
    assert await child.get_parents() == [JobRef(parents.name, job.id)]
    assert child.opts["parent"] == {"queue": parents.name, "id": job.id}


async def test_results_outlive_the_children(url: str, parents: Queue, children: Queue) -> None:
    family = Family(children, remove_on_complete=True)
    job = await parents.add("sum", [5, 6])
    assert await run(url, family, parents, job) == [11]
    assert await children.get_job(f"{job.id}-0") is None
    assert list((await job.get_children_values()).values()) == [5, 6]


async def test_waiting_without_children_continues(url: str, parents: Queue) -> None:
    """W48."""
    job = await parents.add("sum", [])
    assert await run(url, Family(parents), parents, job) == [0]


async def test_failed_child_fails_its_parent(url: str, parents: Queue, children: Queue) -> None:
    job = await parents.add("sum", [1, "bad"], attempts=3)
    (error,) = await run(url, Family(children), parents, job)
    assert isinstance(error, JobFailedError)
    assert (error.failed_type, "bad child" in error.failed_reason) == ("ChildFailedError", True)
    reason = FailureReason.CHILD_FAILED
    assert [each.reason async for each in parents.iter_failures(reason=reason)] == [reason]
    assert (await parents.get_failure_stats()).by_reason[reason] == 1


@pytest.mark.parametrize("policy", ["ignore", "remove"])
async def test_failed_child_is_ignored_by_policy(url: str, parents: Queue, children: Queue, policy: str) -> None:
    job = await parents.add("sum", [1, "bad", 2])
    assert await run(url, Family(children, on_failure=policy), parents, job) == [3]
    failures = await job.get_children_failures()
    assert list(failures.values()) == (["bad child"] if policy == "ignore" else [])


@pytest.mark.parametrize("how", ["expire", "revoke", "remove", "drain"])
async def test_parent_gets_every_child_outcome(url: str, parents: Queue, children: Queue, how: str) -> None:
    """W43."""
    job = await parents.add("wait")

    async def handle(job: Job) -> None:
        options: dict[str, Any] = {"delay": 20, "ttl": 10} if how == "expire" else {"delay": 60_000}
        await children.add("child", parent=job, job_id="c", **options)
        await job.move_to_waiting_children()

    async with Worker(parents.name, handle, url) as worker:
        await EventRecorder(worker).wait("waiting-children")
        if how == "revoke":
            await children.revoke("c")
        elif how == "remove":
            await children.remove("c")
        elif how == "drain":
            await children.drain(delayed=True)
        async with Worker(children.name, handle, url):
            with pytest.raises(JobFailedError, match="child"):
                await job.wait_until_finished()


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
) -> None:
    """W43: it is found by looking after parents that have waited for long."""

    async def handle(job: Job) -> Any:
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
    assert parents._link is not None
    owed = asyncio.Event()
    watch = WaitingParentsTask(link=parents._link, outbox_pending=owed.set, age=0)
    assert not await watch.run_once()
    if end is None:
        with pytest.raises(JobFailedError, match="child"):
            await job.wait_until_finished()
    else:
        assert await job.wait_until_finished() == end
    for worker in workers:
        await worker.close()
    assert not await watch.run_once()  # it pauses


async def test_parent_fails_when_the_queue_of_its_children_is_obliterated(url: str, parents: Queue) -> None:
    async def handle(job: Job) -> None:
        await others.add("child", parent=job)
        await job.move_to_waiting_children()

    async with Queue(f"{parents.name}-c", url) as others, Worker(parents.name, handle, url) as worker:
        job = await parents.add("wait")
        await EventRecorder(worker).wait("waiting-children")
        while await job.get_state() is not JobState.WAITING_CHILDREN:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await others.obliterate()
        assert parents._link is not None
        await WaitingParentsTask(link=parents._link, outbox_pending=lambda: None, age=0).run_once()
        with pytest.raises(JobFailedError, match="it is gone"):
            await job.wait_until_finished()


async def test_child_fails_while_its_parent_is_active(url: str, parents: Queue, children: Queue) -> None:
    raised: list[BaseException] = []

    async def handle(job: Job) -> None:
        if job.name == "child":
            raise ValueError("at once")
        child = await children.add("child", parent=job)
        with pytest.raises(JobFailedError):
            await child.wait_until_finished()
        while not await job.get_open_children():
            break
        for _ in range(500):
            try:
                await job.move_to_waiting_children()
            except ChildFailedError as error:
                raised.append(error)
                raise

    workers = [Worker(name, handle, url, concurrency=2) for name in {parents.name, children.name}]
    for worker in workers:
        await worker.start()
    job = await parents.add("wait")
    with pytest.raises(JobFailedError, match="at once") as failed:
        await job.wait_until_finished()
    assert failed.value.failed_type == "ChildFailedError"
    for worker in workers:
        await worker.close()


async def test_add_bulk_with_parents(url: str, parents: Queue, children: Queue) -> None:
    async def handle(job: Job) -> Any:
        if job.name == "child":
            return job.data
        if job.data != {"step": "add up"}:
            await children.add_bulk([("child", i, {"parent": job}) for i in range(700)])
            await job.move_to_waiting_children(next_step="add up")
        return sum((await job.get_children_values()).values())

    workers = [Worker(name, handle, url, concurrency=50) for name in dict.fromkeys((parents.name, children.name))]
    for worker in workers:
        await worker.start()
    job = await parents.add("sum", {})
    assert await job.wait_until_finished() == sum(range(700))
    for worker in workers:
        await worker.close()


async def test_invalid_parents_are_rejected(url: str, parents: Queue, children: Queue) -> None:
    with pytest.raises(JobNotFoundError):
        await children.add("child", parent=(parents.name, "nobody"))
    done = await parents.add("done")
    async with Worker(parents.name, Family(children), url):
        with pytest.raises(JobFailedError):
            await done.wait_until_finished()
    with pytest.raises(JobStateError):
        await children.add("child", parent=done)
    if children is parents:
        with pytest.raises(BulkAddError) as bulk:
            await children.add_bulk([("fine",), ("child", 1, {"parent": done})])
        assert isinstance(bulk.value.results[1], JobStateError)
    else:
        with pytest.raises(JobStateError):
            await children.add_bulk([("fine",), ("child", 1, {"parent": done})])


async def test_invalid_options_are_rejected(parents: Queue) -> None:
    job = await parents.add("n")
    for options in (
        {"parent": 3}, {"parent": {"queue": "q"}}, {"parent": ("q", "007")}, {"parent": (":", "x")},
        {"on_failure": "explode"}, {"parent": job, "deduplication": {"id": "x"}},
    ):  # fmt: skip
        with pytest.raises(GlideMQValidationError):
            await parents.add("n", **options)
    with pytest.raises(UnsupportedOptionError):
        await parents.add("n", parents=[job])  # type: ignore[call-arg]
    with pytest.raises(GlideMQValidationError):
        Queue("q", default_job_options={"parent": ("q", "1")})


async def test_parent_keeps_its_priority(url: str, parents: Queue, resp: RespClient) -> None:
    """W51, for one that has begun."""
    order: list[str] = []

    async def handle(job: Job) -> None:
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


async def test_retry_of_a_child_and_its_parent(url: str, parents: Queue, children: Queue) -> None:
    healthy = asyncio.Event()

    async def handle(job: Job) -> Any:
        if job.name == "child":
            if not healthy.is_set():
                raise ValueError("ill")
            return 7
        await children.add("child", parent=job, job_id="c")
        await job.move_to_waiting_children()
        return await job.get_children_values()

    workers = [Worker(name, handle, url, concurrency=2) for name in dict.fromkeys((parents.name, children.name))]
    for worker in workers:
        await worker.start()
    job = await parents.add("parent")
    with pytest.raises(JobFailedError, match="ill"):
        await job.wait_until_finished()
    healthy.set()
    child = await children.get_job("c")
    assert child is not None
    await child.retry()
    assert await child.wait_until_finished() == 7
    while await job.get_open_children():  # noqa: ASYNC110  there is no event for it
        await asyncio.sleep(0.01)
    await job.retry()
    assert list((await job.wait_until_finished()).values()) == [7]
    for worker in workers:
        await worker.close()


async def test_waiting_parent_can_be_revoked_and_removed(url: str, parents: Queue) -> None:
    async def handle(job: Job) -> None:
        await parents.add("child", parent=job, delay=60_000)
        await job.move_to_waiting_children()

    async with Worker(parents.name, handle, url) as worker:
        recorded = EventRecorder(worker)
        first, second = await parents.add("parent"), await parents.add("parent")
        await recorded.wait("waiting-children", 2)
        assert (await parents.get_job_counts()).waiting_children == 2
        assert {job.id async for job in parents.iter_jobs("waiting-children")} == {first.id, second.id}
        assert await parents.revoke(first.id) == "revoked"
        assert await first.get_state() is JobState.FAILED
        assert await second.remove()
    assert (await parents.get_job_counts()).waiting_children == 0
    await parents.drain(delayed=True)
