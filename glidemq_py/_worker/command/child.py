"""Runs workers in this process until a signal, the supervisor or a limit stops them.

First request: drain. Second, or the shutdown timeout: release running jobs. Third: exit immediately.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from glidemq_py._client.connect import URL_VARIABLE
from glidemq_py._core.logs import get_logger
from glidemq_py._worker.command.arguments import WorkerArguments
from glidemq_py._worker.command.limits import Limits
from glidemq_py._worker.command.line import Line
from glidemq_py._worker.command.logs import set_up_logs
from glidemq_py._worker.command.metrics import serve_metrics
from glidemq_py._worker.command.target import load_workers
from glidemq_py._worker.process_signals import handle_until_exit
from glidemq_py._worker.worker import Worker
from glidemq_py.errors import GlideMQError, GlideMQValidationError

__all__ = ["run_workers"]

_log = get_logger("glidemq_py.worker")

_LINE_MOST, _REPORT_MOST = 500, 8_000
_ORPHAN_TIMEOUT_MS = 60_000
"""Shutdown timeout of a child whose supervisor died: its embedded server may have ended too."""


def run_workers(arguments: WorkerArguments) -> int:
    """Load TARGET, run its workers, and return the exit code of the process.

    Raises:
        WorkerTargetError: If the target is invalid.
        GlideMQValidationError: If an option is invalid.
    """
    end = None
    if arguments.line is not None:
        end = socket.socket(fileno=arguments.line)
        end.set_inheritable(False)  # processes started by handlers must not keep the connection open
    workers = load_workers(arguments)
    set_up_logs(arguments.log_level, arguments.log_format)
    if arguments.metrics_port is not None:
        serve_metrics(workers, arguments.metrics_port + arguments.slot)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run(workers, arguments, end))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(workers: Sequence[Worker], arguments: WorkerArguments, end: socket.socket | None) -> int:
    line = None if end is None else await Line.over(end)
    return await _Crew(workers, arguments, line).run()


class _Crew:
    """The workers of this process."""

    def __init__(self, workers: Sequence[Worker], arguments: WorkerArguments, line: Line | None) -> None:
        self._workers = workers
        self._timeout = arguments.shutdown_timeout
        self._line = line
        self._limits = Limits(max_jobs=arguments.max_jobs, max_memory=arguments.max_memory, reached=self._enough)
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._hurried = False
        self._signals = 0
        self._timer: asyncio.TimerHandle | None = None
        self._server_known: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Future[Any]] = set()

    async def run(self) -> int:
        """Run the workers until they stop, and return the exit code."""
        handle_until_exit(self._signalled)
        if self._line is not None:
            self._keep(asyncio.ensure_future(self._listen(self._line)))
            self._line.say("loaded")
        code = await self._work()
        self._limits.close()
        for worker, ended in zip(self._workers, await self._close(), strict=True):
            if isinstance(ended, BaseException):
                _log.error("closing %r failed", worker, exc_info=ended)
                code = code or 1
        if self._timer is not None:
            self._timer.cancel()
        if self._line is not None:
            self._line.say("ended")
        if self._hurried:
            # A normal exit would wait for the threads of handlers whose jobs were released.
            _leave(code)
        return code

    async def _work(self) -> int:
        stopping = self._keep(asyncio.ensure_future(self._stopping.wait()))
        starting = self._keep(asyncio.ensure_future(self._start()))
        await asyncio.wait({stopping, starting}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return 0
        error = starting.exception()
        if error is not None:
            self._complain(error)
            return 2 if isinstance(error, GlideMQValidationError) else 1
        queues = ", ".join(sorted({repr(worker.queue_name) for worker in self._workers}))
        _log.info("working on %s", queues)
        if self._line is not None:
            self._line.say("started")
        ended = self._keep(asyncio.ensure_future(self._ended()))
        await asyncio.wait({stopping, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and ended.exception() is not None:
            return 1  # logged by the worker
        ended.cancel()
        return 0

    def _complain(self, error: BaseException) -> None:
        """Report why the workers cannot start; a supervisor logs it instead, once per reason."""
        known = isinstance(error, GlideMQError)
        if self._line is None:
            _log.critical("cannot start: %s", error, exc_info=None if known else error)
            return
        line = str(error) if known else traceback.format_exception_only(error)[-1].strip()
        report = line if known else "".join(traceback.format_exception(error)).strip()
        self._line.say("broken", json.dumps([line[:_LINE_MOST], report[-_REPORT_MOST:]]))

    async def _ended(self) -> None:
        """Wait until the application has closed all workers. Raises the error that closed one of them."""
        await asyncio.gather(*(worker.wait_until_closed() for worker in self._workers))

    async def _start(self) -> None:
        if (
            self._line is not None
            and not os.environ.get(URL_VARIABLE)
            and any(worker._connection is None for worker in self._workers)
        ):
            # The child processes share one private server, which the supervisor starts.
            self._line.say("server?")
            await self._server_known
        self._limits.watch(self._workers)
        await asyncio.gather(*(worker.start() for worker in self._workers))

    async def _close(self) -> list[BaseException | None]:
        return await asyncio.gather(*(worker.close() for worker in self._workers), return_exceptions=True)

    # -- requests -----------------------------------------------------------------------------------------

    def _signalled(self, number: signal.Signals) -> None:
        self._signals += 1
        name = signal.Signals(number).name
        if self._signals == 1:
            self.drain(name)
        elif self._signals == 2:
            self.hurry(name)
        else:
            _log.critical("%s again: exiting immediately; running jobs will be recovered by other workers", name)
            _leave(1)

    def drain(self, why: str) -> None:
        """Stop fetching, finish the running jobs, exit. Repeated calls have no effect."""
        if not self._stopping.is_set():
            running = sum(worker.active_count for worker in self._workers)
            _log.info("%s: closing; %d jobs are running", why, running)
            for worker in self._workers:
                worker.pause()  # immediately; close() starts a few loop iterations later
            self._stopping.set()
            if self._timeout is not None:
                self._timer = self._loop.call_later(self._timeout / 1000, self.hurry, "shutdown timeout")

    def hurry(self, why: str) -> None:
        """Release the running jobs and exit."""
        self.drain(why)
        if not self._hurried:
            self._hurried = True
            running = sum(worker.active_count for worker in self._workers)
            _log.warning("%s: closing now; releasing %d running jobs", why, running)
            for worker in self._workers:
                self._keep(asyncio.ensure_future(worker.close(force=True)))

    def _enough(self, reason: str) -> None:
        if self._line is not None:
            self._line.say("recycle", reason)
        self.drain(reason)

    async def _listen(self, line: Line) -> None:
        while True:
            word, rest = await line.hear()
            if word == "drain":
                self.drain("requested by the supervisor")
            elif word == "hurry":
                self.hurry("requested by the supervisor")
            elif word == "server":
                os.environ[URL_VARIABLE] = rest
                if not self._server_known.done():
                    self._server_known.set_result(None)
            elif not word:
                self._timeout = _ORPHAN_TIMEOUT_MS if self._timeout is None else self._timeout
                self.drain("the supervisor has ended")
                return

    def _keep(self, task: asyncio.Future[Any]) -> asyncio.Future[Any]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _leave(code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
