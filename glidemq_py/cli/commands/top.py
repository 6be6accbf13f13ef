"""`glidemq top`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from glidemq_py.cli.commands.arguments import Queues
from glidemq_py.cli.commands.queues import check_exists
from glidemq_py.cli.shell import ExitCode, Shell, command

__all__ = ["register_top"]


def register_top(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "top", json=False)(top)


async def top(
    shell: Shell,
    queues: Queues = None,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.2, max=3_600, help="Time between two updates.")
    ] = 2.0,
) -> None:
    """Show queues, running jobs, failures and schedules, and keep them current, until q is pressed.

    p pauses or resumes a queue or schedule, r retries a failed job, c cancels a running one, n runs a schedule now.
    """
    if shell.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        shell.fail("top needs a terminal; for scripts, use queue ls --json", ExitCode.USAGE)
    try:
        from glidemq_py.cli.top_screen import Top
    except ImportError as error:
        shell.fail(str(error), ExitCode.USAGE)
    names = queues or list(shell.settings.queues)
    for name in names:
        await check_exists(shell, name)
    await Top(shell.operator, names, interval=interval).run_async()
