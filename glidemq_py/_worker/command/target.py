"""Load the workers of the command line's TARGET: import the user's module, or explain why a target is invalid."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, cast

from glidemq_py._core.command_line import hide_secrets
from glidemq_py._worker.base_worker import BaseWorker
from glidemq_py._worker.command.arguments import TargetError, WorkerArguments
from glidemq_py._worker.tasks import Task
from glidemq_py._worker.worker import Worker
from glidemq_py.errors import GlideMQError

_OURS = str(Path(__file__).parents[2]) + os.sep
_TARGET = re.compile(r"(?P<module>[^\W\d]\w*(\.[^\W\d]\w*)*):(?P<attribute>[^\W\d]\w*(\.[^\W\d]\w*)*)")


def load_workers(arguments: WorkerArguments) -> list[BaseWorker]:
    """Return the workers of TARGET, with the options of the command line applied.

    Raises:
        TargetError: If TARGET cannot be imported, does not exist, or cannot be run.
        GlideMQValidationError: If an option is invalid.
    """
    target = arguments.target or ""
    parts = _TARGET.fullmatch(target)
    if parts is None:
        raise TargetError(f"{hide_secrets(target)!r} is not MODULE:NAME{_meant(target)}")
    found: Any = _import(parts["module"])
    reached = parts["module"]
    for name in parts["attribute"].split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise TargetError(f"{reached} has no attribute {name!r}{_nearest(found, name)}") from None
        reached = f"{reached}.{name}" if ":" in reached else f"{reached}:{name}"
    return _workers(target, found, arguments)


def _workers(target: str, found: Any, arguments: WorkerArguments) -> list[BaseWorker]:
    if isinstance(found, BaseWorker):
        return _configured(target, [found], arguments)  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(found, (list, tuple)):
        members = cast("tuple[Any, ...]", found)
        if not members:
            raise TargetError(f"{target} is empty: it must hold at least one Worker")
        for position, member in enumerate(members):
            if not isinstance(member, BaseWorker):
                raise TargetError(f"{target}[{position}] is {_kind(member)}, not a Worker")
        if len({id(member) for member in members}) < len(members):
            raise TargetError(f"{target} holds the same Worker twice")
        return _configured(target, cast("Iterable[BaseWorker]", members), arguments)
    if isinstance(found, Task):
        raise TargetError(f"{target} is a task of a worker: name the Worker itself")
    if inspect.isclass(found) or not callable(found):
        raise TargetError(f"{target} is {_kind(found)}: must be a Worker, a list of Workers or a function")
    if arguments.queue is None:
        raise TargetError(f"{target} is a function: give its queue with --queue NAME")
    given: dict[str, Any] = {"concurrency": arguments.concurrency, "prefix": arguments.prefix}
    kept = {name: value for name, value in given.items() if value is not None}
    return [Worker(arguments.queue, found, arguments.url, **kept)]


def _configured(target: str, found: Iterable[BaseWorker], arguments: WorkerArguments) -> list[BaseWorker]:
    workers = list(found)
    if arguments.queue is not None:
        names = ", ".join(repr(worker.queue_name) for worker in workers)
        raise TargetError(f"--queue requires a function as TARGET; {target} already has a queue: {names}")
    for worker in workers:
        try:
            worker.override(concurrency=arguments.concurrency, connection=arguments.url, prefix=arguments.prefix)
        except GlideMQError as error:
            raise TargetError(f"{target}: {error}") from error
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
            raise TargetError(
                f"no module {missing!r}{_similar(missing, folder)}; searched the current directory, {folder}, and "
                "Python's module path"
            ) from None
        if isinstance(error, SystemExit):
            raise TargetError(
                f"module {name!r} ended the process ({error!r}) during its import: put script code under "
                '`if __name__ == "__main__":`'
            ) from None
        raise TargetError(f"module {name!r} cannot be imported:\n\n{_trace(error)}") from error


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
    """Return a hint for an invalid target: the workers of the module, a corrected target, or an example."""
    path, _, attribute = target.partition(":")
    module = path.removesuffix(".py").replace("/", ".").lstrip(".")
    example = f"{module}:{attribute or 'worker'}"
    if example == target or not _TARGET.fullmatch(example):
        return ", such as tasks:worker"
    if attribute:
        return f"; did you mean {example}?"
    try:
        names = _worker_names(_import(module))
    except TargetError:
        names = []
    guesses = " or ".join(f"{module}:{name}" for name in names)
    return f"; did you mean {guesses}?" if guesses else f", such as {example}"


def _similar(missing: str, folder: str) -> str:
    here = {path.stem for path in Path(folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    close = difflib.get_close_matches(missing, sorted(here), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _nearest(holder: Any, name: str) -> str:
    values = _values(holder)
    close = difflib.get_close_matches(name, [known for known in values if not known.startswith("_")], 1)
    workers = _worker_names(holder)
    hints = [f"did you mean {close[0]!r}?"] if close else []
    if workers and workers != close:
        hints.append(f"it has the worker{'s' if len(workers) > 1 else ''} {', '.join(workers)}")
    return f"; {'; '.join(hints)}" if hints else ""


def _worker_names(holder: Any) -> list[str]:
    return [name for name, value in _values(holder).items() if isinstance(value, BaseWorker)]


def _values(holder: Any) -> dict[str, Any]:
    return dict(cast("dict[str, Any]", getattr(holder, "__dict__", {})))


def _kind(value: Any) -> str:
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
