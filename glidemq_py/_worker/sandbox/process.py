"""The worker's side of one sandbox process: starts it, sends it jobs, makes the calls of its handler, stops it.

`multiprocessing` and its fork server are not used, because they would import the parent's main module in each process
and wait for ever for a fork server that is stopped. Every process leads a process group, so that programs started by
its handler are killed with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from glidemq_py._core.calls import Call
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.payload import decode_result
from glidemq_py._features.usage import JobUsage
from glidemq_py._job.job import Job
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.sandbox.framing import (
    PID,
    Message,
    pack_error,
    pack_message,
    packable,
    read_message,
    unpack_error,
)
from glidemq_py.errors import GlideMQError, GlideMQValidationError, SandboxCrashError

_BOOT: Final = (
    "import sys; sys.path[:] = sys.argv[3:]; from glidemq_py._worker.sandbox.child import {0}; {0}(int(sys.argv[1]))"
)
_EXIT_S: Final = 15.0
"""Longest wait for the exit code of a child of the fork server: longer than `Sandbox` lets a process run on."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Child:
    """A process.

    Attributes:
        pid: Process id, which is also the id of its process group.
        ended: Waits for its end and returns the exit code; negative: the signal that killed it; None: unknown.
    """

    pid: int
    ended: Callable[[], Coroutine[Any, Any, int | None]]


def kill(child: Child) -> None:
    """Kill a process that was not waited for yet, and the processes it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(child.pid, signal.SIGKILL)


def spawn(program: str) -> tuple[Child, socket.socket]:
    """Start a new interpreter that runs a function of `child`."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT.format(program), str(theirs.fileno()), "glidemq-sandbox", *sys.path],
                pass_fds=(theirs.fileno(),), start_new_session=True, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
    return Child(process.pid, partial(asyncio.to_thread, process.wait)), ours


async def to_its_end(start: Coroutine[Any, Any, tuple[Child, socket.socket]]) -> tuple[Child, socket.socket]:
    """Start a process; if the caller is cancelled meanwhile, end the process once it has started."""
    starting = asyncio.ensure_future(start)
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.add_done_callback(_end_unused)
        raise


def _end_unused(starting: asyncio.Future[tuple[Child, socket.socket]]) -> None:
    if starting.cancelled() or starting.exception() is not None:
        return
    child, sock = starting.result()
    sock.close()
    kill(child)
    ending = asyncio.ensure_future(child.ended())
    _ending.add(ending)
    ending.add_done_callback(_ending.discard)


_ending: Final[set[asyncio.Future[int | None]]] = set()


