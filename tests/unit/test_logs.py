"""Log lines cannot be forged by names, ids and messages; the formats of the worker command."""

import ast
import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import glidemq_py
from glidemq_py._worker.command.logs import log_line, set_up_logs
from tests.inside import escape_control, get_logger, show_id

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


@pytest.mark.parametrize("text", HOSTILE)
def test_control_characters_are_escaped(text: str):
    escaped = escape_control(f"a{text}b")
    assert escaped.isprintable()
    assert escaped.encode().decode("unicode_escape") == f"a{text}b"


def test_ordinary_text_is_unchanged():
    for text in ("plain", "Grüße, 東京 🎉", "a\u00a0b", "\u200d"):
        assert escape_control(text) == text
    assert escape_control("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def test_ids_with_spaces_are_quoted():
    assert (show_id("17"), show_id("a:b-c_1.x"), show_id("1 failed")) == ("17", "a:b-c_1.x", "'1 failed'")


def _logged(caplog: pytest.LogCaptureFixture, message: str, *args: Any, **more: Any) -> logging.LogRecord:
    with caplog.at_level(logging.DEBUG):
        get_logger("glidemq_py.test_logs").warning(message, *args, **more)
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

    logger = get_logger("glidemq_py.test_logs")
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
    get_logger("glidemq_py.test_logs").info("started")
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
