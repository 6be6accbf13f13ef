"""Log output of the command: text or JSON. An application that sets up logging itself keeps its own."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final, Literal

from glidemq_py._core.logs import escape_control, format_traceback, indent, keep_only_records, show_id
from glidemq_py._job.current import label_log_records

LogFormat = Literal["text", "json"]

_FORMAT: Final = "%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(job)s%(message)s"
_STANDARD: Final = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", "job", "report", "taskName"})
"""Attributes of every record; all others come from ``extra``."""


class _TextFormatter(logging.Formatter):
    """One line per record; a traceback follows, indented, so that its lines cannot be confused with records."""

    def format(self, record: logging.LogRecord) -> str:
        job_id, name = getattr(record, "job_id", ""), getattr(record, "job_name", "")
        # Messages of the failure log already name the job.
        belongs = bool(job_id) and not hasattr(record, "job_outcome")
        record.job = f"[job {show_id(str(job_id))} {escape_control(str(name))}] " if belongs else ""
        shared, record.exc_text = record.exc_text, _traceback_of(record)
        try:
            if record.exc_text:
                record.exc_text = indent(record.exc_text)
            return super().format(record)
        finally:
            record.exc_text = shared  # other formatters share the record

    def formatException(self, ei: Any) -> str:  # noqa: N802 - of the standard library
        return ""  # `format` adds the traceback


class _JSONFormatter(logging.Formatter):
    """One JSON object per record on one line, with the attributes of ``extra`` and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname, "logger": record.name, "process": record.process,
            "message": record.getMessage(),
        }  # fmt: skip
        for name, value in vars(record).items():
            if name not in _STANDARD and not name.startswith("_") and value not in (None, ""):
                line.setdefault(name, value)
        trace = _traceback_of(record)
        if trace:
            line["traceback"] = trace
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, default=_shown, skipkeys=True)


def _traceback_of(record: logging.LogRecord) -> str:
    if not record.exc_info:
        return record.exc_text or str(getattr(record, "report", ""))
    _, error, trace = record.exc_info
    if error is None or (trace is None and error.__cause__ is None and hasattr(record, "job_outcome")):
        return ""  # it was never raised: there is no traceback
    return format_traceback(record.exc_info)


def _shown(value: object) -> str:
    try:
        return str(value)
    except Exception:  # a broken __str__ must not cost the line
        return f"<{type(value).__name__}>"


def _formatter(log_format: LogFormat | None) -> logging.Formatter:
    return _JSONFormatter() if log_format == "json" else _TextFormatter(_FORMAT)


def log_line(log_format: LogFormat | None, level: int, name: str, message: str) -> str:
    """Return a log line, for messages before logging is configured."""
    if log_format != "json":
        # If there are several lines (the traceback of a TARGET), those after the first are indented.
        first, *rest = message.split("\n")
        return "\n".join([escape_control(first), *(indent(line) if line else "" for line in rest)])
    record = logging.makeLogRecord(
        {"name": name, "levelno": level, "levelname": logging.getLevelName(level), "msg": message}
    )
    return _JSONFormatter().format(record)


def set_up_logs(level: int | None, log_format: LogFormat | None = None) -> None:
    """Log to stderr at ``level`` (default INFO) in ``log_format`` (default text).

    If the application has configured handlers on the root logger, they are kept. A level that is not None is applied,
    and a format that is not None is applied to its handlers that write to stdout or stderr.
    """
    label_log_records()
    root = logging.getLogger()
    if root.handlers:
        if level is not None:
            root.setLevel(level)
        if log_format is not None:
            for handler in root.handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stdout, sys.stderr):  # pyright: ignore[reportUnknownMemberType]
                    handler.setFormatter(_formatter(log_format))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(_formatter(log_format))
        root.addHandler(handler)
        root.setLevel(logging.INFO if level is None else level)
    if log_format == "json":
        logging.captureWarnings(True)
        keep_only_records()
