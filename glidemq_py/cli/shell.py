"""`Shell`: what every command has: its operator, output as tables, text or JSON, confirmation, and exit codes."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast, get_type_hints

import typer

from glidemq_py import _operate as operate
from glidemq_py._core.keys import validate_prefix
from glidemq_py._core.logs import escape_control, get_logger
from glidemq_py._operate.parsing import PARAMETERS, Param, span
from glidemq_py.cli.arguments import hint_of, value_given
from glidemq_py.cli.settings import Settings, find_settings
from glidemq_py.errors import (
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    WorkerNotFoundError,
    show_value,
)

if TYPE_CHECKING:
    from glidemq_py._operate.action import Action
    from glidemq_py._operate.operating import Operator

_F = TypeVar("_F", bound=Callable[..., Awaitable[Any]])


class ExitCode(IntEnum):
    """Exit codes of all commands."""

    OK = 0
    FAILED = 1
    """The server or the queue rejected the operation, the confirmation was declined, or a check found a problem."""
    USAGE = 2
    """Invalid command line or setting."""
    UNREACHABLE = 3
    """The server cannot be reached or rejects the connection."""
    MISSING = 4
    """A queue, job, schedule or entry does not exist."""
    INTERRUPTED = 130


class Stop(Exception):  # noqa: N818
    """Ends a command with an exit code, after its message was printed."""

    def __init__(self, code: ExitCode) -> None:
        super().__init__(code)
        self.code = code


_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY


def _type_of(param: Param) -> tuple[Any, Any]:
    """Return the type and the default of a parameter that its function does not name."""
    if param.metavar is None:
        return bool, False
    kind = str if param.least is None else int
    return (kind, inspect.Parameter.empty) if param.is_needed else (kind | None, param.default)


def _parameter(name: str, param: Param, kind: Any, default: Any) -> inspect.Parameter:
    """Return a parameter for typer, which gives the text of one with `Param.read`."""
    if param.is_many:
        kind, default = list[str] | None, None
    elif param.read is not None and not param.is_needed:
        kind, default = str | None, span(default) if default and not isinstance(default, str) else default or None
    return inspect.Parameter(name, _KEYWORD, default=default, annotation=hint_of(param, kind))


COMMON: Final = [
    _parameter(each, PARAMETERS[each], *_type_of(PARAMETERS[each])) for each in ("url", "prefix", "as_json")
]
"""The parameters that every command accepts, also before its noun."""


def with_parameters(function: Any, listed: Iterable[inspect.Parameter]) -> None:
    """Let typer see a function of the context that has these parameters."""
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    function.__signature__ = inspect.Signature([context, *listed])
    function.__annotations__ = {each.name: each.annotation for each in function.__signature__.parameters.values()}


GROUPS: Final = defaultdict[str, typer.Typer](lambda: typer.Typer(rich_markup_mode=None))
"""The commands of each noun; those without a noun are of ""."""


def command(name: str, /, *, server: bool = True, json: bool = True, **params: Param) -> Callable[[_F], _F]:
    """Register a coroutine function, whose first parameter is the `Shell`, as a command.

    Args:
        name: noun, if it has one, and verb.
        server: the command needs a server.
        json: the command has JSON output.
        params: parameters that are not in `PARAMETERS`. Those that the function does not name are passed all the same.
    """

    def register(function: _F) -> _F:
        hints = get_type_hints(function)
        listed: dict[str, tuple[Any, Any]] = {
            each.name: (hints[each.name], each.default)
            for each in list(inspect.signature(function).parameters.values())[1:]
            if each.kind is not inspect.Parameter.VAR_KEYWORD
        }
        given = {each: params.get(each) or PARAMETERS[each] for each in [*listed, *params]}
        listed = {each: listed.get(each) or _type_of(given[each]) for each in given}

        def run(context: typer.Context, **texts: Any) -> None:
            before: Mapping[str, Any] = context.obj or {}  # options before the noun
            url, prefix, as_json = (texts.pop(each.name, None) or before.get(each.name) for each in COMMON)

            async def called(shell: Shell) -> None:
                try:
                    await function(shell, **{each: value_given(given[each], text) for each, text in texts.items()})
                except WorkerNotFoundError as error:
                    shell.missing(f"queue {texts['queue']!r} has no worker {error.worker!r}")

            code = _execute(called, url, prefix, bool(as_json), server)
            if code:
                raise typer.Exit(code)

        with_parameters(run, [
            *(_parameter(each, given[each], *listed[each]) for each in given),
            *(each for each in COMMON if json or each.name != "as_json"),
        ])  # fmt: skip
        run.__doc__, run.__name__ = function.__doc__, function.__name__
        noun, _, verb = name.rpartition(" ")
        GROUPS[noun].command(verb)(run)
        return function

    return register


def params_of(action: type[Action]) -> dict[str, Any]:
    """Return the parameters of the fields of an action that people give."""
    return {each.name: each.metadata["param"] for each in fields(action) if each.metadata}


async def _check_subject(shell: Shell, action: Action) -> None:
    if not action.command.startswith(("job", "workers")):
        await shell.check_exists(action.queue)


def changes(
    action: type[Action], given: Callable[..., dict[str, Any]] = dict[str, Any], /, *,
    check: Callable[[Shell, Any], Awaitable[None]] = _check_subject, **params: Param,
) -> None:  # fmt: skip
    """Register the command that makes a change, with the help, the parameters and the questions of the action.

    Args:
        action: the class of the action.
        given: makes the fields of the action from the parameters; by default, these are the fields.
        check: ends the command if the subject of the action does not exist.
        params: parameters besides the queue, by name; by default, the fields.
    """

    async def change(shell: Shell, yes: bool = False, dry_run: bool = False, **values: Any) -> None:
        made = action(**{each: value for each, value in given(**values).items() if value is not None})
        await check(shell, made)
        await shell.change(made, yes=yes, dry_run=dry_run)

    own = dict(sorted((params or params_of(action)).items(), key=lambda each: not each[1].is_needed))
    asks = {"yes": action.destroys, "dry_run": action.destroys or issubclass(action, operate.action.ManyAction)}
    function: Any = change
    function.__doc__ = action.__doc__
    function.__signature__ = inspect.Signature([inspect.Parameter("shell", inspect.Parameter.POSITIONAL_ONLY)])
    of: dict[str, Any] = {
        each: PARAMETERS[each] for each in ("queue", *(name for name, is_asked in asks.items() if is_asked))
    }
    command(action.command, queue=of.pop("queue"), **own, **of)(function)


def _execute(
    called: Callable[[Shell], Awaitable[None]], url: str | None, prefix: str | None, as_json: bool, server: bool
) -> int:
    # Commands report their findings; `doctor` reports the configuration of the server.
    log = get_logger("glidemq_py")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        settings = find_settings(url, prefix)
        validate_prefix(settings.prefix)
        if server and settings.url is None:
            raise GlideMQValidationError(
                "--url", None, "no server given; use --url, GLIDEMQ_URL, url in [tool.glidemq], or glidemq dev"
            )
        return asyncio.run(_run(called, settings, as_json))
    except Stop as stop:
        return stop.code
    except GlideMQValidationError as error:
        return _complain(error, ExitCode.USAGE)
    except GlideMQConnectionError as error:
        return _complain(error, ExitCode.UNREACHABLE)
    except GlideMQError as error:
        return _complain(error, ExitCode.FAILED)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    finally:
        log.setLevel(level)


async def _run(called: Callable[[Shell], Awaitable[None]], settings: Settings, as_json: bool) -> int:
    if settings.url is None:
        await called(Shell(settings, None, as_json))
        return ExitCode.OK
    async with operate.operating.Operator(settings.url, prefix=settings.prefix) as operator:
        await called(Shell(settings, operator, as_json))
    return ExitCode.OK


def _complain(error: GlideMQError, code: ExitCode) -> ExitCode:
    text = str(error)
    if isinstance(error, GlideMQValidationError):
        if error.option == "connection":
            text = f"option '--url' = {show_value(error.value)}: {error.problem}"
        elif error.value is None and (error.option.startswith("--") or error.option.isupper()):
            text = error.problem
    sys.stderr.write(f"glidemq: {escape_control(text)}\n")
    return code


class Shell:
    """The server, the settings and the output of a command."""

    def __init__(self, settings: Settings, operator: Operator | None, as_json: bool) -> None:
        self.settings = settings
        self.json = as_json
        self._operator = operator

    @property
    def operator(self) -> Operator:
        """The operator; only for commands that need a server."""
        assert self._operator is not None
        return self._operator

    # -- output -------------------------------------------------------------------------------------------

    def say(self, text: str = "") -> None:
        """Print a line, unless the output is JSON."""
        if not self.json:
            sys.stdout.write(f"{escape_control(text)}\n")
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """Print a line to stderr, unless the output is JSON."""
        if not self.json:
            sys.stderr.write(f"{escape_control(text)}\n")

    def print_json(self, value: Any, *, line: bool = False) -> None:
        """Print a snapshot as JSON, if the output is JSON; ``line``: without line breaks."""
        if self.json:
            text = json.dumps(
                operate.snapshots.as_json(value), ensure_ascii=False, indent=None if line else 2, default=str
            )
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str) -> None:
        """Print a table, unless the output is JSON; ``empty``: what to print instead of a table without rows.

        A column whose name begins with ``>`` is aligned right. A cell is a value, or a pair of a text and its style.
        """
        if self.json:
            return
        found = list(rows)
        if not found:
            self.note(empty)
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for each in columns:
            right = each.startswith(">")
            table.add_column(each.removeprefix(">"), justify="right" if right else "left", overflow="fold")
        for row in found:
            cells = [_cell(each) for each in row]
            table.add_row(*(Text(_shown(text), style=style) for text, style in cells))
        self._print(table)

    def facts(self, pairs: Iterable[tuple[str, Any]]) -> None:
        """Print names and values, unless the output is JSON; empty values are omitted."""
        if self.json:
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in pairs:
            text, style = _cell(value)
            if text not in (None, ""):
                table.add_row(name, Text(_shown(text, lines=True), style=style))
        self._print(table)

    def tree(self, root: Any) -> None:
        """Print a `rich.tree.Tree`, unless the output is JSON."""
        if not self.json:
            self._print(root)

    def _print(self, thing: Any) -> None:
        from rich.console import Console

        if sys.stdout.isatty():
            Console(highlight=False).print(thing)
            return
        console = Console(width=10_000, highlight=False, color_system=None)
        with console.capture() as captured:
            console.print(thing)
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))
        sys.stdout.flush()

    @contextmanager
    def working(self, text: str, total: int | None = None) -> Generator[Callable[[int], None]]:
        """Show on a terminal that something takes long; yields a function that shows the number of jobs done.

        With a ``total``, it is a bar with the time that is left.
        """
        if not self.shows_progress:
            yield lambda done: None
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column

        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) if total else (MofNCompleteColumn(),)
        column = Column(no_wrap=True, overflow="ellipsis", max_width=48)
        label = TextColumn("{task.description}", markup=False, table_column=column)
        with Progress(SpinnerColumn(), label, *columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(escape_control(text), total=total)
            yield lambda done: bar.update(task, completed=done)

    @property
    def shows_progress(self) -> bool:
        """True if `working` shows anything: messages go to a terminal."""
        return not self.json and sys.stderr.isatty()

    # -- ends ---------------------------------------------------------------------------------------------

    def fail(self, text: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
        """Print an error and end the command."""
        sys.stderr.write(f"glidemq: {escape_control(text)}\n")
        raise Stop(code)

    def missing(self, text: str) -> NoReturn:
        """Print that something does not exist and end the command."""
        self.fail(text, ExitCode.MISSING)

    def stop(self, code: ExitCode) -> NoReturn:
        """End the command."""
        raise Stop(code)

    # -- changes ------------------------------------------------------------------------------------------

    async def check_exists(self, queue: str) -> None:
        """End the command if the queue has never been used."""
        if not await self.operator.queue_exists(queue):
            self.missing(f"queue {queue!r} does not exist (prefix {self.settings.prefix!r})")

    async def reject_broadcast(self, queue: str, instead: str) -> None:
        """End the command if the queue does not exist, or is a broadcast; ``instead``: what to do then."""
        await self.check_exists(queue)
        if await self.operator.is_broadcast(queue):
            raise operate.lists.BroadcastActionError(queue, instead)

    async def queue_names(self, queues: list[str] | None, match: str | None = None, *, scan: bool = False) -> list[str]:
        """Return the names given, which must exist, else those of the settings, else all queues."""
        for each in queues or ():
            await self.check_exists(each)
        if queues or (self.settings.queues and match is None and not scan):
            return list(dict.fromkeys(queues or self.settings.queues))
        return await self.operator.list_queues(match, scan=scan)

    async def set(self, action: type[Action], given: Mapping[str, Any], **subject: Any) -> None:
        """Perform an action that sets what is given, which is not None; 0 removes a limit. It reports nothing."""
        found: Any = {name: value or False for name, value in given.items() if value is not None}
        if found:
            await operate.action.perform(self.operator, action(**subject, **found))

    async def change(self, action: Action, *, yes: bool = True, dry_run: bool = False) -> None:
        """Perform an action, after a confirmation if it destroys anything, and report its result.

        Args:
            action: the action.
            yes: do not ask.
            dry_run: only report the number of changes.
        """
        is_many, number, changed = isinstance(action, operate.action.ManyAction), None, 0
        of_messages = action.says_of_messages and await self.operator.is_broadcast(action.queue)
        says, noun = (action.says_of_messages, "message") if of_messages else (action.question, "job")
        done = action.said or operate.action.past_of(says if of_messages else action.says)
        if dry_run or (action.destroys and not yes) or (is_many and self.shows_progress):
            number = await operate.action.count(self.operator, action)
        if dry_run or (action.destroys and not yes):
            number = await self._without_missing(action, number)
            filled = action.text(says, jobs_text(number, action.of, noun))
            if dry_run:
                self.print_json({"dry_run": True, "count": number})
                self.say(f"would {filled}")
                return
            if not (is_many and number == 0):
                self.confirm(filled)
        doing = action.text(says.replace(_UP_TO, "{jobs}").replace(" with {jobs}", ""), f"{action.of} jobs".lstrip())
        with self.working(doing, None if _UP_TO in says else number) as show:

            def progress(done: int) -> None:
                nonlocal changed
                changed = done
                show(done)

            try:
                result = await operate.action.perform(self.operator, action, progress)
            except asyncio.CancelledError:
                if is_many:
                    text = action.text(done, jobs_text(changed, action.of, noun))
                    self.note(f"stopped: {text}; the same command continues")
                raise
        self.print_json(result)
        for problem in result.problems:
            shown = repr(problem.id)
            if problem.missing:
                self.note(f"{action.subject} {shown} {problem.error}")
            else:
                self.note(problem.error if shown in problem.error else f"{shown}: {problem.error}")
        if action.subject == "worker":
            for each in result.ids:
                self.say(f"{done} {each}")
            if not result.done:
                self.note(f"queue {action.queue!r} has no live workers")
        elif result.done or not result.problems:
            self.say(action.text(done, jobs_text(result.done, action.of, noun)))
        if result.problems:
            missing = all(problem.missing for problem in result.problems)
            self.stop(ExitCode.MISSING if missing else ExitCode.FAILED)

    async def _without_missing(self, action: Action, number: int | None) -> int | None:
        """Report the jobs or schedules that do not exist; end the command if there are no others."""
        gone = await operate.action.missing(self.operator, action)
        for name in gone:
            self.note(f"{action.subject} {name!r} does not exist")
        left = number if number is None else number - len(gone)
        if gone and not left:
            self.stop(ExitCode.MISSING)
        return left

    def confirm(self, what: str, *, dry_run: bool = True) -> None:
        """Let the user confirm; end the command if they do not, or if there is no terminal.

        Args:
            what: such as "delete 3 jobs".
            dry_run: the command has the option --dry-run.
        """
        if not sys.stdin.isatty():
            instead = ", or use --dry-run" if dry_run else ""
            self.fail(f"about to {what}: confirm with --yes{instead}", ExitCode.USAGE)
        with _interruptible():  # before the question is shown: Ctrl-C may follow at once
            sys.stderr.write(f"{escape_control(what[:1].upper() + what[1:])}? [y/N] ")
            sys.stderr.flush()
            answer = sys.stdin.readline()
        if answer.strip().lower() not in ("y", "yes"):
            self.fail("nothing was changed")


@contextmanager
def _interruptible() -> Generator[None]:
    """Let Ctrl-C end a blocking read: the handler of the event loop cancels the task, which waits for the read."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    of_loop = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, of_loop)


