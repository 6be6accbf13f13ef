"""Lost replies and cut connections: no call is executed twice, and no fetched job is lost."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from glidemq_py import AmbiguousResultError, BulkAddError, Job, Queue, Worker
from glidemq_py.errors import ScriptError
from glidemq_py.sync import Queue as BlockingQueue
from glidemq_py.testing import RespClient
from tests.inside import direct, fetching_of
from tests.server.lossy_proxy import LossyProxy
from tests.server.permission_calls import CALLS, Place
from tests.server.worker_support import EventRecorder, Gate, Raw, StartServer, WorkerFor, until, with_timeout

pytestmark = pytest.mark.usefixtures("clean_check")


@pytest.fixture
def proxy(server: Any) -> Iterator[LossyProxy]:
    with LossyProxy(server.url) as proxy:
        yield proxy


OPTIONS: dict[str, dict[str, Any]] = {"stream": {}, "lifo": {"lifo": True}, "priority": {"priority": 2}}


@pytest.mark.parametrize("kind", list(OPTIONS))
async def test_jobs_of_a_lost_reply_are_reattached_immediately(
    raw: Raw, queue: Queue, queue_name: str, proxy: LossyProxy, kind: str
):
    """They are reattached before their lock expires, and not as stalled jobs."""
    ran: Counter[str] = Counter()

    async def handle(job: Job):
        ran[job.id] += 1

    await queue.pause()
    jobs = await queue.add_bulk([("n", n, OPTIONS[kind]) for n in range(5)])
    async with Worker(queue_name, handle, proxy.url, concurrency=10) as worker:
        recorded = EventRecorder(worker)
        proxy.lose("_exchange")
        await queue.resume()
        assert await asyncio.to_thread(proxy.wait_lost, 1)
        await recorded.wait("completed", 5)
    assert ran == Counter({job.id: 1 for job in jobs})
    for job in jobs:
        assert raw.job(job.id).get("stalledCount", "0") == "0"
        assert raw.event_names(job.id).count("completed") == 1
    assert raw.metric("completed") == 5
    assert raw.pending() == []
    assert raw.run("GET", "list-active") in (None, "0")


async def test_unexpected_error_does_not_end_the_wake_ups(
    queue: Queue, worker_for: WorkerFor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Such as a reply that cannot be decoded: its jobs are reattached, and the worker waits for wake-ups again."""
    call_with, failed = direct.DirectTransport.call_with, list[bool]()

    async def call_failing(self: direct.DirectTransport, *args: Any, **given: Any):
        reply, others = await call_with(self, *args, **given)
        if reply.jobs and not failed:
            failed.append(True)
            raise ValueError("cannot be decoded")
        return reply, others

    monkeypatch.setattr(direct.DirectTransport, "call_with", call_failing)

    async def handle(job: Job) -> str:
        return "done"

    async with worker_for(handle, concurrency=10) as worker:
        recorded = EventRecorder(worker)

        def pipelined() -> object:
            return fetching_of(worker).engine.pipelined

        await with_timeout(until(pipelined))
        await queue.add("n")
        await recorded.wait("completed")
        assert failed
        assert [type(error) for (error,) in recorded.of("error")] == [ScriptError]
        assert "waiting for a wake-up failed" in caplog.text
        await with_timeout(until(pipelined))  # the reader still runs
        assert await queue.add_and_wait("n") == "done"


