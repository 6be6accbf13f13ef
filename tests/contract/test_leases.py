"""Leases: jobs that are fetched and reported without a worker."""

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import (
    DelayedError,
    FlowJob,
    GlideMQValidationError,
    Job,
    JobFailedError,
    JobState,
    LeaseOutcome,
    UnrecoverableError,
)
from glidemq_py.errors import JobNotLoadedError, LeaseLostError
from glidemq_py.sync import Lease as BlockingLease
from glidemq_py.sync import Queue as BlockingQueue
from tests.contract.api import FlowProducer, Lease, Queue
from tests.server.worker_support import EventRecorder, WorkerFor, until, with_timeout

PROGRAM = """
import sys
from glidemq_py.sync import Queue
with Queue(sys.argv[2], sys.argv[1]) as queue:
    leases = queue.fetch(10, lock_duration=1_000, count_expiry=sys.argv[3] == "counts")
    print(len(leases), flush=True)
    sys.stdin.read()
"""


async def lease_one(queue: Queue, **options: Any) -> Lease:
    (lease,) = await queue.fetch(1, **options)
    return lease


async def job_of(queue: Queue, job_id: str) -> Job:
    job = await queue.get_job(job_id)
    assert job is not None
    return job


# -- one lease ---------------------------------------------------------------------------------------------


async def test_fail_retries_after_the_backoff_and_then_fails(queue: Queue):
    added = await queue.add("a", attempts=2, backoff=60_000, remove_on_fail=False)
    lease = await lease_one(queue)
    await lease.fail(ValueError("no"))
    job = await job_of(queue, added.id)
    assert (await job.get_state(), job.attempts_made, job.failed_reason, job.failed_type) == (
        JobState.DELAYED, 1, "no", "ValueError",
    )  # fmt: skip
    assert "ValueError: no" in job.stacktrace[0]
    await queue.promote(added.id)
    again = await lease_one(queue)
    assert (again.job.attempts_made, again.job.failed_reason) == (1, "no")
    await again.fail("still no")
    job = await job_of(queue, added.id)
    assert (await job.get_state(), job.failed_reason, len(job.stacktrace)) == (JobState.FAILED, "still no", 1)


@pytest.mark.parametrize(("error", "retry"), [("x", False), (UnrecoverableError("x"), True)])
async def test_fail_without_retry(queue: Queue, error: Any, retry: bool):
    await queue.add("a", attempts=5)
    lease = await lease_one(queue)
    await lease.fail(error, retry=retry)
    assert (await queue.get_job_counts()).failed == 1


async def test_job_limits_its_traceback(
    queue: Queue,
    worker_for: WorkerFor,
):
    async def handler(job: Job):
        raise ValueError("no")

    async with worker_for(handler):
        job = await queue.add("a", stack_trace_limit=1)
        with pytest.raises(JobFailedError):
            await job.wait_until_finished()
    failed = await queue.get_jobs("failed")
    assert failed[0].stacktrace == ("ValueError: no\n",)


async def test_a_signal_has_the_effect_that_it_has_in_a_handler(queue: Queue):
    added = await queue.add("a")
    async with queue.lease() as lease:
        assert lease is not None
        raise DelayedError(60_000)
    assert await added.get_state() is JobState.DELAYED


# -- blocks ------------------------------------------------------------------------------------------------


async def test_block_completes_fails_or_releases(queue: Queue):
    done, failed, released = [(await queue.add("a")).id for _ in range(3)]
    async with queue.lease() as lease:
        assert lease is not None
    with pytest.raises(ValueError, match="boom"):
        async with queue.lease():
            raise ValueError("boom")
    with pytest.raises(asyncio.CancelledError):
        async with queue.lease():
            raise asyncio.CancelledError
    states = [await (await job_of(queue, each)).get_state() for each in (done, failed, released)]
    assert states == [JobState.COMPLETED, JobState.FAILED, JobState.WAITING]


# -- many --------------------------------------------------------------------------------------------------


async def test_more_leases_than_fit_in_a_call(queue: Queue):
    await queue.add_bulk([("a", n) for n in range(1_100)])
    leases = [lease for _ in range(3) for lease in await queue.fetch(500)]
    assert len(leases) == 1_100
    assert set(await queue.leases.extend(leases, 60_000)) == {LeaseOutcome.EXTENDED}
    report = await queue.leases.complete([(lease, lease.data) for lease in leases], fetch_next=5)
    assert (len(report.outcomes), set(report.outcomes), report.leases) == (1_100, {LeaseOutcome.COMPLETED}, [])
    assert (await queue.check()).ok


