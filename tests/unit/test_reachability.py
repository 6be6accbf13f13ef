"""One log line when the server of a process is gone, and one when it is back."""

import asyncio
import logging
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from glidemq_py._core import logs
from glidemq_py.errors import AmbiguousResultError, GlideMQError
from tests.inside import failures


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(failures, "_CHECK_AFTER_S", 0.01)


def refuses() -> str | None:
    return failures.REFUSED


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A number of seconds that have passed for the modules under test."""
    given = [0.0]
    later = SimpleNamespace(**{**vars(time), "monotonic": lambda: time.monotonic() + given[0]})
    for module in (failures, logs):
        monkeypatch.setattr(module, "time", later)
    return given


def checks() -> set[asyncio.Task[Any]]:
    """Return the checks that run in this event loop."""
    return asyncio.all_tasks() - {asyncio.current_task()}


async def checked():
    (check,) = checks()
    await check


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_outage_is_logged_once_and_its_end(caplog: pytest.LogCaptureFixture):
    server, lost = failures.Reachability("db:6379"), AmbiguousResultError("lost")
    assert server.level(lost) == logging.WARNING
    server.failed(0.0, 30.0, refuses)
    assert server.level(lost) == logging.DEBUG, "the check may find that it is gone"
    assert server.level(GlideMQError("other")) == logging.WARNING
    await checked()
    for _ in range(100):
        server.failed(30.0, 30.0, refuses)
    assert server.is_gone
    assert server.refused == "server db:6379 cannot be reached (connection refused)"
    server.replied()
    assert not server.is_gone
    assert not server.refused
    gone, back = lines(caplog)
    assert gone.startswith("server db:6379: cannot be reached since ")
    assert gone.endswith("(connection refused); calls wait for it up to the request timeout (30 s), then fail")
    assert back.startswith("server db:6379: reachable again after 0.")


async def test_short_outage_is_not_logged(caplog: pytest.LogCaptureFixture):
    server = failures.Reachability("db:6379")
    server.failed(0.0, 30.0, refuses)
    server.replied()
    await checked()
    assert not server.is_gone
    assert lines(caplog) == []


async def test_failures_have_another_cause_if_the_server_replies(caplog: pytest.LogCaptureFixture):
    """For example one node of a cluster is gone, or one call takes too long."""
    server = failures.Reachability("db:6379")
    server.failed(0.0, 30.0, lambda: None)
    await checked()
    assert not server.is_doubted
    server.failed(0.0, 30.0, lambda: None)
    assert server.level(AmbiguousResultError("lost")) == logging.WARNING, "failures are not hidden for long"
    await checked()
    assert lines(caplog) == []


async def test_reminder_once_per_minute(caplog: pytest.LogCaptureFixture, passed: list[float]):
    server = failures.Reachability("db:6379")
    server.failed(0.0, 30.0, refuses)
    await checked()
    passed[0] = 180.0
    server.failed(0.0, 30.0, refuses)
    server.failed(0.0, 30.0, refuses)
    assert lines(caplog)[1:] == ["server db:6379: still unreachable after 3.0 min"]


async def test_event_loops_of_a_process_share_a_check(caplog: pytest.LogCaptureFixture):
    server, seen = failures.Reachability("db:6379"), threading.Event()

    def refuses_later() -> str | None:
        seen.wait()
        return failures.REFUSED

    server.failed(0.0, 30.0, refuses_later)

    async def fail_there() -> set[asyncio.Task[Any]]:
        server.failed(0.0, 30.0, refuses)
        return checks()

    assert await asyncio.to_thread(asyncio.run, fail_there()) == set()
    seen.set()
    await checked()
    assert len(lines(caplog)) == 1


async def test_check_of_a_stopped_event_loop_is_replaced(caplog: pytest.LogCaptureFixture, passed: list[float]):
    server = failures.Reachability("db:6379")

    async def fail_there():
        server.failed(0.0, 30.0, refuses)

    stopped = asyncio.new_event_loop()
    try:
        await asyncio.to_thread(stopped.run_until_complete, fail_there())
        (first,) = asyncio.all_tasks(stopped)
        server.failed(0.0, 30.0, refuses)
        assert not checks()
        passed[0] = 30.0
        server.failed(0.0, 30.0, refuses)
        await checked()
        assert server.is_gone
        await asyncio.to_thread(stopped.run_until_complete, first)
        assert len(lines(caplog)) == 1, "the late check found that the outage was logged"
    finally:
        stopped.close()


async def test_connections_to_the_same_addresses_share_it():
    server = failures.reachability_of([("::1", 6379), ("db", 6380)])
    assert server is failures.reachability_of([("::1", 6379), ("db", 6380)])
    assert server is not failures.reachability_of([("db", 6380)])
    assert server.where == "[::1]:6379, db:6380"


def test_without_an_event_loop_a_failure_is_not_checked():
    server = failures.Reachability("db:6379")
    server.failed(0.0, 30.0, refuses)
    assert not server.is_gone


def test_level_of_a_connection_without_a_server():
    memory: Any = object()
    assert failures.repeated_level(memory, AmbiguousResultError("lost")) == logging.WARNING


def test_repeated_failure_is_logged_once_per_minute_and_its_end(caplog: pytest.LogCaptureFixture, passed: list[float]):
    failure = logs.RepeatedFailure(logs.get_logger("glidemq_py.test"), "queue 'q': firing schedulers")
    failure.succeeded()
    for _ in range(50):
        failure.failed(GlideMQError("full"))
    assert lines(caplog) == ["queue 'q': firing schedulers failed: full"]
    passed[0] = 60.0
    failure.failed(GlideMQError("full"))
    failure.failed(GlideMQError("full"))
    failure.succeeded()
    failure.succeeded()
    assert lines(caplog)[1] == "queue 'q': firing schedulers failed: full"
    assert lines(caplog)[2].startswith("queue 'q': firing schedulers works again, after ")
    assert len(lines(caplog)) == 3
    failure.failed(GlideMQError("gone"), logging.DEBUG)
    failure.succeeded()
    assert len(lines(caplog)) == 3, "an outage is logged once for all"
