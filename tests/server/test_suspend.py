"""Suspended jobs: async and plain handlers, early signals, timeouts with and without workers."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from glidemq_py import (
    GlideMQError,
    GlideMQValidationError,
    Job,
    JobFailedError,
    JobState,
    JobStateError,
    PayloadTooLargeError,
    Queue,
    QueueEvents,
    SuspendError,
    Worker,
)
from glidemq_py._features.suspend.worker import Continuations
from glidemq_py.testing import RespClient
from tests.server.worker_support import PATIENCE, EventRecorder, Raw, with_timeout


async def approval(job: Job) -> Any:
    """Wait for two signals, one after the other."""
    first = await job.wait_for_signal("first", timeout=60_000)
    second = await job.wait_for_signal("second", timeout=60_000)
    return [first.data, second.data, job.attempts_made, [signal.name for signal in job.signals]]


async def approval_in_thread(job: Job) -> Any:
    return await approval(job)


def plain_approval(job: Job) -> Any:
    first = job.blocking.wait_for_signal("first", reason="the first of two")
    second = job.blocking.wait_for_signal("second")
    return [first.data, second.data, job.attempts_made, [signal.name for signal in job.signals]]


@pytest.mark.parametrize("handler", [approval, plain_approval])
@pytest.mark.parametrize("options", [{}, {"lifo": True}, {"priority": 2}, {"ordering": "k"}])
async def test_handler_can_wait_for_two_signals(
    core_url: str, queue_name: str, handler: Any, options: dict[str, Any]
) -> None:
    async with Queue(queue_name, core_url) as queue, Worker(queue_name, handler, core_url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", **options)
        await recorded.wait("suspended")
        assert await job.get_state() is JobState.SUSPENDED
        (listed,) = await queue.get_suspended_jobs()
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


async def test_signals_in_another_order_are_kept(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue, Worker(queue_name, approval, url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await recorded.wait("suspended")
        assert await queue.signal(job.id, "second", 2)
        await recorded.wait("suspended", 2)
        assert await queue.signal(job.id, "first", 1)
        assert await job.wait_until_finished() == [1, 2, 0, ["second", "first"]]


async def test_repeated_waits_for_a_name_get_successive_signals(url: str, queue_name: str) -> None:
    async def handle(job: Job) -> Any:
        return [(await job.wait_for_signal("go")).data for _ in range(3)]

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
        job = await queue.add("n")
        for number in range(3):
            assert await queue.signal(job.id, "go", number)
        assert await job.wait_until_finished() == [0, 1, 2]


async def test_signals_before_the_first_run_avoid_a_suspension(url: str, queue_name: str) -> None:
    """W42. A job is not suspended for a signal that it has already received."""
    async with Queue(queue_name, url) as queue:
        job = await queue.add("n")
        assert await queue.signal(job.id, "first", 1)
        assert await queue.signal(job.id, "second", 2)
        async with Worker(queue_name, approval, url) as worker:
            recorded = EventRecorder(worker)
            assert await job.wait_until_finished() == [1, 2, 0, []]
            assert recorded.count["suspended"] == 0


async def test_signal_during_the_run_resumes_the_suspension(url: str, queue_name: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handle(job: Job) -> Any:
        if not job.signals:
            begun.set()
            await go_on.wait()
            job.suspend(reason="anything")
        return [signal.name for signal in job.signals]

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
        job = await queue.add("n")
        await with_timeout(begun.wait())
        assert await queue.signal(job.id, "early")
        go_on.set()
        assert await job.wait_until_finished() == ["early"]


async def test_suspend_info_and_listeners(url: str, queue_name: str) -> None:
    async def handle(job: Job) -> Any:
        job.suspend(reason="a human", timeout=timedelta(hours=1))

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url) as worker:
        recorded = EventRecorder(worker)
        assert await queue.get_suspend_info("nobody") is None
        job = await queue.add("n")
        await recorded.wait("suspended")
        info = await queue.get_suspend_info(job.id)
        assert info is not None
        assert (info.reason, info.timeout, info.signals) == ("a human", 3_600_000, ())
        assert info.suspended_at >= job.timestamp
        ((told_of, signal),) = recorded.of("suspended")
        assert (told_of.id, signal.reason, signal.timeout) == (job.id, "a human", 3_600_000)
        await queue.signal(job.id, "one")
        await recorded.wait("suspended", 2)
        info = await queue.get_suspend_info(job.id)
        assert info is not None
        assert [each.name for each in info.signals] == ["one"]
        await queue.revoke(job.id)
        assert await queue.get_suspend_info(job.id) is None


async def test_worker_fails_expired_suspensions(core_url: str, queue_name: str) -> None:
    async def handle(job: Job) -> Any:
        job.suspend(timeout=60)

    async with Queue(queue_name, core_url) as queue, Worker(queue_name, handle, core_url):
        with pytest.raises(JobFailedError, match="Suspend timeout exceeded"):
            await queue.add_and_wait("n", attempts=5)
        assert (await queue.get_job_counts()).suspended == 0


async def test_queue_fails_expired_suspensions_without_a_worker(url: str, queue_name: str, resp: RespClient) -> None:
    raw = Raw(resp, queue_name)
    async with Queue(queue_name, url) as queue:
        job = await queue.add("n")
        raw.run("DEL", "stream")
        raw.run("HSET", f"job:{job.id}", "state", "suspended")
        raw.run("ZADD", "suspended", 1, job.id)
        with pytest.raises(JobFailedError, match="Suspend timeout exceeded"):
            await job.wait_until_finished()


async def test_signal_to_ended_or_missing_job_returns_false(url: str, queue_name: str) -> None:
    async def handle(job: Job) -> None:
        return None

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
        assert not await queue.signal("nobody", "go")
        job = await queue.add("n")
        await job.wait_until_finished()
        assert not await queue.signal(job.id, "go")


async def test_invalid_arguments_are_rejected(url: str, queue_name: str) -> None:
    problems: list[GlideMQError] = []

    async def handle(job: Job) -> None:
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

    async with Queue(queue_name, url) as queue:
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
        async with Worker(queue_name, handle, url):
            await job.wait_until_finished()
        assert len(problems) == 9


async def test_suspend_error_raised_by_the_handler(url: str, queue_name: str) -> None:
    async def handle(job: Job) -> Any:
        if job.data == "bad":
            raise SuspendError(timeout=-5)
        if not job.signals:
            raise SuspendError("by hand")
        return "done"

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
        with pytest.raises(JobFailedError, match="timeout"):
            await queue.add_and_wait("n", "bad")
        job = await queue.add("n")
        await queue.signal(job.id, "go")
        assert await job.wait_until_finished() == "done"


async def test_resumed_events_of_job_and_queue_differ(url: str, queue_name: str) -> None:
    """W86."""
    async with (
        QueueEvents(queue_name, url) as events,
        Queue(queue_name, url) as queue,
        Worker(queue_name, approval, url) as worker,
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
                if len(seen) == 2:
                    break
        assert seen == [("0", None), (job.id, "first")]


# -- on_resume ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True])
async def test_on_resume_runs_in_place_of_the_handler(url: str, queue_name: str, plain: bool) -> None:
    runs = 0

    async def handle(job: Job) -> Any:
        nonlocal runs
        runs += 1

        async def resume(signals: Any) -> Any:
            await job.log("the closure uses the job of this attempt")
            return [signal.name for signal in signals]

        def resume_plain(signals: Any) -> Any:
            job.blocking.log("the closure uses the job of this attempt")
            return [signal.name for signal in signals]

        job.suspend(on_resume=resume_plain if plain else resume)

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await recorded.wait("suspended")
        await queue.signal(job.id, "go")
        assert await job.wait_until_finished() == ["go"]
        assert runs == 1
        assert await job.logs() == ["the closure uses the job of this attempt"]


async def test_job_timeout_applies_to_on_resume(url: str, queue_name: str) -> None:
    """W26."""

    async def for_ever(_: Any) -> None:
        await asyncio.Event().wait()

    async def handle(job: Job) -> Any:
        job.suspend(on_resume=for_ever)

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", timeout=50)
        await recorded.wait("suspended")
        await queue.signal(job.id, "go")
        with pytest.raises(JobFailedError) as failed:
            await job.wait_until_finished()
        assert failed.value.failed_type == "JobTimeoutError"


async def test_another_worker_runs_the_handler_from_its_start(url: str, queue_name: str) -> None:
    async def handle(job: Job) -> Any:
        if not job.signals:
            job.suspend(on_resume=lambda _: "continued")
        return "from the start"

    async with Queue(queue_name, url) as queue:
        async with Worker(queue_name, handle, url) as worker:
            recorded = EventRecorder(worker)
            job = await queue.add("n")
            await recorded.wait("suspended")
        await queue.signal(job.id, "go")
        async with Worker(queue_name, handle, url):
            assert await job.wait_until_finished() == "from the start"


class _Run:
    def __init__(self, job_id: str) -> None:
        link: Any = SimpleNamespace(partition=None)
        self.job: Job = Job(link, job_id, "n")
        self.job._signals_text = '[{"name":"go","data":"","receivedAt":1}]'
        self.attempt = type("A", (), {"fence": 1})()


def test_continuations_are_bounded() -> None:
    """W26: the original's map grows with every job that resumes elsewhere."""
    kept = Continuations()
    run: Any = _Run
    for number in range(5_000):
        kept.keep(run(str(number)), SuspendError(None, None, print))
    assert len(kept.kept) == 1_000
    assert kept.route(run("4999")) is None  # the fencing token is that of the suspended attempt itself
    assert len(kept.kept) == 999
    kept.keep(_Run("n"), SuspendError())  # type: ignore[arg-type]
    assert len(kept.kept) == 999


async def test_consistency_check_accepts_suspended_jobs(core_url: str, queue_name: str) -> None:
    async def handle(job: Job) -> None:
        await job.stream({"n": 1})
        await job.store_vector("embedding", [1, 2])
        await job.wait_for_signal("go", timeout=job.data)

    async with Queue(queue_name, core_url) as queue, Worker(queue_name, handle, core_url, concurrency=9) as worker:
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
        await recorded.wait("suspended", 16)
        report = await queue.check(recheck_after=50)
        assert report.ok, str(report)
        for job in jobs:
            await queue.signal(job.id, "go")
        await recorded.wait("completed", len(jobs))
        assert (await queue.check(recheck_after=50)).ok


async def test_drain_does_not_remove_suspended_jobs(url: str, queue_name: str) -> None:
    async with Queue(queue_name, url) as queue, Worker(queue_name, approval, url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await recorded.wait("suspended")
        assert await queue.drain(delayed=True) == 0
        assert await job.get_state() is JobState.SUSPENDED
        assert await queue.obliterate() == 1
