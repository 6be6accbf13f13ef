"""The classification of errors of calls: which may be sent again, and which error is raised."""

import logging
import time
from typing import Any

import pytest
from glide_shared.exceptions import ClosingError, GlideError, RequestError
from glide_shared.exceptions import ConnectionError as GlideConnectionError
from glide_shared.exceptions import TimeoutError as GlideTimeoutError

from glidemq_py._client.call_retry import CallRetry, classify, translate
from glidemq_py.errors import (
    AmbiguousResultError,
    ClosedError,
    GlideMQConnectionError,
    GlideMQError,
    PermissionDeniedError,
    ScriptError,
    ServerNotReadyError,
    ServerOutOfMemoryError,
)
from tests.inside import CallOutcome, Interruptions, classify_reply, failure_log, meaning_of, parse_failure_log
from tests.server.worker_support import until, with_timeout

SIGNALLED = "An error was signalled by the server: - "
NOT_EXECUTED = [
    (SIGNALLED + "TryAgain: Multiple keys request during rehashing of slot", "slot-moving", ServerNotReadyError),
    ("TRYAGAIN Multiple keys request during rehashing of slot", "slot-moving", ServerNotReadyError),
    (SIGNALLED + "Ask: 3999 127.0.0.1:6381", "slot-moving", ServerNotReadyError),
    (SIGNALLED + "Moved: 3999 127.0.0.1:6381", "slot-moved", ServerNotReadyError),
    ("MOVED 3999 127.0.0.1:6381", "slot-moved", ServerNotReadyError),
    (SIGNALLED + "ClusterDown: The cluster is down", "cluster-down", ServerNotReadyError),
    ("CLUSTERDOWN Hash slot not served", "cluster-down", ServerNotReadyError),
    (SIGNALLED + "BusyLoadingError: Valkey is loading the dataset in memory", "loading", ServerNotReadyError),
    ("LOADING Valkey is loading the dataset in memory", "loading", ServerNotReadyError),
    (SIGNALLED + "MasterDown: Link with MASTER is down", "primary-down", ServerNotReadyError),
    (SIGNALLED + "ReadOnly: You can't write against a read only replica.", "read-only", ServerNotReadyError),
    ("READONLY You can't write against a read only replica.", "read-only", ServerNotReadyError),
    ("BUSY: Valkey is busy running a script. You can only call SCRIPT KILL", "busy", ServerNotReadyError),
    ("UNBLOCKED force unblock from blocking operation", "unblocked", ServerNotReadyError),
    ("NOREPLICAS: Not enough good replicas to write.", "no-replicas", ServerNotReadyError),
    ("MISCONF: Valkey is configured to save RDB snapshots, but", "cannot-persist", ServerNotReadyError),
    (SIGNALLED + "ResponseError: Function not found", "function-missing", ServerNotReadyError),
    ("ERR Function not found", "function-missing", ServerNotReadyError),
    (SIGNALLED + "ConnectionNotFoundForRoute: Requested connection not found", "unreachable", ServerNotReadyError),
]
PERMANENT = [
    ("OOM: command not allowed when used memory > 'maxmemory'.", "out-of-memory", ServerOutOfMemoryError),
    ("OOM command not allowed when used memory > 'maxmemory'. script: x", "out-of-memory", ServerOutOfMemoryError),
    (
        SIGNALLED + "PermissionDenied: User app has no permissions to run the 'fcall' command",
        "denied",
        PermissionDeniedError,
    ),
    ("NOPERM User app has no permissions", "denied", PermissionDeniedError),
    (SIGNALLED + "ResponseError: ACL failure in script: User app has no permissions", "denied", PermissionDeniedError),
    ("READONLY You can't write script: x, on @user_function:3.", "script", ScriptError),
    (SIGNALLED + "ResponseError: Wrong number of args script: on @user_function:4.", "script", ScriptError),
    (SIGNALLED + "CrossSlot: Keys in request don't hash to the same slot", "other", GlideMQError),
    ("WRONGTYPE Operation against a key", "other", GlideMQError),
    ("", "other", GlideMQError),
]


@pytest.mark.parametrize(("text", "name", "error"), NOT_EXECUTED)
def test_transient_replies_are_not_executed(text: str, name: str, error: type[GlideMQError]):
    failure = classify_reply(text)
    assert (failure.name, failure.outcome) == (name, CallOutcome.NOT_EXECUTED)
    ours = translate(RequestError(text))
    assert type(ours) is error
    assert isinstance(ours, GlideMQConnectionError)  # every loop that waits for a server catches this
    assert "was not executed" in str(ours)


