"""The supervisor: starts worker processes, restarts those that crash or recycle, and stops them.

Children are started as new interpreters, not forked: a GLIDE client does not survive a fork. No user code runs here.

The two exchange messages: lines of text over a socket pair that the child inherits. Messages instead of signals,
because a repeated `drain` has no effect even if a service manager also signals every process of the service, and
because the end of the stream shows that the other process has ended.

Child: `loaded`, `server?`, `started`, `recycle REASON`, `broken JSON` (why it cannot start: a summary and a report),
`ended` (the workers are closed).
Supervisor: `server URL`, `drain`, `hurry`.

`FileWatch` implements `--reload`: it polls Python files, so that it needs no other package.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from glidemq_py._client.runtime import wait_for_event
from glidemq_py._client.transport import URL_VARIABLE, default_url
from glidemq_py._core.logs import get_logger
from glidemq_py._worker.command.arguments import WorkerArguments, set_up_logs
from glidemq_py._worker.shutdown import handle_until_exit
from glidemq_py.errors import EmbeddedServerError

_log = get_logger("glidemq_py.worker.supervisor")


class Line:
    """One end of the connection, in an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Self:
        """Create an end from a socket of the pair."""
        end.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, word: str, rest: str = "") -> None:
        """Send a message; does nothing if the other process has ended."""
        text = f"{word} {rest}".strip().replace("\n", " ")
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.write(f"{text}\n".encode())

    async def receive(self) -> tuple[str, str]:
        """Return the next message as (word, rest); ('', '') if the other process has ended."""
        try:
            line = await self._reader.readline()
        except (OSError, ValueError):
            return "", ""
        word, _, rest = line.decode(errors="replace").strip().partition(" ")
        return word, rest

    def hang_up(self) -> None:
        """Close this end."""
        self._writer.close()


MAX_START_CRASHES: Final = 5
"""Number of crashes during start after which the supervisor gives up, unless a child has started before.

One that is killed by a signal does not count: it may be waiting for the server, or the machine lacks memory.
"""

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 30.0
_SETTLED_S = 10.0
"""After a child has run for this long, the restart delay is reset."""
_KILL_AFTER_S = 15.0
"""Time from the request to release jobs, or from the end of the workers, until a child is killed."""
_IMPORT_S = 600.0
"""Time after which a child that is still importing the target is killed."""
_LAST_MESSAGES_S = 1.0
"""Time for reading the last messages of a child that has ended."""
_UNUSABLE: Final = 2
_RELOAD_GRACE_S: Final = 3.0
"""Time for the running jobs before they are released, when files have changed."""


def supervise(arguments: WorkerArguments, argv: Sequence[str], module: str = "glidemq_py.worker") -> int:
    """Run the child processes of the command line until they are stopped, and return the exit code.

    Args:
        arguments: The number of processes, the shutdown timeout, and the options of logs and reloading.
        argv: Arguments of the children.
        module: Module that they run.
    """
    set_up_logs(arguments.log_level, arguments.log_format)
    return asyncio.run(_Supervisor(arguments, argv, module).run())


class _Child:
    """One child process and the state it has reported."""

    def __init__(self, process: asyncio.subprocess.Process, line: Line, born: float) -> None:
        self.process = process
        self.line = line
        self.born = born
        self.loaded = False
        self.started = False
        self.recycling = ""
        self.broken = ""


