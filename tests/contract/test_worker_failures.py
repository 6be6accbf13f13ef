"""Failed attempts: number of attempts, backoff, counted failures, and the stored error."""

import logging
from datetime import timedelta
from typing import Any

import pytest

from glidemq_py import Backoff, Job, JobFailedError, UnrecoverableError, Worker
from tests.contract.api import Queue, QueueEvents
from tests.contract.observe import Raw
from tests.contract.test_failure_log import shown
from tests.server.worker_support import EventRecorder, WorkerFor

MAX_STACKTRACES = 10


def failing(times: int):
    async def handle(job: Job) -> int:
        if job.attempts_made < times:
            raise ValueError(f"attempt {job.attempts_made + 1}")
        return job.attempts_made

    return handle


async def test_job_is_retried_until_it_succeeds(raw: Raw, queue: Queue, worker_for: WorkerFor):
    async with worker_for(failing(2)):
        job = await queue.add("n", attempts=5)
        assert await job.wait_until_finished() == 2
        assert raw.event_names(job.id) == ["added", "retrying", "promoted", "retrying", "promoted", "completed"]
        assert raw.job(job.id)["attemptsMade"] == "2"
        assert (raw.metric("completed"), raw.metric("failed")) == (1, 0)


@pytest.mark.parametrize("attempts", [0, 1, None])
async def test_default_is_one_attempt(queue: Queue, worker_for: WorkerFor, attempts: int | None):
    options: Any = {} if attempts is None else {"attempts": attempts}
    async with worker_for(failing(1)):
        with pytest.raises(JobFailedError, match="attempt 1"):
            await queue.add_and_wait("n", **options)


async def _delays(url: Any, name: str, backoff: Any, attempts: int = 4, **worker_options: Any) -> list[int]:
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
        assert await job.get_state() == "completed"
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
async def test_backoff(url: Any, queue_name: str, backoff: Any, expected: list[int]):
    assert await _delays(url, queue_name, backoff) == expected


async def test_jitter_stays_within_its_share(url: Any, queue_name: str):
    delays = await _delays(url, queue_name, {"type": "fixed", "delay": 20, "jitter": 0.5}, attempts=9)
    assert all(20 <= delay <= 30 for delay in delays), delays
    assert len(set(delays)) > 1


async def test_named_strategy_is_called(url: Any, queue_name: str):
    requested_slots: list[tuple[int, str]] = []

    def steps(failures: int, error: BaseException) -> int | timedelta:
        requested_slots.append((failures, str(error)))
        return timedelta(milliseconds=7) if failures == 2 else failures * 5

    delays = await _delays(url, queue_name, {"type": "steps"}, backoff_strategies={"steps": steps})
    assert delays == [5, 7, 15]
    assert requested_slots == [(1, "attempt 1"), (2, "attempt 2"), (3, "attempt 3")]


async def test_unknown_strategy_is_treated_as_fixed(url: Any, queue_name: str):
    assert await _delays(url, queue_name, {"type": "elsewhere", "delay": 6}, attempts=2) == [6]


async def test_an_unknown_strategy_is_logged_once_per_type(
    worker_for: WorkerFor, queue: Queue, queue_name: str, caplog: pytest.LogCaptureFixture
):
    options: Any = {"backoff_strategies": {"mine": lambda failures, error: 1}}
    async with worker_for(failing(2), **options):
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
    assert message.startswith(f"queue {queue_name!r}: job {shown(jobs[-1].id)} has the unknown backoff type 'other'")
    assert "its fixed delay of 3 ms is used. This worker knows 'fixed', 'exponential', 'mine'." in message


async def _attempts(url: Any, name: str, error: Exception, **worker_options: Any) -> int:
    runs = 0

    async def handle(job: Job):
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
async def test_which_failures_are_retried(url: Any, queue_name: str, error: Exception, options: Any, runs: int):
    assert await _attempts(url, queue_name, error, **options) == runs


async def test_stack_traces_are_bounded_in_number_and_length(queue: Queue, worker_for: WorkerFor):
    async def handle(job: Job):
        def deeper(level: int):
            if level:
                deeper(level - 1)
            raise ValueError(f"no {job.attempts_made} " + "x" * 100_000)

        deeper(200)

    async with worker_for(handle):
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


async def test_a_failure_is_seen_by_a_listener_and_not_logged_as_the_workers_own(
    queue: Queue, worker_for: WorkerFor, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    async with worker_for(failing(1)) as worker:
        recorded = EventRecorder(worker)
        await queue.add("n")
        await recorded.wait("failed")
        assert recorded.count["error"] == 0
