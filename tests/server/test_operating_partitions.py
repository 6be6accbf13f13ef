"""Partitioned queues in lists, commands, and on the pages of the dashboard: one queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from glidemq_py import Job, Queue, Worker, list_queues, sync
from glidemq_py.testing import RespClient
from tests.inside import partition_names, partition_of
from tests.operating import (
    Access,
    DrainQueue,
    JobFilter,
    Layouts,
    ManyAction,
    Operator,
    by_partition,
)

PARTITIONS = 3
JOBS = 60


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    """Yield a queue of three partitions with 60 waiting and 30 delayed jobs."""
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        for _ in range(PARTITIONS):  # one partition per bulk
            await queue.add_bulk([("mail", {"n": n}) for n in range(JOBS // PARTITIONS)])
            await queue.add_bulk([("late", {"n": n}, {"delay": 3_600_000}) for n in range(10)])
        yield queue


async def fail_all(url: str, name: str, jobs: int):
    async def handler(_: Job):
        raise ValueError("no such user")

    ended = asyncio.Semaphore(0)
    worker = Worker(name, handler, url, concurrency=10, log_failures=False)
    worker.on("failed", lambda *_: ended.release())
    async with worker, asyncio.timeout(100):
        for _ in range(jobs):
            await ended.acquire()


def partitions_of(ids: list[str]) -> set[int]:
    return {partition_of(job_id) for job_id in ids}


def test_ids_are_divided_by_partition():
    assert by_partition(["5", "1||5", "7||5"], 3) == {0: [("5", "5")], 1: [("5", "1||5")]}
    assert by_partition(["5", "1||5"], 1) == {0: [("5", "5"), ("1||5", "1||5")]}


async def test_lists_name_the_whole_queue(url: str, resp: RespClient, queue: Queue):
    name, others = queue.name, set(partition_names(queue.name, PARTITIONS)[1:])
    alone = f"{name}-plain~p~0abc"
    async with Queue(alone, url) as plain, Operator(url) as operator:
        await plain.add("a")
        for listed in (
            await list_queues(url), await asyncio.to_thread(sync.list_queues, url), await operator.list_queues(),
        ):  # fmt: skip
            assert name in listed
            assert alone in listed, "a name alone does not make a queue a partition"
            assert not others & set(listed)
        for key in resp.execute("KEYS", "glide:queues:*"):
            resp.execute("SREM", key, name)
        assert name in await list_queues(url), "the list names a partition only"


async def test_a_damaged_layout_hides_no_queue(url: str, resp: RespClient, queue: Queue):
    parts = partition_names(queue.name, PARTITIONS)
    resp.execute("HSET", f"glide:{{{queue.name}}}:meta", "partitions", "{")
    assert set(parts[1:]) <= set(await list_queues(url))
    async with Operator(url) as operator:
        assert (await operator.get_queue(queue.name)).partitions == 1


async def test_counts_are_those_of_all_partitions(url: str, queue: Queue):
    running, released = asyncio.Semaphore(0), asyncio.Event()

    async def handler(_: Job):
        running.release()
        await released.wait()

    async with Operator(url) as operator, Worker(queue.name, handler, url, concurrency=6):
        try:
            for _ in range(6):
                await running.acquire()
            found = await operator.get_queue(queue.name)
            assert (found.name, found.partitions, found.workers) == (queue.name, PARTITIONS, 1)
            assert (found.waiting, found.active, found.delayed) == (JOBS - 6, 6, 30)
            assert found.oldest_waiting > 0
            details = await operator.get_queue_details(queue.name)
            assert details.queue.unfinished == found.unfinished
            assert await operator.get_queues([queue.name]) != []
        finally:
            released.set()


async def test_pages_cover_all_partitions(url: str, queue: Queue):
    async with Operator(url) as operator:
        seen: list[str] = []
        cursor = ""
        while True:
            page = await operator.get_jobs(queue.name, JobFilter(state="waiting"), cursor=cursor, count=7)
            seen += [job.id for job in page.jobs]
            assert {job.queue for job in page.jobs} <= {queue.name}
            cursor = page.cursor
            if not cursor:
                break
        assert len(seen) == len(set(seen)) == JOBS
        assert partitions_of(seen) == {0, 1, 2}
        named = [job.id async for job in operator.iter_jobs(queue.name, JobFilter(name="late", data={"n": 3}))]
        assert partitions_of(named) == {0, 1, 2}
        assert len(named) == 3
        for job_id in named:
            details = await operator.get_job(queue.name, job_id)
            assert details is not None
            assert (details.job.id, details.data) == (job_id, {"n": 3})
            flow = await operator.get_flow(queue.name, job_id)
            assert flow is not None
            assert (flow.id, flow.name, flow.state, flow.children) == (job_id, "late", "delayed", ())
        assert await operator.get_flow(queue.name, "2||999") is None


async def test_groups_and_schedules_of_all_partitions(url: str, queue: Queue):
    keys = [f"user-{n}" for n in range(12)]
    for key in keys:
        await queue.add_bulk([("a", {}, {"ordering": {"key": key}}) for _ in range(2)])
    names = [f"s{n}" for n in range(6)]
    for name in names:
        await queue.schedulers.upsert(name, every=3_600_000, template={"name": "tick"}, immediately=True)
    async with Operator(url) as operator:
        found: dict[str, int] = {}
        cursor = ""
        while True:
            page = await operator.get_groups(queue.name, cursor=cursor)
            found |= {each.key: each.waiting for each in page.groups}
            cursor = page.cursor
            if not cursor:
                break
        assert set(found) <= set(keys)
        await fail_all(url, queue.name, JOBS + 24 + 6)
        schedules = await operator.get_schedules(queue.name)
        assert [each.name for each in schedules] == names
        assert {each.last_runs[0].state for each in schedules} == {"failed"}
        one = await operator.get_schedule(queue.name, "s3")
        assert one is not None
        assert one.last_runs == schedules[3].last_runs


async def test_an_interrupted_change_continues_in_its_partition(url: str, queue: Queue):
    async with Operator(url) as operator:
        for change, total in ((DrainQueue(queue=queue.name, delayed=True), JOBS + 30),):
            done, position, steps = 0, "", 0
            while True:
                step = await _first_step(operator, queue, change, position)
                done, position, steps = done + step[0], step[1], steps + 1
                if not position:
                    break
            assert done == total
            assert steps >= PARTITIONS
        assert (await operator.get_queue(queue.name)).unfinished == 0


async def _first_step(operator: Operator, queue: Queue, change: ManyAction, position: str) -> tuple[int, str]:
    steps = change.steps(operator, queue, position)
    try:
        step = await anext(steps)
        return step.done, step.position
    finally:
        await steps.aclose()


async def test_a_layout_is_read_once_a_minute(url: str, queue: Queue):
    async with Operator(url) as operator:
        transport = await operator.transport()
        layouts = Layouts("glide")
        found = await layouts.names(transport, queue.name)
        assert found == partition_names(queue.name, PARTITIONS)
        await queue.obliterate(force=True)
        assert await layouts.names(transport, queue.name) == found
        assert await Layouts("glide").names(transport, queue.name) == (queue.name,)
        assert await layouts.whole(transport, [queue.name]) == [queue.name]
        assert await layouts.names(transport, queue.name) == (queue.name,)


async def test_access_to_the_name_is_access_to_its_partitions(url: str, queue: Queue):
    async with Operator(url, access=Access(queues=[queue.name])) as operator:
        assert await operator.list_queues() == [queue.name]
        assert (await operator.get_jobs(queue.name)).jobs
