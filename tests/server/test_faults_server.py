"""A server that restarts, is full, or loses its functions or data, while jobs run."""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, Self

import pytest

from glidemq_py import BulkAddError, GlideMQConnectionError, Job, JobNotFoundError, Queue, Worker
from glidemq_py.errors import ServerOutOfMemoryError
from glidemq_py.testing import ServerProcess
from tests.server.worker_support import EventRecorder, Gate, Raw, StartServer, with_timeout

pytestmark = pytest.mark.slow


class Producers:
    """Adds jobs with custom ids while it is open; an unconfirmed add is repeated."""

    def __init__(self, queue: Queue, count: int = 4):
        self._queue = queue
        self._count = count
        self._on = True
        self._tasks: list[asyncio.Task[None]] = []
        self._grown = asyncio.Event()
        self.acknowledged: list[str] = []
        self.refused = 0

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._produce(n)) for n in range(self._count)]
        return self

    async def __aexit__(self, *_: object):
        self._on = False
        await with_timeout(asyncio.gather(*self._tasks))

    async def _produce(self, number: int):
        n = 0
        options: list[dict[str, Any]] = [{}, {"priority": 3}, {"lifo": True}, {"delay": 5}, {}, {}]
        while self._on:
            n += 1
            job_id = f"p{number}-{n}"
            while True:
                try:
                    await self._queue.add("n", n, job_id=job_id, attempts=2, **options[n % len(options)])
                    break
                except GlideMQConnectionError:
                    self.refused += 1
            self.acknowledged.append(job_id)
            self._grown.set()

    async def more(self, count: int):
        """Wait until ``count`` more adds have been acknowledged."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(120):
            while len(self.acknowledged) < wanted:
                self._grown.clear()
                await self._grown.wait()


@contextlib.asynccontextmanager
async def workers(url: str, name: str, handler: Any, **options: Any) -> AsyncIterator[EventRecorder]:
    both = [Worker(name, handler, url, concurrency=10, **options) for _ in range(2)]
    recorded = EventRecorder(*both)
    await asyncio.gather(*(worker.start() for worker in both))
    try:
        yield recorded
    finally:
        await with_timeout(asyncio.gather(*(worker.close() for worker in both)), 60)


def fails_first(job: Job) -> bool:
    return job.attempts_made == 0 and job.data % 10 == 0


async def work(job: Job):
    await asyncio.sleep(0)
    if fails_first(job):
        raise ValueError("once")


def assert_each_ended_once(raw: Raw, recorded: EventRecorder, acknowledged: list[str]):
    records = {job_id: raw.job(job_id) for job_id in acknowledged}
    assert {job_id: record for job_id, record in records.items() if record.get("state") != "completed"} == {}
    ends = Counter(recorded.job_ids("completed"))
    assert {job_id: (n, records[job_id]) for job_id in acknowledged if (n := ends[job_id]) != 1} == {}
    assert raw.metric("completed") == len(acknowledged)
    assert raw.pending() == []
    assert raw.run("GET", "list-active") in (None, "0")


def flush_functions(server: ServerProcess):
    with server.client() as client:
        client.execute("FUNCTION", "FLUSH")


def reload(server: ServerProcess):
    """Save and load all data, including streams and consumer groups."""
    with server.client() as client:
        client.execute("DEBUG", "RELOAD")


@pytest.mark.parametrize(
    "fault",
    [lambda server: server.restart(), lambda server: server.restart(kill=True), flush_functions, reload],
    ids=["stopped", "killed", "functions flushed", "reloaded"],
)
async def test_jobs_survive_faults_under_load(restartable_server: StartServer, queue_name: str, fault: Any):
    """Every acknowledged job is completed exactly once."""
    server = restartable_server()
    async with Queue(queue_name, server.url) as queue, workers(server.url, queue_name, work) as recorded:
        async with Producers(queue) as producers:
            for _ in range(4):
                await producers.more(80)
                await asyncio.to_thread(fault, server)
            await producers.more(80)
        with contextlib.suppress(TimeoutError):  # missing jobs are reported below
            await recorded.wait("completed", len(producers.acknowledged))
        with server.client() as client:
            assert_each_ended_once(Raw(client, queue_name), recorded, producers.acknowledged)
            assert (await queue.check(recheck_after=50)).findings == ()
        if fault is flush_functions:
            assert (producers.refused, recorded.count["error"]) == (0, 0)


@pytest.mark.parametrize("blocking", [False, True])
async def test_running_attempts_outlast_the_request_timeout(
    private_server: StartServer, queue_name: str, blocking: bool
):
    """Their calls are repeated until their locks could have expired."""
    server = private_server()
    url, frozen = f"{server.url}?request_timeout=300", threading.Event()

    def handle_in_thread(job: Job):
        frozen.wait()
        job.blocking.log("line")
        job.blocking.update_progress(1)
        return job.blocking.get_state()

    async def handle(job: Job):
        await asyncio.to_thread(frozen.wait)
        await asyncio.gather(job.log("line"), job.update_progress(1))
        return await job.get_state()

    handler: Any = handle_in_thread if blocking else handle
    async with Queue(queue_name, url) as queue, Worker(queue_name, handler, url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await recorded.wait("active")
        server.pause()
        frozen.set()
        for _ in range(3):
            with pytest.raises(GlideMQConnectionError):
                await job.get_state()
        server.resume()
        await recorded.until(lambda seen: seen.count["completed"] + seen.count["failed"] > 0)
        assert recorded.count["failed"] == 0
        assert (await job.logs(), await job.wait_until_finished()) == (["line"], "active")


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
async def test_all_data_is_flushed(private_server: StartServer, queue_name: str, busy: bool):
    """Earlier jobs are deleted; the consumer groups are created again, and later jobs are completed once."""
    server = private_server()
    gate = Gate()

    async def handle(job: Job):
        return await gate(job) if job.data == "before" else "after"

    async with (
        Queue(queue_name, server.url) as queue,
        Worker(queue_name, handle, server.url, concurrency=2) as worker,
    ):
        recorded = EventRecorder(worker)
        await queue.add_and_wait("n", "first")
        old = None
        if busy:
            old = await queue.add("n", "before")
            await gate.next()
        with server.client() as client:
            raw = Raw(client, queue_name)
            client.execute("FLUSHALL")
            later = [await queue.add("n", n) for n in range(20)]
            for job in later:
                assert await job.wait_until_finished() == "after"
            gate.open()
            if old is not None:
                await recorded.wait("error")
            assert raw.metric("completed") == 20
            # The id counter restarted, so a new job has the id of the active one, whose end must not affect it.
            ends = Counter(recorded.job_ids("completed"))
            assert {job.id: ends[job.id] for job in later[1:]} == {job.id: 1 for job in later[1:]}
            assert old is None or old.id == later[1].id
            groups = {row[1] for row in client.execute("XINFO", "GROUPS", raw.key("stream"))}
            assert groups == {"workers", "wakers"}


async def test_data_flushed_under_load(private_server: StartServer, queue_name: str):
    """All data is deleted, possibly half-way through; jobs added later are not affected."""
    server = private_server()
    async with Queue(queue_name, server.url) as queue, workers(server.url, queue_name, work) as recorded:
        with server.client() as client:
            for _ in range(3):
                async with Producers(queue) as producers:
                    await producers.more(60)
                    client.execute("FLUSHALL")
            await queue.add_bulk([("n", n, {"job_id": f"last-{n}"}) for n in range(1, 51) if n % 10])
            last = {f"last-{n}" for n in range(1, 51) if n % 10}
            await recorded.until(lambda recorded: last <= set(recorded.job_ids("completed")))
            raw = Raw(client, queue_name)
            assert all(raw.event_names(job_id).count("completed") == 1 for job_id in last)


async def test_waiting_for_a_flushed_job_ends(private_server: StartServer, queue_name: str):
    server = private_server()
    async with Queue(queue_name, server.url) as queue:
        job = await queue.add("n")
        waiting = asyncio.create_task(job.wait_until_finished())
        await asyncio.sleep(0)
        with server.client() as client:
            client.execute("FLUSHALL")
        with pytest.raises(JobNotFoundError):
            await with_timeout(waiting)


async def fill(queue: Queue):
    """Add jobs until even small ones are rejected."""
    with contextlib.suppress(BulkAddError):
        while True:
            await queue.add_bulk([("n", "x" * 20_000)] * 100)
    while True:
        await queue.add_bulk([("n", None)])


async def test_full_server_rejects_jobs_and_is_still_drained(private_server: StartServer, queue_name: str):
    server = private_server(maxmemory="24mb", maxmemory_policy="noeviction")
    finished: Counter[str] = Counter()

    async def handle(job: Job):
        if fails_first(job):
            raise ValueError
        finished[job.id] += 1

    async with Queue(queue_name, server.url) as queue, Queue(f"{queue_name}-fill", server.url) as filler:
        # Started before the server is full, so the library is loaded.
        await queue.pause()
        async with workers(server.url, queue_name, handle) as recorded:
            jobs = await queue.add_bulk([("n", n, {"attempts": 2, "priority": n % 3}) for n in range(1, 301)])
            with pytest.raises(BulkAddError) as bulk:
                await fill(filler)
            assert isinstance(bulk.value.__cause__, ServerOutOfMemoryError)
            with pytest.raises(ServerOutOfMemoryError):
                # Large, because connections allocate and free memory, which leaves a little room at times.
                await queue.add("n", "x" * 1_000_000)
            # Everything but adding works: counts, management, fetching, completion, failure, retries, removal.
            assert (await queue.get_job_counts()).paused
            await queue.resume()
            await recorded.wait("completed", 300)
            assert await queue.remove(jobs[0].id)
            assert finished == Counter({job.id: 1 for job in jobs})
            with server.client() as client:
                raw = Raw(client, queue_name)
                assert raw.metric("completed") == 300
                assert raw.pending() == []
            await filler.obliterate()
            assert (await queue.add("n", 1)).outcome == "added"
            await recorded.wait("completed", 301)


async def test_worker_can_start_on_a_full_server(private_server: StartServer, queue_name: str):
    server = private_server(maxmemory="24mb", maxmemory_policy="noeviction")
    gate = Gate()
    gate.open()
    async with Queue(queue_name, server.url) as queue, Queue(f"{queue_name}-fill", server.url) as filler:
        jobs = await queue.add_bulk([("n", n) for n in range(20)])
        with pytest.raises(BulkAddError):
            await fill(filler)
        async with Worker(queue_name, gate, server.url, concurrency=3) as worker:
            await EventRecorder(worker).wait("completed", 20)
        assert len(gate.begun) == len(jobs)


async def test_frozen_server_loses_nothing(private_server: StartServer, queue_name: str):
    """Frozen for longer than the request timeout: calls fail and are retried; nothing is lost or duplicated."""
    server = private_server()
    gate = Gate()
    url = f"{server.url}?request_timeout=300"
    async with Queue(queue_name, url) as queue, Worker(queue_name, gate, url, concurrency=2) as worker:
        recorded = EventRecorder(worker)
        first = await queue.add("n", 1)
        await gate.next()
        server.pause()
        gate.open()
        await recorded.wait("error")
        with pytest.raises(GlideMQConnectionError):
            await queue.add("n", 2, job_id="second")
        server.resume()
        await recorded.wait("completed")
        again = await _add(queue, "second")
        assert await again.wait_until_finished() == 2
        with server.client() as client:
            raw = Raw(client, queue_name)
            assert raw.event_names(first.id) == ["added", "completed"]
            assert raw.event_names("second").count("completed") == 1
            assert raw.metric("completed") == 2


async def _add(queue: Queue, job_id: str) -> Job:
    while True:
        with contextlib.suppress(GlideMQConnectionError):
            return await queue.add("n", 2, job_id=job_id)
