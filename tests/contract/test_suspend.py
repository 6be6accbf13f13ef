"""Suspended jobs: async and plain handlers, early signals, timeouts with and without workers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from glidemq_py import GlideMQError, GlideMQValidationError, Job, JobFailedError, JobState, JobStateError, Middleware
from glidemq_py.errors import PayloadTooLargeError, SuspendError
from tests.contract.api import Queue, QueueEvents
from tests.contract.observe import Raw
from tests.server.worker_support import PATIENCE, EventRecorder, WorkerFor, with_timeout


async def approval(job: Job):
    """Wait for two signals, one after the other."""
    first = await job.wait_for_signal("first")
    second = await job.wait_for_signal("second")
    return [first.data, second.data, job.attempts_made, [signal.name for signal in job.signals]]


def plain_approval(job: Job):
    first = job.blocking.wait_for_signal("first", reason="the first of two")
    second = job.blocking.wait_for_signal("second")
    return [first.data, second.data, job.attempts_made, [signal.name for signal in job.signals]]


@pytest.mark.parametrize("handler", [approval, plain_approval])
@pytest.mark.parametrize("options", [{}, {"lifo": True}, {"priority": 2}, {"ordering": "k"}])
async def test_handler_can_wait_for_two_signals(queue: Queue, worker_for: WorkerFor, handler: Any, options: Any):
    async with worker_for(handler) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", **options)
        await recorded.wait("suspended")
        assert await job.get_state() is JobState.SUSPENDED
        (listed,) = await queue.get_jobs("suspended")
        assert listed.id == job.id
        counts = await queue.get_job_counts()
        assert (counts.suspended, counts.active, counts.unfinished) == (1, 0, 1)
        assert await queue.signal(job.id, "first", {"by": "eve"})
        await recorded.wait("suspended", 2)
        assert await queue.signal(job.id, "second", [1, 2])
        assert await job.wait_until_finished() == [{"by": "eve"}, [1, 2], 0, ["first", "second"]]
        read = await queue.get_job(job.id)
        assert read is not None
        assert [(signal.name, signal.data) for signal in read.signals] == [("first", {"by": "eve"}), ("second", [1, 2])]
        assert (await queue.check()).ok


async def test_signals_in_another_order_are_kept(queue: Queue, worker_for: WorkerFor):
    async with worker_for(approval) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await recorded.wait("suspended")
        assert await queue.signal(job.id, "second", 2)
        await recorded.wait("suspended", 2)
        assert await queue.signal(job.id, "first", 1)
        assert await job.wait_until_finished() == [1, 2, 0, ["second", "first"]]


async def test_repeated_waits_for_a_name_get_successive_signals(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        return [(await job.wait_for_signal("go")).data for _ in range(3)]

    async with worker_for(handle):
        job = await queue.add("n")
        for number in range(3):
            assert await queue.signal(job.id, "go", number)
        assert await job.wait_until_finished() == [0, 1, 2]


async def test_signals_before_the_first_run_avoid_a_suspension(queue: Queue, worker_for: WorkerFor):
    """W42. A job is not suspended for a signal that it has already received."""
    job = await queue.add("n")
    assert await queue.signal(job.id, "first", 1)
    assert await queue.signal(job.id, "second", 2)
    async with worker_for(approval) as worker:
        recorded = EventRecorder(worker)
        assert await job.wait_until_finished() == [1, 2, 0, []]
        assert recorded.count["suspended"] == 0


async def test_signal_during_the_run_resumes_the_suspension(queue: Queue, worker_for: WorkerFor):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(job: Job):
        if not job.signals:
            begun.set()
            await go_on.wait()
            job.suspend(reason="anything")
        return [signal.name for signal in job.signals]

    async with worker_for(handle):
        job = await queue.add("n")
        await with_timeout(begun.wait())
        assert await queue.signal(job.id, "early")
        go_on.set()
        assert await job.wait_until_finished() == ["early"]


async def test_suspend_info_and_listeners(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        job.suspend(reason="a human", timeout=timedelta(hours=1))

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        assert await queue.jobs.get_suspend_info("nobody") is None
        job = await queue.add("n")
        await recorded.wait("suspended")
        info = await queue.jobs.get_suspend_info(job.id)
        assert info is not None
        assert (info.reason, info.timeout, info.signals) == ("a human", 3_600_000, ())
        assert info.suspended_at >= job.timestamp
        ((told_of, signal),) = recorded.of("suspended")
        assert (told_of.id, signal.reason, signal.timeout) == (job.id, "a human", 3_600_000)
        await queue.signal(job.id, "one")
        await recorded.wait("suspended", 2)
        info = await queue.jobs.get_suspend_info(job.id)
        assert info is not None
        assert [each.name for each in info.signals] == ["one"]
        await queue.revoke(job.id)
        assert await queue.jobs.get_suspend_info(job.id) is None


async def test_worker_fails_expired_suspensions(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        job.suspend(timeout=60)

    async with worker_for(handle):
        with pytest.raises(JobFailedError, match="Suspend timeout exceeded"):
            await queue.add_and_wait("n", attempts=5)
        assert (await queue.get_job_counts()).suspended == 0


async def test_signal_to_ended_or_missing_job_returns_false(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        return None

    async with worker_for(handle):
        assert not await queue.signal("nobody", "go")
        job = await queue.add("n")
        await job.wait_until_finished()
        assert not await queue.signal(job.id, "go")


async def test_invalid_arguments_are_rejected(queue: Queue, worker_for: WorkerFor):
    problems: list[GlideMQError] = []

    async def handle(job: Job):
        for options in (
            {"timeout": 0}, {"timeout": -1}, {"timeout": "x"}, {"reason": ""}, {"reason": "x" * 5_000}, {"on_resume": 1}
        ):  # fmt: skip
            try:
                job.suspend(**options)
            except GlideMQValidationError as error:
                problems.append(error)
        for name in ("", "x" * 257, 5):
            try:
                await job.wait_for_signal(name)  # type: ignore[arg-type]
            except GlideMQValidationError as error:
                problems.append(error)

    job = await queue.add("n")
    with pytest.raises(GlideMQError, match="handler"):
        job.suspend()
    for bad in ("", "x" * 257, 5):
        with pytest.raises(GlideMQValidationError, match="name"):
            await queue.signal(job.id, bad)  # type: ignore[arg-type]
    with pytest.raises(PayloadTooLargeError):
        await queue.signal(job.id, "go", "x" * 2_000_000)
    with pytest.raises(GlideMQValidationError):
        await queue.signal(job.id, "go", object())
    for _ in range(2):
        await queue.signal(job.id, "go", "x" * 500_000)
    with pytest.raises(JobStateError, match="limit of 1,000 signals"):
        await queue.signal(job.id, "go", "x" * 500_000)
    async with worker_for(handle):
        await job.wait_until_finished()
    assert len(problems) == 9


async def test_suspend_error_raised_by_the_handler(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        if job.data == "bad":
            raise SuspendError(timeout=-5)
        if not job.signals:
            raise SuspendError("by hand")
        return "done"

    async with worker_for(handle):
        with pytest.raises(JobFailedError, match="timeout"):
            await queue.add_and_wait("n", "bad")
        job = await queue.add("n")
        await queue.signal(job.id, "go")
        assert await job.wait_until_finished() == "done"


async def test_resumed_events_of_job_and_queue_differ(worker_for: WorkerFor, url: Any, queue_name: str):
    """W86."""
    async with (
        QueueEvents(queue_name, url) as events,
        Queue(queue_name, url) as queue,
        worker_for(approval) as worker,
    ):
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await recorded.wait("suspended")
        await queue.pause()
        await queue.resume()
        await queue.signal(job.id, "first")
        seen: list[tuple[str, str | None]] = []
        async with asyncio.timeout(PATIENCE):
            async for event in events:
                if event.event == "resumed":
                    seen.append((event.job_id, event.fields.get("signal")))
                if event.event == "resumed" and event.job_id == job.id:
                    break
        assert (set(seen), seen[-1]) == ({("0", None), (job.id, "first")}, (job.id, "first"))


# -- on_resume ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
async def test_on_resume_runs_in_place_of_the_handler(queue: Queue, worker_for: WorkerFor, plain: bool):
    runs = 0

    async def handle(job: Job):
        nonlocal runs
        runs += 1

        async def resume(signals: Any):
            await job.log("the closure uses the job of this attempt")
            return [signal.name for signal in signals]

        def resume_plain(signals: Any):
            job.blocking.log("the closure uses the job of this attempt")
            return [signal.name for signal in signals]

        job.suspend(on_resume=resume_plain if plain else resume)

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await recorded.wait("suspended")
        await queue.signal(job.id, "go")
        assert await job.wait_until_finished() == ["go"]
        assert runs == 1
        assert await job.logs() == ["the closure uses the job of this attempt"]


async def test_two_job_objects_of_an_attempt_lose_no_log_line(queue: Queue, worker_for: WorkerFor):
    """That of the function, from the attempt before, and that of the middleware."""

    class Logging(Middleware):
        @contextlib.asynccontextmanager
        async def run(self, job: Any) -> AsyncIterator[None]:
            for _ in range(2):
                await job.log("before")
            try:
                yield
            finally:
                for _ in range(2):
                    await job.log("after")

    async def handle(job: Job):
        async def resume(_: Any):
            await job.log("resumed")

        job.suspend(on_resume=resume)

    async with worker_for(handle, middleware=[Logging()]) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await recorded.wait("suspended")
        await queue.signal(job.id, "go")
        await job.wait_until_finished()
        attempt = ["before", "before", "after", "after"]
        assert await job.logs() == [*attempt, "before", "before", "resumed", "after", "after"]


async def test_job_timeout_applies_to_on_resume(queue: Queue, worker_for: WorkerFor):
    """W26."""

    async def for_ever(_: Any):
        await asyncio.Event().wait()

    async def handle(job: Job):
        job.suspend(on_resume=for_ever)

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", timeout=50)
        await recorded.wait("suspended")
        await queue.signal(job.id, "go")
        with pytest.raises(JobFailedError) as failed:
            await job.wait_until_finished()
        assert failed.value.failed_type == "JobTimeoutError"


async def test_another_worker_runs_the_handler_from_its_start(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        if not job.signals:
            job.suspend(on_resume=lambda _: "continued")
        return "from the start"

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await recorded.wait("suspended")
    await queue.signal(job.id, "go")
    async with worker_for(handle):
        assert await job.wait_until_finished() == "from the start"


async def test_consistency_check_accepts_suspended_jobs(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        await job.stream({"n": 1})
        await job.store_vector("embedding", [1, 2])
        await job.wait_for_signal("go", timeout=job.data)

    async with worker_for(handle, concurrency=9) as worker:
        recorded = EventRecorder(worker)
        jobs = [
            await queue.add("n", timeout, **options)
            for timeout in (None, 60_000)
            for options in ({}, {"lifo": True}, {"priority": 2}, {"ordering": "k"}, {"ordering": "l"})
        ]
        # The second job of each group waits behind the slot that the first one keeps.
        await recorded.wait("suspended", 8)
        for job in jobs:
            await queue.signal(job.id, "other")
        await recorded.wait("suspended", 12)  # with a timeout, only its own signal resumes a job
        report = await queue.check(recheck_after=50)
        assert report.ok, str(report)
        for job in jobs:
            await queue.signal(job.id, "go")
        await recorded.wait("completed", len(jobs))
        assert (await queue.check(recheck_after=50)).ok


async def test_drain_does_not_remove_suspended_jobs(queue: Queue, worker_for: WorkerFor):
    async with worker_for(approval) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await recorded.wait("suspended")
        assert await queue.drain(delayed=True) == 0
        assert await job.get_state() is JobState.SUSPENDED
        assert await queue.obliterate() == 1


@pytest.mark.exclude("partitioned", reason="the keys are written to one part")
@pytest.mark.exclude("blocking", reason="a wait of blocking code ends no suspensions")
async def test_queue_fails_expired_suspensions_without_a_worker(url: Any, queue: Queue, raw: Raw):
    job = await queue.add("n")
    raw.run("DEL", "stream")
    raw.run("HSET", f"job:{job.id}", "state", "suspended")
    raw.run("ZADD", "suspended", 1, job.id)
    with pytest.raises(JobFailedError, match="Suspend timeout exceeded"):
        await job.wait_until_finished()
