"""Starting and closing: no job is lost, no attempt is counted, nothing hangs."""

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator
from typing import Any

import glide
import pytest

from glidemq_py import ClosedError, ConnectionOptions, GlideMQError, Job, Queue, Worker
from glidemq_py.testing import RespClient
from tests.inside import around, closing, config_of, fetching_of, lane, shutdown
from tests.server.worker_support import EventRecorder, Gate, Raw, StartServer, WorkerFor, until, with_timeout


def untouched(raw: Raw, job_id: str):
    """Assert that the job waits as if it had never been fetched."""
    job = raw.job(job_id)
    assert job["state"] == "waiting"
    assert job["attemptsMade"] == "0"
    assert job.get("stalledCount", "0") == "0"


def nothing_pends(raw: Raw):
    assert raw.pending() == []
    assert raw.run("ZCARD", "list-heartbeats") == 0
    assert raw.run("GET", "list-active") in (None, "0")


async def test_close_waits_for_active_jobs_and_fetches_no_more(core_url: str, core_resp: RespClient, queue_name: str):
    gate = Gate()
    async with Queue(queue_name, core_url) as queue:
        worker = Worker(queue_name, gate, core_url, concurrency=3)
        await worker.start()
        jobs = await queue.add_bulk([("n", n) for n in range(8)])
        for _ in range(3):
            await gate.next()
        closing = asyncio.create_task(worker.close())
        recorded = EventRecorder(worker)
        await recorded.wait("closing")
        assert not worker.is_running
        assert not closing.done()
        gate.open()
        await with_timeout(closing)
        raw = Raw(core_resp, queue_name)
        assert [raw.state(job.id) for job in jobs] == ["completed"] * 3 + ["waiting"] * 5
        nothing_pends(raw)
        assert await queue.get_workers() == []
        assert worker.consumer not in raw.consumers()
        async with Worker(queue_name, gate, core_url, concurrency=8) as other:
            await EventRecorder(other).wait("drained")
        assert (await queue.get_job_counts()).completed == 8


@pytest.mark.parametrize("how", ["force", "timeout", "zero"])
async def test_close_releases_jobs_after_its_timeout(core_url: str, core_resp: RespClient, queue_name: str, how: str):
    gate = Gate()
    cases: dict[str, dict[str, Any]] = {"force": {"force": True}, "timeout": {"timeout": 50}, "zero": {"timeout": 0}}
    options = cases[how]
    async with Queue(queue_name, core_url) as queue:
        worker = Worker(queue_name, gate, core_url, concurrency=4)
        await worker.start()
        jobs = [
            await queue.add("n", 0),
            await queue.add("n", 1, priority=3),
            await queue.add("n", 2, lifo=True),
            await queue.add("n", 3, attempts=2),
        ]
        for _ in jobs:
            await gate.next()
        await with_timeout(worker.close(**options))
        assert gate.cancelled == 4
        assert all(job.cancelled.is_set() for job in gate.begun)
        raw = Raw(core_resp, queue_name)
        nothing_pends(raw)
        assert [raw.state(job.id) for job in jobs] == ["waiting", "prioritized", "waiting", "waiting"]
        for job in jobs:
            record = raw.job(job.id)
            assert (record["attemptsMade"], record.get("stalledCount", "0")) == ("0", "0")
        gate.open()
        async with Worker(queue_name, gate, core_url) as other:
            recorded = EventRecorder(other)
            for job in jobs:
                await job.wait_until_finished()
            await recorded.wait("drained")
        # The urgent one first, then the newest, then the others as they were added.
        assert recorded.job_ids("completed") == [jobs[1].id, jobs[2].id, jobs[0].id, jobs[3].id]


async def test_result_of_a_thread_after_release_is_discarded(raw: Raw, queue: Queue, worker_for: WorkerFor):
    began, leave = threading.Event(), threading.Event()
    cancelled: list[bool] = []

    def handle(job: Job) -> str:
        began.set()
        cancelled.append(job.cancelled.wait(20))
        leave.wait(20)
        return "too late"

    worker = worker_for(handle)
    await worker.start()
    job = await queue.add("n")
    await asyncio.to_thread(began.wait, 20)
    await with_timeout(worker.close(force=True))
    untouched(raw, job.id)
    leave.set()

    async def finish(job: Job) -> str:
        return "in time"

    async with worker_for(finish):
        assert await job.wait_until_finished() == "in time"
    assert cancelled == [True]
    assert raw.event_names(job.id).count("completed") == 1


