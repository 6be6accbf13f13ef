"""Loggers of the package, escaping of untrusted text, the log lines of jobs, and repeated failures.

Job names, ids, error messages and queue names come from users. A line break in them would forge a log line, an escape
sequence would rewrite a terminal. This is the only module that escapes them.

A line of a job's log with a level is stored as `[WARNING] text`, which any reader shows as a plain line. A line without
a level, such as those of Node peers, counts as info.

A task or a function of the application that fails repeatedly is logged with a limit, not once per failure.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
import traceback
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from glidemq_py._core.checks import check_choice
from glidemq_py._core.times import duration_text

_TAB: Final = "\t"

_CONTROL: Final = re.compile(
    # C0 and C1 controls, zero-width and bidirectional marks, line and paragraph separators, lone surrogates, tags.
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
_PLAIN_ID: Final = re.compile(r"[\w.:@/+-]+")


_only_records: list[bool] = []


def keep_only_records() -> None:
    """Let no library of ours write its own lines to stderr in this process: each line must be a log record."""
    _only_records[:] = [True]


def has_only_records() -> bool:
    """Return whether `keep_only_records` was called."""
    return bool(_only_records)


def escape_control(text: str, *, keep: str = "") -> str:
    r"""Return ``text`` with control, bidirectional and line-breaking characters as in `repr` (``\n``, ``\x1b``).

    Args:
        text: text to escape.
        keep: characters that are not escaped.
    """
    if text.isprintable():
        return text
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def show_id(job_id: str) -> str:
    """Return a job id for a log line; it is quoted if it has characters such as spaces."""
    return job_id if _PLAIN_ID.fullmatch(job_id) else repr(job_id)


def text_of(error: BaseException) -> str:
    """Return the message of an exception, or the name of its type if its ``__str__`` fails."""
    try:
        return str(error)
    except BaseException:
        return type(error).__name__


def format_traceback(about: tuple[Any, Any, Any], limit: int | None = None) -> str:
    """Return the traceback of ``exc_info`` as Python prints it; only frames, type and message if that fails."""
    kind, error, trace = about
    try:
        return "".join(traceback.format_exception(kind, error, trace, limit=limit)).rstrip("\n")
    except BaseException:  # raised by the attributes, notes or causes of an error of the application
        frames = "".join(traceback.format_tb(trace, limit))
        return f"Traceback (most recent call last):\n{frames}{kind.__name__}: {text_of(error)}"


def indent(text: str) -> str:
    """Return every line of ``text`` escaped and indented."""
    return "\n".join(f"    {escape_control(line, keep=_TAB)}" for line in text.split("\n"))


def get_logger(name: str) -> logging.Logger:
    """Return the logger of this name, with control characters in its messages escaped.

    Modules of the package must use this function; a test forbids `logging.getLogger`.
    """
    logger = logging.getLogger(name)
    logger.addFilter(_escape_record)  # the same function is added once
    return logger


def _escape_record(record: logging.LogRecord) -> bool:
    """Escape a record's message and traceback.

    A message without control characters keeps its template and arguments, because log collectors group by them. The
    traceback is stored in `exc_text`, indented, so that no line of an error message looks like a log line.
    """
    if record.exc_info and not record.exc_text:
        record.exc_text = indent(format_traceback(record.exc_info))
    try:
        message = record.getMessage()
    except Exception:  # a broken __str__ or template is reported by the handlers
        return True
    if not message.isprintable():
        record.msg, record.args = escape_control(message), None
    return True


LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LEVELS: Final[tuple[LogLevel, ...]] = ("debug", "info", "warning", "error", "critical")
"""The levels, in ascending order."""
_STORED: Final = re.compile(r"\[(DEBUG|INFO|WARNING|ERROR|CRITICAL)\] ")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLogLine:
    """One line of a job's log.

    Attributes:
        level: level of the line; "info" if it was written without one.
        message: the text, without the level.
    """

    level: LogLevel
    message: str

    def is_at_least(self, level: LogLevel) -> bool:
        """Return True if the line has this level or a higher one."""
        return LEVELS.index(self.level) >= LEVELS.index(level)


def check_level(level: object) -> LogLevel:
    """Return a level.

    Raises:
        GlideMQValidationError: If it does not exist.
    """
    return cast("LogLevel", check_choice("level", level, LEVELS))


def with_level(line: str, level: LogLevel) -> str:
    """Return the stored form of a line."""
    return f"[{check_level(level).upper()}] {line}"


def parse_log_line(line: str) -> JobLogLine:
    """Return the level and the message of a stored line."""
    found = _STORED.match(line)
    if found is None:
        return JobLogLine(level="info", message=line)
    return JobLogLine(level=cast("LogLevel", found[1].lower()), message=line[found.end() :])


_EVERY_S: Final = 60.0
_MAX_KINDS: Final = 200


class ForeignFailures:
    """Logs the failures of code of the application with their traceback, and limits them as the failure log does.

    Nothing that the error, or a filter or handler of the application's logging, raises meanwhile leaves it. What they
    raise costs the traceback, not the line.

    Args:
        log: The logger.
        per_minute: Number of failures of one kind per minute that are logged as an ERROR; the others are at DEBUG.
    """

    def __init__(self, log: logging.Logger, per_minute: int = 5) -> None:
        self._log = log
        self._per_minute = per_minute
        self._counts: dict[str, int] = {}
        self._window_end = 0.0

    def log(self, kind: str, error: BaseException, template: str, *args: object) -> None:
        """Log a failure of this kind; ``error`` is the exception that is being handled."""
        now = time.monotonic()
        if now >= self._window_end:
            self._counts, self._window_end = {}, now + _EVERY_S
        key = f"{kind} {id(type(error))}" if len(self._counts) < _MAX_KINDS else ""
        count = self._counts[key] = self._counts.get(key, 0) + 1
        level = logging.ERROR if count <= self._per_minute else logging.DEBUG
        # Not the error itself: logging would call its methods.
        for with_traceback in (True, False):
            with contextlib.suppress(BaseException):
                self._log.log(level, template, *args, exc_info=with_traceback)
                return


class RepeatedFailure:
    """Logs the first failure, then at most one per minute, and once that the task works again.

    Args:
        log: The logger.
        what: The task in the lines, such as "queue 'q': firing schedulers".

    Attributes:
        since: When the first failure was logged, by ``time.monotonic``; None while the task works.
    """

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log, self._what = log, what
        self.since: float | None = None
        self._logged_at = -_EVERY_S

    def failed(self, error: BaseException, level: int = logging.WARNING) -> None:
        """Log a failure, with ``level`` if it is not one of many."""
        now = time.monotonic()
        is_due = now - self._logged_at >= _EVERY_S
        if is_due and level > logging.DEBUG:
            self._logged_at = now
            if self.since is None:
                self.since = now
        self._log.log(level if is_due else logging.DEBUG, "%s failed: %s", self._what, error)

    def succeeded(self) -> None:
        """Log that the task works again, if its failure was logged."""
        if self.since is not None:
            lasted = duration_text(time.monotonic() - self.since)
            self._log.warning("%s works again, after %s", self._what, lasted)
            self.since = None