# -- waiting -----------------------------------------------------------------------------------------------


async def test_fetch_waits_for_a_job(queue: Queue):
    assert await queue.fetch(1, wait=20) == []
    waiting = [asyncio.create_task(queue.fetch(1, wait=60_000)) for _ in range(3)]
    await asyncio.sleep(0)
    await queue.add("a")
    await queue.add("b", delay=50)
    await queue.add("c", priority=1)
    found = [lease.name for leases in await with_timeout(asyncio.gather(*waiting)) for lease in leases]
    assert sorted(found) == ["a", "b", "c"]


@pytest.mark.exclude("blocking", reason="a thread cannot be cancelled")
async def test_a_cancelled_fetch_holds_no_job(queue: Queue):
    for _ in range(10):
        waiting = asyncio.create_task(queue.fetch(1, wait=60_000))
        await queue.add("a")
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await queue.leases.release(await waiting)  # it had ended before

    async def none_is_active() -> bool:
        return (await queue.get_job_counts()).active == 0

    async with asyncio.timeout(60):
        while not await none_is_active():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    found = await queue.fetch(10, wait=5_000)
    assert len(found) == 10


@pytest.mark.exclude("blocking", reason="a thread cannot be cancelled")
async def test_a_fetch_cancelled_after_it_was_sent_releases_its_jobs(queue: Queue):
    await queue.add("a")
    fetching = asyncio.create_task(queue.fetch(1))
    await asyncio.sleep(0)  # it has sent its call
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    (lease,) = await queue.fetch(1, wait=20_000)
    await lease.complete()
    (job,) = await queue.get_jobs("completed")
    assert job.attempts_made == 0


async def test_closing_ends_a_waiting_fetch(queue: Queue, url: Any):
    other = Queue(queue.name, url)
    waiting = asyncio.create_task(other.fetch(1, wait=60_000))
    await other.get_job_counts()
    await other.close()
    (error,) = await with_timeout(asyncio.gather(waiting, return_exceptions=True))
    assert isinstance(error, Exception)


async def test_results_reach_parents_and_dead_letters_without_a_worker(
    queue: Queue, url: Any, flows: FlowProducer, queue_name: str
):
    async with Queue(f"{queue_name}-children", url, dead_letter_queue="dead") as children:
        root = await flows.add(FlowJob("p", queue_name, children=[FlowJob("c", children.name)]))
        child = await lease_one(children)
        await child.complete("from the child")
        (parent,) = await queue.fetch(1, wait=10_000)
        assert parent.id == root.job.id
        assert list((await parent.job.get_children_values()).values()) == ["from the child"]
        await children.add("bad")
        await (await lease_one(children)).fail("no")
        assert [entry.data["failedReason"] for entry in await children.dead_letters.get_all()] == ["no"]
        await children.obliterate(force=True)
    async with Queue("dead", url) as dead:
        await dead.obliterate(force=True)


# -- tokens ------------------------------------------------------------------------------------------------


async def test_a_token_reports_from_elsewhere(queue: Queue, url: Any):
    await queue.add_bulk([("a", n, {"attempts": 3, "backoff": 60_000}) for n in range(2)])
    await queue.add("removed", remove_on_complete=True)
    done, failed, removed = await queue.fetch(3)
    with BlockingQueue(queue.name, url) as other:
        BlockingLease.from_token(other, done.token).complete("yes")
    lease = Lease.from_token(queue, failed.token)
    assert (lease.id, lease.token) == (failed.id, failed.token)
    with pytest.raises(JobNotLoadedError, match=r"made from a token has no job: .* queue\.get_job\(lease\.id\)"):
        _ = lease.job
    await lease.fail("no")
    await Lease.from_token(queue, removed.token).complete()
    assert (await job_of(queue, done.id)).returnvalue == "yes"
    assert await (await job_of(queue, failed.id)).get_state() is JobState.DELAYED
    assert await queue.get_job(removed.id) is None


REPORTER = """
import sys
from glidemq_py.sync import Lease, Queue
with Queue(sys.argv[2], sys.argv[1]) as queue:
    lease = Lease.from_token(queue, sys.argv[3])
    job = queue.get_job(lease.id)
    lease.complete({"doubled": job.data["n"] * 2})
    print(lease.id, lease.ended)
"""


