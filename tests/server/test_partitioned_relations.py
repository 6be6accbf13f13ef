"""Jobs of a partitioned queue with parents and dependencies in any partition, on one server and on a cluster."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from glidemq_py import (
    BulkAddError,
    GlideMQValidationError,
    Job,
    JobNotFoundError,
    JobRef,
    JobState,
    JobStateError,
    Queue,
    UnrecoverableError,
    Worker,
    sync,
)
from tests.conftest import SERVER_AND_CLUSTER
from tests.server.test_partitions import id_in, keyed
from tests.server.worker_support import with_timeout

pytestmark = pytest.mark.parametrize("core_server", SERVER_AND_CLUSTER, indirect=True)

PARTITIONS = 3


class Order:
    """A handler that records the names of jobs in the order in which they run."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def __call__(self, job: Job) -> Any:
        self.names.append(job.name)
        if job.data == "fail":
            raise UnrecoverableError("broken")
        return f"{job.name}!"


async def in_each_partition(queue: Queue, **options: Any) -> list[Job]:
    """Add a job to each partition."""
    return [await queue.add(f"of-{at}", job_id=id_in(at, PARTITIONS), **options) for at in range(PARTITIONS)]


# -- dependencies ---------------------------------------------------------------------------------------------


async def test_a_job_waits_for_jobs_of_all_partitions(core_url: str, queue_name: str):
    handler = Order()
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        needed = await in_each_partition(queue)
        ids: list[Any] = [needed[0], needed[1].id, JobRef(queue_name, id_in(2, PARTITIONS))]
        last = await queue.add("last", depends_on=ids)
        assert await last.get_state() is JobState.WAITING_CHILDREN
        assert {ref.id for ref in await last.get_dependencies()} == {job.id for job in needed}
        assert {ref.queue for ref in await last.get_dependencies()} == {queue_name}
        assert await needed[2].get_parents() == [JobRef(queue_name, last.id)]
        async with Worker(queue_name, handler, core_url, concurrency=4):
            assert await last.wait_until_finished() == "last!"
        assert handler.names[-1] == "last"
        values = await last.get_children_values()
        assert values == {f"glide:{{{queue_name}}}:{job.id}": f"{job.name}!" for job in needed}
        assert not await last.get_dependencies("open")


async def test_plain_and_partitioned_queues_depend_on_one_another(core_url: str, queue_name: str):
    handler = Order()
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue, Queue(f"{queue_name}-p", core_url) as plain:
        first = await plain.add("first", job_id="custom")
        second = await queue.add("second", job_id=id_in(1, PARTITIONS), depends_on=[(plain.name, "custom")])
        third = await plain.add("third", depends_on=[(queue_name, id_in(1, PARTITIONS))])
        assert await third.get_dependencies() == await third.get_dependencies("open")
        assert (await third.get_dependencies())[0].id == second.id == f"1||{id_in(1, PARTITIONS)}"
        async with Worker(queue_name, handler, core_url), Worker(plain.name, handler, core_url):
            assert await third.wait_until_finished() == "third!"
        assert handler.names == ["first", "second", "third"]
        assert await first.get_parents() == [JobRef(queue_name, second.id)]


