"""Loggers of the package, and text that is safe to print.

Job names, ids, error messages and names of queues come from users. A line break in one forges a log line, an escape
sequence rewrites a terminal. Both are escaped here, and nowhere else.
"""

from __future__ import annotations

import logging
import re
import traceback
from typing import Any, Final

__all__ = ["escape_control", "format_traceback", "get_logger", "indent", "show_id"]

_TAB: Final = "\t"

_CONTROL: Final = re.compile(
    # C0 and C1 controls, zero-width and bidirectional marks, line and paragraph separators, lone surrogates, tags.
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
_PLAIN_ID: Final = re.compile(r"[\w.:@/+-]+")


def escape_control(text: str, *, keep: str = "") -> str:
    r"""Return ``text`` with control, bidirectional and line-breaking characters as in `repr` (``\n``, ``\x1b``).

    Args:
        text: what may contain them.
        keep: characters to leave as they are, for instance a line break of our own.
    """
    if text.isprintable():
        return text
    return _CONTROL.sub(lambda found: found[0] if found[0] in keep else _escaped(found[0]), text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def show_id(job_id: str) -> str:
    """Return a job id as log lines show it: plain, or quoted if it has characters such as spaces."""
    return job_id if _PLAIN_ID.fullmatch(job_id) else repr(job_id)


def format_traceback(about: tuple[Any, Any, Any]) -> str:
    """Return the traceback of ``exc_info`` as Python prints it; of a broken exception, its type's name."""
    try:
        return "".join(traceback.format_exception(*about)).rstrip("\n")
    except Exception:  # a __str__ or __repr__ of the application's
        return getattr(about[0], "__name__", "exception")


def indent(text: str) -> str:
    """Return every line of ``text`` escaped and indented."""
    return "\n".join(f"    {escape_control(line, keep=_TAB)}" for line in text.split("\n"))


def get_logger(name: str) -> logging.Logger:
    """Return the logger of this name, whose messages have their control characters escaped.

    Modules of the package get their loggers here; a test forbids `logging.getLogger`.
    """
    logger = logging.getLogger(name)
    logger.addFilter(_escape_record)  # the same function is added once
    return logger


def _escape_record(record: logging.LogRecord) -> bool:
    """Escape a record's message and traceback.

    A message without control characters keeps template and arguments, by which collectors group. The traceback is
    cached where formatters look for it, indented, so that no line of an error message looks like a log line.
    """
    if record.exc_info and not record.exc_text:
        record.exc_text = indent(format_traceback(record.exc_info))
    try:
        message = record.getMessage()
    except Exception:  # a broken __str__ or template: left to the handlers' own error handling
        return True
    if not message.isprintable():
        record.msg, record.args = escape_control(message), None
    return True
