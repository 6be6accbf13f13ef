"""Failed attempts: number of attempts, backoff, counted failures, and the stored error."""

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from glidemq_py import Backoff, Job, JobFailedError, Queue, QueueEvents, UnrecoverableError, Worker
from glidemq_py._core.record import MAX_STACKTRACES
from glidemq_py.testing import RespClient
from tests.server.worker_support import EventRecorder, Raw, with_timeout


def failing(times: int) -> Any:
    async def handle(job: Job) -> int:
        if job.attempts_made < times:
            raise ValueError(f"attempt {job.attempts_made + 1}")
        return job.attempts_made

    return handle


async def test_job_is_retried_until_it_succeeds(core_url: str, core_resp: RespClient, queue_name: str):
    async with Queue(queue_name, core_url) as queue, Worker(queue_name, failing(2), core_url):
        job = await queue.add("n", attempts=5)
        assert await job.wait_until_finished() == 2
        raw = Raw(core_resp, queue_name)
        assert raw.event_names(job.id) == ["added", "retrying", "promoted", "retrying", "promoted", "completed"]
        assert raw.job(job.id)["attemptsMade"] == "2"
        assert (raw.metric("completed"), raw.metric("failed")) == (1, 0)


async def test_it_fails_for_good_when_its_attempts_are_spent(core_url: str, core_resp: RespClient, queue_name: str):
    async with Queue(queue_name, core_url) as queue, Worker(queue_name, failing(9), core_url):
        job = await queue.add("n", attempts=3)
        with pytest.raises(JobFailedError) as caught:
            await job.wait_until_finished()
        assert (caught.value.failed_reason, caught.value.failed_type) == ("attempt 3", "ValueError")
        failed = await queue.get_job(job.id)
        assert failed is not None
        assert (failed.attempts_made, failed.failed_type, len(failed.stacktrace)) == (3, "ValueError", 3)
        raw = Raw(core_resp, queue_name)
        assert raw.event_names(job.id).count("failed") == 1
        assert (raw.metric("completed"), raw.metric("failed")) == (0, 1)


@pytest.mark.parametrize("attempts", [0, 1, None])
async def test_default_is_one_attempt(url: str, queue_name: str, attempts: int | None):
    options: Any = {} if attempts is None else {"attempts": attempts}
    async with Queue(queue_name, url) as queue, Worker(queue_name, failing(1), url):
        with pytest.raises(JobFailedError, match="attempt 1"):
            await queue.add_and_wait("n", **options)


async def _delays(url: str, name: str, backoff: Any, attempts: int = 4, **worker_options: Any) -> list[int]:
    """The waits before each retry, as the events say."""
    async with (
        Queue(name, url) as queue,
        QueueEvents(name, url) as events,
        Worker(name, failing(attempts - 1), url, **worker_options),
    ):
        job = await queue.add("n", attempts=attempts, backoff=backoff)
        delays: list[int] = []
        async for event in events:
            if event.event == "retrying":
                delays.append(int(event.fields["delay"]))
            if event.event in ("completed", "failed"):
                break
        assert await job.is_completed()
    return delays


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (30, [30, 30, 30]),
        (timedelta(milliseconds=20), [20, 20, 20]),
        ({"type": "fixed", "delay": 10}, [10, 10, 10]),
        ({"type": "exponential", "delay": 10}, [10, 20, 40]),
        (Backoff("exponential", 10, max_delay=25), [10, 20, 25]),
    ],
)
async def test_backoff(url: str, queue_name: str, backoff: Any, expected: list[int]):
    assert await _delays(url, queue_name, backoff) == expected


async def test_jitter_stays_within_its_share(url: str, queue_name: str):
    delays = await _delays(url, queue_name, {"type": "fixed", "delay": 20, "jitter": 0.5}, attempts=9)
    assert all(20 <= delay <= 30 for delay in delays), delays
    assert len(set(delays)) > 1


async def test_named_strategy_is_called(url: str, queue_name: str):
    requested_slots: list[tuple[int, str]] = []

    def steps(failures: int, error: BaseException) -> int | timedelta:
        requested_slots.append((failures, str(error)))
        return timedelta(milliseconds=7) if failures == 2 else failures * 5

    delays = await _delays(url, queue_name, {"type": "steps"}, backoff_strategies={"steps": steps})
    assert delays == [5, 7, 15]
    assert requested_slots == [(1, "attempt 1"), (2, "attempt 2"), (3, "attempt 3")]


def _raises(failures: int, error: BaseException) -> int:
    raise LookupError("broken strategy")


@pytest.mark.parametrize(
    "strategy", [_raises, lambda f, e: None, lambda f, e: -1, lambda f, e: "soon"], ids=["raises", "None", "-1", "str"]
)
async def test_a_broken_strategy_does_not_cost_the_retry(
    url: str, queue_name: str, strategy: Any, caplog: pytest.LogCaptureFixture
):
    delays = await _delays(
        url, queue_name, {"type": "mine", "delay": 8}, attempts=2, backoff_strategies={"mine": strategy}
    )
    assert delays == [8]
    assert "backoff strategy 'mine' failed" in caplog.text


async def test_unknown_strategy_is_treated_as_fixed(url: str, queue_name: str):
    assert await _delays(url, queue_name, {"type": "elsewhere", "delay": 6}, attempts=2) == [6]


