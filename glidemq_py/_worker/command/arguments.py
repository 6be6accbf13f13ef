"""The command line of `python -m glidemq_py.worker`: parsed and validated, and the workers of its TARGET loaded.

`load_workers` imports the user's module and explains why a target is invalid.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, TypeVar, cast

from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._core.command_line import ArgumentParser, RedactedArgumentError, hide_secrets, parse_duration
from glidemq_py._core.names import validate_prefix, validate_queue_name
from glidemq_py._worker.base_worker import BaseWorker
from glidemq_py._worker.command.logs import LogFormat
from glidemq_py._worker.options import MAX_CONCURRENCY
from glidemq_py._worker.tasks import Task
from glidemq_py._worker.worker import Worker
from glidemq_py.errors import GlideMQError, GlideMQValidationError, WorkerTargetError

__all__ = ["WorkerArguments", "load_workers", "parse_size", "read_arguments"]


T = TypeVar("T")

_MAX_PROCESSES: Final = 1_024
_MAX_PORT: Final = 65_535
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerArguments:
    """The parsed command line. Times are milliseconds, sizes are bytes, None means "not given"."""

    target: str | None = None
    queue: str | None = None
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
    check: bool = False
    line: int | None = None
    """File descriptor of the connection to the supervisor, if this process is one of its children."""
    slot: int = 0
    """Index of this child, from 0."""

    @property
    def supervised(self) -> bool:
        """True if workers run in child processes, which a supervisor restarts."""
        return self.processes is not None or self.max_jobs is not None or self.max_memory is not None


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


def _parser() -> ArgumentParser:
    from glidemq_py import __version__

    parser = ArgumentParser(
        prog="python -m glidemq_py.worker", description=_DESCRIPTION, epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    option = parser.add_argument
    parser.add_argument("target", nargs="?", metavar="TARGET", help="module:attribute")
    option("--queue", type=_checked(validate_queue_name), metavar="NAME", help="queue, if TARGET is a function")
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
    given = WorkerArguments(**vars(parser.parse_args(argv)))
    if given.target is None and not (given.check and given.queue is not None):
        parser.error("TARGET is missing: give module:worker (or, with --check, --queue NAME)")
    if given.metrics_port is not None and given.metrics_port + (given.processes or 1) - 1 > _MAX_PORT:
        parser.error(f"--metrics-port {given.metrics_port}: too high for {given.processes} processes")
    return given


_OURS = str(Path(__file__).parents[2]) + os.sep
_TARGET = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<attribute>[^\W\d]\w*(\.[^\W\d]\w*)*)")


def load_workers(arguments: WorkerArguments) -> list[BaseWorker]:
    """Return the workers of TARGET, with the options of the command line applied.

    Raises:
        WorkerTargetError: If TARGET cannot be imported, does not exist, or cannot be run.
        GlideMQValidationError: If an option is invalid.
    """
    target = arguments.target or ""
    parts = _TARGET.fullmatch(target)
    if parts is None:
        raise WorkerTargetError(f"{hide_secrets(target)!r} is not module:attribute{_meant(target)}")
    found: Any = _import(parts["module"])
    reached = parts["module"]
    for name in parts["attribute"].split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise WorkerTargetError(f"{reached} has no attribute {name!r}{_nearest(found, name)}") from None
        reached = f"{reached}.{name}" if ":" in reached else f"{reached}:{name}"
    return _workers(target, found, arguments)


def _workers(target: str, found: Any, arguments: WorkerArguments) -> list[BaseWorker]:
    if isinstance(found, BaseWorker):
        return _configured(target, [found], arguments)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(found, (list, tuple)):
        members = cast("tuple[Any, ...]", found)
        if not members:
            raise WorkerTargetError(f"{target} is empty: it must hold at least one Worker")
        for position, member in enumerate(members):
            if not isinstance(member, BaseWorker):
                raise WorkerTargetError(f"{target}[{position}] is {_kind(member)}, not a Worker")
        if len({id(member) for member in members}) < len(members):
            raise WorkerTargetError(f"{target} holds the same Worker twice")
        return _configured(target, cast("Iterable[BaseWorker]", members), arguments)
    if isinstance(found, Task):
        raise WorkerTargetError(f"{target} is a task of a worker: name the Worker itself")
    if inspect.isclass(found) or not callable(found):
        raise WorkerTargetError(f"{target} is {_kind(found)}: must be a Worker, a list of Workers or a function")
    if arguments.queue is None:
        raise WorkerTargetError(f"{target} is a function: give its queue with --queue NAME")
    given: dict[str, Any] = {"concurrency": arguments.concurrency, "prefix": arguments.prefix}
    kept = {name: value for name, value in given.items() if value is not None}
    return [Worker(arguments.queue, found, arguments.url, **kept)]


def _configured(target: str, found: Iterable[BaseWorker], arguments: WorkerArguments) -> list[BaseWorker]:
    workers = list(found)
    if arguments.queue is not None:
        names = ", ".join(repr(worker.queue_name) for worker in workers)
        raise WorkerTargetError(f"--queue requires a function as TARGET; {target} already has a queue: {names}")
    for worker in workers:
        try:
            worker.override(concurrency=arguments.concurrency, connection=arguments.url, prefix=arguments.prefix)
        except GlideMQError as error:
            raise WorkerTargetError(f"{target}: {error}") from error
    return workers


# -- importing ----------------------------------------------------------------------------------------------


def _import(name: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (name == missing or name.startswith(f"{missing}.")):
            raise WorkerTargetError(
                f"no module {missing!r}{_similar(missing, folder)}; searched the current directory, {folder}, and "
                "Python's module path"
            ) from None
        if isinstance(error, SystemExit):
            raise WorkerTargetError(
                f"module {name!r} ended the process ({error!r}) during its import: put script code under "
                '`if __name__ == "__main__":`'
            ) from None
        raise WorkerTargetError(f"module {name!r} cannot be imported:\n\n{_trace(error)}") from error


def _trace(error: BaseException) -> str:
    """Return the traceback from the first frame of user code on."""
    step: TracebackType | None = error.__traceback__
    while step is not None:
        file = step.tb_frame.f_code.co_filename
        if file != __file__ and "importlib" not in file:
            break
        step = step.tb_next
    if not isinstance(error, GlideMQError):
        return "".join(traceback.format_exception(type(error), error, step)).rstrip()
    # For errors of this package, frames of this package are left out: the message explains the error.
    lines = [line for line in traceback.extract_tb(step) if not line.filename.startswith(_OURS)]
    return "".join([*traceback.format_list(lines), *traceback.format_exception_only(error)]).rstrip()


# -- suggestions --------------------------------------------------------------------------------------------


def _meant(target: str) -> str:
    path, _, attribute = target.partition(":")
    module = path.removesuffix(".py").replace("/", ".").lstrip(".")
    guess = f"{module}:{attribute or 'worker'}"
    return f"; did you mean {guess}?" if guess != target and _TARGET.fullmatch(guess) else ""


def _similar(missing: str, folder: str) -> str:
    here = {path.stem for path in Path(folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    close = difflib.get_close_matches(missing, sorted(here), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _nearest(holder: Any, name: str) -> str:
    values = dict(cast("dict[str, Any]", getattr(holder, "__dict__", {})))
    close = difflib.get_close_matches(name, [known for known in values if not known.startswith("_")], 1)
    workers = [known for known, value in values.items() if isinstance(value, BaseWorker)]
    hints = [f"did you mean {close[0]!r}?"] if close else []
    if workers and workers != close:
        hints.append(f"it has the worker{'s' if len(workers) > 1 else ''} {', '.join(workers)}")
    return f"; {'; '.join(hints)}" if hints else ""


def _kind(value: Any) -> str:
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
