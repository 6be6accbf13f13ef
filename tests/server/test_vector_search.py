"""Vector search: stored vectors on all servers, indexes on servers with a search module."""

import asyncio
import struct
from typing import Any

import pytest

from glidemq_py import Job, JobNotFoundError, Queue
from glidemq_py.errors import SearchIndexError
from glidemq_py.testing import RespClient, RespError
from tests.server.worker_support import Raw, WorkerFor, until, with_timeout


def has_search(resp: RespClient) -> bool:
    try:
        resp.execute("FT._LIST")
    except RespError:
        return False
    return True


async def test_server_without_search_module_raises(core_url: str, core_resp: RespClient, queue_name: str):
    if has_search(core_resp):
        pytest.skip("this server has a search module")
    async with Queue(queue_name, core_url) as queue:
        for attempt in (queue.vectors.create_index(), queue.vectors.drop_index(), queue.vectors.search([1.0, 2.0]),
                        queue.vectors.search([1.0], field="v")):  # fmt: skip
            with pytest.raises(SearchIndexError, match="has no search module"):
                await attempt


async def test_vector_is_stored_as_float32(worker_for: WorkerFor, url: str, queue_name: str, resp: RespClient):
    async def handle(job: Job):
        await job.store_vector("embedding", [0.5, -1, 2])

    with RespClient.from_url(url) as raw_bytes:
        async with Queue(queue_name, url) as queue, worker_for(handle):
            job = await queue.add("n")
            await job.wait_until_finished()
            stored = raw_bytes.execute("HGET", f"glide:{{{queue_name}}}:job:{job.id}", "embedding")
            assert stored.encode("utf-8", "surrogateescape") == struct.pack("<fff", 0.5, -1.0, 2.0)
            read = await queue.get_job(job.id)
            assert read is not None
            await read.remove()
            with pytest.raises(JobNotFoundError):
                await read.store_vector("embedding", [1, 2, 3])
            assert Raw(resp, queue_name).run("EXISTS", f"job:{job.id}") == 0
            assert (await queue.check(recheck_after=50)).ok


async def test_nearest_jobs_are_found(url: str, queue: Queue, queue_name: str, resp: RespClient):
    """Runs if GLIDEMQ_TEST_SERVER is a server with a search module."""
    if not has_search(resp):
        pytest.skip("the server has no search module (set GLIDEMQ_TEST_SERVER to one that has)")
    async with Queue(queue_name + "2", url) as other:
        index = await queue.vectors.create_index(vector={"name": "v", "dimensions": 2, "metric": "l2"})
        try:
            near, far = await queue.add("near"), await queue.add("far")
            await near.store_vector("v", [1, 1])
            await far.store_vector("v", [5, 5])
            stranger = await other.add("stranger")
            await stranger.store_vector("v", [0, 0])

            def info() -> str:
                return str(resp.execute("FT.INFO", index))

            await with_timeout(until(lambda: "num_docs" in info()))
            found: Any = []
            async with asyncio.timeout(120):
                while len(found) < 2:
                    found = await queue.vectors.search([0, 0], k=10)
            assert [match.job.id for match in found] == [near.id, far.id]
            assert found[0].score < found[1].score
            assert [m.job.id for m in await queue.vectors.search([0, 0], filter="@name:{far}")] == [far.id]
        finally:
            assert await queue.vectors.drop_index()
            assert not await queue.vectors.drop_index()
