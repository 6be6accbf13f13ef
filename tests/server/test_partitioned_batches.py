"""Job batches of partitioned queues, and with jobs in them, on one server and on a cluster."""

from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, JobState, Queue
from glidemq_py.errors import JobBatchNotFoundError
from glidemq_py.records import BatchRef
from tests.conftest import SERVER_AND_CLUSTER
from tests.inside import partition_of
from tests.server.test_partitions import id_in

pytestmark = pytest.mark.parametrize("core_server", SERVER_AND_CLUSTER, indirect=True)

PARTITIONS = 3


def partitions_of(ids: list[str]) -> set[int]:
    return {partition_of(job_id) for job_id in ids}


async def test_batches_take_turns_and_are_found_by_their_id(core_url: str, queue_name: str):
    async with Queue(queue_name, core_url, partitions=PARTITIONS) as queue:
        made = [await queue.job_batches.create() for _ in range(PARTITIONS)]
        assert partitions_of([batch.id for batch in made]) == {0, 1, 2}
        for at in range(PARTITIONS):
            wanted = id_in(at, PARTITIONS)
            batch = await queue.job_batches.create(batch_id=wanted, on_success=("first",))
            assert batch.id == (f"{at}||{wanted}" if at else wanted)
            assert (await queue.job_batches.create(batch_id=wanted)).id == batch.id
            for known in (wanted, batch.id, BatchRef(queue_name, batch.id)):
                assert (await queue.job_batches.get(known)).id == batch.id
            made.append(batch)
        assert sorted([each.id async for each in queue.job_batches.iter()]) == sorted(each.id for each in made)
        for unknown in ("none", "1||none", "99||none"):
            with pytest.raises(JobBatchNotFoundError) as raised:
                await queue.job_batches.get(unknown)
            assert raised.value.batch_id == unknown
        with pytest.raises(GlideMQValidationError):
            await queue.job_batches.get(BatchRef("other", "b"))


@pytest.mark.parametrize("options", [{}, {"attempts": 2}], ids=str)
async def test_ids_that_a_batch_issues_choose_no_partition(core_url: str, queue_name: str, options: Any):
    """Also when default options of the queue or dependencies change the options of a job."""
    async with Queue(queue_name, core_url, partitions=2, default_job_options=options or None) as queue:
        first = await queue.add("first")
        batch = await queue.job_batches.create(batch_id="b")
        await batch.add_bulk([("n", at) for at in range(12)])
        await batch.add("dependent", depends_on=[first.id])
        for state in (JobState.WAITING, JobState.WAITING_CHILDREN):
            assert all("jobId" not in job.opts for job in await queue.get_jobs(state))