@pytest.mark.slow
@pytest.mark.exclude("memory", reason="needs a process")
async def test_another_process_completes_the_lease_of_a_token(queue: Queue, url: Any):
    await queue.add("double", {"n": 21})
    (lease,) = await queue.fetch(1)
    reporter = await asyncio.create_subprocess_exec(
        sys.executable, "-c", REPORTER, f"{url}?allow_no_aof=true", queue.name, lease.token,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert await with_timeout(reporter.communicate()) == (f"{lease.id} True\n".encode(), b"")
    assert reporter.returncode == 0
    job = await job_of(queue, lease.id)
    assert (await job.get_state(), job.returnvalue) == (JobState.COMPLETED, {"doubled": 42})
    await lease.complete("late")  # the same attempt: accepted, and without effect
    assert (await job_of(queue, lease.id)).returnvalue == {"doubled": 42}
    with pytest.raises(LeaseLostError):
        await lease.extend(30_000)


@pytest.mark.exclude("blocking", reason="names the classes of asynchronous code")
async def test_a_token_of_another_queue_is_rejected(queue: Queue, url: Any):
    await queue.add("a")
    token = (await lease_one(queue)).token
    async with Queue("another", url) as other:
        with pytest.raises(
            GlideMQValidationError, match=f"must be a token of queue 'another'; it is one of queue '{queue.name}'"
        ):
            Lease.from_token(other, token)
    with pytest.raises(GlideMQValidationError, match=r"must be a glidemq_py\.Queue, not builtins\.str"):
        Lease.from_token("another", token)
    with (
        BlockingQueue(queue.name, url) as blocking,
        pytest.raises(GlideMQValidationError, match=r"must be a glidemq_py\.Queue, not glidemq_py\.sync\."),
    ):
        Lease.from_token(blocking, token)
    with pytest.raises(GlideMQValidationError, match=r"must be a glidemq_py\.sync\.Queue, not glidemq_py\._api\."):
        BlockingLease.from_token(queue, token)
    for malformed in ("", "l1.", "l1.%%%", token[:-3], f"l2{token[2:]}", None, 5):
        with pytest.raises(GlideMQValidationError, match="token"):
            Lease.from_token(queue, malformed)  # type: ignore[arg-type]


# -- the death of a lease holder ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stalls", "counts"])
@pytest.mark.exclude("memory", reason="needs a process")
async def test_a_worker_elsewhere_runs_the_jobs_of_a_killed_lease_holder(
    queue: Queue, worker_for: WorkerFor, url: Any, how: str
):
    await queue.add_bulk([("a", n, {"attempts": 2}) for n in range(4)])
    root = str(Path(__file__).parents[2])
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, url, queue.name, how,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert holder.stdout is not None
    assert await with_timeout(holder.stdout.readline()) == b"4\n"
    holder.send_signal(signal.SIGKILL)
    await with_timeout(holder.wait())
    seen: list[tuple[int, int]] = []

    async def handle(job: Job):
        seen.append((job.attempts_made, job.stalled_count))

    async with worker_for(handle, lock_duration=1_000, stalled_interval=1_000) as worker:
        await with_timeout(until(lambda: len(seen) == 4))
        await worker.drain()
    assert seen == [(1, 0) if how == "counts" else (0, 1)] * 4
    assert (await queue.check()).ok


async def test_worker_and_leases_share_a_queue(
    queue: Queue,
    worker_for: WorkerFor,
):
    ran: list[str] = []

    async def handle(job: Job):
        ran.append(job.id)

    await queue.add_bulk([("a", n) for n in range(200)])
    leased: list[str] = []

    async def lease_all():
        leases = await queue.fetch(5)
        while leases:
            leased.extend(lease.id for lease in leases)
            leases = (await queue.leases.complete([(lease, 1) for lease in leases], fetch_next=5)).leases

    async with worker_for(handle, concurrency=5) as worker:
        recorder = EventRecorder(worker)
        await asyncio.gather(lease_all(), lease_all())
        await with_timeout(until(lambda: len(ran) + len(leased) >= 200))
        await worker.drain()
    assert len(set(ran) | set(leased)) == len(ran) + len(leased) == 200
    assert recorder.count["error"] == 0
    assert (await queue.check()).ok
