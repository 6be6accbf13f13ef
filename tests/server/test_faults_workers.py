"""Workers that are killed, stopped or blocked during a job: another worker recovers it, and it ends once."""

import asyncio
import signal
from collections import Counter
from typing import Any

import pytest

from glidemq_py import FailureReason, Job, JobFailedError, Queue, Worker
from glidemq_py.testing import RespClient
from tests.operating import Operator
from tests.server.faults_support import worker_process
from tests.server.worker_support import EventRecorder, Gate, Raw, WorkerFor, until, with_timeout

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clean_check")]


QUICK: Any = {"lock_duration": 1_000, "stalled_interval": 1_000}
OPTIONS: dict[str, dict[str, Any]] = {"stream": {}, "lifo": {"lifo": True}, "priority": {"priority": 2}}


def open_gate() -> Gate:
    gate = Gate()
    gate.open()
    return gate


async def test_a_killed_workers_job_is_recovered_once(
    core_url: str, core_resp: RespClient, queue_name: str, caplog: pytest.LogCaptureFixture
):
    gate = open_gate()
    raw = Raw(core_resp, queue_name)
    async with Queue(queue_name, core_url) as queue, worker_process("wait", core_url, queue_name, **QUICK) as child:
        job = await queue.add("n", "data", attempts=1)
        assert await child.line("began") == job.id
        await child.kill()
        workers = [Worker(queue_name, gate, core_url, **QUICK) for _ in range(2)]
        recorded = EventRecorder(*workers)
        await asyncio.gather(*(worker.start() for worker in workers))
        assert await job.wait_until_finished() == "data"
        await recorded.wait("completed")
        await asyncio.gather(*(worker.close() for worker in workers))
    assert [job.id for job in gate.begun] == [job.id]
    assert recorded.of("stalled") == [(job.id,)]
    assert raw.event_names(job.id) == ["added", "stalled", "completed"]
    assert f"job {job.id} 'n' stalled (its lock was not renewed); it will run again" in caplog.text
    assert raw.metric("completed") == 1
    record = raw.job(job.id)
    # The attempt that was lost with its worker is not counted as one that failed.
    assert (record["attemptsMade"], record["stalledCount"]) == ("0", "1")
    assert raw.pending() == []


@pytest.mark.parametrize("kind", ["lifo", "priority"])
async def test_list_job_of_a_killed_worker_is_recovered(
    worker_for: WorkerFor, url: str, raw: Raw, queue: Queue, queue_name: str, kind: str
):
    gate = open_gate()
    async with worker_process("wait", url, queue_name, **QUICK) as child:
        job = await queue.add("n", **OPTIONS[kind])
        await child.line("began")
        await child.kill()
        async with worker_for(gate, **QUICK) as worker:
            recorded = EventRecorder(worker)
            await job.wait_until_finished()
            await recorded.wait("completed")
    assert raw.event_names(job.id).count("completed") == 1
    assert raw.run("GET", "list-active") in (None, "0")
    assert raw.run("ZCARD", "list-heartbeats") == 0


async def test_job_that_stalls_too_often_fails(
    worker_for: WorkerFor, url: str, resp: RespClient, queue: Queue, queue_name: str, caplog: pytest.LogCaptureFixture
):
    gate = open_gate()
    async with worker_process("wait", url, queue_name, **QUICK) as child:
        job = await queue.add("n", attempts=5)
        await child.line("began")
        await child.kill()
        async with worker_for(gate, max_stalled_count=0, **QUICK):
            with pytest.raises(JobFailedError, match="stalled"):
                await job.wait_until_finished()
        (attempt,) = await queue.failures.get_attempts(job.id)
        assert attempt.reason in (FailureReason.WORKER_LOST, FailureReason.STALLED)
        assert attempt.worker
        assert attempt.started_at is not None
        assert [each.reason for each in await queue.failures.get_all()] == [FailureReason.STALLED]
        reason = "stalled more often than max_stalled_count allows"
        await with_timeout(until(lambda: f"job {job.id} 'n' failed ({reason})" in caplog.text))
        async with Operator(url) as operator:
            (failure,) = [each async for each in operator.iter_failures(queue_name)]
            assert failure.error == reason
            details = await operator.get_job(queue_name, job.id)
            assert details is not None
            assert [details.job.error, *(each.error for each in details.attempts)] == [reason, reason]
    assert gate.begun == []
    assert Raw(resp, queue_name).metric("failed") == 1


