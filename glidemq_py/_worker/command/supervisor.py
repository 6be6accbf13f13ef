"""Keeping worker processes alive: starts them, starts another when one crashes or is to be replaced, ends them.

Children are started afresh, not forked: a GLIDE client does not survive a fork. No code of the user's runs here.
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
from collections.abc import Sequence
from typing import Final

from glidemq_py._client.connect import URL_VARIABLE
from glidemq_py._client.embedded import shared_embedded
from glidemq_py._core.logs import get_logger
from glidemq_py._worker.command.arguments import WorkerArguments
from glidemq_py._worker.command.line import Line
from glidemq_py._worker.command.logs import set_up_logs
from glidemq_py._worker.process_signals import handle_until_exit
from glidemq_py.errors import EmbeddedServerError

__all__ = ["supervise"]

_log = get_logger("glidemq_py.worker.supervisor")

MAX_START_CRASHES: Final = 5
"""So many crashes in a row before any child has started: it will not get better by itself."""

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 30.0
_SETTLED_S = 10.0
"""A child that lived so long was well: the pauses begin small again."""
_KILL_AFTER_S = 15.0
"""A child that was told to end now takes no longer than this."""
_UNUSABLE: Final = 2


def supervise(arguments: WorkerArguments, argv: Sequence[str]) -> int:
    """Run the processes that the command line ``argv`` asks for until told to stop; the exit code."""
    set_up_logs(arguments.log_level, arguments.log_format)
    return asyncio.run(_Supervisor(arguments, argv).run())


class _Child:
    """One child process and what it has said."""

    def __init__(self, process: asyncio.subprocess.Process, line: Line, born: float) -> None:
        self.process = process
        self.line = line
        self.born = born
        self.loaded = False
        self.started = False
        self.recycling = ""
        self.broken = ""


class _Supervisor:
    def __init__(self, arguments: WorkerArguments, argv: Sequence[str]) -> None:
        self._processes = arguments.processes or 1
        self._timeout = arguments.shutdown_timeout
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
        """Until every child has ended and none is to be started."""
        handle_until_exit(self._signalled)
        await asyncio.gather(*(self._keep(slot) for slot in range(self._processes)))
        return self._code

    async def _keep(self, slot: int) -> None:
        """One child after the other."""
        if slot > 0:
            # A target that cannot be used is complained about once.
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
            quick = 0 if lived > _SETTLED_S else quick + 1
            pause = self._judge(child, code, quick)
            if pause:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), pause)

    def _judge(self, child: _Child, code: int, quick: int) -> float:
        """What a child's end means: seconds to wait before the next one, or the end of it all."""
        pid = child.process.pid
        if child.recycling and code == 0:
            _log.info("child %d has ended to be replaced: %s", pid, child.recycling)
            return 0.0
        if not child.started:
            self._start_crashes += 1
            if code == _UNUSABLE and not self._ever_started:
                self._give_up("the target or an option cannot be used, see above", _UNUSABLE)
                return 0.0
            if self._start_crashes >= MAX_START_CRASHES:
                why = f": {child.broken}" if child.broken else ""
                self._give_up(f"children crashed at start {self._start_crashes} times in a row{why}", 1)
                return 0.0
        pause = min(_FIRST_PAUSE_S * 2.0 ** min(quick, 16), _LAST_PAUSE_S) * random.uniform(0.75, 1.25)
        _log.error("child %d %s; starting another in %.1f s", pid, _how(code), pause)
        return pause

    def _complain(self, child: _Child, why: str, report: str) -> None:
        """A child cannot start. All that is known is told once for each reason."""
        child.broken = why
        if why == self._broken:
            _log.error("child %d cannot start, as before: %s", child.process.pid, why)
        else:
            # The report may be a traceback: its lines stay apart from the message, which is one line.
            more = {} if report == why else {"report": report}
            _log.critical("child %d cannot start: %s", child.process.pid, why, extra=more)
        self._broken = why

    def _give_up(self, why: str, code: int) -> None:
        _log.critical("giving up: %s", why)
        self._code = code
        self._ask(1)

    # -- children -----------------------------------------------------------------------------------------

    async def _spawn(self, slot: int) -> _Child:
        ours, theirs = socket.socketpair()
        environment = dict(os.environ)
        if self._server_url is not None:
            environment[URL_VARIABLE] = self._server_url
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "glidemq_py.worker", "--line", str(theirs.fileno()),
                "--slot", str(slot), *self._argv,
                # Ctrl-C in the terminal is for us, and we pass it on: children must not get it twice.
                start_new_session=True, pass_fds=(theirs.fileno(),), env=environment,
            )  # fmt: skip
        child = _Child(process, await Line.over(ours), asyncio.get_running_loop().time())
        self._children.add(child)
        if self._requests:
            self._tell(child, self._requests)
        return child

    async def _follow(self, child: _Child) -> int:
        """Listen to a child until it has ended; its exit code."""
        while (heard := await child.line.hear())[0]:
            word, rest = heard
            if word == "loaded":
                child.loaded = True
                self._first_loaded.set()
            elif word == "started":
                child.started = self._ever_started = True
                self._start_crashes = 0
                self._broken = ""
                _log.info("child %d has started", child.process.pid)
            elif word == "server?":
                await self._serve(child)
            elif word == "broken":
                self._complain(child, *json.loads(rest))
            elif word == "recycle":
                child.recycling = rest
        code = await child.process.wait()
        child.line.hang_up()
        self._children.discard(child)
        return code

    async def _serve(self, child: _Child) -> None:
        """The one private server of all children; it lives as long as this process."""
        async with self._serving:
            if self._server_url is None:
                try:
                    # Starting it has logged a WARNING already.
                    self._server_url = f"{(await asyncio.to_thread(shared_embedded)).url}?allow_no_aof=true"
                except EmbeddedServerError as error:
                    self._give_up(str(error), 1)
                    return
        child.line.say("server", self._server_url)

    # -- ending -------------------------------------------------------------------------------------------

    def _signalled(self, number: signal.Signals) -> None:
        level = min(self._requests + 1, 3)
        what = ("", "children drain", "children hand back their jobs", "children are killed")[level]
        _log.info("%s: %s", signal.Signals(number).name, what)
        self._ask(level)

    def _ask(self, level: int) -> None:
        """1: drain, 2: hurry, 3: kill."""
        if level <= self._requests:
            return
        self._requests = level
        self._stopping.set()
        self._first_loaded.set()
        for child in self._children:
            self._tell(child, level)
        loop = asyncio.get_running_loop()
        if level == 1 and self._timeout is not None:
            loop.call_later(self._timeout / 1000 + _KILL_AFTER_S, self._ask, 3)
        elif level == 2:
            loop.call_later(_KILL_AFTER_S, self._ask, 3)

    def _tell(self, child: _Child, level: int) -> None:
        if child.process.returncode is not None:
            return
        if level == 3:
            _log.error("killing child %d", child.process.pid)
            self._code = self._code or 1
            child.process.kill()
        elif not child.loaded:
            child.process.terminate()  # it has no job, and cannot hear us yet
        else:
            child.line.say("drain" if level == 1 else "hurry")


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
