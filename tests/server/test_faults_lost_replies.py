"""Lost replies and cut connections: no call is executed twice, and no fetched job is lost."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from glidemq_py import AmbiguousResultError, BulkAddError, Job, Queue, ScriptError, Worker
from glidemq_py._client.direct.transport import DirectTransport
from glidemq_py.testing import RespClient, ServerProcess
from tests.server.lossy_proxy import LossyProxy
from tests.server.worker_support import EventRecorder, Gate, Raw, until, with_timeout

pytestmark = pytest.mark.usefixtures("clean_check")


@pytest.fixture
def proxy(server: Any) -> Iterator[LossyProxy]:
    with LossyProxy(server.port) as proxy:
        yield proxy


OPTIONS: dict[str, dict[str, Any]] = {"stream": {}, "lifo": {"lifo": True}, "priority": {"priority": 2}}


@pytest.mark.parametrize("kind", list(OPTIONS))
async def test_jobs_of_a_lost_reply_are_reattached_immediately(
    url: str, resp: RespClient, queue_name: str, proxy: LossyProxy, kind: str
):
    """They are reattached before their lock expires, and not as stalled jobs."""
    ran: Counter[str] = Counter()

    async def handle(job: Job) -> None:
        ran[job.id] += 1

    async with Queue(queue_name, url) as queue:
        await queue.pause()
        jobs = await queue.add_bulk([("n", n, OPTIONS[kind]) for n in range(5)])
        async with Worker(queue_name, handle, proxy.url, concurrency=10) as worker:
            recorded = EventRecorder(worker)
            proxy.lose("_exchange")
            await queue.resume()
            assert await asyncio.to_thread(proxy.wait_lost, 1)
            await recorded.wait("completed", 5)
        assert ran == Counter({job.id: 1 for job in jobs})
        raw = Raw(resp, queue_name)
        for job in jobs:
            assert raw.job(job.id).get("stalledCount", "0") == "0"
            assert raw.event_names(job.id).count("completed") == 1
        assert raw.metric("completed") == 5
        assert raw.pending() == []
        assert raw.run("GET", "list-active") in (None, "0")


async def test_unexpected_error_does_not_end_the_wake_ups(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Such as a reply that cannot be decoded: its jobs are reattached, and the worker waits for wake-ups again."""
    call_after, failed = DirectTransport.call_after, list[bool]()

    async def call_after_failing(self: DirectTransport, *args: Any) -> Any:
        reply = await call_after(self, *args)
        if reply.jobs and not failed:
            failed.append(True)
            raise ValueError("cannot be decoded")
        return reply

    monkeypatch.setattr(DirectTransport, "call_after", call_after_failing)

    async def handle(job: Job) -> str:
        return "done"

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url, concurrency=10) as worker:
        recorded = EventRecorder(worker)

        def pipelined() -> object:
            return worker._fetching is not None and worker._fetching.engine.pipelined

        await with_timeout(until(pipelined))
        await queue.add("n")
        await recorded.wait("completed")
        assert failed
        assert [type(error) for (error,) in recorded.of("error")] == [ScriptError]
        assert "waiting for a wake-up failed" in caplog.text
        await with_timeout(until(pipelined))  # the reader still runs
        assert await queue.add_and_wait("n") == "done"


async def test_jobs_of_a_lost_pipelined_reply_are_reattached(
    url: str, resp: RespClient, queue_name: str, proxy: LossyProxy
):
    """An idle worker pipelines its exchange behind its blocking read; that reply can be lost too."""
    ran: Counter[str] = Counter()

    async def handle(job: Job) -> None:
        ran[job.id] += 1

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, proxy.url, concurrency=10) as worker:
        recorded = EventRecorder(worker)
        await with_timeout(until(lambda: worker._fetching is not None and worker._fetching.engine.pipelined))
        proxy.lose("_exchange")
        # The pending call ends with this marker; the next one is pipelined, and its reply is lost.
        resp.execute("XADD", f"glide:{{{queue_name}}}:wake", "*", "w", "1")
        jobs = await queue.add_bulk([("n", n) for n in range(5)])
        assert await asyncio.to_thread(proxy.wait_lost, 1)
        await recorded.wait("completed", 5)
        assert ran == Counter({job.id: 1 for job in jobs})
    raw = Raw(resp, queue_name)
    assert raw.metric("completed") == 5
    assert raw.pending() == []
    for job in jobs:
        assert raw.job(job.id).get("stalledCount", "0") == "0"


