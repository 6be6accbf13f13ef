"""A sandboxed handler: an async function of a job, and the pool of processes that runs it."""

from __future__ import annotations

import asyncio
import pickle
from collections import deque
from typing import Any, Final

from glidemq_py._core.checks import parse_nested
from glidemq_py._core.logs import get_logger
from glidemq_py._core.queue_options import QueueOptions
from glidemq_py._job.job import Job
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.handlers import check_handler
from glidemq_py._worker.options import SandboxDict, SandboxOptions, WorkerOptions
from glidemq_py._worker.sandbox.framing import pack_message, parse_target
from glidemq_py._worker.sandbox.process import ForkServer, SandboxProcess, spawn, to_its_end
from glidemq_py.errors import GlideMQError, GlideMQValidationError, HandlerError

_log = get_logger(__name__)

_CLOSE_S: Final = 5.0


class Sandbox:
    """Runs the jobs of one worker in processes. Call it with a job.

    Args:
        target: Name of the handler.
        options: Options of the processes.
        queue_options: Options of the worker: serializer and compression.
        job_type: Class of the jobs.

    Raises:
        GlideMQValidationError: If the file or module does not exist, or the serializer cannot be sent to a process.
    """

    def __init__(
        self, target: str, options: SandboxOptions, queue_options: QueueOptions, job_type: type[Any] = Job
    ) -> None:
        self._text = target
        self._target = parse_target(target)
        self._options = options
        self._job_type = job_type
        self._serializer = _sendable(queue_options.serializer)
        self._compression = queue_options.compression
        self._link: QueueLink | None = None
        self._starter: ForkServer | None = None
        self._start = b""
        self._most = 0
        self._count = 0
        self._idle: list[SandboxProcess] = []
        self._busy: set[SandboxProcess] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = True

    @property
    def is_open(self) -> bool:
        """Whether it runs jobs."""
        return not self._closed

    async def open(self, link: QueueLink, concurrency: int) -> None:
        """Start a first process, to check that the handler can be loaded.

        Args:
            link: A queue of the worker.
            concurrency: Maximum number of jobs at the same time.

        Raises:
            GlideMQValidationError: If the handler cannot be loaded.
            SandboxCrashError: If the process died while loading it.
            HandlerError: If loading it took longer than ``start_timeout``.
        """
        options, target = self._options, self._target
        self._link = link
        self._start = pack_message(
            "start", place=target.place, is_file=target.is_file, function=target.function,
            prefix=link.keys.prefix, serializer=self._serializer, compression=self._compression,
            memory_limit=options.memory_limit, job_type=[self._job_type.__module__, self._job_type.__name__],
        )  # fmt: skip
        if options.start_method == "forkserver":
            self._starter = ForkServer(self._start, options.start_timeout / 1000)
        self._most = options.max_workers or concurrency
        self._closed = False
        self._idle.append(await self._started())

    async def __call__(self, job: Job) -> Any:
        """Run a job in a free process. If cancelled, return once the handler has stopped or the process is killed."""
        process = await self._take()
        try:
            return await process.run(job)
        except asyncio.CancelledError:
            # A second cancellation has the same meaning as the first.
            cancelling = asyncio.ensure_future(process.cancel(self._options.kill_after / 1000))
            while not cancelling.done():
                try:
                    await asyncio.shield(cancelling)
                except asyncio.CancelledError:
                    process.kill()
            raise
        finally:
            self._give_back(process)

    # -- the processes ----------------------------------------------------------------------------------------

    async def _take(self) -> SandboxProcess:
        while True:
            while self._idle:
                process = self._idle.pop()
                if not process.gone.done():
                    self._busy.add(process)
                    return process
                self._count -= 1
            if self._closed:
                raise GlideMQError("the sandbox is closed")
            if self._count < self._most:
                try:
                    process = await self._started()
                except BaseException:
                    self._call_next()
                    raise
                self._busy.add(process)
                return process
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._call_next()  # pass the turn on
                raise

    async def _started(self) -> SandboxProcess:
        forks = self._starter
        assert self._link is not None
        self._count += 1
        try:
            child, sock = await (forks.start() if forks else to_its_end(asyncio.to_thread(spawn, "main")))
            process = SandboxProcess(child, self._link)
            try:
                async with asyncio.timeout(self._options.start_timeout / 1000):
                    await process.open(sock, b"" if forks else self._start)
            except BaseException:
                self._end(process)  # `close` waits for it, so that no process is left behind
                raise
        except BaseException as error:
            self._count -= 1
            if isinstance(error, TimeoutError):
                within = f"start_timeout ({self._options.start_timeout} ms)"
                raise HandlerError(f"a sandbox process did not import handler {self._text!r} within {within}") from None
            if isinstance(error, OSError):
                raise GlideMQError(f"a sandbox process cannot be started: {error}") from error
            if isinstance(error, GlideMQValidationError):
                raise GlideMQValidationError("handler", self._text, error.problem) from None
            raise
        return process

    def _give_back(self, process: SandboxProcess) -> None:
        self._busy.discard(process)
        after = self._options.recycle_after
        if process.gone.done():
            self._count -= 1
        elif self._closed or process.should_recycle or (after is not None and process.jobs >= after):
            self._count -= 1
            self._end(process)
        else:
            self._idle.append(process)
        self._call_next()

    def _call_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _end(self, process: SandboxProcess) -> None:
        task = asyncio.create_task(process.close(_CLOSE_S))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End all processes; those that do not end by themselves within 5 seconds are killed."""
        self._closed = True
        for process in self._busy:
            process.kill()  # its job is already released
        await asyncio.gather(*(asyncio.shield(process.gone) for process in self._busy))
        for process in self._idle:
            self._end(process)
        self._idle.clear()
        while self._waiting:
            self._waiting.popleft().cancel()
        while self._ending:
            await asyncio.wait(set(self._ending))
        if self._starter is not None:
            await self._starter.close()


def _sendable(serializer: Any) -> str | bytes | None:
    if serializer is None or isinstance(serializer, str):
        return serializer
    try:
        return pickle.dumps(serializer)
    except Exception as error:
        raise GlideMQValidationError("serializer", serializer, f"cannot be sent to a sandbox: {error}") from None


def sandboxed(
    handler: object,
    given: SandboxOptions | SandboxDict | None,
    options: WorkerOptions,
    queue_options: QueueOptions,
    job_type: type[Any] = Job,
) -> Sandbox | None:
    """Return the sandbox of a worker whose ``handler`` is a string; None for a function.

    Raises:
        GlideMQValidationError: If an option or the handler is invalid, or ``sandbox`` is given with a function.
        GlideMQValidationError: If the worker has the option ``batch`` too.
    """
    if not isinstance(handler, str):
        if given is None:
            if handler is not None:
                check_handler(handler, "job" if options.batch is None else "jobs")
            return None
        hint = "a sandbox imports its handler by itself: name it as a text"
        module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", "")
        if handler is not None and module not in (None, "__main__") and "<" not in name:
            hint += f', "{module}:{name}"'
        raise GlideMQValidationError("handler", handler, hint)
    if options.batch is not None:
        raise GlideMQValidationError("batch", options.batch, "a sandboxed handler runs one job at a time")
    parsed = SandboxOptions() if given is None else parse_nested("sandbox", given, SandboxOptions)
    return Sandbox(handler, parsed, queue_options, job_type)
