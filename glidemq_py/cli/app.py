"""The whole command line, from the commands of all nouns."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from glidemq_py.cli import PASSED, WORKER_VERBS, pass_on
from glidemq_py.cli.commands import batches_and_flows, failures, jobs, monitoring, queues, schedules, workers
from glidemq_py.cli.commands.backups import backup, backups, restore
from glidemq_py.cli.shell import JsonOption, PrefixOption, UrlOption, command

__all__ = ["app", "run"]

_HELP = """\
Look at queues, change them, and run workers.

The options --url, --prefix and --json are accepted before and after the command.

Exit codes: 0 = done; 1 = rejected, declined, or a problem was found; 2 = invalid command line; 3 = the server cannot be
reached; 4 = does not exist."""

_COMPLETED_LINES = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")
_WORKER_LINE = re.compile(rf"^(\s*\S*glidemq\s+(?:.*\s)?)worker(?=\s+(?:(?:{'|'.join(sorted(WORKER_VERBS))})\s|\w*$))")

app = typer.Typer(
    name="glidemq", help=_HELP, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)  # fmt: skip

for each in (
    queues.app, jobs.app, failures.app, failures.dead_letters_app, schedules.app, batches_and_flows.batches_app,
    batches_and_flows.flows_app, workers.app, queues.groups_app, monitoring.events_app,
):  # fmt: skip
    app.add_typer(each)
command(app, "backup")(backup)
command(app, "backups", server=False)(backups)
command(app, "restore")(restore)
command(app, "doctor")(monitoring.doctor)
command(app, "top", json=False)(monitoring.top)


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


@app.callback()
def _options(
    context: typer.Context,
    url: UrlOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    context.obj = {"url": url, "prefix": prefix, "as_json": as_json}


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