async def test_jobs_of_a_lost_pipelined_reply_are_reattached(
    resp: RespClient, raw: Raw, queue: Queue, queue_name: str, proxy: LossyProxy
):
    """An idle worker pipelines its exchange behind its blocking read; that reply can be lost too."""
    ran: Counter[str] = Counter()

    async def handle(job: Job):
        ran[job.id] += 1

    async with Worker(queue_name, handle, proxy.url, concurrency=10) as worker:
        recorded = EventRecorder(worker)
        await with_timeout(until(lambda: fetching_of(worker).engine.pipelined))
        proxy.lose("_exchange")
        # The pending call ends with this marker; the next one is pipelined, and its reply is lost.
        resp.execute("XADD", f"glide:{{{queue_name}}}:wake", "*", "w", "1")
        jobs = await queue.add_bulk([("n", n) for n in range(5)])
        assert await asyncio.to_thread(proxy.wait_lost, 1)
        await recorded.wait("completed", 5)
        assert ran == Counter({job.id: 1 for job in jobs})
    assert raw.metric("completed") == 5
    assert raw.pending() == []
    for job in jobs:
        assert raw.job(job.id).get("stalledCount", "0") == "0"


@pytest.mark.parametrize("end", ["completed", "failed", "retrying"])
async def test_result_with_a_lost_reply_is_counted_and_reported_once(
    resp: RespClient, queue: Queue, queue_name: str, proxy: LossyProxy, end: str
):
    gate = Gate()

    async def handle(job: Job):
        if job.attempts_made:
            return "second"
        await gate(job)
        if end != "completed":
            raise ValueError(end)
        return "first"

    async with Worker(queue_name, handle, proxy.url, concurrency=2) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", attempts=2 if end == "retrying" else 1)
        await gate.next()
        proxy.lose("_exchange")
        # The next exchange reports it; the only other one is the idle poll every second.
        gate.open()
        assert await asyncio.to_thread(proxy.wait_lost, 1)
        await recorded.wait(end)
        if end == "retrying":
            await recorded.wait("completed")
        raw = Raw(resp, queue_name)
        assert raw.event_names(job.id).count(end) == 1
        assert recorded.count[end] == 1
        assert raw.metric("completed") + raw.metric("failed") == 1
        assert raw.job(job.id)["attemptsMade"] == ("0" if end == "completed" else "1")


@pytest.mark.parametrize("end", ["completed", "failed"])
async def test_result_of_a_job_removed_on_completion(
    resp: RespClient, queue: Queue, queue_name: str, proxy: LossyProxy, end: str
):
    gate = Gate()

    async def handle(job: Job):
        await gate(job)
        if end == "failed":
            raise ValueError(end)

    async with Worker(queue_name, handle, proxy.url) as worker:
        recorded = EventRecorder(worker)
        await queue.add("n", remove_on_complete=True, remove_on_fail=True)
        await gate.next()
        proxy.lose("_exchange")
        gate.open()
        await recorded.wait(end)
        raw = Raw(resp, queue_name)
        assert raw.metric(end) == 1
        # One error for the lost reply, and none for a discarded result.
        assert [type(args[0]) for args in recorded.of("error")] == [AmbiguousResultError]


@pytest.mark.slow
async def test_lost_replies_under_load(resp: RespClient, queue: Queue, queue_name: str, proxy: LossyProxy):
    finished: Counter[str] = Counter()

    async def handle(job: Job):
        await asyncio.sleep(0)
        finished[job.id] += 1

    async with Worker(queue_name, handle, proxy.url, concurrency=40) as worker:
        recorded = EventRecorder(worker)
        jobs = []
        for round_ in range(1, 6):
            proxy.lose("_exchange")
            jobs += await queue.add_bulk([("n", n, {"priority": n % 2}) for n in range(100)])
            assert await asyncio.to_thread(proxy.wait_lost, round_)
        await recorded.wait("completed", len(jobs))
        raw = Raw(resp, queue_name)
        assert Counter(recorded.job_ids("completed")) == Counter({job.id: 1 for job in jobs})
        assert raw.metric("completed") == len(jobs)
        assert raw.pending() == []
        assert not [job.id for job in jobs if raw.job(job.id).get("stalledCount", "0") != "0"]


