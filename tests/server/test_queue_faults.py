"""Faults of the server, and what calls cost it, while jobs are added, changed and waited for."""

import asyncio
from typing import Any, cast

import pytest

from glidemq_py import (
    AmbiguousResultError,
    BulkAddError,
    GlideMQConnectionError,
    GlideMQValidationError,
    Job,
    JobOutcome,
    Queue,
    Worker,
    serverless_pool,
)
from glidemq_py.errors import ServerOutOfMemoryError
from glidemq_py.testing import RespClient
from tests.server.lossy_proxy import LossyProxy
from tests.server.worker_support import EventRecorder, Gate, Raw, StartServer, until, with_timeout

# -- queue adding -----------------------------------------------------------------------------------------------


async def test_full_server_rejects_add_and_writes_nothing(private_server: StartServer):
    server = private_server(maxmemory_policy="noeviction")
    async with Queue("full", server.url) as queue:
        await queue.add("n", 1)
        with server.client() as resp:
            raw = Raw(resp, "full")
            before = set(resp.keys("*")), raw.run("XLEN", "stream"), raw.run("GET", "id"), len(raw.events())
            resp.execute("CONFIG", "SET", "maxmemory", 1)
            for options in ({}, {"delay": 50}, {"priority": 2}, {"lifo": True}, {"job_id": "own"}):
                with pytest.raises(ServerOutOfMemoryError, match="the call changed nothing"):
                    await queue.add("n", 2, **options)
            results = await asyncio.gather(*(queue.add("n", 3) for _ in range(5)), return_exceptions=True)
            assert {type(result) for result in results} == {ServerOutOfMemoryError}
            assert before == (set(resp.keys("*")), raw.run("XLEN", "stream"), raw.run("GET", "id"), len(raw.events()))
            resp.execute("CONFIG", "SET", "maxmemory", 0)
        assert (await queue.add("n", 4)).id == "2"


async def test_full_server_without_the_library_raises_out_of_memory(private_server: StartServer):
    server = private_server(maxmemory=1, maxmemory_policy="noeviction")
    async with Queue("full", server.url) as queue:
        with pytest.raises(ServerOutOfMemoryError, match="library"):
            await queue.add("n")


async def test_lost_reply_is_ambiguous(server: Any, queue_name: str, raw: Raw):
    with LossyProxy(server.url) as proxy:
        async with Queue(queue_name, proxy.url) as queue:
            await queue.add("n", 0)
            proxy.lose("fcall")
            with pytest.raises(AmbiguousResultError, match="may have been executed"):
                await queue.add("n", 1, job_id="own")
            assert raw.state("own") == "waiting"
            # With an id of one's own it is safe to add again.
            assert (await with_timeout(queue.add("n", 1, job_id="own"))).outcome is JobOutcome.DUPLICATE
            assert raw.run("XLEN", "stream") == 2


async def test_lost_reply_affects_only_adds_of_the_same_call(server: Any, queue_name: str, raw: Raw):
    with LossyProxy(server.url) as proxy:
        async with Queue(queue_name, proxy.url) as queue:
            await queue.add("n", 0)
            proxy.lose("in-company")
            adds = [queue.add("alone", 1)] + [queue.add("in-company", i) for i in range(2, 300)]
            results = await with_timeout(asyncio.gather(*adds, return_exceptions=True))
            received = [result for result in results if isinstance(result, BaseException)]
            assert 1 < len(received) < 299
            assert {type(error) for error in received} == {AmbiguousResultError}
            assert not isinstance(results[0], BaseException)
            # Each arrived, once: those whose reply was lost, and those that left after them.
            stored = sorted(int(raw.job(str(i))["data"]) for i in range(1, 301))
            assert stored == list(range(300))


@pytest.mark.slow
async def test_a_time_out_is_ambiguous(private_server: StartServer):
    server = private_server()
    async with Queue("slow", server.url) as patient:
        await patient.add("n")  # loads the library, which takes longer on a loaded machine
    async with Queue("slow", server.url + "?request_timeout=200") as queue:
        server.pause()
        with pytest.raises(AmbiguousResultError, match="timeout"):
            await queue.add("n")
        server.resume()


# -- queue bulk -------------------------------------------------------------------------------------------------


async def test_ten_thousand_rows_in_bounded_chunks(private_server: StartServer):
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


async def test_large_rows_make_small_chunks(private_server: StartServer):
    server = private_server()
    async with Queue("large", server.url) as queue:
        await queue.add_bulk([("n", "x" * 1_000_000) for _ in range(8)])
        with server.client() as resp:
            assert int(resp.info("commandstats")["cmdstat_fcall"].split("calls=")[1].split(",")[0]) >= 8


async def test_a_full_server_in_the_middle(private_server: StartServer):
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


async def test_a_small_bulk_on_a_full_server(private_server: StartServer):
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
    with LossyProxy(server.url) as proxy:
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


async def test_a_server_that_dies_in_the_middle(restartable_server: StartServer):
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


async def test_order_is_kept_where_the_library_has_to_be_loaded_first(private_server: StartServer):
    server = private_server()
    async with Queue("q", server.url) as queue:
        with server.client() as resp:
            for _ in range(10):
                resp.execute("FLUSHALL")
                resp.execute("FUNCTION", "FLUSH")
                jobs = await queue.add_bulk([("n",)] * 1_000)
                assert [job.id for job in jobs] == [str(i) for i in range(1, 1_001)]


# -- queue waiting ----------------------------------------------------------------------------------------------