async def test_close_releases_jobs_of_a_pending_reply(private_server: StartServer, queue_name: str):
    """The server is frozen while an exchange is under way: its reply comes after the close has begun."""
    server = private_server()
    gate = Gate()
    async with Queue(queue_name, server.url) as queue:
        worker = Worker(queue_name, gate, server.url, concurrency=2)
        await worker.start()
        first = await queue.add("n", 1)
        await gate.next()
        with server.client() as client:
            raw = Raw(client, queue_name)
            worker.pause()
            second = await queue.add("n", 2)
            server.pause()
            worker.resume()
            await asyncio.sleep(0)  # the look for jobs is on its way
            closing = asyncio.create_task(worker.close(force=True))
            await EventRecorder(worker).wait("closing")
            server.resume()
            await with_timeout(closing)
            untouched(raw, first.id)
            untouched(raw, second.id)
            nothing_pends(raw)


async def test_close_is_idempotent_and_can_be_forced_later(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    worker = worker_for(gate)
    recorded = EventRecorder(worker)
    await worker.start()
    job = await queue.add("n")
    await gate.next()
    patient = asyncio.create_task(worker.close())
    await recorded.wait("closing")
    await with_timeout(worker.close(force=True))
    await with_timeout(patient)
    await worker.close()
    assert recorded.count["closing"] == recorded.count["closed"] == 1
    assert await job.get_state() == "waiting"
    await with_timeout(worker.wait_until_closed())


async def test_cancelled_close_continues(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    worker = worker_for(gate)
    recorded = EventRecorder(worker)
    await worker.start()
    await queue.add("n")
    await gate.next()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await worker.close()
    gate.open()
    await recorded.wait("closed")
    assert recorded.count["completed"] == 1


async def test_waiting_for_handlers_costs_no_processor_time(
    queue: Queue, worker_for: WorkerFor, monkeypatch: pytest.MonkeyPatch
):
    """The worker waits for an event and does not poll."""
    gate = Gate()
    worker = worker_for(gate)
    await worker.start()
    await queue.add("n")
    await gate.next()
    fetching: Any = fetching_of(worker)
    looks = 0

    def counted(pump: Any, *args: Any):
        nonlocal looks
        looks += 1
        pump(*args)

    around(monkeypatch, fetching, "_pump", counted)
    closing = asyncio.create_task(worker.close())
    await EventRecorder(worker).wait("closing")
    for _ in range(200):
        await asyncio.sleep(0)
    assert looks < 10
    gate.open()
    await with_timeout(closing)


async def test_listener_can_close_its_worker(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job): ...

    await queue.add_bulk([("n", n) for n in range(5)])
    worker = worker_for(handle)
    recorded = EventRecorder(worker)

    async def on_drained():
        await worker.close()

    worker.on("drained", on_drained)
    await with_timeout(worker.run())
    assert recorded.count["completed"] == 5


async def test_closing_from_the_own_handler_raises_an_explanation(queue: Queue, worker_for: WorkerFor):
    refused: list[str] = []
    closing: list[asyncio.Task[None]] = []

    async def handle(job: Job):
        with pytest.raises(GlideMQError, match="create_task") as caught:
            await worker.close()
        refused.append(str(caught.value))
        closing.append(asyncio.create_task(worker.close()))

    worker = worker_for(handle)
    await worker.start()
    job = await queue.add("n")
    await with_timeout(worker.wait_until_closed())
    assert await job.get_state() == "completed"
    assert len(refused) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_run_ends_at_a_signal_and_a_later_one_hurries(
    queue: Queue, worker_for: WorkerFor, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
):
    gate = Gate()
    worker = worker_for(gate)
    recorded = EventRecorder(worker)
    running = asyncio.create_task(worker.run())
    job = await queue.add("n")
    await gate.next()
    signal.raise_signal(number)
    await recorded.wait("closing")
    assert not running.done()
    monkeypatch.setattr(shutdown, "SAME_SIGNAL_S", 0.0)  # it is later
    signal.raise_signal(number)
    await with_timeout(running)
    assert await job.get_state() == "waiting"


async def test_run_waits_for_the_end_of_a_worker_that_runs_already(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    gate.open()
    async with worker_for(gate) as worker:
        running = [asyncio.create_task(worker.run()) for _ in range(2)]
        await with_timeout(queue.add_and_wait("n"))
        assert not any(task.done() for task in running)
        await worker.close()
        await with_timeout(asyncio.gather(*running))


@pytest.mark.parametrize("cancellations", [1, 2, 5])
@pytest.mark.parametrize("when", ["starting", "idle", "busy"])
async def test_cancelled_run_closes_its_worker(
    worker_for: WorkerFor, queue: Queue, queue_name: str, when: str, cancellations: int
):
    def of_workers() -> set[str]:
        return {task.get_name() for task in asyncio.all_tasks() if task.get_name().endswith(f"-{queue_name}")}

    gate = Gate()
    await queue.is_paused()
    before = of_workers()
    worker = worker_for(gate)
    recorded = EventRecorder(worker)
    running = asyncio.create_task(worker.run())
    if when != "starting":
        await with_timeout(worker.wait_until_ready())
    if when == "busy":
        job = await queue.add("n")
        await gate.next()
    for _ in range(cancellations):
        await asyncio.sleep(0)
        running.cancel()
    if when == "busy" and cancellations == 1:
        await recorded.wait("closing")
        gate.open()
    with pytest.raises(asyncio.CancelledError):
        await with_timeout(running)
    assert await queue.get_workers() == []
    assert of_workers() <= before
    if when == "busy":
        assert await job.get_state() == ("completed" if cancellations == 1 else "waiting")


@pytest.mark.parametrize("ended_by", ["timeout", "revoked"])
@pytest.mark.parametrize("kind", ["thread", "coroutine"])
async def test_close_does_not_wait_for_a_stuck_handler_whose_attempt_has_ended(
    worker_for: WorkerFor, url: str, queue_name: str, kind: str, ended_by: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(closing, "_RELEASE_S", 0.1)
    begun, leave, left = threading.Event(), threading.Event(), asyncio.Event()

    def in_thread(job: Job):
        begun.set()
        leave.wait()

    async def in_task(job: Job):
        begun.set()
        while not left.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await left.wait()

    try:
        async with Queue(queue_name, url) as queue:
            worker = worker_for(in_thread if kind == "thread" else in_task)
            recorded = EventRecorder(worker)
            running = asyncio.create_task(worker.run())
            job = await queue.add("n", timeout=50 if ended_by == "timeout" else None)
            await asyncio.to_thread(begun.wait)
            if ended_by == "revoked":
                worker.cancel_job(job.id)
            await recorded.wait("failed")
            assert worker.active_count == 1
            signal.raise_signal(signal.SIGTERM)
            await with_timeout(running)
            assert await queue.get_workers() == []
    finally:
        leave.set()
        left.set()


async def test_drain_processes_all_jobs(core_url: str, queue_name: str):
    async def handle(job: Job):
        if job.data == "retried" and job.attempts_made == 0:
            raise ValueError

    async with Queue(queue_name, core_url) as queue:
        await queue.add_bulk([
            *[("n", n) for n in range(20)],
            ("n", "retried", {"attempts": 2, "backoff": 20}),
            ("n", "delayed", {"delay": 30}),
            ("n", "urgent", {"priority": 1}),
            ("n", "urgent and delayed", {"priority": 1, "delay": 30}),
        ])  # fmt: skip
        worker = Worker(queue_name, handle, core_url, concurrency=4)
        await worker.start()
        await with_timeout(worker.drain())
        assert not worker.is_running
        counts = await queue.get_job_counts()
        assert (counts.completed, counts.waiting, counts.active, counts.delayed) == (24, 0, 0, 0)


async def test_drain_of_an_empty_queue_and_of_a_worker_that_was_not_started(worker_for: WorkerFor):
    async def handle(job: Job): ...

    worker = worker_for(handle)
    with pytest.raises(GlideMQError, match="started"):
        await worker.drain()
    await worker.start()
    await with_timeout(worker.drain())


async def test_a_worker_is_started_once_and_not_after_it_was_closed(worker_for: WorkerFor):
    async def handle(job: Job): ...

    worker = worker_for(handle)
    await worker.start()
    with pytest.raises(GlideMQError, match="already"):
        await worker.start()
    await worker.close()
    with pytest.raises(GlideMQError):
        await worker.start()
    fresh = worker_for(handle)
    await with_timeout(fresh.close())
    with pytest.raises(ClosedError):
        await fresh.start()


async def test_start_waits_for_an_unreachable_server(restartable_server: StartServer, queue_name: str):
    async def handle(job: Job) -> str:
        return "done"

    server = restartable_server()
    server.stop()
    worker = Worker(queue_name, handle, server.url)
    recorded = EventRecorder(worker)
    starting = asyncio.create_task(worker.start())
    await recorded.wait("error")
    assert not starting.done()
    await asyncio.to_thread(server.start)
    await with_timeout(starting)
    async with Queue(queue_name, server.url) as queue:
        assert await queue.add_and_wait("n") == "done"
    await with_timeout(worker.close())


async def test_worker_can_be_closed_while_waiting_for_its_server(private_server: StartServer, queue_name: str):
    async def handle(job: Job): ...

    server = private_server()
    server.stop()
    worker = Worker(queue_name, handle, server.url)
    recorded = EventRecorder(worker)
    starting = asyncio.create_task(worker.start())
    await recorded.wait("error")
    await with_timeout(worker.close())
    with pytest.raises(ClosedError):
        await starting
    assert not worker.is_running
    assert threading.active_count() == len([t for t in threading.enumerate() if worker.consumer not in t.name])


async def test_aborted_start_leaves_nothing_behind(private_server: StartServer, queue_name: str):
    async def handle(job: Job): ...

    server = private_server()
    server.stop()
    worker = Worker(queue_name, handle, server.url)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await worker.start()
    assert not [task for task in asyncio.all_tasks() if "glidemq" in task.get_name()]


async def test_lifespan_is_exited_by_the_task_that_entered_it(queue: Queue, worker_for: WorkerFor):
    """Task groups require it."""
    tasks: Any = []

    @contextlib.asynccontextmanager
    async def lifespan(worker: Worker) -> AsyncIterator[str]:
        tasks.append(asyncio.current_task())
        async with asyncio.TaskGroup() as group:
            background = group.create_task(asyncio.Event().wait())
            yield "context"
            background.cancel()
        tasks.append(asyncio.current_task())

    async def handle(job: Job):
        return job.context

    worker = worker_for(handle, lifespan=lifespan)
    await asyncio.create_task(worker.start())
    assert await queue.add_and_wait("n") == "context"
    await asyncio.create_task(worker.close())
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]


async def test_a_lifespan_that_fails_at_its_end_does_not_hang_the_close(queue: Queue, worker_for: WorkerFor):
    @contextlib.asynccontextmanager
    async def lifespan(worker: Worker) -> AsyncIterator[None]:
        yield
        raise RuntimeError("no goodbye")

    async def handle(job: Job): ...

    worker = worker_for(handle, lifespan=lifespan)
    recorded = EventRecorder(worker)
    running = asyncio.create_task(worker.run())
    await queue.add_and_wait("n")
    with pytest.raises(RuntimeError, match="no goodbye"):
        await with_timeout(worker.close())
    with pytest.raises(RuntimeError, match="no goodbye"):
        await with_timeout(running)
    assert recorded.count["closed"] == 1


async def test_a_client_that_is_closed_under_the_worker_does_not_hang_it(url: str, queue: Queue, queue_name: str):
    client = await glide.GlideClient.create(config_of(ConnectionOptions.from_url(url)))
    gate = Gate()
    worker = Worker(queue_name, gate, client)
    recorded = EventRecorder(worker)
    await worker.start()
    job = await queue.add("n")
    await gate.next()
    await client.close()
    gate.open()
    await recorded.wait("error")
    assert isinstance(recorded.of("error")[0][0], ClosedError)
    await with_timeout(worker.close())
    assert recorded.count["error"] == 1
    assert await job.get_state() == "active"  # left to recovery


@pytest.mark.slow
async def test_close_of_an_idle_worker_does_not_wait_for_a_frozen_server(private_server: StartServer, queue_name: str):
    """The call that invalidates its pipelined call is canceled. It would time out after 300 s."""

    async def handle(job: Job): ...

    server = private_server()
    worker = Worker(queue_name, handle, f"{server.url}?request_timeout=300000")
    await worker.start()
    await with_timeout(until(lambda: fetching_of(worker).engine.pipelined))
    fetching = fetching_of(worker)
    assert fetching is not None
    server.pause()
    try:
        await with_timeout(worker.close(), 60)
    finally:
        server.resume()
    recovery = fetching._recovery_call
    assert recovery is not None
    assert recovery.cancelled()
    assert fetching.engine.is_recovered


async def test_forced_close_ends_although_releasing_fails(
    private_server: StartServer, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(closing, "_RELEASE_S", 0.5)
    gate = Gate()
    server = private_server()
    async with Queue(queue_name, server.url) as queue:
        worker = Worker(queue_name, gate, f"{server.url}?request_timeout=300")
        await worker.start()
        await queue.add("n")
        await gate.next()
        server.kill()
        await with_timeout(worker.close(force=True))


@pytest.mark.slow
async def test_close_gives_up_results_that_a_lost_server_cannot_get(
    private_server: StartServer, queue_name: str, caplog: pytest.LogCaptureFixture
):
    """After the lock has expired another worker runs the job again, so a longer wait has no use."""
    gate = Gate()
    server = private_server()
    async with Queue(queue_name, server.url) as queue:
        worker = Worker(queue_name, gate, f"{server.url}?request_timeout=300", lock_duration=1_000)
        await worker.start()
        job = await queue.add("resize")
        await gate.next()
        server.kill()
        gate.open()
        await with_timeout(worker.close(), 60)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    warnings = [text for level, text in lines if level == "WARNING" and text.startswith("closing; ")]
    assert len(warnings) == 1
    assert f"closing; 1 result of queue {queue_name!r} is not reported yet: the server does not reply" in warnings[0]
    errors = [text for level, text in lines if level == "ERROR" and "is not reported" in text]
    assert len(errors) == 1
    assert f"queue {queue_name!r}: the result of job {job.id} ('resize') is not reported" in errors[0]
    assert "the job will run again" in errors[0]


@pytest.mark.slow
async def test_result_is_reported_if_the_server_returns_during_the_close(
    restartable_server: StartServer, queue_name: str, caplog: pytest.LogCaptureFixture
):
    gate = Gate()
    server = restartable_server()
    async with Queue(queue_name, server.url) as queue:
        worker = Worker(queue_name, gate, f"{server.url}?request_timeout=300", lock_duration=60_000)
        await worker.start()
        job = await queue.add("resize")
        await gate.next()
        server.kill()
        gate.open()
        closing = asyncio.create_task(worker.close())
        await with_timeout(until(lambda: "closing; 1 result of queue" in caplog.text), 60)
        server.start()
        await with_timeout(closing, 60)
        assert await job.get_state() == "completed"
    assert "is not reported: " not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"force": True}, {"timeout": 50}, {}], ids=["force", "timeout", "idle"])
async def test_close_waits_only_briefly_for_a_server_that_is_known_to_be_gone(
    private_server: StartServer, queue_name: str, monkeypatch: pytest.MonkeyPatch, how: Any
):
    """The limits for a server that replies are not used up."""
    monkeypatch.setattr(closing, "_RELEASE_S", 600.0)
    monkeypatch.setattr(lane, "_LEAVE_S", 600.0)
    monkeypatch.setattr(lane, "_JOIN_S", 600.0)
    gate = Gate()
    server = private_server()
    async with Queue(queue_name, server.url) as queue:
        worker = Worker(queue_name, gate, f"{server.url}?request_timeout=600000")
        await worker.start()
        if how:
            await queue.add("n")
            await gate.next()
        server.kill()
        await with_timeout(worker.close(**how), 60)


@pytest.mark.slow
async def test_close_waits_only_briefly_for_the_reply_to_a_fetch_after_the_server_died(
    private_server: StartServer, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    """GLIDE keeps a call made while it reconnects until the request timeout."""
    monkeypatch.setattr(closing, "_FETCH_S", 1.0)
    server = private_server()
    worker = Worker(queue_name, Gate(), f"{server.url}?request_timeout=600000")
    await worker.start()
    fetching = fetching_of(worker)
    await with_timeout(fetching.idle.wait())
    server.kill()
    fetching.request_jobs()
    await with_timeout(worker.close(), 60)
