"""The log of failed jobs: logger `glidemq_py.failures`."""

import asyncio
import dataclasses
import logging
from datetime import datetime
from typing import Any

import pytest

from glidemq_py import (
    Broadcast,
    BroadcastWorker,
    DelayedError,
    FailureLogOptions,
    GlideMQValidationError,
    Job,
    Message,
    Queue,
    RateLimitError,
    UnrecoverableError,
    Worker,
)
from glidemq_py._core.logs import show_id
from glidemq_py._worker import failure_log
from glidemq_py._worker.failure_log import FailureLog
from glidemq_py._worker.options import parse_failure_log
from glidemq_py.errors import JobTimeoutError, NoHandlerError
from glidemq_py.testing import RespClient
from tests.server.worker_support import EventRecorder, Raw, until, with_timeout

LOGGER = "glidemq_py.failures"
STALLED_OUT = "stalled more often than max_stalled_count allows"


@pytest.fixture
def failures(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.DEBUG, logger=LOGGER)

    def records(outcome: str | None = None) -> list[Any]:
        found = [record for record in caplog.records if record.name == LOGGER]
        return [record for record in found if outcome in (None, record.job_outcome)]  # type: ignore[attr-defined]

    return records


async def fail(job: Job | Message) -> None:
    raise ConnectionError(f"no route to {job.data}")


async def test_jobs_of_partitions_have_the_names_of_the_whole_queue(url: str, queue_name: str, failures: Any) -> None:
    """Failed ones, and those that only the server knows by their id in the partition."""
    async with Queue(queue_name, url, partitions=4) as queue:
        expiring = [await queue.add("late", 1, ttl=1) for _ in range(4)]
        await asyncio.sleep(0.01)  # the ttl passes
        failing = [await queue.add("welcome", 5) for _ in range(4)]
        async with Worker(queue_name, fail, url):
            await with_timeout(until(lambda: len(failures("failed")) == 4 and len(failures("expired")) == 4))
    found = {record.job_id: record for record in (*failures("failed"), *failures("expired"))}
    assert found.keys() == {job.id for job in (*expiring, *failing)}
    for job_id, record in found.items():
        assert record.queue_name == queue_name
        assert record.getMessage().startswith(f"queue {queue_name!r}: job {show_id(job_id)} ")


async def test_retries_are_warnings_and_the_final_failure_an_error(url: str, queue_name: str, failures: Any) -> None:
    async with Queue(queue_name, url) as queue, Worker(queue_name, fail, url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("welcome", 5, attempts=3, backoff=1)
        await recorded.wait("failed")
    first, second, last = failures()
    start = f"queue {queue_name!r}: job {job.id} 'welcome' failed"
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


def _raise(error: BaseException) -> None:
    raise error


async def _ends_with(url: str, name: str, handler: Any, worker_options: Any = None, **options: Any) -> None:
    async with Queue(name, url) as queue, Worker(name, handler, url, **(worker_options or {})) as worker:
        recorded = EventRecorder(worker)
        await queue.add("n", **options)
        await recorded.wait("failed")


async def test_why_remaining_attempts_are_not_used(url: str, queue_name: str, failures: Any) -> None:
    async def unrecoverable(job: Job) -> None:
        raise UnrecoverableError("bad data")

    def excluded(job: Job) -> None:
        raise ValueError("no")

    await _ends_with(url, queue_name, unrecoverable, attempts=5)
    await _ends_with(url, queue_name, excluded, {"no_retry_on": ValueError}, attempts=5)
    first, second = failures()
    assert first.getMessage().endswith(
        "(UnrecoverableError: bad data); not retried: the error is an UnrecoverableError"
    )
    assert second.getMessage().endswith("(ValueError: no); not retried: excluded by retry_on or no_retry_on")
    assert second.exc_info[2].tb_frame.f_code is excluded.__code__


def _other_tasks(name: str, url: str) -> Worker:
    worker = Worker(name, connection=url)

    @worker.task
    def other() -> None: ...

    return worker


async def test_timeouts_and_missing_handlers(url: str, queue_name: str, failures: Any) -> None:
    async def slow(job: Job) -> None:
        await asyncio.Event().wait()

    await _ends_with(url, queue_name, slow, timeout=50)
    async with Queue(queue_name, url) as queue, _other_tasks(queue_name, url) as worker:
        recorded = EventRecorder(worker)
        await queue.add("nobody")
        await recorded.wait("failed")
    first, second = failures()
    assert (first.levelname, first.error_type) == ("ERROR", JobTimeoutError.__name__)
    assert (second.levelname, second.error_type) == ("ERROR", NoHandlerError.__name__)
    assert "this worker has no handler for jobs named 'nobody'" in second.getMessage()


async def test_signals_are_no_failures(url: str, queue_name: str, failures: Any) -> None:
    async def handle(job: Job) -> None:
        if job.name == "later":
            raise DelayedError(60_000)
        raise RateLimitError(1)

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url) as worker:
        recorded = EventRecorder(worker)
        await queue.add("later")
        await recorded.wait("delayed")
        await queue.add("limited")
        await recorded.wait("delayed", 2)
    assert failures() == []


