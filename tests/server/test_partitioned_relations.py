"""Jobs of a partitioned queue with parents and dependencies in any partition, on one server and on a cluster."""

import asyncio
from typing import Any

import pytest

from glidemq_py import (
    GlideMQValidationError,
    Job,
    JobNotFoundError,
    Queue,
    Worker,
)
from tests.conftest import SERVER_AND_CLUSTER
from tests.server.test_partitions import id_in, keyed
from tests.server.worker_support import with_timeout

pytestmark = pytest.mark.parametrize("core_server", SERVER_AND_CLUSTER, indirect=True)

PARTITIONS = 3


async def in_each_partition(queue: Queue, **options: Any) -> list[Job]:
    """Add a job to each partition."""
    return [await queue.add(f"of-{at}", job_id=id_in(at, PARTITIONS), **options) for at in range(PARTITIONS)]


# -- dependencies ---------------------------------------------------------------------------------------------


async def test_a_missing_dependency_is_named_as_it_was_given(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue, Queue(f"{queue_name}-p", core_url) as plain:
        for job_id in ("1||17", "none", "2||none", "99||1", "17"):
            for target, given in ((queue, job_id), (plain, (queue_name, job_id))):
                with pytest.raises(JobNotFoundError) as raised:
                    await target.add("n", depends_on=[given], ordering={"key": keyed(2, PARTITIONS)})
                assert raised.value.job_id.removeprefix(f"{raised.value.job_id.partition('||')[0]}||") in job_id
                assert "~p~" not in str(raised.value)
        assert await queue.count() == await plain.count() == 0


# -- parents --------------------------------------------------------------------------------------------------


async def test_ids_of_children_are_built_from_the_id_of_the_parent(core_url: str, queue_name: str):
    """A handler that is called again finds its children."""
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

    reports, pages = (
        Queue(queue_name, core_url, partitions=PARTITIONS),
        Queue(f"{queue_name}-pages", core_url, partitions=2),
    )
    async with reports, pages, Worker(f"{queue_name}-pages", count, core_url, concurrency=5):
        first = await reports.add("report", attempts=3)
        async with Worker(queue_name, report, core_url, log_failures=False) as worker:
            retrying = asyncio.Event()
            worker.on("retrying", lambda *_: retrying.set())
            await with_timeout(retrying.wait())
        failing.set()
        jobs = [first, *await in_each_partition(reports), *[await reports.add("report") for _ in range(3)]]
        assert {job.id.partition("||")[0] for job in jobs if "||" in job.id} == {"1", "2"}
        async with Worker(queue_name, report, core_url, concurrency=5):
            assert [await job.wait_until_finished(timeout=20_000) for job in jobs] == [2] * len(jobs)
        assert (await pages.get_job_counts()).completed == 2 * len(jobs)
        assert len({job.id_prefix for job in jobs}) == len(jobs)
        with pytest.raises(GlideMQValidationError, match=r"'1\|\|7-0': must not contain '\|\|'.*Job\.id_prefix"):
            await pages.add("count", job_id="1||7-0")