class _Supervisor:
    def __init__(self, arguments: WorkerArguments, argv: Sequence[str], module: str) -> None:
        self._module = module
        self._processes = arguments.processes or 1
        self._timeout = arguments.shutdown_timeout
        self._folders = (arguments.reload_dir or ["."]) if arguments.reload else None
        self._changed = asyncio.Event()
        self._argv = list(argv)
        self._children: set[_Child] = set()
        self._requests = 0
        self._stopping = asyncio.Event()
        self._first_loaded = asyncio.Event()
        self._start_crashes = 0
        self._broken = ""
        self._ever_started = False
        self._code = 0
        self._server_url: str | None = None
        self._serving = asyncio.Lock()

    async def run(self) -> int:
        """Run until every child has ended and none is to be started."""
        handle_until_exit(self._signalled)
        watching = None
        if self._folders is not None:
            watching = asyncio.create_task(watch_files(self._folders, self._reload))
            _log.info("reloading when a Python file changes in %s", ", ".join(map(os.path.abspath, self._folders)))
        await asyncio.gather(*(self._keep(slot) for slot in range(self._processes)))
        if watching is not None:
            watching.cancel()
        return self._code

    async def _keep(self, slot: int) -> None:
        """Run one child after another."""
        if slot > 0:
            # An invalid target is then reported by one child only.
            await self._first_loaded.wait()
        quick = 0
        while not self._stopping.is_set():
            try:
                child = await self._spawn(slot)
            except OSError as error:
                self._give_up(f"cannot start a child process: {error}", 1)
                return
            code = await self._follow(child)
            if self._stopping.is_set():
                return
            lived = asyncio.get_running_loop().time() - child.born
            quick = 0 if child.started and lived > _SETTLED_S else quick + 1
            if self._folders is not None and not child.recycling and code >= 0:  # no edit repairs what was killed
                await self._wait_for_change(child, code)
                continue
            pause = self._judge(child, code, quick)
            if pause:
                await wait_for_event(self._stopping, pause)

    def _judge(self, child: _Child, code: int, quick: int) -> float:
        """Return the seconds to wait before the next child; stop everything if it cannot start."""
        pid = child.process.pid
        # A child that is to reload may have been importing, and was terminated.
        if child.recycling and (code == 0 or self._folders is not None):
            _log.info("child %d recycled: %s", pid, child.recycling)
            return 0.0
        if not self._ever_started and code >= 0:
            self._start_crashes += 1
            if code == _UNUSABLE:
                self._give_up("invalid target or option, see above", _UNUSABLE)
                return 0.0
            if self._start_crashes >= MAX_START_CRASHES:
                why = f": {child.broken}" if child.broken else ""
                self._give_up(f"children crashed during start {self._start_crashes} times in a row{why}", 1)
                return 0.0
        pause = min(_FIRST_PAUSE_S * 2.0 ** min(quick, 16), _LAST_PAUSE_S) * random.uniform(0.75, 1.25)
        _log.error("child %d %s; restarting in %.1f s", pid, _how(code), pause)
        return pause

    async def _wait_for_change(self, child: _Child, code: int) -> None:
        """After a child has crashed or could not start: wait for the edit that repairs it."""
        _log.error("child %d %s; waiting for a change", child.process.pid, _how(code))
        self._broken = ""
        self._first_loaded.set()
        waits = [asyncio.create_task(event.wait()) for event in (self._stopping, self._changed)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()

    def _reload(self, files: list[str]) -> None:
        """Recycle all children; those that wait for a change start."""
        if self._requests:
            return
        shown = ", ".join(os.path.relpath(path) for path in files[:3]) + (", ..." if len(files) > 3 else "")
        _log.info("%s changed: reloading", shown)
        self._changed.set()
        self._changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        grace = _RELOAD_GRACE_S if self._timeout is None else self._timeout / 1000
        for child in self._children:
            if not child.recycling:
                child.recycling = f"{shown} changed"
                self._signal(child, 1)
                loop.call_later(grace, self._signal, child, 2)
                loop.call_later(grace + _KILL_AFTER_S, self._kill, child, "did not end in time")

    def _complain(self, child: _Child, why: str, report: str) -> None:
        """Log that a child cannot start; the full report only once per reason."""
        child.broken = why
        if why == self._broken:
            _log.error("child %d cannot start, as before: %s", child.process.pid, why)
        else:
            # The report may be a traceback, so it is not part of the one-line message.
            more = {} if report == why else {"report": report}
            _log.critical("child %d cannot start: %s", child.process.pid, why, extra=more)
        self._broken = why

    def _give_up(self, why: str, code: int) -> None:
        _log.critical("giving up: %s", why)
        self._code = code
        self._request_stop(1)

    # -- children -----------------------------------------------------------------------------------------

    async def _spawn(self, slot: int) -> _Child:
        ours, theirs = socket.socketpair()
        environment = dict(os.environ)
        if self._folders is not None:
            # Bytecode is valid for a second and size: that of a file that is saved twice might be used.
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        if self._server_url is not None:
            environment[URL_VARIABLE] = self._server_url
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self._module, "--line", str(theirs.fileno()),
                "--slot", str(slot), *self._argv,
                # The supervisor forwards Ctrl-C; a session of their own keeps the terminal from signaling children.
                start_new_session=True, pass_fds=(theirs.fileno(),), env=environment,
            )  # fmt: skip
        child = _Child(process, await Line.over(ours), asyncio.get_running_loop().time())
        self._children.add(child)
        if self._requests:
            self._signal(child, self._requests)
        asyncio.get_running_loop().call_later(_IMPORT_S, self._kill_importing, child, "is still importing the target")
        return child

    async def _follow(self, child: _Child) -> int:
        """Process a child's messages until it has ended, and return its exit code."""
        listening = asyncio.create_task(self._listen(child))
        code = await child.process.wait()
        # A process that a handler has started may hold a copy of the connection, so its end may never be read.
        await asyncio.wait({listening}, timeout=_LAST_MESSAGES_S)
        listening.cancel()
        await asyncio.wait({listening})
        child.line.hang_up()
        self._children.discard(child)
        return code

    async def _listen(self, child: _Child) -> None:
        while (received := await child.line.receive())[0]:
            word, rest = received
            if word == "loaded":
                child.loaded = True
                self._first_loaded.set()
                if self._requests:
                    self._signal(child, self._requests)  # it ignored SIGTERM while it was importing
                elif child.recycling:
                    self._signal(child, 1)
            elif word == "started":
                child.started = self._ever_started = True
                self._broken = ""
                _log.info("child %d has started", child.process.pid)
            elif word == "server?":
                await self._serve(child)
            elif word == "broken":
                self._complain(child, *json.loads(rest))
            elif word == "recycle":
                child.recycling = rest
            elif word == "ended":
                asyncio.get_running_loop().call_later(
                    _KILL_AFTER_S, self._kill, child, "has closed its workers but does not exit"
                )

    async def _serve(self, child: _Child) -> None:
        """Start the server that all children share: the project's, or a private one, which ends with this process."""
        async with self._serving:
            if self._server_url is None:
                try:
                    # Starting it logs a WARNING.
                    self._server_url = f"{await asyncio.to_thread(default_url)}?allow_no_aof=true"
                except EmbeddedServerError as error:
                    self._give_up(str(error), 1)
                    return
        child.line.send("server", self._server_url)

    # -- ending -------------------------------------------------------------------------------------------

    def _signalled(self, number: signal.Signals) -> None:
        level = min(self._requests + 1, 3)
        what = ("", "draining the children", "children release their jobs", "killing the children")[level]
        _log.info("%s: %s", signal.Signals(number).name, what)
        self._request_stop(level)

    def _request_stop(self, level: int) -> None:
        """1: drain, 2: hurry, 3: kill."""
        if level <= self._requests:
            return
        self._requests = level
        self._stopping.set()
        self._first_loaded.set()
        for child in self._children:
            self._signal(child, level)
        loop = asyncio.get_running_loop()
        if level == 1 and self._timeout is not None:
            loop.call_later(self._timeout / 1000 + _KILL_AFTER_S, self._request_stop, 3)
        elif level == 2:
            loop.call_later(_KILL_AFTER_S, self._request_stop, 3)

    def _signal(self, child: _Child, level: int) -> None:
        if child.process.returncode is not None:
            return
        if level == 3:
            self._code = self._code or 1
            self._kill(child, "did not end in time")
        elif not child.loaded:
            child.process.terminate()  # it has no job, and cannot receive messages yet
            asyncio.get_running_loop().call_later(_KILL_AFTER_S, self._kill_importing, child, "ignores SIGTERM")
        else:
            child.line.send("drain" if level == 1 else "hurry")

    def _kill(self, child: _Child, why: str) -> None:
        if child.process.returncode is None:
            _log.error("child %d %s: killing it", child.process.pid, why)
            child.process.kill()

    def _kill_importing(self, child: _Child, why: str) -> None:
        if not child.loaded:
            self._kill(child, why)


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