async def test_aborted_job_is_logged_at_info_level(url: str, queue_name: str, failures: Any) -> None:
    begun = asyncio.Event()

    async def handle(job: Job) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await with_timeout(begun.wait())
        assert worker.cancel_job(job.id)
        await recorded.wait("failed")
    (record,) = failures()
    assert (record.levelname, record.job_outcome, record.exc_info) == ("INFO", "revoked", None)


async def test_expired_jobs(url: str, resp: RespClient, queue_name: str, failures: Any) -> None:
    async with Queue(queue_name, url) as queue:
        raw = Raw(resp, queue_name)
        raw.put_job("old", expireAt=1)
        await queue.add("last")
        async with Worker(queue_name, lambda job: None, url) as worker:
            await EventRecorder(worker).wait("completed")
    (record,) = failures()
    assert record.getMessage() == f"queue {queue_name!r}: job old expired before it ran (its ttl passed)"
    assert (record.levelname, record.job_outcome, record.job_id) == ("WARNING", "expired", "old")


async def test_every_job_of_a_failed_batch(url: str, queue_name: str, failures: Any) -> None:
    async def handle(jobs: list[Job]) -> list[Any]:
        raise OSError("disk full")

    async with Queue(queue_name, url) as queue:
        ids = [(await queue.add("n")).id for _ in range(3)]
        async with Worker(queue_name, handle, url, batch={"size": 3}) as worker:
            await EventRecorder(worker).wait("failed", 3)
    assert [record.job_id for record in failures("failed")] == ids


@pytest.mark.slow
async def test_sandboxes_show_the_traceback_of_their_process(url: str, queue_name: str, failures: Any) -> None:
    await _ends_with(url, queue_name, "tests.server.sandboxed_handlers:fail")
    (record,) = failures()
    text = logging.Formatter("%(message)s").format(record)
    assert "sandboxed_handlers.py" in text
    assert "The above exception was the direct cause" in text


async def _final_failure(url: str, name: str, worker: Worker, failures: Any, data: Any) -> Any:
    async with Queue(name, url) as queue, worker:
        recorded = EventRecorder(worker)
        await queue.add("welcome", data)
        await recorded.wait("failed")
    return failures("failed")[-1]


@pytest.mark.slow
async def test_errors_outside_user_code_have_no_traceback(url: str, queue_name: str, failures: Any) -> None:
    typed = Worker(queue_name, connection=url)

    @typed.task
    def welcome(count: int, at: datetime) -> None: ...

    record = await _final_failure(url, queue_name, typed, failures, {"count": "many", "at": "2026-01-01T00:00:00"})
    assert (record.levelname, record.error_type, record.exc_info) == ("ERROR", "JobDataError", None)
    assert "count" in record.getMessage()
    again = Worker(queue_name, connection=url)
    again.task(welcome._function)
    record = await _final_failure(url, queue_name, again, failures, {"count": 1, "at": "soon"})
    assert (record.error_type, record.exc_info) == ("JobDataError", None)  # its cause is raised by the standard library
    crashing = Worker(queue_name, "tests.server.sandboxed_handlers:abort", url)
    record = await _final_failure(url, queue_name, crashing, failures, None)
    assert (record.levelname, record.error_type, record.exc_info) == ("ERROR", "SandboxCrashError", None)


@dataclasses.dataclass
class Picky:
    name: str

    def __post_init__(self) -> None:
        raise ValueError(f"no {self.name}")


async def test_an_error_caused_by_user_code_has_the_traceback_of_its_cause(
    url: str, queue_name: str, failures: Any
) -> None:
    worker = Worker(queue_name, connection=url)

    @worker.task
    def welcome(who: Picky) -> None: ...

    record = await _final_failure(url, queue_name, worker, failures, {"who": {"name": "ann"}})
    assert record.error_type == "JobDataError"
    text = logging.Formatter("%(message)s").format(record)
    assert "in __post_init__" in text
    assert "ValueError: no ann" in text


async def test_deliveries_of_broadcasts(url: str, queue_name: str, failures: Any) -> None:
    async with BroadcastWorker(queue_name, fail, url, subscription="mail") as worker:
        recorded = EventRecorder(worker)
        async with Broadcast(queue_name, url) as broadcast:
            await broadcast.publish("subject", 1)
        await recorded.wait("failed")
    (record,) = failures()
    assert record.getMessage().startswith(f"subscription 'mail' of broadcast {queue_name!r}: job ")