@pytest.mark.parametrize(("text", "name", "error"), PERMANENT)
def test_permanent_replies_are_not_retried(text: str, name: str, error: type[GlideMQError]):
    failure = classify_reply(text)
    assert (failure.name, failure.outcome) == (name, CallOutcome.PERMANENT)
    assert type(meaning_of(text, None)) is error
    assert not isinstance(meaning_of(text, None), GlideMQConnectionError)


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        (SIGNALLED + "PermissionDenied: User app has no permissions to run the 'function|load' command",
         "user 'app', command 'function|load'"),
        ("NOPERM User a b has no permissions to access the 'glide:{q}:meta' key", "user 'a b', key 'glide:{q}:meta'"),
        ("NOPERM No permissions to access a key", "NOPERM No permissions to access a key"),
    ],
)  # fmt: skip
def test_missing_permission_is_named_once(reply: str, shown: str):
    expected = f"permission denied: {shown} (docs/operate/permissions.md lists the required permissions)"
    assert str(meaning_of(reply, None)) == expected


@pytest.mark.parametrize(
    ("error", "outcome", "ours"),
    [
        (GlideTimeoutError("timed out"), CallOutcome.AMBIGUOUS, AmbiguousResultError),
        (GlideConnectionError("broken pipe"), CallOutcome.AMBIGUOUS, AmbiguousResultError),
        (RequestError("FatalReceiveError: connection reset"), CallOutcome.AMBIGUOUS, AmbiguousResultError),
        (RequestError("IoError: broken pipe"), CallOutcome.AMBIGUOUS, AmbiguousResultError),
        (
            RequestError("BrokenPipe: Cluster: Failed to receive command response from internal sender. RecvError(())"),
            CallOutcome.AMBIGUOUS,
            AmbiguousResultError,
        ),
        (ClosingError("the client is closed"), CallOutcome.PERMANENT, ClosedError),
    ],
)
def test_errors_without_a_reply(error: GlideError, outcome: CallOutcome, ours: type[GlideMQError]):
    assert classify(error).outcome is outcome
    assert type(translate(error)) is ours


def retry(limit_ms: int = 60_000, *, repeatable: bool = False) -> CallRetry:
    return CallRetry(
        "add", repeatable=repeatable, started=time.monotonic(), limit_ms=limit_ms, interruptions=Interruptions()
    )


@pytest.mark.parametrize("repeatable", [False, True])
def test_calls_that_were_not_executed_are_sent_again(repeatable: bool):
    step = retry(repeatable=repeatable).after(RequestError("TryAgain: x"))
    assert step is not None
    assert step.pause > 0
    assert not step.load


@pytest.mark.parametrize("kind", [GlideConnectionError, GlideTimeoutError])
def test_only_repeatable_calls_are_sent_again_without_a_reply(kind: type[GlideError]):
    assert retry().after(kind("gone")) is None
    assert retry(repeatable=True).after(kind("gone")) is not None


@pytest.mark.parametrize("text", ["NOREPLICAS: x", "MISCONF: x", "OOM: x"])
def test_conditions_that_do_not_end_by_themselves_are_raised_at_once(text: str):
    assert retry(repeatable=True).after(RequestError(text)) is None


def test_retrying_ends_with_the_request_timeout():
    assert retry(-1).after(RequestError("TryAgain: x")) is None


def test_a_missing_library_is_loaded_at_once_and_then_with_pauses():
    one = retry()
    first, second = one.after(RequestError("Function not found")), one.after(RequestError("Function not found"))
    assert first == (0.0, True)
    assert second is not None
    assert second.load
    assert second.pause > 0


def test_interruptions_are_noted_and_a_missing_library_is_none():
    seen = Interruptions()
    one = CallRetry("add", repeatable=False, started=0.0, limit_ms=1, interruptions=seen)
    one.after(RequestError("Function not found"))
    one.after(RequestError("WRONGTYPE x"))
    assert seen.age_s("q") == float("inf")
    one.after(RequestError("TryAgain: x"))
    assert seen.age_s("q") < 60


@pytest.mark.parametrize(
    ("text", "user", "permission"),
    [
        (SIGNALLED + "PermissionDenied: User app has no permissions to run the 'fcall' command", "app", "fcall"),
        ("NOPERM User app has no permissions to access the 'glide:{q}:id' key", "app", "glide:{q}:id"),
        (
            "ERR ACL failure in script: User app has no permissions to run the 'xgroup|destroy' command",
            "app",
            "xgroup|destroy",
        ),
        ("ERR ACL failure in script: User has no permissions to run the 'decr' command; nothing", "", "decr"),
        ("ERR The user executing the script can't run this command or subcommand", "", ""),
    ],
)
def test_a_denied_permission_is_named(text: str, user: str, permission: str):
    error = translate(RequestError(text))
    assert isinstance(error, PermissionDeniedError)
    assert (error.user, error.permission) == (user, permission)
    assert permission in str(error)


# -- the bound of the log of failed jobs, and its lines about jobs that only the server knows ------


STALLED_OUT = "stalled more often than max_stalled_count allows"


@pytest.fixture
def failures(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, logger="glidemq_py.failures")
    return lambda: list(caplog.records)


def _log(**options: Any) -> failure_log.FailureLog:
    return failure_log.FailureLog(
        source="queue 'q'", queue="q", worker_id="w", options=parse_failure_log("log_failures", options)
    )


async def test_the_minute_ends_by_a_timer_that_runs_only_if_something_was_left_out(
    failures: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(failure_log, "_WINDOW_S", 0.2)
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