async def test_close_releases_jobs_of_a_lost_reply(raw: Raw, queue: Queue, queue_name: str, proxy: LossyProxy):
    """The worker never received these jobs; they return to waiting with no attempt counted."""
    gate = Gate()
    worker = Worker(queue_name, gate, proxy.url, concurrency=4)
    recorded = EventRecorder(worker)
    worker.pause()
    await worker.start()
    jobs = [await queue.add("n", kind, **options) for kind, options in OPTIONS.items()]
    proxy.lose("_exchange")
    worker.resume()
    assert await asyncio.to_thread(proxy.wait_lost, 1)
    await recorded.wait("error")
    await with_timeout(worker.close())
    assert gate.begun == []
    assert [raw.state(job.id) for job in jobs] == ["waiting", "waiting", "prioritized"]
    for job in jobs:
        assert raw.job(job.id).get("stalledCount", "0") == "0"
    assert raw.pending() == []
    assert worker.consumer not in raw.consumers()


async def test_add_with_a_lost_reply_is_not_retried(url: str, queue_name: str, proxy: LossyProxy):
    """Neither by us nor by GLIDE: without a custom id it would be added twice."""
    async with Queue(queue_name, proxy.url) as queue, Queue(queue_name, url) as other:
        await queue.connect()
        for n in range(1, 6):
            proxy.lose("_add")
            with pytest.raises(AmbiguousResultError):
                await with_timeout(queue.add("n", n))
            await with_timeout(queue.get_job_counts())  # reconnected; any buffered request has been sent
            assert (await other.get_job_counts()).waiting == n


async def test_reads_and_management_calls_are_retried(url: str, queue_name: str, proxy: LossyProxy):
    async with Queue(queue_name, proxy.url) as queue:
        job = await queue.add("n", 1)
        for part, call in (
            ("_counts", queue.get_job_counts), ("_pause", queue.pause), ("_resume", queue.resume),
            ("_workers", queue.get_workers), ("_remove", lambda: queue.remove(job.id)),
        ):  # fmt: skip
            proxy.lose(part)
            await with_timeout(call())
        assert proxy.lost == 5


def test_blocking_reads_and_writes_are_retried(url: str, queue_name: str, proxy: LossyProxy):
    with BlockingQueue(queue_name, proxy.url) as queue:
        job = queue.add("n", 1)
        calls: list[tuple[str, Callable[[], Any], Any]] = [
            ("hget", job.get_state, "waiting"), ("lrange", job.logs, []), ("hget", queue.is_paused, False),
            ("_update_job", lambda: job.update_progress(5), None), ("hmget", job.reload, None),
            ("xrange", lambda: queue.read_stream(job.id), []), ("_counts", queue.get_job_counts, None),
        ]  # fmt: skip
        for number, (part, call, expected) in enumerate(calls, 1):
            proxy.lose(part)
            found = call()
            assert expected is None or found == expected
            assert proxy.lost == number, part
        assert job.progress == 5


SECOND_EFFECT = {
    "FlowProducer": "add add_bulk add_dag",
    "Broadcast": "publish publish_bulk publish(max_messages=...) redeliver",
    "JobBatch": "add add_bulk",
    "Job": "log promote requeue retry stream",  # outside of a handler
    "Queue": "add add_bulk add(deduplication={'replace':True}) workers.cancel fetch lease promote signal",
}
PREPARED_BY_A_FETCH = {
    "Lease": "complete extend fail release",
    "Queue": "leases.complete leases.extend leases.fail leases.release leases.release_owner",
}


@pytest.mark.slow
async def test_only_what_could_have_a_second_effect_is_ambiguous(private_server: StartServer, queue_name: str):
    """Every public method, with the reply to its first call lost."""
    server, ambiguous = private_server(), set[str]()
    names = {
        f"{kind}.{name}".replace(" ", "") for each in (SECOND_EFFECT, PREPARED_BY_A_FETCH)
        for kind, text in each.items() for name in text.split()
    }  # fmt: skip
    with LossyProxy(server.url) as proxy:
        for number, (name, call) in enumerate(CALLS.items()):
            if not name.startswith(("Queue.", "Job.", "JobBatch.", "Lease.", "FlowProducer.", "Broadcast.")):
                continue
            async with AsyncExitStack() as stack:
                place = Place(f"{queue_name}-{number}-", proxy.url, server.url, lambda: False, stack)
                await place.open()
                proxy.lose(place.name)
                try:
                    await with_timeout(call(place))
                except (AmbiguousResultError, BulkAddError):
                    ambiguous.add(name.replace(" ", ""))
                except AssertionError:
                    assert name == "Job.remove_dependency"  # False: the first execution has removed it
                proxy.lose(place.name, 0)
    assert ambiguous == names