@pytest.mark.parametrize("partitions", [1, 2])
async def test_an_unknown_strategy_is_logged_once_per_type(
    url: str, queue_name: str, partitions: int, caplog: pytest.LogCaptureFixture
):
    options: Any = {"backoff_strategies": {"mine": lambda failures, error: 1}}
    async with Queue(queue_name, url) as queue:
        if partitions > 1:
            await queue.set_partitions(partitions)
        async with Worker(queue_name, failing(2), url, **options):
            jobs = [
                await queue.add("n", attempts=3, backoff={"type": kind, "delay": 3})
                for kind in ("mine", "elsewhere", "fixed", *["elsewhere"] * 6, "other")
            ]
            for job in jobs:
                assert await job.wait_until_finished() == 2
    logged = [each for each in caplog.records if "unknown backoff type" in each.getMessage()]
    assert [each.levelno for each in logged] == [logging.WARNING, logging.WARNING]
    by_type = {each.getMessage().partition("backoff type ")[2].split("'")[1]: each.getMessage() for each in logged}
    assert sorted(by_type) == ["elsewhere", "other"]
    message = by_type["other"]
    assert message.startswith(f"queue {queue_name!r}: job {jobs[-1].id} has the unknown backoff type 'other'")
    assert "its fixed delay of 3 ms is used. This worker knows 'fixed', 'exponential', 'mine'." in message


async def _attempts(url: str, name: str, error: Exception, **worker_options: Any) -> int:
    runs = 0

    async def handle(job: Job) -> None:
        nonlocal runs
        runs += 1
        raise error

    async with Queue(name, url) as queue, Worker(name, handle, url, **worker_options):
        with pytest.raises(JobFailedError):
            await queue.add_and_wait("n", attempts=3)
    return runs


@pytest.mark.parametrize(
    ("error", "options", "runs"),
    [
        (KeyError("x"), {"retry_on": LookupError}, 3),
        (ValueError("x"), {"retry_on": LookupError}, 1),
        (ValueError("x"), {"retry_on": (LookupError, ValueError)}, 3),
        (KeyError("x"), {"no_retry_on": LookupError}, 1),
        (ValueError("x"), {"no_retry_on": LookupError}, 3),
        (KeyError("x"), {"retry_on": LookupError, "no_retry_on": KeyError}, 1),
        (UnrecoverableError("x"), {}, 1),
        (UnrecoverableError("x"), {"retry_on": Exception}, 1),
    ],
)
async def test_which_failures_are_retried(
    url: str, queue_name: str, error: Exception, options: dict[str, Any], runs: int
):
    assert await _attempts(url, queue_name, error, **options) == runs


async def test_discard_skips_the_remaining_attempts(url: str, queue_name: str):
    async def handle(job: Job) -> None:
        if job.attempts_made == 1:
            job.discard()
        raise ValueError(str(job.attempts_made))

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
        with pytest.raises(JobFailedError) as caught:
            await queue.add_and_wait("n", attempts=5)
    assert caught.value.failed_reason == "1"


async def test_discard_has_no_effect_on_a_completed_job(url: str, queue_name: str):
    async def handle(job: Job) -> str:
        job.discard()
        return "fine"

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
        assert await queue.add_and_wait("n", attempts=5) == "fine"


async def test_stack_traces_are_bounded_in_number_and_length(url: str, queue_name: str):
    async def handle(job: Job) -> None:
        def deeper(level: int) -> None:
            if level:
                deeper(level - 1)
            raise ValueError(f"no {job.attempts_made} " + "x" * 100_000)

        deeper(200)

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
        job = await queue.add("n", attempts=MAX_STACKTRACES + 3)
        with pytest.raises(JobFailedError):
            await job.wait_until_finished()
        failed = await queue.get_job(job.id)
        assert failed is not None
        assert failed.failed_reason is not None
        assert len(failed.failed_reason) <= 4_096
        assert failed.failed_reason.startswith(f"no {MAX_STACKTRACES + 2} x")
        assert len(failed.stacktrace) == MAX_STACKTRACES
        assert all(len(text) <= 8_192 for text in failed.stacktrace)


class _BrokenError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class _SilentError(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (_BrokenError(), "_BrokenError"),
        (_SilentError(), "_SilentError"),
        (ValueError("ünïcode ☃"), "ünïcode ☃"),
        (ValueError("half \ud800 a pair"), "half ? a pair"),
        (ExceptionGroup("many", [ValueError("one"), KeyError("two")]), "many (2 sub-exceptions)"),
    ],
    ids=["broken", "silent", "unicode", "surrogate", "group"],
)
async def test_every_exception_fails_the_job(url: str, queue_name: str, error: Exception, reason: str):
    async def handle(job: Job) -> None:
        raise error

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
        job = await queue.add("n")
        with pytest.raises(JobFailedError) as caught:
            await with_timeout(job.wait_until_finished())
        assert (caught.value.failed_reason, caught.value.failed_type) == (reason, type(error).__name__)
        failed = await queue.get_job(job.id)
        assert failed is not None
        assert failed.stacktrace


async def test_a_handler_that_is_cancelled_by_itself_fails_its_job(url: str, queue_name: str):
    async def handle(job: Job) -> None:
        raise asyncio.CancelledError

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url):
        with pytest.raises(JobFailedError, match="CancelledError"):
            await queue.add_and_wait("n")


async def test_failed_job_can_be_requeued_with_all_attempts(core_url: str, queue_name: str):
    runs = 0

    async def handle(job: Job) -> int:
        nonlocal runs
        runs += 1
        if runs <= 3:
            raise ValueError
        return runs

    async with Queue(queue_name, core_url) as queue, Worker(queue_name, handle, core_url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", attempts=2)
        await recorded.wait("failed")
        await job.retry()
        assert await job.wait_until_finished() == 4


async def test_a_failure_is_seen_by_a_listener_and_not_logged_as_the_workers_own(
    url: str, queue_name: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    async with Queue(queue_name, url) as queue, Worker(queue_name, failing(1), url) as worker:
        recorded = EventRecorder(worker)
        await queue.add("n")
        await recorded.wait("failed")
        assert recorded.count["error"] == 0
