"""Children that are added with `parent=`, in the parent's queue and in others: waiting for them, their results, and the
effect of their failures.
"""

import asyncio
from typing import Any

import pytest

from glidemq_py import (
    BulkAddError,
    FailureReason,
    GlideMQValidationError,
    Job,
    JobFailedError,
    JobNotFoundError,
    JobOutcome,
    JobRef,
    JobState,
    JobStateError,
    Worker,
)
from glidemq_py.errors import ChildFailedError
from tests.conftest import same_or_other
from tests.contract.api import Queue
from tests.server.worker_support import PATIENCE, EventRecorder, with_timeout

pytestmark = pytest.mark.usefixtures("clean_check")


@pytest.fixture
def parents(queue: Queue) -> Queue:
    return queue


children = same_or_other
"""The queue of the children: the parents' own, or another one."""


class Family:
    """Handles parents and children alike: a child returns its data or fails, a parent waits and adds up."""

    def __init__(self, children: Queue, **options: Any):
        self.children = children
        self.options = options
        self.calls: list[str] = []

    async def __call__(self, job: Job):
        self.calls.append(job.name)
        if job.name == "child":
            if job.data == "bad":
                raise ValueError("bad child")
            return job.data
        is_again = self.calls.count(job.name) > 1 and "remove_on_complete" in self.options  # they may be gone
        for i, part in enumerate([] if is_again else job.data):
            await self.children.add("child", part, parent=job, job_id=f"{job.id_prefix}-{i}", **self.options)
        await job.move_to_waiting_children()
        return sum((await job.get_children_values()).values())


async def run(url: Any, family: Family, parents: Queue, *jobs: Job) -> list[Any]:
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


async def test_handler_waits_for_its_children(url: Any, parents: Queue, children: Queue):
    family = Family(children)
    job = await parents.add("sum", [1, 2, 3, 4])
    assert await run(url, family, parents, job) == [10]
    assert family.calls.count("child") == 4
    assert family.calls.count("sum") <= 2  # once, if the children are faster
    read = await parents.get_job(job.id)
    assert read is not None
    assert read.attempts_made == 0
    assert sorted((await read.get_children_values()).values()) == [1, 2, 3, 4]
    child = await children.get_job(f"{job.id_prefix}-0")
    assert child is not None
    assert await child.get_parents() == [JobRef(parents.name, job.id)]


async def test_results_outlive_the_children(url: Any, parents: Queue, children: Queue):
    family = Family(children, remove_on_complete=True)
    job = await parents.add("sum", [5, 6])
    assert await run(url, family, parents, job) == [11]
    assert await children.get_job(f"{job.id_prefix}-0") is None
    assert list((await job.get_children_values()).values()) == [5, 6]


async def test_waiting_without_children_continues(url: Any, parents: Queue):
    """W48."""
    job = await parents.add("sum", [])
    assert await run(url, Family(parents), parents, job) == [0]


async def test_failed_child_fails_its_parent(url: Any, parents: Queue, children: Queue):
    job = await parents.add("sum", [1, "bad"], attempts=3)
    (error,) = await run(url, Family(children), parents, job)
    assert isinstance(error, JobFailedError)
    assert (error.failed_type, "bad child" in error.failed_reason) == ("ChildFailedError", True)
    reason = FailureReason.CHILD_FAILED
    assert [each.reason async for each in parents.failures.iter(reason=reason)] == [reason]
    assert (await parents.failures.get_stats()).by_reason[reason] == 1


@pytest.mark.parametrize("policy", ["ignore", "remove"])
async def test_failed_child_is_ignored_by_policy(url: Any, parents: Queue, children: Queue, policy: str):
    job = await parents.add("sum", [1, "bad", 2])
    assert await run(url, Family(children, on_failure=policy), parents, job) == [3]
    failures = await job.get_children_failures()
    assert list(failures.values()) == (["bad child"] if policy == "ignore" else [])


@pytest.mark.parametrize("how", ["expire", "revoke", "remove", "drain"])
async def test_parent_gets_every_child_outcome(url: Any, parents: Queue, children: Queue, how: str):
    """W43."""
    job = await parents.add("wait")

    async def handle(job: Job):
        options: Any = {"delay": 20, "ttl": 10} if how == "expire" else {"delay": 60_000}
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


"""A child ends as with a Node worker whose library does not notify parents of failures (in a cluster: of any
outcome).
"""


