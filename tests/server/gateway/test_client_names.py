"""Names of queues and ids of jobs, from those of clients to those of Python and back."""

import pytest

from glidemq_py import Queue
from glidemq_py.errors import ClosedError, GlideMQValidationError
from glidemq_py.gateway import ClientIds, JobAddress
from tests.server.gateway.wire import Wire, good


async def test_ids_of_jobs_and_back(wire: Wire, url: str, queue_name: str):
    client_name, name = f"{queue_name}:a", f"{queue_name}%3Aa"
    chosen, digits = f"{queue_name}-{{x}}", f"{abs(hash(queue_name)) % 10**12}"
    made = [
        (await good(wire, "PUSH", queue=client_name, data=1, **options))["id"]
        for options in ({}, {"jobId": chosen}, {"jobId": digits})
    ]
    async with Queue(name, url) as queue, ClientIds(url) as ids:
        counted = (await queue.add("n", 1)).id
        for client_id in (*made, f"{client_name}:{counted}"):
            found = await ids.find(client_id)
            assert found is not None
            assert found.queue == name
            job = await queue.get_job(found.job_id)
            assert job is not None
            assert await ids.client_id(name, job.id) == client_id
        assert await ids.find(chosen) == JobAddress(name, f"{queue_name}-%7Bx%7D")
        assert await ids.find(digits) == JobAddress(name, f"%#{digits}")
        assert await ids.find("unknown") is None
    assert (await good(wire, "GetJob", id=made[0]))["job"]["queue"] == client_name


async def test_ids_of_jobs_of_a_partitioned_queue(wire: Wire, url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue, ClientIds(url) as ids:
        pushed = [(await good(wire, "PUSH", queue=queue_name, data=number))["id"] for number in range(4)]
        chosen = (await good(wire, "PUSH", queue=queue_name, data=5, jobId=f"{queue_name}-c"))["id"]
        counted = [f"{queue_name}:{(await queue.add('n', number)).id}" for number in range(4)]
        for client_id in (*pushed, chosen, *counted):
            found = await ids.find(client_id)
            assert found is not None
            job = await queue.get_job(found.job_id)
            assert job is not None
            assert job.id == found.job_id
            assert await ids.client_id(found.queue, found.job_id) == client_id


async def test_invalid_ids(url: str):
    ids = ClientIds(url)
    with pytest.raises(ClosedError, match="open it"):
        await ids.find("x")
    async with ids:
        for client_id in ("", 7, "x" * 1_025):
            with pytest.raises(GlideMQValidationError, match="option 'client_id'"):
                await ids.find(client_id)  # type: ignore[arg-type]
        with pytest.raises(GlideMQValidationError, match="option 'queue'"):
            await ids.client_id("a:b", "1")
        with pytest.raises(GlideMQValidationError, match="option 'job_id'"):
            await ids.client_id("a", "a:b")
    with pytest.raises(ClosedError):
        await ids.client_id("a", "1")
    with pytest.raises(GlideMQValidationError, match="option 'prefix'"):
        ClientIds(url, prefix="{a}")