async def test_failures_above_the_limit_per_minute_are_counted(url: str, queue_name: str, failures: Any) -> None:
    async with Queue(queue_name, url) as queue:
        await queue.add_bulk([("n", i) for i in range(30)])
        async with Worker(queue_name, fail, url, concurrency=10, log_failures={"per_minute": 2}) as worker:
            await EventRecorder(worker).wait("failed", 30)
            assert len(failures()) == 2
    *_, summary = failures()
    assert len(failures()) == 3
    assert "28 more jobs 'n' failed with ConnectionError in the last minute (last: job " in summary.getMessage()
    assert (summary.levelname, summary.failure_count, summary.job_name) == ("ERROR", 28, "n")


async def test_names_and_messages_cannot_forge_lines(url: str, queue_name: str, failures: Any) -> None:
    evil = "x\r\n2026 ERROR \x1b[31m\u2028\u202e"

    async def handle(job: Job) -> None:
        raise ValueError(evil)

    async with Queue(queue_name, url) as queue, Worker(queue_name, handle, url) as worker:
        recorded = EventRecorder(worker)
        await queue.add(evil, attempts=2)
        await recorded.wait("failed")
    assert len(failures()) == 2
    for record in failures():
        first, *trace = logging.Formatter("%(message)s").format(record).split("\n")
        assert first.isprintable()
        assert all(line.startswith("    ") and line.isprintable() for line in trace)


async def test_it_can_be_changed_and_disabled(url: str, queue_name: str, failures: Any) -> None:
    await _ends_with(url, queue_name, fail, {"log_failures": False}, attempts=2)
    assert failures() == []
    quiet = FailureLogOptions(retries=False, tracebacks=False)
    await _ends_with(url, queue_name, fail, {"log_failures": quiet}, attempts=2)
    (record,) = failures()
    assert (record.levelname, record.exc_info) == ("ERROR", None)


@pytest.mark.parametrize("value", [None, 3, "yes", {"per_minute": -1}, {"retries": 1}, {"unknown": 1}])
def test_invalid_options_are_rejected(value: Any) -> None:
    with pytest.raises(GlideMQValidationError, match="log_failures"):
        Worker("q", fail, log_failures=value)


async def test_a_failing_log_handler_costs_no_result(url: str, queue_name: str) -> None:
    def broken(record: logging.LogRecord) -> bool:
        raise RuntimeError("broken filter")

    logger = logging.getLogger(LOGGER)
    logger.addFilter(broken)
    try:
        await _ends_with(url, queue_name, fail)
    finally:
        logger.removeFilter(broken)


# -- the bound, without a server ------------------------------------------------------------------------------


def _log(**options: Any) -> FailureLog:
    return FailureLog(source="queue 'q'", queue="q", worker_id="w", options=parse_failure_log("log_failures", options))


async def test_the_minute_ends_by_a_timer_that_runs_only_if_something_was_left_out(
    failures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure_log, "_WINDOW_S", 0.01)
    log = _log(per_minute=1)
    timers: list[object] = [log._timer]
    read: list[str] = []

    async def record(job_id: str) -> tuple[str, str]:
        read.append(job_id)
        return "n", ""

    await log.stalled("1", record)
    timers.append(log._timer)
    await log.stalled("2", record)
    await log.stalled("3", record)
    assert read == ["1"]
    assert timers == [None, None]
    assert log._timer is not None
    await with_timeout(until(lambda: len(failures()) == 2))
    assert failures()[1].getMessage() == "queue 'q': 2 more jobs stalled in the last minute (last: job 3)"


@pytest.mark.parametrize(
    ("name", "reason", "message"),
    [
        ("n", "job stalled more than maxStalledCount", f"7 'n' failed ({STALLED_OUT})"),
        ("n", "the lease expired", "7 'n' failed (the lease expired)"),
        ("n", "", f"7 'n' failed ({STALLED_OUT})"),
        ("", "", f"7 failed ({STALLED_OUT}, or its lease expired in its last attempt)"),
    ],
)
async def test_stalled_out_job_is_logged_with_its_reason(failures: Any, name: str, reason: str, message: str) -> None:
    async def read(_: str) -> tuple[str, str]:
        return name, reason

    await _log().stalled_out("7", read)
    (record,) = failures("stalled-out")
    assert record.getMessage() == f"queue 'q': job {message}"
    assert (record.job_id, record.job_name) == ("7", name)


async def test_empty_stream_entry_is_not_logged(failures: Any) -> None:
    log = _log()
    log.dropped([["", "7", "the job is gone"], ["1-0", "8", "the job is gone"]])
    assert [record.getMessage() for record in failures()] == [
        "queue 'q': job 7 set aside: the job is gone",
        "queue 'q': job 8 (stream entry 1-0) set aside: the job is gone",
    ]


async def test_a_million_names_are_counted_together(failures: Any) -> None:
    log = _log(per_minute=1)
    for number in range(1_000):
        log._counted("failed", str(number), f"name-{number}", "ValueError")
    assert len(log._counts) <= failure_log._MAX_KINDS + 1
    log.close()
    (record,) = failures()
    assert record.getMessage() == "queue 'q': 799 more jobs failed in the last minute (last: job 999)"
