"""Runs workers in this process until a signal, the supervisor or a limit stops them.

First request: drain. Second, or the shutdown timeout: release running jobs. Third: exit immediately. `Limits`
(attempts, resident memory) decide when the process should recycle. `serve_metrics` serves Prometheus metrics of the
process and of its workers' queues (`--metrics-port`) from a thread.
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
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn

from glidemq_py._client.transport import URL_VARIABLE
from glidemq_py._core.keys import DEFAULT_PREFIX
from glidemq_py._core.logs import get_logger
from glidemq_py._worker.base_worker import BaseWorker
from glidemq_py._worker.command.arguments import WorkerArguments, set_up_logs
from glidemq_py._worker.command.supervisor import Line
from glidemq_py._worker.command.target import load_workers
from glidemq_py._worker.heartbeat import resident_memory
from glidemq_py._worker.listeners import WorkerEvent
from glidemq_py._worker.shutdown import RunningJobsLog, handle_until_exit, running_jobs
from glidemq_py.errors import GlideMQError, GlideMQValidationError

_log = get_logger("glidemq_py.worker")

_POLL_EVERY_S = 0.5
_ENDS: tuple[WorkerEvent, ...] = ("completed", "retrying", "failed")


class Limits:
    """Monitors the workers of a process and calls ``reached`` once.

    Args:
        max_jobs: Number of reported attempts; jobs that are running when it is reached are finished. None: no limit.
        max_memory: Bytes of resident memory, checked twice per second. None: no limit.
        reached: Called with the reason when a limit is reached.
    """

    def __init__(self, *, max_jobs: int | None, max_memory: int | None, reached: Callable[[str], None]) -> None:
        self._max_jobs = max_jobs
        self._max_memory = max_memory
        self._reached = reached
        self._ended = 0
        self._timer: asyncio.TimerHandle | None = None
        self._done = False

    def watch(self, workers: Iterable[BaseWorker]) -> None:
        """Start monitoring.

        Raises:
            GlideMQValidationError: If the process exceeds its memory limit before its first job.
        """
        if self._max_jobs is not None:
            for worker in workers:
                for event in _ENDS:
                    worker.on(event, self._count)
        if self._max_memory is not None:
            size = resident_memory()
            if size is not None and size >= self._max_memory:
                raise GlideMQValidationError(
                    "--max-memory", self._max_memory, f"too low: the process uses {size} bytes before its first job"
                )
            self._poll()

    def _count(self, *_: object) -> None:
        self._ended += 1
        if self._ended == self._max_jobs:
            self._request_recycling(f"{self._ended} jobs have ended")

    def _poll(self) -> None:
        size = resident_memory()
        if self._max_memory is not None and size is not None and size >= self._max_memory:
            self._request_recycling(f"{size >> 20} MiB of memory are in use")
        else:
            self._timer = asyncio.get_running_loop().call_later(_POLL_EVERY_S, self._poll)

    def _request_recycling(self, reason: str) -> None:
        if not self._done:
            self._done = True
            self._reached(reason)

    def close(self) -> None:
        """Stop monitoring."""
        self._done = True
        if self._timer is not None:
            self._timer.cancel()


_OPTION = "--metrics-port"
_USED_BY_BOTH = "glidemq_py._client.shared_clients"
"""Module that workers and collectors of metrics import when they connect."""


def serve_metrics(workers: Sequence[BaseWorker], port: int, job_names: int = 0) -> None:
    """Serve ``/metrics`` on all addresses until the process ends, with at most ``job_names`` names of jobs per queue.

    Raises:
        GlideMQValidationError: If the port cannot be opened, or prometheus-client is not installed.
    """
    try:
        from prometheus_client import REGISTRY, start_http_server

        from glidemq_py.telemetry.prometheus import ProcessMetrics, QueueCollector
    except ImportError as error:
        raise GlideMQValidationError(_OPTION, port, str(error)) from None
    ProcessMetrics(names=job_names)
    by_server: dict[tuple[int, str], list[BaseWorker]] = {}
    for worker in workers:
        by_server.setdefault((_identity(worker._connection), worker._keys.prefix), []).append(worker)
    for (_, prefix), group in by_server.items():
        names = sorted({name for worker in group for name in worker.queue_names})
        connection: Any = group[0]._connection
        REGISTRY.register(QueueCollector(names, connection, prefix=prefix))
    # A scrape may come while the workers start. If both threads imported GLIDE then, each would wait for a module that
    # the other one imports, and the scrape, or even the start, would fail.
    import_module(_USED_BY_BOTH)
    try:
        start_http_server(port)
    except OSError as error:
        raise GlideMQValidationError(_OPTION, port, f"cannot open the port: {error}") from None
    _log.info("serving metrics on port %d", port)


def _identity(connection: object) -> int:
    """Return a key that is equal for connections that are known to use the same server."""
    return hash(connection) if isinstance(connection, str) else id(connection)


_LINE_MOST, _REPORT_MOST = 500, 8_000
_ORPHAN_TIMEOUT_MS = 60_000
"""Shutdown timeout of a child whose supervisor died: its embedded server may have ended too."""


def run_workers(arguments: WorkerArguments) -> int:
    """Load TARGET, run its workers, and return the exit code of the process.

    Raises:
        TargetError: If the target is invalid.
        GlideMQValidationError: If an option is invalid.
    """
    end = None
    if arguments.line is not None:
        end = socket.socket(fileno=arguments.line)
        end.set_inheritable(False)  # processes started by handlers must not keep the connection open
    workers = load_workers(arguments)
    set_up_logs(arguments.log_level, arguments.log_format)
    if arguments.metrics_port is not None:
        serve_metrics(workers, arguments.metrics_port + arguments.slot, arguments.metrics_names)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run(workers, arguments, end))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(workers: Sequence[BaseWorker], arguments: WorkerArguments, end: socket.socket | None) -> int:
    line = None if end is None else await Line.over(end)
    return await _Crew(workers, arguments, line).run()


class _Crew:
    """The workers of this process."""

    def __init__(self, workers: Sequence[BaseWorker], arguments: WorkerArguments, line: Line | None) -> None:
        self._workers = workers
        self._timeout = arguments.shutdown_timeout
        self._line = line
        self._running = RunningJobsLog(workers, _log)
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
            self._line.send("loaded")
        code = await self._work()
        self._limits.close()
        closing = (worker.close() for worker in self._workers)
        for worker, ended in zip(self._workers, await asyncio.gather(*closing, return_exceptions=True), strict=True):
            if isinstance(ended, BaseException):
                _log.error("closing %r failed", worker, exc_info=ended)
                code = code or 1
        self._running.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._line is not None:
            self._line.send("ended")
        if self._hurried or any(worker.active_count for worker in self._workers):
            # A normal exit would wait for handlers whose jobs were released, or whose attempts have ended.
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
        queues = sorted({_place(name, worker._keys.prefix) for worker in self._workers for name in worker.queue_names})
        _log.info("working on %s", ", ".join(queues))
        if self._line is not None:
            self._line.send("started")
        # Ends when the application has closed all workers, or with the error that closed one of them.
        ended = self._keep(asyncio.gather(*(worker.wait_until_closed() for worker in self._workers)))
        await asyncio.wait({stopping, ended}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and ended.exception() is not None:
            return 1  # logged by the worker
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
        return 0

    def _complain(self, error: BaseException) -> None:
        """Report why the workers cannot start; a supervisor logs it instead, once per reason."""
        known = isinstance(error, GlideMQError)
        if self._line is None:
            _log.critical("cannot start: %s", error, exc_info=None if known else error)
            return
        line = str(error) if known else traceback.format_exception_only(error)[-1].strip()
        report = line if known else "".join(traceback.format_exception(error)).strip()
        self._line.send("broken", json.dumps([line[:_LINE_MOST], report[-_REPORT_MOST:]]))

    async def _start(self) -> None:
        if (
            self._line is not None
            and not os.environ.get(URL_VARIABLE)
            and any(worker._connection is None for worker in self._workers)
        ):
            # The child processes share one private server, which the supervisor starts.
            self._line.send("server?")
            await self._server_known
        self._limits.watch(self._workers)
        await asyncio.gather(*(worker.start() for worker in self._workers))

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
            _log.info("%s: closing; %s", why, self._running)
            self._running.start()
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
            _log.warning("%s: closing now; releasing %s", why, running_jobs(running))
            for worker in self._workers:
                self._keep(asyncio.ensure_future(worker.close(force=True)))

    def _enough(self, reason: str) -> None:
        if self._line is not None:
            self._line.send("recycle", reason)
        self.drain(reason)

    async def _listen(self, line: Line) -> None:
        while True:
            word, rest = await line.receive()
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


def _place(name: str, prefix: str) -> str:
    """Return the name of a queue for the log, with its prefix if that is not the default."""
    return repr(name) if prefix == DEFAULT_PREFIX else f"{name!r} (prefix {prefix!r})"