async def test_child_fails_while_its_parent_is_active(url: Any, parents: Queue, children: Queue):
    raised: list[BaseException] = []

    async def handle(job: Job):
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


async def test_add_bulk_with_parents(url: Any, parents: Queue, children: Queue):
    async def handle(job: Job):
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


async def remove(queue: Queue, root: Job):
    await root.remove()


async def drain(queue: Queue, root: Job):
    await queue.drain()


async def obliterate(queue: Queue, root: Job):
    await queue.obliterate(force=True)


async def complete(queue: Queue, root: Job):
    await queue.leases.complete([(lease, None) for lease in await queue.fetch()])


async def complete_and_clean(queue: Queue, root: Job):
    await complete(queue, root)
    assert await queue.clean(0, state="completed") == [root.id]


async def fail(queue: Queue, root: Job):
    await queue.leases.fail([(lease, "x") for lease in await queue.fetch()], retry=False)


async def revoke(queue: Queue, root: Job):
    await queue.revoke(root.id)


async def expire(queue: Queue, root: Job):
    while await queue.get_job(root.id) is not None:
        for lease in await queue.fetch():  # not yet
            await lease.release()


@pytest.mark.parametrize(
    ("end", "options"),
    [
        (remove, {}),
        (drain, {}),
        (obliterate, {}),
        (complete, {"remove_on_complete": True}),
        (complete_and_clean, {}),
        (fail, {"remove_on_fail": True}),
        (revoke, {"remove_on_fail": True}),
        (expire, {"remove_on_fail": True, "ttl": 1}),
    ],
)
async def test_child_of_a_parent_that_is_gone_does_not_count_for_the_next_with_its_id(
    url: Any, queue_name: str, end: Any, options: Any
):
    async with Queue(queue_name, url) as parents, Queue(f"{queue_name}-c", url) as children:
        old = await parents.add("root", job_id="night", **options)
        await children.add("child", "old", parent=old)
        leases = await children.fetch()
        await end(parents, old)
        family = Family(children)
        new = await parents.add("root", [7], job_id="night")
        assert new.outcome is JobOutcome.ADDED
        await children.leases.fail([(lease, "old") for lease in leases], retry=False)
        assert await run(url, family, parents, new) == [7]


@pytest.mark.parametrize(
    "levels",
    [
        1,
        pytest.param(
            2, marks=pytest.mark.exclude("partitioned", reason="a partition cannot read the jobs of another one")
        ),
    ],
)
async def test_child_never_waits_for_the_turn_of_a_job_above_it(parents: Queue, levels: int):
    parent = await parents.add("root", ordering="k")
    for _ in range(levels - 1):
        parent = await parents.add("child", parent=parent)
    with pytest.raises(GlideMQValidationError, match=f"'parent' = '{parent.id}': a job with its ordering key waits"):
        await parents.add("child", parent=parent, ordering="k")
    with pytest.raises(BulkAddError) as error:
        await parents.add_bulk([("a", 1, {"parent": parent, "ordering": "k"}), ("b", 2, {"parent": parent})])
    rejected, added = error.value.results
    assert isinstance(rejected, GlideMQValidationError)
    assert isinstance(added, Job)
    await parents.add("child", parent=parent, ordering="another")
    await parents.add("child", parent=parent, ordering={"key": "k", "concurrency": 2})


async def test_invalid_parents_are_rejected(url: Any, parents: Queue, children: Queue):
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


async def test_invalid_options_are_rejected(parents: Queue):
    job = await parents.add("n")
    for options in (
        {"parent": 3}, {"parent": {"queue": "q"}}, {"parent": ("q", "007")}, {"parent": (":", "x")},
        {"on_failure": "explode"}, {"parent": job, "deduplication": {"id": "x"}},
    ):  # fmt: skip
        with pytest.raises(GlideMQValidationError):
            await parents.add("n", **options)
    with pytest.raises(GlideMQValidationError):
        await parents.add("n", parents=[job])  # type: ignore[call-arg]
    with pytest.raises(GlideMQValidationError):
        Queue("q", default_job_options={"parent": ("q", "1")})


async def test_retry_of_a_child_and_its_parent(url: Any, parents: Queue, children: Queue):
    healthy = asyncio.Event()

    async def handle(job: Job):
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


async def test_waiting_parent_can_be_revoked_and_removed(url: Any, parents: Queue):
    async def handle(job: Job):
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
