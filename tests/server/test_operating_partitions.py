"""Partitioned queues in lists, commands, and on the pages of the dashboard: one queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import Job, Queue, Worker, list_queues, sync
from glidemq_py._features.partitions.layout import partition_home, partition_names, split_partition_id
from glidemq_py._operate.access import Access
from glidemq_py._operate.actions import (
    CancelJobs,
    DrainQueue,
    JobsAction,
    ManyAction,
    PromoteJobs,
    PurgeFailures,
    RemoveJobs,
    RetryFailures,
    RetryJobs,
    count,
    perform,
)
from glidemq_py._operate.operating import JobFilter, Operator
from glidemq_py._operate.partitions import Layouts, by_partition
from glidemq_py.testing import RespClient
from tests.server.cli_support import Shell

PARTITIONS = 3
JOBS = 60


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue[Any, Any]]:
    """Yield a queue of three partitions with 60 waiting and 30 delayed jobs."""
    async with Queue[Any, Any](queue_name, url, partitions=PARTITIONS) as queue:
        for _ in range(PARTITIONS):  # one partition per bulk
            await queue.add_bulk([("mail", {"n": n}) for n in range(JOBS // PARTITIONS)])
            await queue.add_bulk([("late", {"n": n}, {"delay": 3_600_000}) for n in range(10)])
        yield queue


async def fail_all(url: str, name: str, jobs: int) -> None:
    async def handler(_: Job) -> None:
        raise ValueError("no such user")

    ended = asyncio.Semaphore(0)
    worker = Worker(name, handler, url, concurrency=10, log_failures=False)
    worker.on("failed", lambda *_: ended.release())
    async with worker, asyncio.timeout(100):
        for _ in range(jobs):
            await ended.acquire()


def partitions_of(ids: list[str]) -> set[int]:
    return {split_partition_id(job_id)[0] for job_id in ids}


def test_names_of_partitions() -> None:
    assert {partition_home(name) for name in partition_names("mail", 8)[1:]} == {"mail"}
    assert [partition_home(name) for name in ("mail", "~p~0abc", "mail~p~0ab", "mail~p~0abcd")] == [None] * 4
    assert by_partition(["5", "1||5", "7||5"], 3) == {0: [("5", "5")], 1: [("5", "1||5")]}
    assert by_partition(["5", "1||5"], 1) == {0: [("5", "5"), ("1||5", "1||5")]}


async def test_lists_name_the_whole_queue(url: str, resp: RespClient, queue: Queue[Any, Any]) -> None:
    name, others = queue.name, set(partition_names(queue.name, PARTITIONS)[1:])
    alone = f"{name}-plain~p~0abc"
    async with Queue[Any, Any](alone, url) as plain, Operator(url) as operator:
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


async def test_a_damaged_layout_hides_no_queue(url: str, resp: RespClient, queue: Queue[Any, Any]) -> None:
    parts = partition_names(queue.name, PARTITIONS)
    resp.execute("HSET", f"glide:{{{queue.name}}}:meta", "partitions", "{")
    assert set(parts[1:]) <= set(await list_queues(url))
    async with Operator(url) as operator:
        assert (await operator.get_queue(queue.name)).partitions == 1


async def test_counts_are_those_of_all_partitions(url: str, queue: Queue[Any, Any]) -> None:
    running, released = asyncio.Semaphore(0), asyncio.Event()

    async def handler(_: Job) -> None:
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


async def test_pages_cover_all_partitions(url: str, queue: Queue[Any, Any]) -> None:
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


async def test_groups_and_schedules_of_all_partitions(url: str, queue: Queue[Any, Any]) -> None:
    keys = [f"user-{n}" for n in range(12)]
    for key in keys:
        await queue.add_bulk([("a", {}, {"ordering": {"key": key}}) for _ in range(2)])
    names = [f"s{n}" for n in range(6)]
    for name in names:
        await queue.upsert_job_scheduler(name, every=3_600_000, template={"name": "tick"}, immediately=True)
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


@pytest.mark.parametrize(
    ("action", "state", "number"),
    [
        (CancelJobs, "delayed", 30), (RemoveJobs, "delayed", 30), (PromoteJobs, "delayed", 30),
        (RemoveJobs, "waiting", JOBS),
    ],
)  # fmt: skip
async def test_changes_of_a_filter_reach_all_partitions(
    url: str, queue: Queue[Any, Any], action: type[JobsAction], state: str, number: int
) -> None:
    async with Operator(url) as operator:
        change = action(queue=queue.name, wanted=JobFilter(state=state))
        assert await count(operator, change) == number
        result = await perform(operator, change)
        assert (result.done, result.problems) == (number, ())
        assert getattr(await operator.get_queue(queue.name), state) == 0


@pytest.mark.parametrize("action", [CancelJobs, RemoveJobs])
async def test_ids_may_omit_the_partition(url: str, queue: Queue[Any, Any], action: type[JobsAction]) -> None:
    job = await queue.add("a", job_id="order-7", delay=3_600_000)
    async with Operator(url) as operator:
        result = await perform(operator, action(queue=queue.name, ids=("order-7", "order-8")))
        assert result.done == 1
        assert [(each.id, each.missing) for each in result.problems] == [("order-8", True)]
        found = await queue.get_job(job.id)
        assert found is None or found.state == "failed"


async def test_an_interrupted_change_continues_in_its_partition(url: str, queue: Queue[Any, Any]) -> None:
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


async def _first_step(operator: Operator, queue: Queue[Any, Any], change: ManyAction, position: str) -> tuple[int, str]:
    steps = change.steps(operator, queue, position)
    try:
        step = await anext(steps)
        return step.done, step.position
    finally:
        await steps.aclose()


async def test_failures_of_all_partitions_are_retried_and_deleted(url: str, queue: Queue[Any, Any]) -> None:
    await fail_all(url, queue.name, JOBS)
    async with Operator(url) as operator:
        ids = [each.job_id async for each in operator.iter_failures(queue.name)]
        assert partitions_of(ids) == {0, 1, 2}
        assert (await operator.get_failure_stats(queue.name)).total == JOBS
        one = await perform(operator, RetryJobs(queue=queue.name, ids=(ids[-1],)))
        assert one.ids == (ids[-1],)
        assert (await perform(operator, RetryFailures(queue=queue.name, name="mail"))).done == JOBS - 1
        await fail_all(url, queue.name, JOBS)
        assert (await perform(operator, PurgeFailures(queue=queue.name))).done == JOBS
        assert (await operator.get_queue(queue.name)).failed == 0


async def test_a_layout_is_read_once_a_minute(url: str, queue: Queue[Any, Any]) -> None:
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


async def test_access_to_the_name_is_access_to_its_partitions(url: str, queue: Queue[Any, Any]) -> None:
    async with Operator(url, access=Access(queues=[queue.name])) as operator:
        assert await operator.list_queues() == [queue.name]
        assert (await operator.get_jobs(queue.name)).jobs


@pytest.mark.slow
def test_commands_see_one_queue(
    url: str, queue_name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("typer", reason="needs the extra `cli`")
    monkeypatch.chdir(tmp_path)
    shell = Shell(url, capfd, monkeypatch)

    async def fill() -> None:
        async with Queue[Any, Any](queue_name, url, partitions=PARTITIONS) as queue:
            for _ in range(PARTITIONS):
                await queue.add_bulk([("mail", {"n": n}) for n in range(10)])
            await queue.add("a", {}, job_id="order-7", delay=3_600_000)

    asyncio.run(fill())
    (listed,) = shell("queue", "ls", "--match", f"{queue_name}*", "--json").json()
    assert (listed["name"], listed["waiting"], listed["delayed"], listed["partitions"]) == (queue_name, 30, 1, 3)
    assert "partitions" in shell("queue", "show", queue_name).out
    jobs = shell("job", "ls", queue_name, "--state", "waiting", "--json").json()["jobs"]
    assert len(jobs) == 30
    shown = shell("job", "show", queue_name, jobs[-1]["id"], "--json").json()
    assert shown["job"]["id"] == jobs[-1]["id"]
    assert shell("job", "show", queue_name, "order-7", "--json").json()["job"]["id"].endswith("||order-7")
    for arguments in (
        ("queue", "limits", queue_name, "--concurrency", "30"), ("queue", "pause", queue_name),
        ("queue", "resume", queue_name), ("queue", "check", queue_name), ("doctor", queue_name, "--json"),
        ("failures", "stats", queue_name), ("worker", "ls", queue_name), ("cron", "ls", queue_name),
        ("dlq", "ls", queue_name), ("group", "ls", queue_name), ("job", "promote", queue_name, "order-7"),
        ("job", "cancel", queue_name, "order-7", "--yes"), ("queue", "clean", queue_name, "--state", "failed", "--yes"),
        ("queue", "drain", queue_name, "--yes"),
    ):  # fmt: skip
        done = shell(*arguments)
        assert done.code in (0, 1 if arguments[0] == "doctor" else 0), (arguments, done)
    for arguments in (("batch", "ls", queue_name), ("backup", str(tmp_path / "b"), queue_name)):
        done = shell(*arguments)
        assert done.code == 0 or "partition" in done.err, (arguments, done)
    assert shell("queue", "ls", queue_name, "--json").json()[0]["waiting"] == 0
    assert shell("queue", "obliterate", queue_name, "--yes").code == 0


async def test_pages_see_one_queue(url: str, queue: Queue[Any, Any]) -> None:
    pytest.importorskip("starlette", reason="needs the extra `dashboard`")
    from glidemq_py.dashboard.pages import PAGES
    from tests.server.dashboard.support import browsing

    async with browsing(url, allow_changes=True) as client:
        listed = (await client.get("/", params={"find": queue.name})).text
        assert listed.count(f'<a href="queue?q={queue.name}">') == 1
        assert "3 partitions" in listed
        job_id = (await queue.add("a", {"user": "ann"}, job_id="order-7")).id
        for path in sorted(PAGES.keys() - {"", "bulk", "subscriptions", "worker"}):
            shown = await client.get(f"/{path}", params={"q": queue.name, "id": job_id})
            assert shown.status_code == 200, (path, shown.text)
        assert "order-7" in (await client.get("/jobs", params={"q": queue.name, "filter": "order-7"})).text