POLL_EVERY_S: Final = 0.4
_MOST_FILES: Final = 20_000
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


class FileWatch:
    """The state of the Python files below some folders at the last check.

    Hidden folders, virtual environments, installed packages and files beyond the first 20,000 are not watched.

    Args:
        folders: The folders.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = tuple(folders)
        self._known = self._scan()

    def changed(self) -> list[str]:
        """Return the files that were added, changed or removed since the last call, in order."""
        before, self._known = self._known, self._scan()
        return sorted(path for path in before.keys() | self._known.keys() if before.get(path) != self._known.get(path))

    def _scan(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for path in self._files():
            try:
                status = os.stat(path)
            except OSError:
                continue  # it was removed meanwhile
            found[path] = status.st_mtime_ns, status.st_size
            if len(found) >= _MOST_FILES:
                break
        return found

    def _files(self) -> Iterator[str]:
        for top in self._folders:
            for folder, below, files in os.walk(top):
                below[:] = [name for name in below if name not in _SKIPPED and not name.startswith(".")]
                below[:] = [name for name in below if not Path(folder, name, "pyvenv.cfg").exists()]
                yield from (os.path.join(folder, name) for name in files if name.endswith(".py"))


async def watch_files(folders: Sequence[str], changed: Callable[[list[str]], None]) -> None:
    """Call ``changed`` with the changed files until cancelled.

    An editor may write several files, or one in several steps: changes are reported after a poll that finds no
    further ones.
    """
    watch = await asyncio.to_thread(FileWatch, folders)
    pending: dict[str, None] = {}
    while True:
        await asyncio.sleep(POLL_EVERY_S)
        found = await asyncio.to_thread(watch.changed)
        pending.update(dict.fromkeys(found))
        if pending and not found:
            changed(list(pending))
            pending.clear()