@pytest.mark.parametrize("end", ["completed", "failed", "retrying"])
async def test_result_with_a_lost_reply_is_counted_and_reported_once(
    url: str, resp: RespClient, queue_name: str, proxy: LossyProxy, end: str
):
    gate = Gate()

    async def handle(job: Job) -> Any:
        if job.attempts_made:
            return "second"
        await gate(job)
        if end != "completed":
            raise ValueError(end)
        return "first"

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, proxy.url, concurrency=2) as worker:
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
    url: str, resp: RespClient, queue_name: str, proxy: LossyProxy, end: str
):
    gate = Gate()

    async def handle(job: Job) -> Any:
        await gate(job)
        if end == "failed":
            raise ValueError(end)

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, proxy.url) as worker:
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
async def test_lost_replies_under_load(url: str, resp: RespClient, queue_name: str, proxy: LossyProxy):
    finished: Counter[str] = Counter()

    async def handle(job: Job) -> None:
        await asyncio.sleep(0)
        finished[job.id] += 1

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, proxy.url, concurrency=40) as worker:
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


async def test_close_releases_jobs_of_a_lost_reply(url: str, resp: RespClient, queue_name: str, proxy: LossyProxy):
    """The worker never received these jobs; they return to waiting with no attempt counted."""
    gate = Gate()
    async with Queue(queue_name, url) as queue:
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
        raw = Raw(resp, queue_name)
        assert gate.begun == []
        assert [raw.state(job.id) for job in jobs] == ["waiting", "waiting", "prioritized"]
        for job in jobs:
            assert raw.job(job.id).get("stalledCount", "0") == "0"
        assert raw.pending() == []
        assert worker.consumer not in raw.consumers()


async def test_add_with_a_lost_reply_raises_ambiguous_result(url: str, queue_name: str, proxy: LossyProxy):
    async with Queue(queue_name, proxy.url) as queue, Queue(queue_name, url) as other:
        await queue.add("n", 1)
        proxy.lose("_add")
        with pytest.raises(AmbiguousResultError):
            await queue.add("n", 2, job_id="mine")
        again = await queue.add("n", 2, job_id="mine")
        assert again.outcome == "duplicate"
        assert (await other.get_job_counts()).waiting == 2


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


async def test_bulk_with_a_lost_reply_names_the_positions(url: str, queue_name: str, proxy: LossyProxy):
    async with Queue(queue_name, proxy.url) as queue:
        await queue.connect()
        proxy.lose("_add")
        with pytest.raises(BulkAddError) as caught:
            await queue.add_bulk([("n", n) for n in range(600)])
        results = caught.value.results
        assert len(results) == 600
        kinds = {type(result) for result in results}
        assert AmbiguousResultError in kinds


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


async def test_jobs_survive_the_loss_of_each_connection(private_server: Callable[..., ServerProcess], queue_name: str):
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


async def test_active_jobs_survive_the_loss_of_the_heartbeat_connection(
    private_server: Callable[..., ServerProcess], queue_name: str
):
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
    url: str, resp: RespClient, queue_name: str, proxy: LossyProxy, kind: str
):
    """Failed, due immediately, promoted and fetched again, all in one call whose reply is lost."""
    gate = Gate()

    async def handle(job: Job) -> str:
        if job.attempts_made == 0:
            await gate(job)
            raise ValueError
        return "second"

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, proxy.url, concurrency=2) as worker:
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
    url: str, queue_name: str, proxy: LossyProxy, data: dict[str, str] | None
):
    gate = Gate()
    runs = 0

    async def handle(job: Job) -> Any:
        nonlocal runs
        runs += 1
        if runs > 1:
            return job.data
        await gate(job)
        return job.move_to_delayed(1) if data is None else job.move_to_delayed(1, data=data)

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, proxy.url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", {"step": "one"})
        await gate.next()
        proxy.lose("_exchange")
        gate.open()
        assert await job.wait_until_finished() == (data or {"step": "one"})
        await recorded.wait("completed")
        assert recorded.count["delayed"] == 1
        assert runs == 2
