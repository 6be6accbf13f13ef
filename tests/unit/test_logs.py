"""Log lines cannot be forged by names, ids and messages; the formats of the worker command."""

import ast
import asyncio
import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import glidemq_py
from glidemq_py._job.attempt import stacktraces_with
from glidemq_py._web.clients import RepeatedWarnings
from glidemq_py._worker.command.arguments import log_line, set_up_logs
from tests.inside import logs

HOSTILE = [
    "\n",
    "\r",
    "\x1b[31m",
    "\u2028",
    "\u2029",
    "\u202e",
    "\u2066",
    "\x9b31m",
    "\x00",
    "\x7f",
    "\ud800",
    "\ufeff",
]
PACKAGE = Path(glidemq_py.__file__).parent


def _logged(caplog: pytest.LogCaptureFixture, message: str, *args: Any, **more: Any) -> logging.LogRecord:
    with caplog.at_level(logging.DEBUG):
        logs.get_logger("glidemq_py.test_logs").warning(message, *args, **more)
    return caplog.records[-1]


@pytest.mark.parametrize("text", HOSTILE)
def test_log_messages_are_one_printable_line(caplog: pytest.LogCaptureFixture, text: str):
    record = _logged(caplog, "job %s of %r", f"a{text}b", f"c{text}d")
    assert record.getMessage().isprintable()


def test_ordinary_records_keep_their_template(caplog: pytest.LogCaptureFixture):
    record = _logged(caplog, "job %s", 17)
    assert (record.msg, record.args) == ("job %s", (17,))


def test_tracebacks_cannot_forge_lines(caplog: pytest.LogCaptureFixture):
    try:
        raise ValueError("x\n2026-01-01 ERROR forged \x1b[31m\u202e")
    except ValueError:
        record = _logged(caplog, "failed", exc_info=True)
    lines = logging.Formatter("%(message)s").format(record).split("\n")
    assert lines[0] == "failed"
    assert len(lines) > 3
    assert all(line.startswith("    ") and line.isprintable() for line in lines[1:])
    assert any("forged \\x1b[31m\\u202e" in line for line in lines)


def test_broken_message_is_passed_to_the_handlers(caplog: pytest.LogCaptureFixture):
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    logger = logs.get_logger("glidemq_py.test_logs")
    record = logger.makeRecord(logger.name, logging.WARNING, "", 0, "%s", (Broken(),), None)
    assert logger.filter(record)


@pytest.mark.slow
def test_every_logger_of_the_package_escapes():
    found = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger" and node.args
    ]
    assert found == ["_core/logs.py"]


# -- the command's formats ------------------------------------------------------------------------------------


@pytest.fixture
def bare_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], io.StringIO]]:
    """Remove the handlers of the root logger, also pytest's, and return later output to stderr."""
    root, level, stderr = logging.getLogger(), logging.getLogger().level, io.StringIO()

    def begin() -> io.StringIO:
        monkeypatch.setattr(root, "handlers", [])
        monkeypatch.setattr(sys, "stderr", stderr)
        return stderr

    yield begin
    logging.captureWarnings(False)
    root.setLevel(level)


def test_text_shows_the_job_escaped_and_the_traceback_indented(bare_root: Callable[[], io.StringIO]):
    stderr = bare_root()
    set_up_logs(None)
    try:
        raise KeyError("a\nb")
    except KeyError:
        record = logging.getLogger("depot").makeRecord("depot", logging.ERROR, "", 0, "hello", (), sys.exc_info())
    record.job_id, record.job_name = "7", "na\nme"
    logging.getLogger("depot").handle(record)
    first, *rest = stderr.getvalue().rstrip("\n").split("\n")
    assert first.endswith("depot: [job 7 na\\nme] hello")
    assert rest[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in rest)


def test_json_is_one_object_per_line(bare_root: Callable[[], io.StringIO]):
    stderr = bare_root()
    set_up_logs(logging.INFO, "json")
    try:
        raise ValueError("a\nb\u2028")
    except ValueError:
        logging.getLogger("depot").exception("bad\nthing", extra={"order": 5, "thing": object, "nothing": None})
    logs.get_logger("glidemq_py.test_logs").info("started")
    first, second = (json.loads(line) for line in stderr.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"], first["order"]) == ("ERROR", "depot", "bad\nthing", 5)
    assert first["traceback"].startswith("Traceback (most recent call last):\n")
    assert first["traceback"].endswith("ValueError: a\nb\u2028")
    assert "nothing" not in first
    assert set(second) == {"time", "level", "logger", "process", "message"}
    assert second["time"].endswith("Z")


def test_json_is_applied_to_the_applications_handler_of_stderr(bare_root: Callable[[], io.StringIO]):
    stderr = bare_root()
    logging.basicConfig(format="mine %(message)s", level=logging.INFO, stream=stderr)
    set_up_logs(None)
    logging.getLogger("depot").info("one")
    set_up_logs(None, "json")
    logging.getLogger("depot").info("two")
    first, second = stderr.getvalue().splitlines()
    assert first == "mine one"
    assert json.loads(second)["message"] == "two"


def test_complaints_before_logging_is_set_up_follow_the_format():
    assert log_line(None, logging.CRITICAL, "x", "no \x1b module\nTraceback") == "no \\x1b module\n    Traceback"
    line = json.loads(log_line("json", logging.CRITICAL, "x", "no module"))
    assert (line["level"], line["message"]) == ("CRITICAL", "no module")


# -- warnings about other machines are counted -----------------------------------------------------


_log = logs.get_logger("glidemq_py.test_repeated_warnings")


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
    monkeypatch.setattr("glidemq_py._web.clients.time.monotonic", lambda: now)
    warnings = RepeatedWarnings(_log)
    for _ in range(3):
        warnings.warn("a", "text %s")
    now = 160.0
    warnings.warn("a", "text %s")
    assert caplog.messages == ["text %s", "text %s (the last of 3 in the last minute)"]


# -- the tracebacks that a failed attempt stores ---------------------------------------------------


class ReversedError(Exception):
    """An error whose stack begins with the failed code, as that of a client."""

    innermost_first = True

    def __init__(self, stack: str):
        super().__init__("no")
        self.sandbox_traceback = stack


def raised() -> ValueError:
    try:
        raise ValueError("no")
    except ValueError as error:
        return error


def test_newest_traceback_is_last():
    stored = json.loads(stacktraces_with('["first"]', raised()))
    assert stored[0] == "first"
    assert stored[1].startswith("Traceback")
    assert stored[1].endswith("ValueError: no\n")


def test_last_lines_of_a_traceback_are_kept():
    (text,) = json.loads(stacktraces_with(None, raised(), 2))
    assert text.splitlines()[0].strip() == 'raise ValueError("no")'
    assert text.endswith("\nValueError: no\n")


@pytest.mark.parametrize(("lines", "stored"), [(1, ["a"]), (2, ["a\nb"]), (9, ["a\nb\nc"]), (None, ["a\nb\nc"])])
def test_first_lines_of_a_reversed_stack_are_kept(lines, stored):
    assert json.loads(stacktraces_with(None, ReversedError("a\nb\nc"), lines)) == stored


def test_start_of_a_long_reversed_stack_is_kept():
    (text,) = json.loads(stacktraces_with(None, ReversedError("start" + "x" * 10_000)))
    assert text.startswith("start")
    assert len(text) == 8_192


def test_limit_of_zero_stores_none():
    assert json.loads(stacktraces_with('["first"]', raised(), 0)) == ["first"]
    assert json.loads(stacktraces_with(None, raised(), 0)) == []
