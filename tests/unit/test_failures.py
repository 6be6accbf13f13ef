"""The bound of the log of failed jobs, and its lines about jobs that only the server knows."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tests.inside import failure_log
from tests.inside import options as worker_options
from tests.server.worker_support import until, with_timeout

STALLED_OUT = "stalled more often than max_stalled_count allows"


@pytest.fixture
def failures(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, logger="glidemq_py.failures")
    return lambda: list(caplog.records)


def _log(**options: Any) -> failure_log.FailureLog:
    link: Any = SimpleNamespace(queue_name="q", shown_id=str)
    return failure_log.FailureLog(
        link, worker_id="w", options=worker_options.parse_failure_log("log_failures", options)
    )


async def test_the_minute_ends_by_a_timer_that_runs_only_if_something_was_left_out(
    failures: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(failure_log, "_WINDOW_S", 0.2)
    log = _log(per_minute=1)

    def timer() -> object:
        return log._timer

    timers = [timer()]
    read: list[str] = []

    async def record(job_id: str) -> tuple[str, str]:
        read.append(job_id)
        return "n", ""

    await log.stalled("1", record)
    timers.append(timer())
    await log.stalled("2", record)
    await log.stalled("3", record)
    assert read == ["1"]
    assert timers == [None, None]
    assert timer() is not None
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
async def test_stalled_out_job_is_logged_with_its_reason(failures: Any, name: str, reason: str, message: str):
    async def read(_: str) -> tuple[str, str]:
        return name, reason

    await _log().stalled_out("7", read)
    (record,) = failures()
    assert record.getMessage() == f"queue 'q': job {message}"
    assert (record.job_id, record.job_name) == ("7", name)


async def test_empty_stream_entry_is_not_logged(failures: Any):
    log = _log()
    log.dropped([["", "7", "the job is gone"], ["1-0", "8", "the job is gone"]])
    assert [record.getMessage() for record in failures()] == [
        "queue 'q': job 7 set aside: the job is gone",
        "queue 'q': job 8 (stream entry 1-0) set aside: the job is gone",
    ]


async def test_a_million_names_are_counted_together(failures: Any):
    log = _log(per_minute=1)
    for number in range(1_000):
        log._counted("failed", str(number), f"name-{number}", "ValueError")
    assert len(log._counts) <= failure_log._MAX_KINDS + 1
    log.close()
    (record,) = failures()
    assert record.getMessage() == "queue 'q': 799 more jobs failed in the last minute (last: job 999)"
