"""Jobs that are added with `depends_on`: in one queue and across queues, in a bulk, with each policy."""

import asyncio
from typing import Any

import pytest

from glidemq_py import (
    BulkAddError,
    Job,
    JobNotFoundError,
    JobState,
    Queue,
    Worker,
)
from glidemq_py.errors import GlideMQConnectionError
from tests.contract.test_dependencies import Handler
from tests.inside import Call, check_parents, connected
from tests.server.worker_support import WorkerFor, with_timeout

pytestmark = pytest.mark.usefixtures("clean_check")


async def test_dependency_removed_during_the_add_is_rejected(queue: Queue, url: str, monkeypatch: pytest.MonkeyPatch):
    async with Queue(f"{queue.name}-e", url) as other:
        first = await other.add("first")
        link = await connected(queue)
        call_before = link.transport.call

        async def call(given: Call[Any]):
            if given.function == "add":
                await other.remove(first.id)
            return await call_before(given)

        monkeypatch.setattr(link.transport, "call", call)
        with pytest.raises(BulkAddError) as failed:
            await queue.add_bulk([("last", None, {"depends_on": [first]}), ("free", None)])
    assert isinstance(failed.value.results[0], JobNotFoundError)
    assert isinstance(failed.value.results[1], Job)
    assert (await queue.get_job_counts()).waiting_children == 0
    assert (await queue.get_job_counts()).waiting == 1


async def add_without_registering(queue: Queue, first: Job, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Add a job whose client stops before it is registered with the job of another queue that it waits for."""
    link = await connected(queue)
    call_before = link.transport.call

    async def call(given: Call[Any]):
        if given.function == "depend" and (await queue.get_job_counts()).waiting_children:
            raise GlideMQConnectionError("stopped")
        return await call_before(given)

    with monkeypatch.context() as patch:
        patch.setattr(link.transport, "call", call)
        with pytest.raises(GlideMQConnectionError):
            await queue.add("last", depends_on=[first], job_id="last")
    last = await queue.get_job("last")
    assert last is not None
    return last


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("ended", [False, True])
async def test_repeated_add_registers_the_job(
    worker_for: WorkerFor, url: str, queue: Queue, monkeypatch: pytest.MonkeyPatch, ended: bool, bulk: bool
):
    async with Queue(f"{queue.name}-e", url) as other:
        first, third = await other.add_bulk([("first", None), ("third", None)])
        last = await add_without_registering(queue, first, monkeypatch)
        options: Any = {"depends_on": [first, third], "job_id": "last"}  # `third` was not given before
        run = Handler()
        for is_repeated in (not ended, ended):
            if is_repeated:
                (again,) = await queue.add_bulk([("n", 0, options)]) if bulk else [await queue.add("n", 0, **options)]
                assert again.outcome == "duplicate"
            else:
                async with Worker(other.name, run, url):
                    await with_timeout(asyncio.gather(first.wait_until_finished(), third.wait_until_finished()))
        async with worker_for(run):
            await with_timeout(last.wait_until_finished())
        assert run.ran == ["first", "third", "last"]


async def test_client_that_stops_before_registering_is_repaired(
    url: str, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    async with Queue(f"{queue.name}-e", url) as other:
        first = await other.add("first")
        last = await add_without_registering(queue, first, monkeypatch)
        async with Worker(other.name, Handler(), url):
            await with_timeout(first.wait_until_finished())
        assert await last.get_state() == JobState.WAITING_CHILDREN
        for _ in range(2):
            await check_parents(queue)
            assert await last.get_state() == JobState.WAITING
        assert (await queue.get_job_counts()).waiting == 1