async def test_all_jobs_of_a_worker_killed_under_load_end_once(
    worker_for: WorkerFor, url: str, raw: Raw, queue: Queue, queue_name: str
):
    finished: Counter[str] = Counter()

    async def handle(job: Job):
        await asyncio.sleep(0)
        finished[job.id] += 1

    async with (
        worker_process("wait", url, queue_name, concurrency=30, **QUICK) as child,
    ):
        jobs = await queue.add_bulk([("n", n, OPTIONS[("stream", "lifo", "priority")[n % 3]]) for n in range(200)])
        for _ in range(30):
            await child.line("began")
        async with worker_for(handle, concurrency=10, **QUICK) as worker:
            recorded = EventRecorder(worker)
            await recorded.wait("completed", 170)
            await child.kill()
            await recorded.wait("completed", 200)
            assert recorded.count["stalled"] == 30
    assert finished == Counter({job.id: 1 for job in jobs})
    assert raw.metric("completed") == 200
    assert raw.pending() == []
    assert raw.run("GET", "list-active") in (None, "0")


async def test_late_completion_of_a_stopped_worker_is_rejected(core_url: str, core_resp: RespClient, queue_name: str):
    gate = open_gate()
    raw = Raw(core_resp, queue_name)
    async with Queue(queue_name, core_url) as queue, worker_process("block", core_url, queue_name, **QUICK) as child:
        job = await queue.add("n", "parent")
        assert await child.line("began") == job.id
        child.send(signal.SIGSTOP)
        async with Worker(queue_name, gate, core_url, **QUICK) as worker:
            recorded = EventRecorder(worker)
            assert await job.wait_until_finished() == "parent"
            child.go()
            child.send(signal.SIGCONT)
            # It brings its result, or its first heartbeat comes first: either way it hears that it is too late.
            assert await child.line("stale") == job.id
            await recorded.wait("completed")
        assert f"ended {job.id}" not in child.printed
    assert raw.event_names(job.id) == ["added", "stalled", "completed"]
    assert raw.metric("completed") == 1
    assert raw.job(job.id)["returnvalue"] == '"parent"'


async def test_resumed_worker_cannot_change_a_job_recovered_by_another(
    worker_for: WorkerFor, url: str, raw: Raw, queue: Queue, queue_name: str
):
    gate = Gate()
    async with worker_process("wait", url, queue_name, **QUICK) as child:
        job = await queue.add("n", "parent")
        await child.line("began")
        child.send(signal.SIGSTOP)
        async with worker_for(gate, **QUICK) as worker:
            recorded = EventRecorder(worker)
            await gate.next()
            child.send(signal.SIGCONT)
            # Its next heartbeat stops its handler; ours continues.
            assert await child.line("cancelled") == job.id
            assert await job.get_state() == "active"
            gate.open()
            await recorded.wait("completed")
            assert recorded.count["error"] == 0
    assert raw.event_names(job.id) == ["added", "stalled", "completed"]
    assert raw.metric("completed") == 1


async def test_worker_resumed_in_time_keeps_its_job(
    worker_for: WorkerFor, url: str, resp: RespClient, queue: Queue, queue_name: str
):
    options: Any = {"lock_duration": 20_000, "stalled_interval": 1_000}
    async with worker_process("wait", url, queue_name, **options) as child:
        job = await queue.add("n")
        await child.line("began")
        child.send(signal.SIGSTOP)
        async with worker_for(Gate(), **options):
            pass  # its first look for stalled jobs
        child.send(signal.SIGCONT)
        child.go()
        assert await job.wait_until_finished() == "child"
    assert Raw(resp, queue_name).event_names(job.id) == ["added", "completed"]


