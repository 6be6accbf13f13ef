"""`Operator`: pages of jobs while the queue changes, and access."""

from __future__ import annotations

import pytest

from glidemq_py import GlideMQValidationError, Queue
from tests.operating import (
    READ_ONLY,
    Access,
    AccessDeniedError,
    DrainQueue,
    JobFilter,
    Operator,
    PauseQueue,
    RemoveJobs,
    count,
    perform,
)


async def test_pages_neither_skip_nor_repeat_jobs(queue: Queue, url: str, queue_name: str):
    async with Operator(url) as operator:
        await queue.add_bulk([("kept", {"n": n}) for n in range(50)])
        await queue.add_bulk([("late", {}, {"delay": 3_600_000}) for _ in range(20)])
        seen: list[str] = []
        cursor = ""
        while True:
            page = await operator.get_jobs(queue_name, cursor=cursor, count=7)
            seen += [job.id for job in page.jobs]
            cursor = page.cursor
            if not cursor:
                break
            # Jobs that were on a page leave, and others arrive behind and in other states.
            await queue.remove(page.jobs[0].id)
            await queue.add("new", {}, delay=7_200_000)
        assert len(seen) == len(set(seen))
        assert {str(number) for number in range(1, 71)} <= set(seen)


async def test_a_queue_of_jobs_with_chosen_ids_exists(queue: Queue, url: str, queue_name: str):
    async with Operator(url) as operator:
        assert not await operator.queue_exists(queue_name)
        await queue.add("order", {}, job_id="order-1")
        assert await operator.queue_exists(queue_name)


async def test_a_filter_finds_rare_jobs_in_bounded_pages(queue: Queue, url: str, queue_name: str):
    async with Operator(url) as operator:
        await queue.add_bulk([("common", {}) for _ in range(5_500)])
        rare = await queue.add("rare", {"tenant": "acme"})
        wanted = JobFilter(state="waiting", name="rare", data={"tenant": "acme"})
        first = await operator.get_jobs(queue_name, wanted, count=10)
        assert first.jobs == ()
        second = await operator.get_jobs(queue_name, wanted, count=10, cursor=first.cursor)
        assert [job.id for job in second.jobs] == [rare.id]
        assert second.cursor == ""
        assert [job.id async for job in operator.iter_jobs(queue_name, wanted)] == [rare.id]


@pytest.mark.parametrize("cursor", ["x", "7:", "99:1", "-1:0", ":"])
async def test_a_cursor_of_another_filter_is_rejected(url: str, queue_name: str, cursor: str):
    async with Operator(url) as operator:
        with pytest.raises(GlideMQValidationError, match="must be the cursor of a page with the same filter"):
            await operator.get_jobs(queue_name, JobFilter(state="failed"), cursor=cursor)


async def test_access_limits_what_is_read_and_changed(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.add("a", {})
    async with Operator(url, access=READ_ONLY) as operator:
        assert (await operator.get_queue(queue_name)).waiting == 1
        assert await count(operator, DrainQueue(queue=queue_name)) == 1
        with pytest.raises(AccessDeniedError, match="no permission for 'drain_queue'"):
            await perform(operator, DrainQueue(queue=queue_name))
    async with Operator(url, access=Access(queues=["other-*"])) as operator:
        assert await operator.get_queues([queue_name]) == []
        for read in (operator.get_queue(queue_name), operator.get_jobs(queue_name), operator.get_flow(queue_name, "1")):
            with pytest.raises(AccessDeniedError, match="no permission to read it"):
                await read
        with pytest.raises(AccessDeniedError):
            await perform(operator, PauseQueue(queue=queue_name))
    async with Operator(url, access=Access(actions={"remove_jobs"})) as operator:
        with pytest.raises(AccessDeniedError):
            await perform(operator, PauseQueue(queue=queue_name))
        result = await perform(operator, RemoveJobs(queue=queue_name, wanted=JobFilter(name="a")))
        assert (result.done, result.ids, result.problems) == (1, ("1",), ())
