"""`glidemq doctor`."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from glidemq_py import _operate as operate
from glidemq_py._operate.parsing import span_of
from glidemq_py._operate.roles import ROLES
from glidemq_py.cli.commands.arguments import Queues
from glidemq_py.cli.commands.queues import queue_names
from glidemq_py.cli.completion import words
from glidemq_py.cli.shell import ExitCode, Shell, command

__all__ = ["register_doctor"]

_STYLES: Final = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def register_doctor(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "doctor")(doctor)


async def doctor(
    shell: Shell,
    queues: Queues = None,
    max_wait: Annotated[
        str, typer.Option("--max-wait", metavar="TIME", help="Warn if a job has been ready for longer.")
    ] = "1m",
    user: Annotated[
        str, typer.Option("--user", metavar="NAME", help="Examine the permissions of this user; default: your own.")
    ] = "",
    role: Annotated[
        str,
        typer.Option(
            "--role",
            metavar="ROLE",
            help="The user needs those of probe, observer, producer, worker, operator or app.",
            autocompletion=words(ROLES),
        ),
    ] = "",
) -> None:
    """Examine the server and queues, and say what to do about each problem.

    Exit code 1 if there are warnings or errors.
    """
    names = await queue_names(shell, queues)
    wait = span_of("--max-wait", max_wait)
    found = await operate.doctor.examine(shell.operator, names, max_wait=wait, user=user, role=role)
    shell.print_json(found)
    rows = [
        ((str(each.severity), _STYLES[each.severity]), each.check, each.subject, _text(each.problem, each.remedy))
        for each in found
    ]
    shell.table(("", "CHECK", "WHERE", "FOUND"), rows, "")
    if not names:
        shell.note(f"no queues (prefix {shell.settings.prefix!r})")
    if any(each.severity in ("warning", "error") for each in found):
        shell.stop(ExitCode.FAILED)


def _text(problem: str, remedy: str) -> str:
    return f"{problem}; {remedy}" if remedy else problem
