"""The command line of `python -m glidemq_py.worker`, parsed and validated.

`set_up_logs` configures the log output: text or JSON. An application that sets up logging itself keeps its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Final, Literal, get_args

from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._core import __version__
from glidemq_py._core.checks import CheckedOptions, check_int, check_option, describe_option
from glidemq_py._core.command_line import PROGRAM, ArgumentParser, RedactedArgumentError, parse_duration
from glidemq_py._core.keys import validate_queue_name
from glidemq_py._core.logs import escape_control, format_traceback, indent, keep_only_records, show_id
from glidemq_py._core.queue_options import QueueOptions
from glidemq_py._features.many_queues import MAX_WEIGHT, parse_queues
from glidemq_py._job.current import label_log_records
from glidemq_py._worker.options import WorkerOptions
from glidemq_py.errors import GlideMQError, GlideMQValidationError


class TargetError(GlideMQError):
    """TARGET cannot be imported, or contains no worker."""


LogFormat = Literal["text", "json"]

_MAX_PROCESSES: Final = 1_024
_MAX_PORT: Final = 65_535
_MAX_NAMES: Final = 10_000
"""As in `ProcessMetrics`, whose module needs prometheus-client."""
_UNITS_BYTES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_DESCRIPTION: Final = """\
Run workers. TARGET names what to run:

  module:worker                a Worker
  module:workers               a list or tuple of them, all in each process
  module:handler --queue NAME  a function that takes a job

Modules are also imported from the current directory. SIGTERM or SIGINT: stop fetching jobs, finish the running ones,
exit. A second one: release the running jobs and exit. A third one: exit immediately."""

_EPILOG: Final = """\
Exit codes: 0 = stopped on request (--check: healthy); 1 = failed (--check: not healthy); 2 = invalid command line or
target. GLIDEMQ_URL is the default connection; without it the server of `glidemq dev`, or a private one, is used."""

_VERBS: Final = """

Workers that run: glidemq worker ls, ping, inspect, quiet, resume or resize; see glidemq workers --help."""


def parse_size(text: str) -> int:
    """Return the bytes of "300000000", "512K", "300M" or "1.5G" (powers of 1024; an "iB" or "B" may follow)."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)([KMG]?)(?:I?B)?", text.strip().upper())
    size = 0 if found is None else round(float(found[1]) * _UNITS_BYTES[found[2]])
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a size such as 512M or 1.5G")
    return size


def _integer(text: str) -> int:
    """Return the number of digits, -1 of any other text, which no option allows."""
    return int(text) if re.fullmatch(r"\d{1,18}", text) else -1


def _checked(check: Callable[[Any], object], read: Callable[[str], Any] = str) -> Callable[[str], Any]:
    """Return a reader in the form of argparse: it returns the value, or raises an error that argparse shows."""

    def parse(text: str) -> Any:
        value = read(text)
        try:
            check(value)
        except GlideMQValidationError as error:
            if read is str:
                raise RedactedArgumentError(error.problem) from None
            raise argparse.ArgumentTypeError(f"{text!r}: {error.problem}") from None
        return value

    return parse


def _whole(minimum: int, maximum: int) -> Callable[[str], int]:
    return _checked(lambda value: check_int("", value, minimum, maximum), _integer)


def _level(text: str) -> int:
    if text.upper() not in _LEVELS:
        raise argparse.ArgumentTypeError(f"{text!r}: must be one of {', '.join(_LEVELS).lower()}")
    return logging.getLevelNamesMapping()[text.upper()]


def _folder(text: str) -> str:
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a directory")
    return text


def _check_queue(text: str) -> None:
    name, colon, weight = text.partition(":")
    validate_queue_name(name)
    if colon and not (weight.isdecimal() and 1 <= int(weight) <= MAX_WEIGHT):
        raise GlideMQValidationError("queue", text, f"the weight must be an integer from 1 to {MAX_WEIGHT:,}")


def _queues(given: Sequence[str]) -> str | list[str] | dict[str, int]:
    """Return the value of ``queue_name`` of a worker. Raises GlideMQValidationError."""
    parts = [each.partition(":") for each in given]
    names = [name for name, _, _ in parts]
    if len({bool(colon) for _, colon, _ in parts}) > 1:
        raise GlideMQValidationError("--queue", " ".join(given), "give all queues a weight, or none")
    parse_queues(names)  # rejects repeated names
    if parts[0][1]:
        return {name: int(weight) for name, _, weight in parts}
    return names[0] if len(names) == 1 else names


def _flag(
    text: str, read: Callable[[str], Any] | None = None, metavar: str | None = None, default: Any = None,
    *, repr: bool = True, **given: Any,
) -> Any:  # fmt: skip
    """Return a field of `WorkerArguments` that is given on the command line: its help, and what argparse gets."""
    metadata = {"help": text, "type": read, "metavar": metavar, **given}
    if default == []:
        return field(default_factory=list[str], metadata=metadata)
    return field(default=default, metadata=metadata, repr=repr)