async def test_server_restart_during_wait(restartable_server: StartServer):
    server, gate = restartable_server(), Gate()
    async with Queue("q", server.url) as queue, Worker("q", gate, server.url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", 7)  # its reply is here before the server ends
        waiting = asyncio.create_task(job.wait_until_finished())
        await gate.next()
        await asyncio.to_thread(server.restart, kill=True)
        gate.open()
        assert await with_timeout(waiting) == 7
        assert recorded.count["completed"] == 1


# -- queue administration ---------------------------------------------------------------------------------------


async def test_obliterate_with_scan_finds_keys_without_a_place(core_url: str, queue_name: str, core_resp: RespClient):
    async with Queue(queue_name, core_url) as queue:
        await queue.add("n")
        raw = Raw(core_resp, queue_name)
        raw.run("HSET", "job:lost", "id", "lost", "state", "waiting")
        raw.run("HSET", "job:1:sub:g", "a", "1")
        raw.run("SET", "clock-of-a-peer", "1")
        with pytest.raises(GlideMQValidationError, match="scan"):
            await queue.obliterate(scan=cast("bool", "yes"))
        assert await queue.obliterate(scan=True) == 2
        assert core_resp.keys(f"*{{{queue_name}}}*") == []


async def test_obliterate_a_queue_whose_name_looks_like_a_pattern_of_others(
    private_server: StartServer,
):
    server = private_server()
    async with Queue("a.b", server.url) as queue, Queue("axb", server.url) as other:
        await queue.add("n")
        await other.add("n")
        await queue.obliterate()
        assert await other.count() == 1
        assert await queue.count() == 0


# -- bulk operations --------------------------------------------------------------------------------------------


MANY = 4_000
PIECE = 100
"""Jobs that one call of an operator handles at most."""
COMMANDS_PER_JOB = 30


async def fail(job: Job):
    raise ValueError(job.name)


class Work:
    """Counts the calls of the function library and the commands that they execute, between two looks."""

    def __init__(self, resp: RespClient):
        self._resp = resp
        self.look()

    def look(self) -> tuple[int, int]:
        calls = {
            line.partition(":")[0]: int(line.partition("calls=")[2].partition(",")[0])
            for line in str(self._resp.execute("INFO", "commandstats")).splitlines()
            if line.startswith("cmdstat_")
        }
        functions = calls.get("cmdstat_fcall", 0)
        found = functions, sum(calls.values()) - functions
        before, self._last = getattr(self, "_last", found), found
        return found[0] - before[0], found[1] - before[1]


@pytest.mark.slow
async def test_operations_on_many_jobs_use_short_calls(private_server: StartServer, queue_name: str):
    """Retried, cleaned and drained: each call handles at most PIECE jobs, with a bounded number of commands a job."""
    server = private_server()

    def check(work: Work, jobs: int):
        functions, commands = work.look()
        assert functions >= jobs / PIECE, "a call handled more jobs than a piece has"
        assert functions <= 2 * jobs / PIECE + 50
        assert commands <= COMMANDS_PER_JOB * jobs + 50 * functions

    with server.client() as resp:
        raw = Raw(resp, queue_name)
        async with Queue(queue_name, server.url) as queue:
            await queue.add_bulk([("n", n) for n in range(MANY)])
            async with Worker(queue_name, fail, server.url, concurrency=200) as worker:
                await EventRecorder(worker).wait("failed", MANY)
            work = Work(resp)
            assert len(await queue.clean(0, MANY // 2, "failed")) == MANY // 2
            check(work, MANY // 2)
            assert await queue.retry_jobs(10) == 10
            assert await queue.retry_jobs() == MANY // 2 - 10
            check(work, MANY // 2)
            assert (await queue.get_job_counts()).waiting == MANY // 2
            assert await queue.drain() == MANY // 2
            check(work, MANY // 2)
            for options in ({"lifo": True}, {"priority": 3}, {"ordering": {"key": "k"}}, {"delay": 60_000}):
                await queue.add_bulk([("n", n, options) for n in range(MANY)])
                work.look()
                assert await queue.drain(delayed="delay" in options) == MANY
                check(work, MANY)
            assert raw.run("XLEN", "stream") == 0
        permanent = {
            "id",
            "meta",
            "events",
            "stream",
            "wake",
            "workers",
            "invalidated",
            "metrics:failed",
            "failure-counts",
            "ordering",
            "group:k",
        }
        # Keys of the library's own registry appear once a worker has lived for a minute.
        found = {key.removeprefix(raw.base + ":") for key in resp.keys("*") if key.startswith(raw.base + ":")}
        assert found <= permanent | {"lock:recover"}


# -- producer ---------------------------------------------------------------------------------------------------


def connections(resp: RespClient) -> int:
    """Clients that the server knows of."""
    return len(str(resp.execute("CLIENT", "LIST")).strip().splitlines())


def test_each_event_loop_has_its_own(url: str, resp: RespClient, queue_name: str):
    # A cloud function that runs `asyncio.run` for every event must not get the connection of a closed loop.
    ids: list[str | None] = []

    async def event():
        ids.append(await serverless_pool.get_producer(queue_name, url).add("n"))
        assert len(serverless_pool) == 1
        if len(ids) == 2:
            await serverless_pool.close_all()

    before = connections(resp)
    for _ in range(2):
        asyncio.run(event())
    assert ids == ["1", "2"]
    assert len(serverless_pool) == 0
    # Not even the one that the first loop has left behind; the server hears of that in a moment.
    asyncio.run(with_timeout(until(lambda: connections(resp) <= before)))