_UP_TO: Final = "up to {jobs}"


def jobs_text(number: int | None, of: str = "", noun: str = "job") -> str:
    """Return "1 job", "12 failed jobs", or "" for None."""
    if number is None:
        return ""
    return f"{number:,} {of}".rstrip() + f" {noun}{'' if number == 1 else 's'}"


def _cell(value: Any) -> tuple[Any, str]:
    """Return a value and its style."""
    return cast("tuple[Any, str]", value) if isinstance(value, tuple) else (value, "")


def _shown(value: Any, *, lines: bool = False) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escape_control(str(value), keep="\n" if lines else "")


def json_line(value: Any) -> str:
    """Return a stored value as JSON in one line; a text as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def age(at: int | None) -> str:
    """Return how long ago or ahead a time (epoch ms) is, by this machine's clock; '' for None or 0."""
    if not at:
        return ""
    passed = time.time() * 1_000 - at
    if abs(passed) < 1_000:
        return "now"
    return f"{span(passed)} ago" if passed > 0 else f"in {span(-passed)}"


def clock(at: int | None) -> str:
    """Return a time (epoch ms) as local date and time with offset; '' for None or 0."""
    if not at:
        return ""
    try:
        return datetime.fromtimestamp(at / 1_000).astimezone().isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return str(at)


def size_text(size: int | None) -> str:
    """Return a number of bytes in MiB; '' for None."""
    return "" if size is None else f"{size / 2**20:,.0f} MiB"


def joined(texts: Iterable[str]) -> str:
    """Return the texts separated by commas."""
    return ", ".join(texts)
