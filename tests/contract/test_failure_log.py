"""The log of failed jobs: logger `glidemq_py.failures`."""

import asyncio
import dataclasses
import logging
from datetime import datetime
from typing import Any

import pytest

from glidemq_py import (
    BroadcastWorker,
    DelayedError,
    FailureLogOptions,
    GlideMQValidationError,
    Job,
    Message,
    RateLimitError,
    UnrecoverableError,
    Worker,
)
from glidemq_py.errors import HandlerError, JobTimeoutError
from tests.contract.api import Broadcast, Queue
from tests.contract.observe import Raw
from tests.server.worker_support import EventRecorder, WorkerFor, until, with_timeout

LOGGER = "glidemq_py.failures"


@pytest.fixture
def failures(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, logger=LOGGER)

    def records(outcome: str | None = None) -> list[Any]:
        found = [record for record in caplog.records if record.name == LOGGER]
        return [record for record in found if outcome in (None, record.job_outcome)]  # type: ignore[attr-defined]

    return records


def shown(job_id: str) -> str:
    """Return an id as log lines show it: quoted if it has signs other than digits."""
    return job_id if job_id.isdigit() else repr(job_id)


async def fail(job: Job | Message):
    raise ConnectionError(f"no route to {job.data}")


async def test_jobs_have_the_names_of_the_whole_queue(
    worker_for: WorkerFor, queue: Queue, queue_name: str, failures: Any
):
    """Failed ones, and those that only the server knows, by their id in the partition."""
    expiring = [await queue.add("late", 1, ttl=1) for _ in range(4)]
    await asyncio.sleep(0.01)  # the ttl passes
    failing = [await queue.add("welcome", 5) for _ in range(4)]
    async with worker_for(fail):
        await with_timeout(until(lambda: len(failures("failed")) == 4 and len(failures("expired")) == 4))
    found = {record.job_id: record for record in (*failures("failed"), *failures("expired"))}
    assert found.keys() == {job.id for job in (*expiring, *failing)}
    for job_id, record in found.items():
        assert record.queue_name == queue_name
        assert record.getMessage().startswith(f"queue {queue_name!r}: job {shown(job_id)} ")


async def test_retries_are_warnings_and_the_final_failure_an_error(
    worker_for: WorkerFor, queue: Queue, queue_name: str, failures: Any
):
    async with worker_for(fail) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("welcome", 5, attempts=3, backoff=1)
        await recorded.wait("failed")
    first, second, last = failures()
    start = f"queue {queue_name!r}: job {shown(job.id)} 'welcome' failed"
    assert first.getMessage() == f"{start} attempt 1 of 3 (ConnectionError: no route to 5); next attempt in 1 ms"
    assert (first.levelname, second.levelname, last.levelname) == ("WARNING", "WARNING", "ERROR")
    assert (first.exc_info, second.exc_info) == (None, None)
    assert last.getMessage() == f"{start} in attempt 3 of 3 (ConnectionError: no route to 5)"
    kind, error, trace = last.exc_info
    assert (kind, str(error)) == (ConnectionError, "no route to 5")
    assert trace.tb_frame.f_code is fail.__code__  # frames of the package are left out
    attributes = (last.job_id, last.job_name, last.job_attempt, last.job_attempts, last.queue_name, last.worker_id)
    assert attributes == (job.id, "welcome", 3, 3, queue_name, worker.consumer)
    assert (last.error_type, last.job_outcome) == ("ConnectionError", "failed")


async def _ends_with(url: Any, name: str, handler: Any, worker_options: Any = None, **options: Any):
    async with Queue(name, url) as queue, Worker(name, handler, url, **(worker_options or {})) as worker:
        recorded = EventRecorder(worker)
        await queue.add("n", **options)
        await recorded.wait("failed")


async def test_why_remaining_attempts_are_not_used(url: Any, queue_name: str, failures: Any):
    async def unrecoverable(job: Job):
        raise UnrecoverableError("bad data")

    def excluded(job: Job):
        raise ValueError("no")

    await _ends_with(url, queue_name, unrecoverable, attempts=5)
    await _ends_with(url, queue_name, excluded, {"no_retry_on": ValueError}, attempts=5)
    first, second = failures()
    assert first.getMessage().endswith(
        "(UnrecoverableError: bad data); not retried: the error is an UnrecoverableError"
    )
    assert second.getMessage().endswith("(ValueError: no); not retried: excluded by retry_on or no_retry_on")
    assert second.exc_info[2].tb_frame.f_code is excluded.__code__