async def test_a_missing_dependency_is_named_as_it_was_given(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue, Queue(f"{queue_name}-p", core_url) as plain:
        for job_id in ("1||17", "none", "2||none", "99||1", "17"):
            for target, given in ((queue, job_id), (plain, (queue_name, job_id))):
                with pytest.raises(JobNotFoundError) as raised:
                    await target.add("n", depends_on=[given], ordering={"key": keyed(2, PARTITIONS)})
                assert raised.value.job_id.removeprefix(f"{raised.value.job_id.partition('||')[0]}||") in job_id
                assert "~p~" not in str(raised.value)
        assert await queue.count() == await plain.count() == 0


@pytest.mark.parametrize("policy", ["fail", "ignore", "remove", "wait"])
async def test_the_policy_of_a_failed_dependency_of_another_partition(core_url: str, queue_name: str, policy: Any):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        needed = await queue.add("needed", "fail", job_id=id_in(2, PARTITIONS))
        waiting = await queue.add(
            "waiting", job_id=id_in(1, PARTITIONS), depends_on=[needed.id], on_dependency_failure=policy
        )
        async with Worker(queue_name, Order(), core_url):
            if policy in ("ignore", "remove"):
                assert await waiting.wait_until_finished() == "waiting!"
            elif policy == "fail":
                with pytest.raises(Exception, match="broken"):
                    await waiting.wait_until_finished()
            else:
                with pytest.raises(Exception, match="broken"):
                    await needed.wait_until_finished()
                assert await waiting.remove_dependency(needed) is True
                assert await waiting.wait_until_finished() == "waiting!"
        failures = await waiting.get_children_failures()
        assert failures == ({f"glide:{{{queue_name}}}:{needed.id}": "broken"} if policy in ("ignore", "fail") else {})


async def test_a_dependency_is_removed_by_its_id(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        needed = await in_each_partition(queue)
        job = await queue.add("n", depends_on=needed)
        assert await job.remove_dependency(needed[1].id) is True
        assert await job.remove_dependency(id_in(2, PARTITIONS)) is True
        with pytest.raises(JobStateError, match=r"no dependency '17'"):
            await job.remove_dependency("17")
        assert [each.id for each in await job.get_dependencies("open")] == [needed[0].id]


async def test_jobs_of_a_bulk_depend_on_one_another_in_any_order(core_url: str, queue_name: str):
    handler = Order()
    names = [f"step-{number}" for number in range(12)]
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        bulk: list[Any] = [
            (name, None, {"job_id": name, "depends_on": [following] if at % 2 else [JobRef(queue_name, following)]})
            for at, (name, following) in enumerate(pairwise(names))
        ]
        bulk.insert(5, ("free", None))
        jobs = await queue.add_bulk([*bulk, (names[-1], None, {"job_id": names[-1]})])
        assert [job.name for job in jobs] == [each[0] for each in bulk] + [names[-1]]
        async with Worker(queue_name, handler, core_url, concurrency=5):
            assert await jobs[0].wait_until_finished() == "step-0!"
        assert [name for name in handler.names if name != "free"] == names[::-1]


async def test_a_cycle_in_a_bulk_is_rejected(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        ids = [id_in(at, PARTITIONS) for at in range(3)]
        bulk = [("n", None, {"job_id": ids[at], "depends_on": [ids[(at + 1) % 3]]}) for at in range(3)]
        with pytest.raises(GlideMQValidationError, match="in a cycle") as raised:
            await queue.add_bulk([("first", None), *bulk])
        assert raised.value.option in {f"jobs[{at}].depends_on" for at in (1, 2, 3)}
        assert await queue.count() == 0


async def test_jobs_of_a_bulk_without_their_dependency_are_not_added(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        ids = [id_in(at, PARTITIONS) for at in range(3)]
        with pytest.raises(BulkAddError) as raised:
            await queue.add_bulk([
                ("a", None, {"job_id": ids[0], "depends_on": [ids[1]]}),
                ("b", None, {"job_id": ids[1], "depends_on": ["none"]}),
                ("c", None, {"job_id": ids[2]}),
                ("d", None, {"depends_on": [ids[2]]}),
            ])  # fmt: skip
        errors, added = raised.value.results[:2], raised.value.results[2:]
        assert [error.job_id for error in errors if isinstance(error, JobNotFoundError)] == [ids[1], "none"]
        assert [job.name for job in added if isinstance(job, Job)] == ["c", "d"]
        assert (await queue.get_job_counts()).unfinished == 2
        with pytest.raises(JobNotFoundError, match="in queue 'other'"):
            await queue.add_bulk([("n",), ("n", None, {"depends_on": [("other", "1")]})])
        assert (await queue.get_job_counts()).unfinished == 2


async def test_dependencies_are_found_while_the_number_of_partitions_changes(core_url: str, queue_name: str):
    handler = Order()
    async with Queue(queue_name, core_url) as queue, Queue(queue_name, core_url) as operator:
        needed = [await queue.add(f"n{at}", job_id=f"custom-{at}") for at in range(6)]
        for partitions in (4, 7, 2):
            await operator.set_partitions(partitions)
            ids = [f"custom-{at}" for at in range(len(needed))]
            needed.append(await queue.add("more", job_id=f"custom-{len(needed)}", depends_on=ids))
            assert len(await needed[-1].get_dependencies()) == len(ids)
        async with Worker(queue_name, handler, core_url, concurrency=4):
            assert await needed[-1].wait_until_finished() == "more!"
        assert len(handler.names) == len(needed)


# -- parents --------------------------------------------------------------------------------------------------


async def test_children_are_added_to_any_partition_of_their_parents_queue(core_url: str, queue_name: str):
    async def handler(job: Job) -> Any:
        if job.name != "parent":
            return job.data
        async with Queue(queue_name, core_url) as own:
            await own.add_bulk([("child", at, {"parent": job, "job_id": id_in(at, PARTITIONS)}) for at in range(3)])
            await own.add("child", 3, parent=(job.queue_name, job.id), job_id="one-more")
        await job.move_to_waiting_children()
        return sorted((await job.get_children_values()).values())

    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue, Worker(queue_name, handler, core_url):
        for at in range(PARTITIONS):
            parent = await queue.add("parent", ordering={"key": keyed(at, PARTITIONS)})
            assert await parent.wait_until_finished() == [0, 1, 2, 3]
            child = await queue.get_job(id_in(2, PARTITIONS))
            assert child is not None
            assert await child.get_parents() == [JobRef(queue_name, parent.id)]
            await queue.clean(0, 100)


async def test_a_missing_or_finished_parent_is_rejected(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        done = await queue.add("done", job_id=id_in(2, PARTITIONS))
        async with Worker(queue_name, Order(), core_url):
            await done.wait_until_finished()
        key: Any = {"key": keyed(1, PARTITIONS)}
        with pytest.raises(JobStateError) as finished:
            await queue.add("child", parent=done, ordering=key)
        assert finished.value.job_id == done.id
        with pytest.raises(JobNotFoundError) as missing:
            await queue.add("child", parent=(queue_name, "2||17"), ordering=key)
        assert missing.value.job_id == "2||17"
        with pytest.raises(BulkAddError) as bulk:
            await queue.add_bulk([("a", 1), ("b", 1, {"parent": done}), ("c", 1, {"parent": (queue_name, "none")})])
        first, *errors = bulk.value.results
        assert isinstance(first, Job)
        assert [type(error) for error in errors] == [JobStateError, JobNotFoundError]


async def test_a_blocking_queue_adds_jobs_with_dependencies(core_url: str, queue_name: str):
    def work() -> list[str]:
        with sync.Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
            needed = [queue.add("n", job_id=id_in(at, PARTITIONS)) for at in range(PARTITIONS)]
            job = queue.add("last", depends_on=[each.id for each in needed])
            return sorted(each.id for each in job.get_dependencies("open"))

    found = await with_timeout(asyncio.to_thread(work))
    assert [job_id.rpartition("||")[2] for job_id in found] == sorted(id_in(at, PARTITIONS) for at in range(3))


async def test_ids_of_children_are_built_from_the_id_of_the_parent(core_url: str, queue_name: str):
    """A handler that is called again finds its children, also if its queue was partitioned in between."""
    failing = asyncio.Event()
    calls: list[str] = []

    async def report(job: Job) -> int:
        calls.append(job.id)
        for number in range(2):
            await pages.add("count", number, parent=job, job_id=f"{job.id_prefix}-{number}")
        if not failing.is_set():
            raise ValueError
        await job.move_to_waiting_children()
        return len(await job.get_children_values())

    async def count(job: Job) -> int:
        return int(job.data)

    reports, pages = Queue(queue_name, core_url), Queue(f"{queue_name}-pages", core_url, partitions=2)
    async with reports, pages, Worker(f"{queue_name}-pages", count, core_url, concurrency=5):
        first = await reports.add("report", attempts=3)
        async with Worker(queue_name, report, core_url, log_failures=False) as worker:
            retrying = asyncio.Event()
            worker.on("retrying", lambda *_: retrying.set())
            await with_timeout(retrying.wait())
        await reports.set_partitions(PARTITIONS)
        failing.set()
        jobs = [first, *await in_each_partition(reports), *[await reports.add("report") for _ in range(3)]]
        assert {job.id.partition("||")[0] for job in jobs if "||" in job.id} == {"1", "2"}
        async with Worker(queue_name, report, core_url, concurrency=5):
            assert [await job.wait_until_finished(timeout=20_000) for job in jobs] == [2] * len(jobs)
        assert (await pages.get_job_counts()).completed == 2 * len(jobs)
        assert len({job.id_prefix for job in jobs}) == len(jobs)
        with pytest.raises(GlideMQValidationError, match=r"'1\|\|7-0': must not contain '\|\|'.*Job\.id_prefix"):
            await pages.add("count", job_id="1||7-0")