def _option(kind: type[CheckedOptions], name: str, metavar: str, read: Callable[[str], Any] = str) -> Any:
    """Return the same for an option of a class, which describes it and checks its values."""
    return _flag(describe_option(kind, name), _checked(partial(check_option, kind, name, name), read), metavar)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerArguments:
    """The command line: each field is an option, with its help. Times are ms, sizes bytes, None means "not given"."""

    target: str | None = _flag("MODULE:NAME, such as tasks:worker", metavar="TARGET", nargs="?")
    queue: str | list[str] | dict[str, int] | None = _flag(
        "queue, if TARGET is a function; repeated: several, in strict order, or shared by weight",
        _checked(_check_queue), "NAME[:WEIGHT]", action="append",
    )  # fmt: skip
    """One name; of several --queue, their list, or a mapping to the weights."""
    concurrency: int | None = _option(WorkerOptions, "concurrency", "N", _integer)
    processes: int | None = _flag(
        "run N child processes and restart those that crash; default: run in this process",
        _whole(1, _MAX_PROCESSES), "N",
    )  # fmt: skip
    url: str | None = _flag(
        "URL of the server; if it has a password, use GLIDEMQ_URL: command lines are visible",
        _checked(ConnectionOptions.from_url), "URL", repr=False,
    )  # fmt: skip
    prefix: str | None = _option(QueueOptions, "prefix", "TEXT")
    log_level: int | None = _flag(f"one of {', '.join(_LEVELS).lower()}; default info", _level, "LEVEL")
    log_format: LogFormat | None = _flag(
        "text (the default), or json: one object per line", choices=get_args(LogFormat)
    )
    max_jobs: int | None = _flag("recycle a process after N attempts", _whole(1, 10**15), "N")
    max_memory: int | None = _flag(
        "recycle a process when its resident memory reaches SIZE, such as 512M", parse_size, "SIZE"
    )
    shutdown_timeout: int | None = _flag(
        "release jobs that still run TIME (such as 30s) after the first signal; default: wait", parse_duration, "TIME"
    )
    metrics_port: int | None = _flag(
        "serve Prometheus metrics on PORT; the Nth of several processes uses PORT + N - 1",
        _whole(1, _MAX_PORT), "PORT",
    )  # fmt: skip
    metrics_names: int = _flag(
        "label metrics of jobs with their name, for at most N names per queue", _whole(0, _MAX_NAMES), "N", default=0
    )
    reload: bool = _flag(
        "for development: restart the workers when a Python file in the current directory changes; jobs that still run "
        "after --shutdown-timeout, default 3s, are released", action="store_true", default=False,
    )  # fmt: skip
    reload_dir: list[str] = _flag(
        "watch DIR instead of the current directory; may be repeated", _folder, "DIR", action="append", default=[]
    )
    check: bool = _flag(
        "run no worker: exit 0 if a worker of the queue (--queue, or those of TARGET) on this host is alive and had a "
        "reply from the server in the last 30 s, else 1", action="store_true", default=False,
    )  # fmt: skip
    slot: int = _flag(argparse.SUPPRESS, _whole(0, _MAX_PROCESSES), default=0)
    """Index of this child, from 0."""
    line: int | None = _flag(argparse.SUPPRESS, _whole(0, 1 << 20))
    """File descriptor of the connection to the supervisor, if this process is one of its children."""

    @property
    def supervised(self) -> bool:
        """True if workers run in child processes, which a supervisor restarts."""
        return self.reload or self.processes is not None or self.max_jobs is not None or self.max_memory is not None


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m glidemq_py.worker", description=_DESCRIPTION,
        epilog=_EPILOG + (_VERBS if PROGRAM.get() else ""),
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    for each in fields(WorkerArguments):
        given = {name: value for name, value in each.metadata.items() if value is not None}
        name = each.name if "nargs" in given else f"--{each.name.replace('_', '-')}"
        parser.add_argument(name, **given)
    parser.add_argument("--version", action="version", version=f"glidemq_py {__version__}")
    return parser


def read_arguments(argv: Sequence[str]) -> WorkerArguments:
    """Parse the command line. If it is invalid, exit with code 2 and a message."""
    parser = _parser()
    parsed = {name: value for name, value in vars(parser.parse_args(argv)).items() if value is not None}
    if "queue" in parsed:
        try:
            parsed["queue"] = _queues(parsed["queue"])
        except GlideMQValidationError as error:
            parser.error(f"argument --queue: {error.problem}")
    given = WorkerArguments(**parsed)
    if given.target is None and not (given.check and given.queue is not None):
        parser.error("TARGET is missing: give module:worker (or, with --check, --queue NAME)")
    if given.reload_dir and not given.reload:
        parser.error("--reload-dir requires --reload")
    if given.metrics_port is not None and given.metrics_port + (given.processes or 1) - 1 > _MAX_PORT:
        parser.error(f"--metrics-port {given.metrics_port}: too high for {given.processes} processes")
    return given


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
