"""Jobs that are added with `depends_on`: in one queue and across queues, in a bulk, with each policy."""

import asyncio
from typing import Any

import pytest

from glidemq_py import (
    Dependency,
    Job,
    JobNotFoundError,
    JobRef,
    JobState,
    JobStateError,
    UnrecoverableError,
    Worker,
)
from tests.conftest import same_or_other
from tests.contract.api import Queue, own_id
from tests.server.worker_support import PATIENCE, EventRecorder, Gate, WorkerFor, with_timeout

pytestmark = pytest.mark.usefixtures("clean_check")


earlier = same_or_other
"""The queue of the dependencies: the waiting job's own, or another one."""


class Handler:
    """Records the names of jobs; fails those whose data is "fail" until `healthy`."""

    def __init__(self):
        self.ran: list[str] = []
        self.healthy = False

    async def __call__(self, job: Job):
        self.ran.append(job.name)
        if job.data == "fail" and not self.healthy:
            raise UnrecoverableError("broken")
        return f"{job.name}!"


async def state_of(queue: Queue, job: Job) -> str:
    found = await queue.get_job(job.id)
    assert found is not None
    return str(await found.get_state())


async def test_job_runs_after_its_dependencies(worker_for: WorkerFor, url: Any, queue: Queue, earlier: Queue):
    first, second = await earlier.add("first"), await earlier.add("second")
    last = await queue.add("last", depends_on=[first, JobRef(earlier.name, second.id)])
    assert await state_of(queue, last) == JobState.WAITING_CHILDREN
    assert {each.id for each in await last.get_dependencies("open")} == {first.id, second.id}
    assert await last.get_dependencies("settled") == []
    run = Handler()
    async with Worker(earlier.name, run, url, concurrency=1), worker_for(run, concurrency=1):
        await with_timeout(last.wait_until_finished())
    assert run.ran == ["first", "second", "last"]
    assert await last.get_dependencies("open") == []
    assert sorted(await last.get_dependencies()) == sorted(
        Dependency(earlier.name, each.id, "completed", False, None) for each in (first, second)
    )
    assert set((await last.get_children_values()).values()) == {"first!", "second!"}


async def test_failed_dependency_keeps_the_job_waiting_until_a_retry(
    worker_for: WorkerFor, url: Any, queue: Queue, earlier: Queue
):
    first = await earlier.add("first", "fail")
    last = await queue.add("last", depends_on=[first])
    run = Handler()
    worker = Worker(earlier.name, run, url)
    events = EventRecorder(worker)
    async with worker, worker_for(run):
        await with_timeout(events.wait("failed"))
        async with asyncio.timeout(PATIENCE):
            while not (found := await last.get_dependencies())[0].failed_reason:  # noqa: ASYNC110  no event
                await asyncio.sleep(0.01)
        assert found == [Dependency(earlier.name, first.id, "failed", True, "broken")]
        assert await state_of(queue, last) == JobState.WAITING_CHILDREN
        run.healthy = True
        failed = await earlier.get_job(first.id)
        assert failed is not None
        await failed.retry()
        assert await with_timeout(last.wait_until_finished()) == "last!"
    assert run.ran == ["first", "first", "last"]
    assert await last.get_dependencies() == [Dependency(earlier.name, first.id, "completed", False, None)]


@pytest.mark.parametrize(
    ("policy", "ends"),
    [("fail", {"failed"}), ("ignore", {"waiting", "completed"}), ("remove", {"waiting", "completed"})],
)
async def test_policy_for_a_failed_dependency(url: Any, queue: Queue, policy: Any, ends: set[str], earlier: Queue):
    first = await earlier.add("first", "fail")
    after = await queue.add("after", depends_on=[first], on_dependency_failure=policy)
    worker = Worker(earlier.name, Handler(), url)
    events = EventRecorder(worker)
    async with worker:
        await with_timeout(events.wait("failed"))
        async with asyncio.timeout(PATIENCE):
            while await state_of(queue, after) == JobState.WAITING_CHILDREN:  # noqa: ASYNC110  no event
                await asyncio.sleep(0.01)
    late = await queue.add("late", depends_on=[first], on_dependency_failure=policy)
    for job in (after, late):
        assert await state_of(queue, job) in ends
        found = await job.get_dependencies()
        expected = [] if policy == "remove" else [Dependency(earlier.name, first.id, "failed", False, "broken")]
        assert found == expected
        if policy == "fail":
            failed = await queue.get_job(job.id)
            assert failed is not None
            assert (failed.failed_reason or "").startswith("dependency glide:{"), failed.failed_reason
            assert (failed.failed_reason or "").endswith(f":{own_id(first)} failed: broken")
            assert (await queue.failures.get_all(reason="child_failed", name=job.name))[0].job_id == job.id


async def test_remove_dependency_releases_the_job_once(worker_for: WorkerFor, url: Any, queue: Queue, earlier: Queue):
    first, second = await earlier.add("first"), await earlier.add("second")
    last = await queue.add("last", depends_on=[first, second])
    assert await last.remove_dependency(first)
    assert await state_of(queue, last) == JobState.WAITING_CHILDREN
    assert not await last.remove_dependency((earlier.name, first.id))
    assert await last.remove_dependency(JobRef(earlier.name, second.id))
    assert await state_of(queue, last) == JobState.WAITING
    with pytest.raises(JobStateError, match="no dependency 'x'"):
        await last.remove_dependency("x")
    run = Handler()
    async with Worker(earlier.name, run, url, concurrency=1), worker_for(run, concurrency=1):
        for job in (first, second, last):
            await with_timeout(job.wait_until_finished())
    assert sorted(run.ran) == ["first", "last", "second"]
    await last.remove()
    with pytest.raises(JobNotFoundError):
        await last.remove_dependency(first)


async def test_bulk_in_any_order(worker_for: WorkerFor, queue: Queue):
    last, middle, first, free = await queue.add_bulk(
        [
            ("last", None, {"depends_on": ["middle", "first"], "job_id": "last"}),
            ("middle", None, {"depends_on": [(queue.name, "first")], "job_id": "middle"}),
            ("first", None, {"job_id": "first"}),
            ("free", None),
        ]
    )
    assert [job.name for job in (last, middle, first, free)] == ["last", "middle", "first", "free"]
    assert (own_id(last), own_id(middle)) == ("last", "middle")
    run = Handler()
    async with worker_for(run, concurrency=4):
        await with_timeout(last.wait_until_finished())
    assert [name for name in run.ran if name != "free"] == ["first", "middle", "last"]


async def test_many_jobs_wait_for_one(
    queue: Queue,
    worker_for: WorkerFor,
):
    first = await queue.add("first")
    added = await queue.add_bulk([("w", None, {"depends_on": [first.id]}) for _ in range(300)])
    assert len(await first.get_parents()) == 300
    run = Handler()
    async with worker_for(run, concurrency=50):
        for job in added:
            await with_timeout(job.wait_until_finished())
    assert run.ran == ["first", *["w"] * 300]


async def test_replacing_job_waits_for_its_dependencies_and_for_the_started_job(worker_for: WorkerFor, queue: Queue):
    gate = Gate()
    once: Any = {"deduplication": {"id": "report", "replace": True}}
    started = await queue.add("report", 1, **once)
    async with worker_for(gate, concurrency=1):
        await gate.next()
        first = await queue.add("first")
        later = await queue.add("report", 2, depends_on=[first.id], **once)
        assert {each.id for each in await later.get_dependencies("open")} == {started.id, first.id}
        gate.open()
        assert await with_timeout(later.wait_until_finished()) == 2
    assert [job.name for job in gate.begun] == ["report", "first", "report"]
