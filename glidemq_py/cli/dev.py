"""`glidemq dev`: the server of a project, its workers and the dashboard in one terminal, with one log."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from types import FrameType

from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.embedded import dismiss_guard, embedded_binary, free_port, is_free, spawn_guard
from glidemq_py._client.project import make_project
from glidemq_py._client.transport import URL_VARIABLE, known_url
from glidemq_py._core.command_line import ArgumentParser, parse_port
from glidemq_py._core.forks import new_event
from glidemq_py.errors import GlideMQError, hide_urls

_DASHBOARD_PORT = 8090
_OWN, _SERVER, _DASHBOARD = "dev", "server", "dashboard"
_ADDRESS = "http://127.0.0.1:{port}/"
_PORT_TAKEN = 3
"""Exit code of a dashboard that could not listen, because another program was faster."""
_KILL_AT = 4
"""Number of the signal that kills what still runs; the worker command itself uses three."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM; return 1 if there is no server."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.url:
        os.environ[URL_VARIABLE] = given.url
    commands = {target: ["worker", target, "--reload"] for target in given.target}
    log = _Log(max(map(len, (*commands, _DASHBOARD))))
    logging.basicConfig(level=logging.INFO, format=log.line(_SERVER, "%(message)s"), stream=sys.stdout)
    processes = _Processes(log)
    try:
        if not os.environ.get(URL_VARIABLE):
            embedded_binary()  # no folder is created without it
            make_project()
        url = known_url()
        server = None if url is None else ConnectionOptions.from_url(url)
    except (OSError, GlideMQError) as error:
        return _complain(f"the server cannot be used: {error}")
    if server is None:
        return _complain("the server of the project cannot be used, see above; give --url or set GLIDEMQ_URL")
    port = given.port if given.port and is_free(given.port) else free_port()
    commands[_DASHBOARD] = _dashboard(port)
    if os.environ.get(URL_VARIABLE):
        log.write(_SERVER, f"using {server}")
    log.write(_DASHBOARD, _ADDRESS.format(port=port))
    if not given.target:
        log.write(_OWN, "no worker runs: name some, such as glidemq dev shop.jobs:worker")
    log.write(_OWN, "Ctrl-C ends all; running jobs are finished first")
    processes.run(commands)
    return 0


def _dashboard(port: int) -> list[str]:
    return [_DASHBOARD, "--allow-changes", "--log-level", "warning", "--port", str(port)]


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="glidemq dev",
        description="Run the server of a project, workers and the dashboard, with one log. The server's data are in "
        ".glidemq in the current folder or above it, which is created here if there is none. Programs that start in "
        "that folder or below it use this server, unless they are given another one.",
    )
    parser.add_argument(
        "target", nargs="*", metavar="TARGET",
        help="worker, such as shop.jobs:worker; it restarts when a Python file in the current folder changes",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=parse_port, default=_DASHBOARD_PORT, metavar="PORT",
        help=f"port of the dashboard ({_DASHBOARD_PORT}); if it is used, a free one is",
    )  # fmt: skip
    parser.add_argument("--url", help=f"use this server instead; default: {URL_VARIABLE}")
    return parser


class _Log:
    """Lines of several processes on stdout, each with the name of its process."""

    def __init__(self, width: int) -> None:
        self._width = width

    def line(self, name: str, text: str) -> str:
        return f"{name:<{self._width}} | {text}"

    def write(self, name: str, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal was closed
            sys.stdout.write(f"{self.line(name, text)}\n")
            sys.stdout.flush()


class _Processes:
    """Child processes, whose lines are written to the log until they end; signals end them."""

    def __init__(self, log: _Log) -> None:
        self._log = log
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._signals = 0
        self._stopped = new_event()
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, self._signalled)

    def run(self, commands: Mapping[str, Sequence[str]]) -> None:
        """Run the commands by name until a signal, and then until all have ended."""
        threads = [threading.Thread(target=self._follow, args=each) for each in commands.items()]
        for thread in threads:
            thread.start()
        self._stopped.wait()
        for thread in threads:
            thread.join()

    def _follow(self, name: str, command: Sequence[str]) -> None:
        """Run a command, again if it was killed; the dashboard at another port if the chosen one was taken."""
        while command:
            code = self._run(name, command)
            if self._signals:
                return
            self._log.write(_OWN, f"{name} has ended with code {code}" + ("; it starts again" if code < 0 else ""))
            if name == _DASHBOARD and code == _PORT_TAKEN:
                command = _dashboard(port := free_port())
                self._log.write(_DASHBOARD, _ADDRESS.format(port=port))
            elif code >= 0:
                return

    def _run(self, name: str, command: Sequence[str]) -> int:
        # In a session of its own: Ctrl-C in the terminal reaches only this process.
        process = subprocess.Popen(
            [sys.executable, "-m", "glidemq_py.cli", *command],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._running[name] = process
        guard = spawn_guard(process, "TERM")
        if self._signals:
            process.terminate()
        for line in process.stdout or ():
            self._log.write(name, line.decode(errors="replace").rstrip())
        code = process.wait()
        dismiss_guard(guard)
        del self._running[name]
        return code

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        self._log.write(_OWN, f"ending {', '.join(self._running) or 'at once'}")
        for process in list(self._running.values()):
            process.send_signal(signal.SIGTERM if self._signals < _KILL_AT else signal.SIGKILL)
        self._stopped.set()


def _complain(text: str) -> int:
    sys.stderr.write(f"glidemq dev: {hide_urls(text)}\n")
    return 1
