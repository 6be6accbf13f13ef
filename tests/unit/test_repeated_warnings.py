"""Warnings about other machines are counted."""

import asyncio
import logging

import pytest

from glidemq_py._web.repeated_warnings import RepeatedWarnings
from tests.inside import get_logger

_log = get_logger("glidemq_py.test_repeated_warnings")


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines: list[str] = []
        self.changed = asyncio.Event()

    def emit(self, record: logging.LogRecord):
        self.lines.append(record.getMessage())
        self.changed.set()


async def test_first_warning_is_logged_at_once_and_the_others_are_counted():
    lines = Lines()
    _log.addHandler(lines)
    try:
        warnings = RepeatedWarnings(_log, interval=0.05)
        for number in range(5):
            warnings.warn("a", f"a{number}")
        warnings.warn("b", "b")
        assert lines.lines == ["a0", "b"]
        lines.changed.clear()
        async with asyncio.timeout(60):
            await lines.changed.wait()
        assert lines.lines == ["a0", "b", "a4 (the last of 4 in the last minute)"]
        warnings.warn("a", "a5")
        warnings.close()
        assert lines.lines[3:] == ["a5"]
        warnings.close()
        assert len(lines.lines) == 4
    finally:
        _log.removeHandler(lines)


def test_forgotten_kinds_are_logged_a_last_time(caplog: pytest.LogCaptureFixture):
    warnings = RepeatedWarnings(_log)
    for number in range(3):
        warnings.warn("a", f"a{number}")
        warnings.warn("b", f"b{number}")
    warnings.forget({"b"})
    assert caplog.messages == ["a0", "b0", "a2 (the last of 2 in the last minute)"]
    warnings.warn("a", "a3")
    assert caplog.messages[3:] == ["a3"]


def test_without_an_event_loop_the_count_is_in_the_next_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    now = 100.0
    monkeypatch.setattr("glidemq_py._web.repeated_warnings.time.monotonic", lambda: now)
    warnings = RepeatedWarnings(_log)
    for _ in range(3):
        warnings.warn("a", "text %s")
    now = 160.0
    warnings.warn("a", "text %s")
    assert caplog.messages == ["text %s", "text %s (the last of 3 in the last minute)"]