IN_HANDLER: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [
    ("_update_job", "log", ("line",), {}),
    ("_update_job", "log", ("line",), {"keep": 5}),
    ("_update_job", "update_progress", (5, "half"), {}),
    ("_update_job", "update_data", ({"new": 1},), {}),
    ("_update_job", "report_tokens", (7,), {}),
    ("_stream_chunk", "stream", ({"a": 1},), {"keep": 5}),
    ("_report_usage", "report_usage", (), {"tokens": {"input": 3}}),
    ("hget", "get_state", (), {}),
    ("lrange", "logs", (), {}),
    ("lrange", "wait_for_signal", ("go",), {}),
    ("hmget", "reload", (), {}),
    ("_store_steps", "run", ("step", int), {}),
]


@pytest.mark.parametrize("blocking", [False, True])
async def test_calls_of_a_handler_with_a_lost_reply_are_made_once(
    resp: RespClient, queue: Queue, queue_name: str, proxy: LossyProxy, blocking: bool
):
    results: Any = []

    async def handle(job: Job):
        for part, name, args, options in IN_HANDLER:
            proxy.lose(part)
            results.append(await getattr(job, name)(*args, **options))

    def handle_in_thread(job: Job):
        for part, name, args, options in IN_HANDLER:
            proxy.lose(part)
            results.append(getattr(job.blocking, name)(*args, **options))

    handler: Any = handle_in_thread if blocking else handle
    async with Worker(queue_name, handler, proxy.url):
        await queue.pause()
        job = await queue.add("n", timeout=60_000)
        await queue.signal(job.id, "go", 1)
        await queue.resume()
        await job.wait_until_finished()
        assert proxy.lost == len(IN_HANDLER)
        assert results[7:9] == ["active", ["line", "line"]]
        assert await job.logs() == ["line", "line"]
        assert [chunk.id for chunk in await queue.read_stream(job.id)] == [results[5]]
        found = await queue.get_job(job.id)
        assert found is not None
        assert (found.progress, found.progress_message, found.data) == (5, "half", {"new": 1})
        assert (await queue.usage.get_summary()).per_queue[queue_name].tokens == {"input": 3}


async def test_jobs_survive_a_cut_of_all_connections(url: str, resp: RespClient, queue_name: str, proxy: LossyProxy):
    gate = Gate()
    async with Queue(queue_name, proxy.url) as queue, Worker(queue_name, gate, proxy.url, concurrency=2) as worker:
        recorded = EventRecorder(worker)
        first = await queue.add("n", 1)
        await gate.next()
        proxy.cut()
        gate.open()
        await recorded.wait("completed")
        second = await queue.add("n", 2)
        await recorded.wait("completed", 2)
        raw = Raw(resp, queue_name)
        for job in (first, second):
            assert raw.event_names(job.id) == ["added", "completed"]
        assert raw.metric("completed") == 2


