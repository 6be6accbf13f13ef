"""Bulk adds: outcomes by position, bounded chunks, order, and errors of partly failed adds."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from glidemq_py import (
    AmbiguousResultError,
    Broadcast,
    BulkAddError,
    GlideMQConnectionError,
    GlideMQValidationError,
    Job,
    JobOptions,
    JobOutcome,
    JobSpec,
    Producer,
    Queue,
    ServerOutOfMemoryError,
    Worker,
    chain,
)
from glidemq_py.testing import RespClient, ServerProcess
from tests.key_leaks import KeyLeaks
from tests.server.lossy_proxy import LossyProxy
from tests.server.worker_support import EventRecorder, Raw, with_timeout


async def test_forms_of_a_row(url: str, queue_name: str, resp: RespClient):
    rows: list[Any] = [
        ("a",), ("b", 1), ("c", 2, {"attempts": 3}), ("d", 3, None), ["e", 4, {}], JobSpec("f", 5, {"priority": 1}),
        JobSpec("g", options=JobOptions(delay=60_000)),
    ]  # fmt: skip
    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk(iter(rows))
        assert [(job.name, job.data) for job in jobs] == [
            ("a", None), ("b", 1), ("c", 2), ("d", 3), ("e", 4), ("f", 5), ("g", None)
        ]  # fmt: skip
        assert [job.id for job in jobs] == [str(i) for i in range(1, 8)]
        assert [await job.get_state() for job in jobs[4:]] == ["waiting", "prioritized", "delayed"]
        assert Raw(resp, queue_name).job("3")["maxAttempts"] == "3"
        assert await queue.add_bulk([]) == []


@pytest.mark.parametrize("partitions", [1, 2])
async def test_jobs_as_mappings(url: str, queue_name: str, partitions: int):
    rows: list[Any] = [
        {"name": "a"}, {"name": "b", "data": 1, "opts": {"attempts": 3}}, {"name": "b", "data": 2, "options": None},
        ("b", 3), {"name": "c", "options": JobOptions(priority=1), "data": {"x": 1}},
    ]  # fmt: skip
    async with Queue(queue_name, url) as queue:
        if partitions > 1:
            await queue.set_partitions(partitions)
        jobs = await queue.add_bulk(rows)
        assert [(job.name, job.data) for job in jobs] == [("a", None), ("b", 1), ("b", 2), ("b", 3), ("c", {"x": 1})]
        assert jobs[1].opts["attempts"] == 3
        assert [await job.get_state() for job in jobs[3:]] == ["waiting", "prioritized"]


async def test_others_take_jobs_as_mappings(url: str, queue_name: str):
    given: Any = {"name": "b", "data": 1, "opts": {"attempts": 3}}
    async with (
        Queue(queue_name, url) as queue,
        Producer(queue_name, url) as producer,
        Broadcast(f"{queue_name}-b", url) as broadcast,
    ):
        batch = await queue.create_batch()
        ids = [(await batch.add_bulk([given]))[0].id, *await producer.add_bulk([given])]
        ids.append((await chain(queue_name, [given], url)).job.id)
        for job_id in map(str, ids):
            job = await queue.get_job(job_id)
            assert job is not None
            assert (job.name, job.data, job.opts["attempts"]) == ("b", 1, 3)
        scheduler = await queue.upsert_job_scheduler("s", every=60_000, template=given)
        assert (scheduler.job_name, scheduler.data) == ("b", 1)
        assert len(await broadcast.publish_bulk([given])) == 1


@pytest.mark.parametrize(
    ("job", "option", "answer"),
    [
        ({"name": "a", "dat": 1}, "jobs[1].dat", "did you mean 'jobs[1].data'"),
        ({"name": "a", "opts": {"atempts": 1}}, "jobs[1].atempts", "did you mean 'attempts'"),
        ({"data": 1}, "jobs[1].name", "is required"),
        ({"name": "a", "opts": {}, "options": {}}, "jobs[1].opts", "another name of 'options'"),
        ({1: 2}, "jobs[1]", "keys must be strings"),
        ("a", "jobs[1]", "must be a JobSpec or a tuple (name, data, options), or a mapping of these, not str"),
    ],
)
async def test_an_invalid_mapping_is_explained(url: str, queue_name: str, job: Any, option: str, answer: str):
    async with Queue(queue_name, url) as queue:
        with pytest.raises(GlideMQValidationError) as caught:
            await queue.add_bulk([("fine", 1), job])
        assert (await queue.get_job_counts()).total == 0
    assert caught.value.option == option
    assert answer in str(caught.value)


async def test_duplicates_have_their_position(url: str, queue_name: str, key_leaks: KeyLeaks):
    async with Queue(queue_name, url) as queue:
        await queue.add("old", "old", job_id="x7")
        jobs = await queue.add_bulk([("n", i, {"job_id": f"x{i % 10}"}) for i in range(20)])
        assert [job.id for job in jobs] == [f"x{i % 10}" for i in range(20)]
        duplicates = [i for i, job in enumerate(jobs) if job.outcome is JobOutcome.DUPLICATE]
        assert duplicates == [7, *range(10, 20)]
        assert (await queue.get_job_counts()).waiting == 10


async def test_ten_thousand_rows_in_bounded_chunks(private_server: Callable[..., ServerProcess]):
    server = private_server()
    async with Queue("many", server.url) as queue:
        jobs = await queue.add_bulk([("n", i) for i in range(10_000)])
        with server.client() as resp:
            calls = int(resp.info("commandstats")["cmdstat_fcall"].split("calls=")[1].split(",")[0])
            assert 20 <= calls <= 80
            ids = [pairs[1] for _, pairs in resp.execute("XRANGE", "glide:{many}:stream", "-", "+")]
        assert ids == [job.id for job in jobs] == [str(i) for i in range(1, 10_001)]
        assert [job.data for job in jobs] == list(range(10_000))
        assert (await queue.get_job_counts()).waiting == 10_000


async def test_large_rows_make_small_chunks(private_server: Callable[..., ServerProcess]):
    server = private_server()
    async with Queue("large", server.url) as queue:
        await queue.add_bulk([("n", "x" * 1_000_000) for _ in range(8)])
        with server.client() as resp:
            assert int(resp.info("commandstats")["cmdstat_fcall"].split("calls=")[1].split(",")[0]) >= 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "order"),
    [
        (lambda i: {}, lambda count: list(range(count))),
        (lambda i: {"lifo": True}, lambda count: list(range(count - 1, -1, -1))),
        (lambda i: {"priority": 5}, lambda count: list(range(count))),
        (lambda i: {"priority": 1 + i % 3}, lambda count: [i for p in range(3) for i in range(p, count, 3)]),
    ],
    ids=["stream", "lifo", "priority", "priorities"],
)
async def test_order(url: str, queue_name: str, options: Any, order: Any):
    """FIFO in the stream and within a priority, the last first in LIFO, over the chunks of one bulk."""
    seen: list[int] = []

    async def handle(job: Job) -> None:
        seen.append(job.data)

    worker = Worker(queue_name, handle, url, concurrency=1)
    recorded = EventRecorder(worker)
    async with Queue(queue_name, url) as queue:
        await queue.add_bulk([("n", i, options(i)) for i in range(1_000)])
        async with worker:
            await recorded.wait("completed", 1_000)
    assert seen == order(1_000)


async def test_a_full_server_in_the_middle(private_server: Callable[..., ServerProcess]):
    server = private_server(maxmemory_policy="noeviction")
    async with Queue("full", server.url) as queue:
        await queue.add("n")
        with server.client() as resp:
            used = int(resp.info("memory")["used_memory"])
            resp.execute("CONFIG", "SET", "maxmemory", used + 3_000_000)
            with pytest.raises(BulkAddError) as caught:
                await queue.add_bulk([("n", "x" * 5_000) for _ in range(5_000)])
            resp.execute("CONFIG", "SET", "maxmemory", 0)
            stored = int(resp.execute("XLEN", "glide:{full}:stream")) - 1
        results = caught.value.results
        added = [i for i, result in enumerate(results) if isinstance(result, Job)]
        refused = [result for result in results if isinstance(result, ServerOutOfMemoryError)]
        unsent = [result for result in results if type(result) is GlideMQConnectionError]
        assert len(results) == 5_000 == len(added) + len(refused) + len(unsent)
        assert caught.value.failed == 5_000 - len(added)
        assert 0 < len(added) == stored
        assert refused
        assert unsent
        assert isinstance(caught.value.__cause__, ServerOutOfMemoryError)
        assert "maxmemory" in str(caught.value)


async def test_a_small_bulk_on_a_full_server(private_server: Callable[..., ServerProcess]):
    server = private_server(maxmemory_policy="noeviction")
    async with Queue("full", server.url) as queue:
        await queue.add("n")
        with server.client() as resp:
            resp.execute("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(BulkAddError) as caught:
            await queue.add_bulk([("n", 1), ("n", 2)])
        assert [type(result) for result in caught.value.results] == [ServerOutOfMemoryError] * 2
        assert (await queue.get_job_counts()).waiting == 1


async def test_a_reply_lost_in_the_middle(server: Any, queue_name: str, resp: RespClient):
    with LossyProxy(server.port) as proxy:
        async with Queue(queue_name, proxy.url) as queue:
            await queue.add("first")
            proxy.lose("row-1500")
            with pytest.raises(BulkAddError) as caught:
                await queue.add_bulk([("n", f"row-{i}") for i in range(5_000)])
            results = caught.value.results
            assert isinstance(results[1_500], AmbiguousResultError)
            assert isinstance(results[0], Job)
            assert type(results[4_999]) is GlideMQConnectionError
            assert "not sent" in str(results[4_999])
            # The outcome of each position is correct.
            raw = Raw(resp, queue_name)
            ids = [pairs[1] for _, pairs in raw.run("XRANGE", "stream", "-", "+")][1:]
            stored = {raw.job(job_id)["data"].strip('"') for job_id in ids}
            for i, result in enumerate(results):
                if isinstance(result, Job):
                    assert f"row-{i}" in stored
                elif not isinstance(result, AmbiguousResultError):
                    assert f"row-{i}" not in stored


async def test_a_server_that_dies_in_the_middle(restartable_server: Callable[..., ServerProcess]):
    server = restartable_server()
    async with Queue("dying", server.url + "?request_timeout=1000") as queue:
        await queue.add("first")
        bulk = asyncio.create_task(queue.add_bulk([("n", i) for i in range(20_000)]))
        with server.client() as resp:
            # A blocking read of the stream returns once the first chunks are added.
            await asyncio.to_thread(resp.execute, "XREAD", "BLOCK", 10_000, "STREAMS", "glide:{dying}:stream", "$")
        server.kill()
        with pytest.raises(BulkAddError) as caught:
            await with_timeout(bulk)
        server.start()
        results = caught.value.results
        assert len(results) == 20_000
        # Acknowledged means there.
        with server.client() as resp:
            for result in results:
                if isinstance(result, Job):
                    assert resp.execute("EXISTS", f"glide:{{dying}}:job:{result.id}") == 1
                else:
                    assert isinstance(result, GlideMQConnectionError)
        assert caught.value.failed > 0


async def test_order_is_kept_where_the_library_has_to_be_loaded_first(private_server: Callable[..., ServerProcess]):
    server = private_server()
    async with Queue("q", server.url) as queue:
        with server.client() as resp:
            for _ in range(10):
                resp.execute("FLUSHALL")
                resp.execute("FUNCTION", "FLUSH")
                jobs = await queue.add_bulk([("n",)] * 1_000)
                assert [job.id for job in jobs] == [str(i) for i in range(1, 1_001)]
