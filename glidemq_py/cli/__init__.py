"""`glidemq`: one command to look at queues, change them, and run workers.

`glidemq worker`, `proxy`, `library` and `spark` run the same code as ``python -m glidemq_py.worker`` and so on, and
need no extra. `glidemq dev` and `demo` need the extra `embedded`. All other commands are built with typer and rich
(extra `cli`), which are imported only for them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from glidemq_py._core.command_line import PROGRAM, terminal_arguments

__all__ = ["PASSED", "main"]

PASSED: Final = {
    "worker": ("glidemq_py.worker", "Run workers."),
    "proxy": ("glidemq_py.proxy.__main__", "Serve queues over HTTP."),
    "gateway": ("glidemq_py.gateway.__main__", "Serve bunqueue clients."),
    "dashboard": ("glidemq_py.dashboard.__main__", "Show queues in a browser."),
    "dev": ("glidemq_py.cli.dev", "Run the server, the workers and the dashboard of a project."),
    "mcp": ("glidemq_py.mcp.__main__", "Let agents look at queues, over the Model Context Protocol."),
    "demo": ("glidemq_py.cli.demo", "Run a small shop on a private server, to try the other commands on."),
    "library": ("glidemq_py.library", "Print, load or check the function library of the server."),
    "spark": ("glidemq_py.spark.environment", "Print the missing requirements of the Spark data source."),
}
"""Commands that are modules of their own: name, module with ``main``, and help."""

WORKER_VERBS: Final = frozenset({"inspect", "ls", "ping", "quiet", "resize", "resume"})
"""Commands of `glidemq worker` that do not run a worker."""

_WITH_SERVER: Final = frozenset({"worker", "proxy", "gateway", "dashboard", "mcp", "dev", "library"})
"""Commands of `PASSED` that connect to the server of the settings."""
_VARIABLES: Final = {"--url": "GLIDEMQ_URL", "--prefix": "GLIDEMQ_PREFIX"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; docs/reference/command-line.md lists the codes."""
    given = sys.argv[1:] if argv is None else list(argv)
    before, rest = _leading_options(given)
    name = rest[0] if rest else ""
    if name == "worker":
        inner, behind = _leading_options(rest[1:])
        if behind and behind[0] in WORKER_VERBS:  # a target has a colon
            given = [*before, "workers", behind[0], *inner, *behind[1:]]
            name = "workers"
    if name in PASSED:
        return pass_on(name, rest[1:], before)
    try:
        import rich  # noqa: F401  # pyright: ignore[reportUnusedImport]
        import typer  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        sys.stderr.write(
            "glidemq: requires typer and rich; install them with: pip install 'glidemq-py[cli]' "
            f"(without them: glidemq {', '.join(PASSED)})\n"
        )
        return 1
    from glidemq_py.cli.app import run

    return run(terminal_arguments(given))


def pass_on(name: str, argv: list[str], before: Sequence[str] = ()) -> int:
    """Run a command of `PASSED` and return its exit code.

    Args:
        name: The command.
        argv: Its arguments.
        before: The options that were given before it: ``--url``, ``--prefix`` and ``--json`` with their values.
    """
    program = PROGRAM.set(f"glidemq {name}")
    try:
        return _run(name, argv, before)
    finally:
        PROGRAM.reset(program)


def _run(name: str, argv: list[str], before: Sequence[str]) -> int:
    refused = _refusal(name, before) or _use_settings(name, [*argv, *before])
    if refused:
        sys.stderr.write(f"glidemq {name}: {refused}\n")
        return 2
    try:
        run = import_module(PASSED[name][0]).main
    except ImportError as error:
        if error.name is not None:  # not one of ours, which name the extra to install
            raise
        sys.stderr.write(f"glidemq: {error}\n")
        return 1
    if name == "spark":  # reads its arguments itself
        return int(run() or 0)
    return int(run([*argv, *before]) or 0)


def _leading_options(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments behind the options that every command accepts."""
    at = 0
    while at < len(given):
        option, _, value = given[at].partition("=")
        if option in _VARIABLES:
            at += 1 if value or at + 1 == len(given) else 2
        elif option == "--json":
            at += 1
        else:
            break
    return list(given[:at]), list(given[at:])


def _refusal(name: str, before: Sequence[str]) -> str:
    """Return which of the options before a command it does not accept, or ''."""
    refused = ("--json",) if name in _WITH_SERVER else ("--json", *_VARIABLES)
    option = next((word for word in before if word.partition("=")[0] in refused), "")
    return f"does not accept {option.partition('=')[0]}" if option else ""


def _use_settings(name: str, argv: Sequence[str]) -> str:
    """Set the environment variables of URL and prefix by ``[tool.glidemq]``. Return its error, or ''."""
    if name not in _WITH_SERVER or any(word.partition("=")[0] == "--url" for word in argv):
        return ""
    from glidemq_py._core.keys import DEFAULT_PREFIX
    from glidemq_py.cli.settings import find_settings
    from glidemq_py.errors import GlideMQValidationError

    try:
        settings = find_settings(project=False)
    except GlideMQValidationError as error:
        return str(error)
    if settings.url is not None:
        os.environ[_VARIABLES["--url"]] = settings.url
    if settings.prefix != DEFAULT_PREFIX:
        os.environ[_VARIABLES["--prefix"]] = settings.prefix
    return ""