async def test_jobs_survive_the_loss_of_each_connection(private_server: StartServer, queue_name: str):
    """The blocking wake-up read, the exchange's connection, the heartbeat's: jobs run after the loss of any."""
    server = private_server()
    gate = Gate()
    gate.open()
    async with Queue(queue_name, server.url) as queue, Worker(queue_name, gate, server.url) as worker:
        recorded = EventRecorder(worker)
        done = 0
        with server.client() as client:
            for _ in range(3):
                for line in str(client.execute("CLIENT", "LIST", "TYPE", "NORMAL")).splitlines():
                    fields = dict(field.split("=", 1) for field in line.split() if "=" in field)
                    if "resp" not in fields or fields.get("cmd") == "client|list":
                        continue
                    client.execute("CLIENT", "KILL", "ID", fields["id"])
                    done += 1
                    job = await _add_patiently(queue, f"job-{done}")
                    await with_timeout(job.wait_until_finished())
            raw = Raw(client, queue_name)
            await recorded.wait("completed", done)
            assert raw.metric("completed") == done
            assert raw.pending() == []
    assert sorted(recorded.job_ids("completed")) == sorted(f"job-{n}" for n in range(1, done + 1))


async def _add_patiently(queue: Queue, job_id: str) -> Job:
    """Repeat the add until it is confirmed, which a custom id makes safe."""
    while True:
        try:
            return await queue.add("n", job_id, job_id=job_id)
        except AmbiguousResultError:
            continue


async def test_active_jobs_survive_the_loss_of_the_heartbeat_connection(private_server: StartServer, queue_name: str):
    """The heartbeat reconnects in time; a worker that checks for stalled jobs finds none."""
    server = private_server()
    gate = Gate()
    async with Queue(queue_name, server.url) as queue:
        worker = Worker(queue_name, gate, server.url, lock_duration=1_000, stalled_interval=1_000)
        other = Worker(queue_name, gate, server.url, lock_duration=1_000, stalled_interval=1_000)
        recorded = EventRecorder(worker, other)
        await worker.start()
        job = await queue.add("n", 1)
        await gate.next()
        with server.client() as client:
            raw = Raw(client, queue_name)
            await other.start()
            for _ in range(3):
                client.execute("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
                before = raw.job(job.id)["lastActive"]
                await with_timeout(until(lambda before=before: raw.job(job.id)["lastActive"] != before))  # type: ignore[misc]
            gate.open()
            await recorded.wait("completed")
            assert recorded.count["stalled"] == 0
            assert raw.metric("completed") == 1
            assert raw.job(job.id).get("stalledCount", "0") == "0"
            await asyncio.gather(worker.close(), other.close())


@pytest.mark.parametrize("kind", list(OPTIONS))
async def test_retry_fetched_by_the_call_that_reported_the_failure(
    resp: RespClient, queue: Queue, queue_name: str, proxy: LossyProxy, kind: str
):
    """Failed, due immediately, promoted and fetched again, all in one call whose reply is lost."""
    gate = Gate()

    async def handle(job: Job) -> str:
        if job.attempts_made == 0:
            await gate(job)
            raise ValueError
        return "second"

    async with Worker(queue_name, handle, proxy.url, concurrency=2) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", attempts=2, **OPTIONS[kind])
        await gate.next()
        proxy.lose("_exchange")
        gate.open()
        await recorded.wait("completed")
        assert (recorded.count["retrying"], recorded.count["completed"]) == (1, 1)
        raw = Raw(resp, queue_name)
        record = raw.job(job.id)
        assert (record["attemptsMade"], record.get("stalledCount", "0")) == ("1", "0")
        assert raw.event_names(job.id).count("completed") == 1


@pytest.mark.parametrize("data", [None, {"step": "two"}], ids=["as it was", "new data"])
async def test_step_with_a_lost_reply_is_counted_and_reported_once(
    queue: Queue, queue_name: str, proxy: LossyProxy, data: dict[str, str] | None
):
    gate = Gate()
    runs = 0

    async def handle(job: Job):
        nonlocal runs
        runs += 1
        if runs > 1:
            return job.data
        await gate(job)
        return job.move_to_delayed(1) if data is None else job.move_to_delayed(1, data=data)

    async with Worker(queue_name, handle, proxy.url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", {"step": "one"})
        await gate.next()
        proxy.lose("_exchange")
        gate.open()
        assert await job.wait_until_finished() == (data or {"step": "one"})
        await recorded.wait("completed")
        assert recorded.count["delayed"] == 1
        assert runs == 2
