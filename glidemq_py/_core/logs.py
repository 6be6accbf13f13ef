"""Loggers of the package, and escaping of untrusted text.

Job names, ids, error messages and queue names come from users. A line break in them would forge a log line, an escape
sequence would rewrite a terminal. This is the only module that escapes them.
"""

from __future__ import annotations

import logging
import re
import traceback
from typing import Any, Final

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