class ForkServer:
    """Forks processes from one interpreter that has imported the handler.

    Args:
        start: Bytes of the message `start`, which names the handler.
        timeout_s: Maximum time for importing the handler, in seconds.
    """

    def __init__(self, start: bytes, timeout_s: float) -> None:
        self._start = start
        self._timeout_s = timeout_s
        self._server: Child | None = None
        self._line: socket.socket | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> tuple[Child, socket.socket]:
        """Start a process; return it and the worker's end of its socket. Raises OSError.

        A fork server that has died is restarted. Raises TimeoutError if the import takes too long.
        """
        return await to_its_end(self._start_one())

    async def _start_one(self) -> tuple[Child, socket.socket]:
        async with self._lock:
            try:
                return await self._request(self._fork)
            except TimeoutError:
                raise
            except OSError:
                return await self._request(self._fork)

    async def _request(self, function: Callable[..., T], *args: Any) -> T:
        """Run a request to the fork server in a thread; stop the server if it fails, since a reply may follow."""
        try:
            return await asyncio.to_thread(function, *args)
        except OSError:
            await self._stop()
            raise

    def _fork(self) -> tuple[Child, socket.socket]:
        if self._line is None:
            self._server, self._line = spawn("fork_server")
            self._line.sendall(self._start)
        self._line.settimeout(self._timeout_s)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._line, [PID.pack(0)], [theirs.fileno()])
            pid = self._number()
            return Child(pid, partial(self._wait_for, pid)), ours
        except BaseException:
            ours.close()
            raise

    def _number(self) -> int:
        assert self._line is not None
        reply = self._line.recv(PID.size, socket.MSG_WAITALL)
        if len(reply) < PID.size:
            raise ConnectionError("the fork server is gone")
        return int(PID.unpack(reply)[0])

    async def _wait_for(self, pid: int) -> int | None:
        """Return the exit code of a child that exits or was killed; None if the fork server cannot return it."""
        async with self._lock:
            with contextlib.suppress(OSError):
                return await self._request(self._wait, pid)
            return None

    def _wait(self, pid: int) -> int | None:
        if self._line is None:
            return None
        self._line.settimeout(_EXIT_S)
        self._line.sendall(PID.pack(pid))
        return self._number()

    async def close(self) -> None:
        """End the fork server."""
        async with self._lock:
            await self._stop()

    async def _stop(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._server is not None:
            server, self._server = self._server, None
            kill(server)
            await server.ended()


_LAST_MESSAGES_S: Final = 1.0
"""Time for reading the last messages of a process that has ended."""


class SandboxProcess:
    """One process.

    Args:
        child: The process.
        link: A queue of the worker, for the calls of the handler.
    """

    def __init__(self, child: Child, link: QueueLink) -> None:
        self._child = child
        self._link = link
        self._replying: set[asyncio.Task[None]] = set()
        self._job: Job
        self._outcome: asyncio.Future[Message] | None = None
        self._closing = False
        self._writer: asyncio.StreamWriter | None = None
        self._loop = asyncio.get_running_loop()
        self._exit_descriptor = -1
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self.jobs = 0
        """Number of jobs it has run."""
        self.should_recycle = False
        """True after a MemoryError: the process is replaced."""
        self.gone: asyncio.Future[int | None] = self._loop.create_future()
        """Exit code; done when the process has ended."""

    async def open(self, sock: socket.socket, start: bytes) -> None:
        """Make the process load the handler.

        Raises:
            GlideMQValidationError: If the handler cannot be loaded.
            SandboxCrashError: If the process died while loading it.
        """
        sock.setblocking(False)
        self._listening = asyncio.create_task(self._listen(sock, start), name="glidemq-sandbox")
        try:
            await self._ready
        except BaseException:
            self.kill()
            raise

    def _write(self, message: bytes) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            if self._writer is not None:
                self._writer.write(message)

    async def _listen(self, sock: socket.socket, start: bytes) -> None:
        try:
            reader, self._writer = await asyncio.open_unix_connection(sock=sock)
            self._watch_exit()
            if start:
                self._write(start)
            while (message := await read_message(reader)) is not None:
                self._on_message(message)
        finally:
            self._stop_watching()
            if self._writer is not None:
                self._writer.close()
            else:
                sock.close()
            if not self._closing:
                kill(self._child)  # it closed the connection unexpectedly
            code = await self._child.ended()
            self.gone.set_result(code)
            crash = SandboxCrashError(code)
            for waiting in (self._ready, self._outcome):
                if waiting is not None and not waiting.done():
                    waiting.set_exception(crash)
                    waiting.exception()  # marks it as retrieved: the waiting task may have ended
            for task in self._replying:
                task.cancel()

    # A process that the handler has started may hold a copy of the socket, so the process's exit, or its being killed,
    # need not close the connection.

    def _watch_exit(self) -> None:
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self._exit_descriptor = os.pidfd_open(self._child.pid)
                self._loop.add_reader(self._exit_descriptor, self._exited)

    def _stop_watching(self) -> None:
        descriptor, self._exit_descriptor = self._exit_descriptor, -1
        if descriptor >= 0:
            self._loop.remove_reader(descriptor)
            os.close(descriptor)

    def _exited(self) -> None:
        self._stop_watching()
        self._loop.call_later(_LAST_MESSAGES_S, self._disconnect)

    def _disconnect(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()

    def _on_message(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "request":
            task = asyncio.create_task(self._reply(message))
            self._replying.add(task)
            task.add_done_callback(self._replying.discard)
        elif kind == "ended":
            if self._outcome is not None and not self._outcome.done():
                self._outcome.set_result(message)
        elif not self._ready.done():
            if kind == "ready":
                self._ready.set_result(None)
            else:
                self._ready.set_exception(GlideMQValidationError("handler", "", message["text"]))

    # -- jobs -----------------------------------------------------------------------------------------------

    async def run(self, job: Job) -> Any:
        """Run a job and return its result. Errors of the handler are raised.

        Raises:
            SandboxCrashError: If the process died.
        """
        attempt = job._attempt
        assert attempt is not None
        self.jobs += 1
        self._job = job
        outcome = self._outcome = self._loop.create_future()
        if self.gone.done():
            raise SandboxCrashError(self.gone.result())
        token = (attempt.entry, *attempt.token)
        link = job._link
        partition = None if link.partition is None else list(link.partition)
        state = packable(job._to_state()) | {"_steps_texts": job._steps_texts}
        self._write(pack_message("job", queue=link.keys.name, partition=partition, job=state, attempt=token))
        message = await asyncio.shield(outcome)
        self.should_recycle = self.should_recycle or message["should_recycle"]
        for name, value in message["attempt"].items():
            setattr(attempt, name, value)
        usage = None if message["usage"] is None else JobUsage(**message["usage"])
        data_text, progress_text = message["job"]
        job._changed_elsewhere(data_text, progress_text, usage)
        if message["error"] is not None:
            raise unpack_error(message["error"])
        return decode_result(message["result"], self._link.serializer)

    async def cancel(self, grace_s: float) -> None:
        """Cancel the handler; kill the process if the handler has not stopped after ``grace_s`` seconds."""
        self._write(pack_message("cancel"))
        if self._outcome is not None and grace_s > 0:
            ends: set[asyncio.Future[Any]] = {self._outcome, self.gone}
            await asyncio.wait(ends, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        if self._outcome is None or not self._outcome.done():
            self.kill()
            await asyncio.wait({self.gone})

    async def _reply(self, message: Message) -> None:
        value, failure = None, None
        try:
            value = await self._do(message["what"], message["arguments"])
        except GlideMQError as error:
            failure = pack_error(error)
        except Exception as error:  # after a bug of ours the handler still needs a reply
            failure = pack_error(GlideMQError(repr(error)))
        try:
            reply = pack_message("reply", number=message["number"], value=value, error=failure)
        except TypeError as error:
            text = pack_error(GlideMQError(str(error)))
            reply = pack_message("reply", number=message["number"], value=None, error=text)
        self._write(reply)

    async def _do(self, what: str, arguments: list[Any]) -> Any:
        if what == "call":
            function, key, args, repeatable = arguments
            call = Call(function, key, tuple(args), _as_it_is, repeatable)
            if repeatable and function in _NUMBERED and args[1]:  # the worker, too, may append in this attempt
                return await self._job._append(lambda number: Call(function, key, (args[0], number), _as_it_is, True))
            return await self._link.transport.call(call)
        if what == "command":
            return await self._link.command(*arguments)
        if what == "reads":
            replies = await self._link.transport.send_reads(*arguments)
            for reply in replies:
                if isinstance(reply, GlideMQError):
                    raise reply
            return replies
        prefix, name, job_id, timeout_ms = arguments
        keys = self._link.keys
        if (prefix, name) == (keys.prefix, keys.name):
            outcome = await self._link.waiter.wait(job_id, timeout_ms)
        else:
            waiter = self._link.waiter.beside(QueueKeys(prefix, name))
            try:
                outcome = await waiter.wait(job_id, timeout_ms)
            finally:
                await waiter.close()
        return [outcome.state, outcome.returnvalue, outcome.failed_reason, outcome.failed_type]

    # -- the end ----------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the process."""
        if not self.gone.done():
            kill(self._child)
            self._loop.call_later(_LAST_MESSAGES_S, self._disconnect)

    async def close(self, grace_s: float) -> None:
        """Close the connection, so that the process exits; kill it after ``grace_s`` seconds."""
        self._closing = True
        with contextlib.suppress(OSError, RuntimeError):
            if self._writer is not None:
                self._writer.write_eof()
        await asyncio.wait({self.gone}, timeout=grace_s)
        self.kill()
        await asyncio.wait({self.gone})


_NUMBERED: Final = ("stream_chunk", "update_job")


def _as_it_is(reply: Any) -> Any:
    return reply
