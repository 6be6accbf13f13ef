"""The whole command line, from the commands of all nouns."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from glidemq_py import _operate as operate
from glidemq_py.cli import PASSED, WORKER_VERBS, pass_on
from glidemq_py.cli.shell import COMMON, GROUPS, changes, with_parameters

_HELP = """\
Look at queues, change them, and run workers.

The options --url, --prefix and --json are accepted before and after the command.

Exit codes: 0 = done; 1 = rejected, declined, or a problem was found; 2 = invalid command line; 3 = the server cannot be
reached; 4 = does not exist."""

_COMPLETED_LINES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
_WORKER_LINE = re.compile(rf"^(\s*\S*glidemq\s+(?:.*\s)?)worker(?=\s+(?:(?:{'|'.join(sorted(WORKER_VERBS))})\s|\w*$))")

_NOUNS = {
    "queue": ("queues", "Look at queues and change them."),
    "job": ("jobs", "Look at jobs and change them."),
    "failures": ("failures", "Failed jobs: list, count, requeue and delete them."),
    "dlq": ("failures", "Dead-letter entries: list, replay and delete them."),
    "cron": ("schedules", "Schedules: list, add, pause, run and delete them."),
    "batch": ("batches_and_flows", "Batches: sets of jobs with callbacks."),
    "flow": ("batches_and_flows", "Flows: jobs and the jobs they wait for."),
    "workers": ("workers", "Live workers of queues: list, inspect, quiet and resize them."),
    "group": ("queues", "Ordering groups and their limits."),
    "events": ("monitoring", "Events of a queue."),
}
"""The nouns: the module of their commands, and their help."""

app = typer.Typer(
    name="glidemq", help=_HELP, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)  # fmt: skip


@functools.cache
def _commands_of(noun: str) -> Any:
    """Return the commands of a noun by their verbs: those that its module has, and those derived from actions."""
    import_module(f"glidemq_py.cli.commands.{_NOUNS[noun][0]}")
    written = {each.name for each in GROUPS[noun].registered_commands}
    for action in operate.actions.ACTIONS.values():
        of, _, verb = action.command.partition(" ")
        if of == noun and verb not in written:
            changes(action)
    found: Any = get_group(GROUPS[noun])
    return found.commands


class _Noun(TyperGroup):
    """The commands of a noun, whose module is imported when they are needed."""

    @property
    def commands(self) -> Any:
        """The commands by their verbs."""
        return _commands_of(str(self.name))

    @commands.setter
    def commands(self, given: object) -> None:
        """Ignore those given, of which there are none."""


for _name in ("backups", "monitoring"):  # the commands without a noun
    import_module(f"glidemq_py.cli.commands.{_name}")
app.registered_commands += GROUPS[""].registered_commands
for _noun, (_, _help) in _NOUNS.items():
    app.add_typer(typer.Typer(name=_noun, help=_help, no_args_is_help=True, rich_markup_mode=None, cls=_Noun))


def _passing(name: str) -> Callable[[typer.Context], None]:
    def passed(context: typer.Context) -> None:
        raise typer.Exit(pass_on(name, context.args))

    return passed


# `main` runs these before typer is imported; here they are listed in the help and completed.
for _name, (_module, _help) in PASSED.items():
    _settings = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(_name, help=_help, add_help_option=False, context_settings=_settings)(_passing(_name))


def _version(given: bool) -> None:
    if given:
        from glidemq_py import __version__

        sys.stdout.write(f"glidemq_py {__version__}\n")
        raise typer.Exit


def _options(context: typer.Context, version: bool = False, **given: Any) -> None:
    context.obj = given


_version_hint = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]
with_parameters(_options, [
    *COMMON, inspect.Parameter("version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_version_hint)
])  # fmt: skip
app.callback()(_options)


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    for variable in _COMPLETED_LINES:
        if variable in os.environ:  # as `main` does with a line that is not only completed
            os.environ[variable] = _WORKER_LINE.sub(r"\1workers", os.environ[variable])
    try:
        app(args=list(argv), prog_name="glidemq")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return 0
