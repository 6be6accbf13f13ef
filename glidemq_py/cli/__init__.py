"""`glidemq`: one command to look at queues, change them, and run workers.

`glidemq worker`, `proxy`, `library` and `spark` run the same code as ``python -m glidemq_py.worker`` and so on, and
need no extra. `glidemq demo` needs the extra `embedded`. All other commands are built with typer and rich (extra
`cli`), which are imported only for them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from glidemq_py._core.command_line import PROGRAM

__all__ = ["PASSED", "main"]

PASSED: Final = {
    "worker": ("glidemq_py.worker", "Run workers."),
    "proxy": ("glidemq_py.proxy.__main__", "Serve queues over HTTP."),
    "gateway": ("glidemq_py.gateway.__main__", "Serve bunqueue clients."),
    "dashboard": ("glidemq_py.dashboard.__main__", "Show queues in a browser."),
    "demo": ("glidemq_py.cli.demo", "Run a small shop on a private server, to try the other commands on."),
    "library": ("glidemq_py.library", "Print, load or check the function library of the server."),
    "spark": ("glidemq_py.spark.environment", "Print the missing requirements of the Spark data source."),
}
"""Commands that are modules of their own: name, module with ``main``, and help."""

WORKER_VERBS: Final = frozenset({"inspect", "ls", "ping", "quiet", "resize", "resume"})
"""Commands of `glidemq worker` that do not run a worker."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; docs/reference/command-line.md lists the codes."""
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == ["worker"] and set(given[1:2]) <= WORKER_VERBS and given[1:]:  # a target has a colon
        given[0] = "workers"
    if given and given[0] in PASSED:
        return pass_on(given[0], given[1:])
    try:
        import rich  # noqa: F401  # pyright: ignore[reportUnusedImport]
        import typer  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        sys.stderr.write("glidemq: requires typer and rich; install them with: pip install 'glidemq-py[cli]'\n")
        return 1
    from glidemq_py.cli.app import run

    return run(given)


def pass_on(name: str, argv: list[str]) -> int:
    """Run a command of `PASSED` and return its exit code."""
    PROGRAM.set(f"glidemq {name}")
    try:
        run = import_module(PASSED[name][0]).main
    except ImportError as error:
        if error.name is not None:  # not one of ours, which name the extra to install
            raise
        sys.stderr.write(f"glidemq: {error}\n")
        return 1
    if name == "spark":  # reads its arguments itself
        return int(run() or 0)
    return int(run(argv) or 0)