def _other_tasks(name: str, url: Any) -> Worker:
    worker = Worker(name, connection=url)

    @worker.task
    def other(): ...

    return worker


async def test_timeouts_and_missing_handlers(url: Any, queue: Queue, queue_name: str, failures: Any):
    async def slow(job: Job):
        await asyncio.Event().wait()

    await _ends_with(url, queue_name, slow, timeout=50)
    async with _other_tasks(queue_name, url) as worker:
        recorded = EventRecorder(worker)
        await queue.add("nobody")
        await recorded.wait("failed")
    first, second = failures()
    assert (first.levelname, first.error_type) == ("ERROR", JobTimeoutError.__name__)
    assert (second.levelname, second.error_type) == ("ERROR", HandlerError.__name__)
    assert "this worker has no handler for jobs named 'nobody'" in second.getMessage()


async def test_signals_are_no_failures(queue: Queue, worker_for: WorkerFor, failures: Any):
    async def handle(job: Job):
        if job.name == "later":
            raise DelayedError(60_000)
        raise RateLimitError(1)

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        await queue.add("later")
        await recorded.wait("delayed")
        await queue.add("limited")
        await recorded.wait("delayed", 2)
    assert failures() == []


async def test_aborted_job_is_logged_at_info_level(queue: Queue, worker_for: WorkerFor, failures: Any):
    begun = asyncio.Event()

    async def handle(job: Job):
        begun.set()
        await asyncio.Event().wait()

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await with_timeout(begun.wait())
        assert worker.cancel_job(job.id)
        await recorded.wait("failed")
    (record,) = failures()
    assert (record.levelname, record.job_outcome, record.exc_info) == ("INFO", "revoked", None)


async def test_expired_jobs(worker_for: WorkerFor, raw: Raw, queue: Queue, queue_name: str, failures: Any):
    raw.put_job("old", expireAt=1)
    await queue.add("last")
    async with worker_for(lambda job: None) as worker:
        await EventRecorder(worker).wait("completed")
    (record,) = failures()
    assert record.getMessage() == f"queue {queue_name!r}: job old expired before it ran (its ttl passed)"
    assert (record.levelname, record.job_outcome, record.job_id) == ("WARNING", "expired", "old")


async def test_every_job_of_a_failed_batch(queue: Queue, worker_for: WorkerFor, failures: Any):
    async def handle(jobs: list[Job]) -> list[Any]:
        raise OSError("disk full")

    ids = [(await queue.add("n")).id for _ in range(3)]
    async with worker_for(handle, batch={"size": 3}) as worker:
        await EventRecorder(worker).wait("failed", 3)
    assert sorted(record.job_id for record in failures("failed")) == sorted(ids)


@pytest.mark.slow
async def test_sandboxes_show_the_traceback_of_their_process(url: Any, queue_name: str, failures: Any):
    await _ends_with(url, queue_name, "tests.server.sandboxed_handlers:fail")
    (record,) = failures()
    text = logging.Formatter("%(message)s").format(record)
    assert "sandboxed_handlers.py" in text
    assert "The above exception was the direct cause" in text


async def _final_failure(url: Any, name: str, worker: Worker, failures: Any, data: Any):
    async with Queue(name, url) as queue, worker:
        recorded = EventRecorder(worker)
        await queue.add("welcome", data)
        await recorded.wait("failed")
    return failures("failed")[-1]


