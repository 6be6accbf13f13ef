"""The command line of `python -m glidemq_py.worker`, parsed and validated."""

from __future__ import annotations

import argparse
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._core.command_line import PROGRAM, ArgumentParser, RedactedArgumentError, parse_duration
from glidemq_py._core.names import validate_prefix, validate_queue_name
from glidemq_py._core.version import __version__
from glidemq_py._features.many_queues import MAX_WEIGHT, parse_queues
from glidemq_py._worker.command.logs import LogFormat
from glidemq_py._worker.options import MAX_CONCURRENCY
from glidemq_py.errors import GlideMQError, GlideMQValidationError


class TargetError(GlideMQError):
    """TARGET cannot be imported, or contains no worker."""


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
target. GLIDEMQ_URL is the default connection; without it a private embedded server is started."""

_VERBS: Final = """

Workers that run: glidemq worker ls, ping, inspect, quiet, resume or resize; see glidemq workers --help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerArguments:
    """The parsed command line. Times are milliseconds, sizes are bytes, None means "not given"."""

    target: str | None = None
    queue: str | list[str] | dict[str, int] | None = None
    """One name; of several --queue, their list, or a mapping to the weights."""
    concurrency: int | None = None
    processes: int | None = None
    url: str | None = field(default=None, repr=False)
    prefix: str | None = None
    log_level: int | None = None
    log_format: LogFormat | None = None
    max_jobs: int | None = None
    max_memory: int | None = None
    shutdown_timeout: int | None = None
    metrics_port: int | None = None
    metrics_names: int = 0
    """Maximum number of job names per queue in the metrics."""
    reload: bool = False
    reload_dir: list[str] = field(default_factory=list[str])
    """Folders whose files are watched; empty: the current one."""
    check: bool = False
    line: int | None = None
    """File descriptor of the connection to the supervisor, if this process is one of its children."""
    slot: int = 0
    """Index of this child, from 0."""

    @property
    def supervised(self) -> bool:
        """True if workers run in child processes, which a supervisor restarts."""
        return self.reload or self.processes is not None or self.max_jobs is not None or self.max_memory is not None


def parse_size(text: str) -> int:
    """Return the bytes of "300000000", "512K", "300M" or "1.5G" (powers of 1024; an "iB" or "B" may follow)."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)([KMG]?)(?:I?B)?", text.strip().upper())
    size = 0 if found is None else round(float(found[1]) * _UNITS_BYTES[found[2]])
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a size such as 512M or 1.5G")
    return size


def _whole(minimum: int, maximum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text) if re.fullmatch(r"\d{1,18}", text) else -1
        if not minimum <= value <= maximum:
            raise argparse.ArgumentTypeError(f"{text!r}: must be an integer from {minimum} to {maximum}")
        return value

    return parse


def _level(text: str) -> int:
    if text.upper() not in _LEVELS:
        raise argparse.ArgumentTypeError(f"{text!r}: must be one of {', '.join(_LEVELS).lower()}")
    return logging.getLevelNamesMapping()[text.upper()]


def _checked(check: Callable[[str], object]) -> Callable[[str], str]:
    """Return a validator in the form of argparse: it returns the text, or raises an error that argparse shows."""

    def parse(text: str) -> str:
        try:
            check(text)
        except GlideMQValidationError as error:
            raise RedactedArgumentError(error.problem) from None
        return text

    return parse


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


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m glidemq_py.worker", description=_DESCRIPTION,
        epilog=_EPILOG + (_VERBS if PROGRAM.get() else ""),
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    option = parser.add_argument
    parser.add_argument("target", nargs="?", metavar="TARGET", help="MODULE:NAME, such as tasks:worker")
    option("--queue", action="append", type=_checked(_check_queue), metavar="NAME[:WEIGHT]",
           help="queue, if TARGET is a function; repeated: several, in strict order, or shared by weight")  # fmt: skip
    option(
        "--concurrency",
        type=_whole(1, MAX_CONCURRENCY),
        metavar="N",
        help="maximum number of jobs at the same time per worker",
    )
    option("--processes", type=_whole(1, _MAX_PROCESSES), metavar="N",
           help="run N child processes and restart those that crash; default: run in this process")  # fmt: skip
    option("--url", type=_checked(ConnectionOptions.from_url), metavar="URL",
           help="URL of the server; if it has a password, use GLIDEMQ_URL: command lines are visible")  # fmt: skip
    option("--prefix", type=_checked(validate_prefix), metavar="TEXT", help="first part of every key")
    option("--log-level", type=_level, metavar="LEVEL", help=f"one of {', '.join(_LEVELS).lower()}; default info")
    option("--log-format", choices=("text", "json"), help="text (the default), or json: one object per line")
    option("--max-jobs", type=_whole(1, 10**15), metavar="N",
           help="recycle a process after N attempts")  # fmt: skip
    option("--max-memory", type=parse_size, metavar="SIZE",
           help="recycle a process when its resident memory reaches SIZE, such as 512M")  # fmt: skip
    option("--shutdown-timeout", type=parse_duration, metavar="TIME",
           help="release jobs that still run TIME (such as 30s) after the first signal; default: wait")  # fmt: skip
    option("--metrics-port", type=_whole(1, _MAX_PORT), metavar="PORT",
           help="serve Prometheus metrics on PORT; the Nth of several processes uses PORT + N - 1")  # fmt: skip
    option("--metrics-names", type=_whole(0, _MAX_NAMES), metavar="N", default=0,
           help="label metrics of jobs with their name, for at most N names per queue")  # fmt: skip
    option("--reload", action="store_true",
           help="for development: restart the workers when a Python file in the current directory changes; jobs that "
           "still run after --shutdown-timeout, default 3s, are released")  # fmt: skip
    option("--reload-dir", action="append", default=[], type=_folder, metavar="DIR",
           help="watch DIR instead of the current directory; may be repeated")  # fmt: skip
    option("--check", action="store_true",
           help="run no worker: exit 0 if a worker of the queue (--queue, or those of TARGET) on this host is alive "
           "and had a reply from the server in the last 30 s, else 1")  # fmt: skip
    option("--slot", type=_whole(0, _MAX_PROCESSES), default=0, help=argparse.SUPPRESS)
    option("--line", type=_whole(0, 1 << 20), help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"glidemq_py {__version__}")
    return parser


def read_arguments(argv: Sequence[str]) -> WorkerArguments:
    """Parse the command line. If it is invalid, exit with code 2 and a message."""
    parser = _parser()
    parsed = vars(parser.parse_args(argv))
    if parsed["queue"] is not None:
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