def held_for(raw: Raw, job: Job, ms: int) -> bool:
    record = raw.job(job.id)
    return int(record["lastActive"]) - int(record["processedOn"]) > ms


async def test_a_handler_that_blocks_the_event_loop_keeps_its_job(
    worker_for: WorkerFor, url: str, raw: Raw, queue: Queue, queue_name: str
):
    """Block for twice the lock duration while another worker checks for stalled jobs; a thread sends heartbeats."""
    gate = open_gate()
    async with worker_process("block", url, queue_name, **QUICK) as child:
        job = await queue.add("n")
        await child.line("began")
        async with worker_for(gate, **QUICK) as worker:
            recorded = EventRecorder(worker)
            await with_timeout(until(lambda: held_for(raw, job, 2_200)))
            assert await job.get_state() == "active"
            child.go()
            assert await job.wait_until_finished() == "child"
            assert recorded.count["stalled"] == 0
    assert gate.begun == []
    assert raw.event_names(job.id) == ["added", "completed"]


async def test_a_job_with_a_short_lock_of_its_own_is_beaten_for_often_enough(
    raw: Raw, queue: Queue, worker_for: WorkerFor
):
    """The job's own lock is shorter than the worker's, and the other worker uses it."""
    gate, other_gate = Gate(), open_gate()
    async with (
        worker_for(gate, lock_duration=60_000) as worker,
    ):  # fmt: skip
        recorded = EventRecorder(worker)
        job = await queue.add("n", lock_duration=1_000)
        await gate.next()
        async with worker_for(other_gate, stalled_interval=1_000):
            await with_timeout(until(lambda: held_for(raw, job, 2_200)))
        gate.open()
        await recorded.wait("completed")
    assert other_gate.begun == []
    assert raw.event_names(job.id) == ["added", "completed"]


async def test_removing_a_job_cancels_its_thread(url: str, queue: Queue, queue_name: str):
    async with worker_process("thread", url, queue_name, **QUICK) as child:
        job = await queue.add("n")
        await child.line("began")
        await queue.remove(job.id)
        assert await child.line("cancelled") == job.id


async def test_closed_workers_are_not_listed_and_dead_ones_expire(
    worker_for: WorkerFor, url: str, queue: Queue, queue_name: str
):
    async with worker_process("wait", url, queue_name, **QUICK) as child:
        (info,) = await queue.get_workers()
        assert (info.active_jobs, info.pid) == (0, child.pid)
        async with worker_for(Gate()):
            assert len(await queue.get_workers()) == 2
        assert [worker.pid for worker in await queue.get_workers()] == [child.pid]


async def test_workers_with_locks_of_different_lengths_leave_each_other_s_jobs_alone(
    queue: Queue, worker_for: WorkerFor, clean_check: None
):
    """The worker with the short interval starts first, so it checks for stalled jobs."""
    runs: list[str] = []
    begun, enough = asyncio.Event(), asyncio.Event()

    async def patient(job: Job) -> str:
        runs.append("patient")
        begun.set()
        await enough.wait()
        return "done"

    async def impatient(job: Job):
        runs.append(job.name)
        if job.name == "rounds":
            enough.set()

    quick = worker_for(impatient, lock_duration=1_000, stalled_interval=1_000)
    async with quick:
        quick.pause()
        async with worker_for(patient, concurrency=1):
            job = await queue.add("long")
            await begun.wait()
            # Several of its rounds go by meanwhile, and no heartbeat of the other.
            await queue.add("rounds", delay=3_500)
            quick.resume()
            assert await job.wait_until_finished(timeout=20_000) == "done"
    assert runs == ["patient", "rounds"]