@pytest.mark.slow
async def test_errors_outside_user_code_have_no_traceback(
    worker_for: WorkerFor, url: Any, queue_name: str, failures: Any
):
    typed = Worker(queue_name, connection=url)

    def welcome(count: int, at: datetime): ...

    typed.task(welcome)

    record = await _final_failure(url, queue_name, typed, failures, {"count": "many", "at": "2026-01-01T00:00:00"})
    assert (record.levelname, record.error_type, record.exc_info) == ("ERROR", "JobDataError", None)
    assert "count" in record.getMessage()
    again = Worker(queue_name, connection=url)
    again.task(welcome)
    record = await _final_failure(url, queue_name, again, failures, {"count": 1, "at": "soon"})
    assert (record.error_type, record.exc_info) == ("JobDataError", None)  # its cause is raised by the standard library
    crashing = worker_for("tests.server.sandboxed_handlers:abort")
    record = await _final_failure(url, queue_name, crashing, failures, None)
    assert (record.levelname, record.error_type, record.exc_info) == ("ERROR", "SandboxCrashError", None)


@dataclasses.dataclass
class Picky:
    name: str

    def __post_init__(self):
        raise ValueError(f"no {self.name}")


async def test_an_error_caused_by_user_code_has_the_traceback_of_its_cause(url: Any, queue_name: str, failures: Any):
    worker = Worker(queue_name, connection=url)

    @worker.task
    def welcome(who: Picky): ...

    record = await _final_failure(url, queue_name, worker, failures, {"who": {"name": "ann"}})
    assert record.error_type == "JobDataError"
    text = logging.Formatter("%(message)s").format(record)
    assert "in __post_init__" in text
    assert "ValueError: no ann" in text


async def test_deliveries_of_broadcasts(url: Any, queue_name: str, failures: Any):
    async with BroadcastWorker(queue_name, fail, url, subscription="mail") as worker:
        recorded = EventRecorder(worker)
        async with Broadcast(queue_name, url) as broadcast:
            await broadcast.publish("subject", 1)
        await recorded.wait("failed")
    (record,) = failures()
    assert record.getMessage().startswith(f"subscription 'mail' of broadcast {queue_name!r}: job ")


async def test_failures_above_the_limit_per_minute_are_counted(queue: Queue, worker_for: WorkerFor, failures: Any):
    await queue.add_bulk([("n", i) for i in range(30)])
    async with worker_for(fail, concurrency=10, log_failures={"per_minute": 2}) as worker:
        await EventRecorder(worker).wait("failed", 30)
        assert len(failures()) == 2
    *_, summary = failures()
    assert len(failures()) == 3
    assert "28 more jobs 'n' failed with ConnectionError in the last minute (last: job " in summary.getMessage()
    assert (summary.levelname, summary.failure_count, summary.job_name) == ("ERROR", 28, "n")


async def test_names_and_messages_cannot_forge_lines(queue: Queue, worker_for: WorkerFor, failures: Any):
    evil = "x\r\n2026 ERROR \x1b[31m\u2028\u202e"

    async def handle(job: Job):
        raise ValueError(evil)

    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        await queue.add(evil, attempts=2)
        await recorded.wait("failed")
    assert len(failures()) == 2
    for record in failures():
        first, *trace = logging.Formatter("%(message)s").format(record).split("\n")
        assert first.isprintable()
        assert all(line.startswith("    ") and line.isprintable() for line in trace)


async def test_it_can_be_changed_and_disabled(url: Any, queue_name: str, failures: Any):
    await _ends_with(url, queue_name, fail, {"log_failures": False}, attempts=2)
    assert failures() == []
    quiet = FailureLogOptions(retries=False, tracebacks=False)
    await _ends_with(url, queue_name, fail, {"log_failures": quiet}, attempts=2)
    (record,) = failures()
    assert (record.levelname, record.exc_info) == ("ERROR", None)


@pytest.mark.parametrize("value", [None, 3, "yes", {"per_minute": -1}, {"retries": 1}, {"unknown": 1}])
def test_invalid_options_are_rejected(value: Any):
    with pytest.raises(GlideMQValidationError, match="log_failures"):
        Worker("q", fail, log_failures=value)


async def test_a_failing_log_handler_costs_no_result(url: Any, queue_name: str):
    def broken(record: logging.LogRecord) -> bool:
        raise RuntimeError("broken filter")

    logger = logging.getLogger(LOGGER)
    logger.addFilter(broken)
    try:
        await _ends_with(url, queue_name, fail)
    finally:
        logger.removeFilter(broken)
