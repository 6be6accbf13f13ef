"""The child process of a sandbox: loads the handler, then runs jobs until the worker closes the connection.

A plain handler runs in the main thread, as in a normal program (some libraries and signal handlers require it), and an
event loop in another thread exchanges the messages. An ``async def`` handler runs on that loop, in the main thread.
Every server call of a job is forwarded to the worker, which makes it (`SandboxTransport`).

`fork_server` is the program of the fork server: it imports the handler once, then forks a process per request. A
request with a socket forks a process that uses the socket; the reply is its pid. A request with a pid waits for that
process; the reply is its exit code. The fork server runs no jobs and has one thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import os
import pickle
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar

from glidemq_py._core.calls import Call
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.payload import decode_data, encode_data, encode_result, serializer_of
from glidemq_py._job.attempt import Attempt, unstored_error
from glidemq_py._job.current import label_log_records, running_job
from glidemq_py._job.job import Job
from glidemq_py._partitions.layout import Partition
from glidemq_py._partitions.link import Outcome, QueueLink
from glidemq_py._worker.handlers import is_async
from glidemq_py._worker.sandbox.framing import (
    PID,
    Message,
    Target,
    load_target,
    pack_error,
    pack_message,
    read_message,
    receive_message,
    unpack_error,
)
from glidemq_py.errors import (
    DelayedError,
    EventLoopError,
    GlideMQError,
    GlideMQValidationError,
    SuspendError,
    WaitingChildrenError,
)

T = TypeVar("T")

Request = Callable[..., Awaitable[Any]]
"""(operation, arguments...) -> the worker's reply; raises the worker's error."""


class SandboxTransport:
    """A `JobTransport` that forwards calls to the worker, which owns the connection."""

    def __init__(self, request: Request) -> None:
        self._request = request

    async def call(self, call: Call[T]) -> T:
        """See `Transport.call`."""
        return call.read(await self._request("call", call.function, call.key, list(call.args), call.repeatable))

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`."""
        return await self._request("command", *args)

    async def send_reads(self, key: str | None, commands: Sequence[Sequence[str | bytes]]) -> list[Any]:
        """See `Transport.send_reads`; the error of a command is raised."""
        return list(await self._request("reads", key, [list(each) for each in commands]))


class SandboxWaiter:
    """A `Waiter` that forwards waits to the worker."""

    def __init__(self, request: Request, prefix: str, name: str) -> None:
        self._request = request
        self._queue = (prefix, name)

    async def start(self) -> None:
        """Do nothing: the worker starts its own waiter."""

    async def wait(self, job_id: str, timeout_ms: int) -> Outcome:
        """See `Waiter.wait`."""
        return Outcome(*await self._request("wait", *self._queue, job_id, timeout_ms))

    def beside(self, keys: QueueKeys) -> SandboxWaiter:
        """See `Waiter.beside`."""
        return SandboxWaiter(self._request, keys.prefix, keys.name)

    async def close(self) -> None:
        """Do nothing: there are no resources."""


ATTEMPT_FIELDS: Final = ("tokens", "discarded")
"""Fields of the attempt that the handler may change; sent to the worker at its end."""

_NO_CONTINUATIONS: Final = "a function cannot leave the sandbox's process: the handler runs again, with `job.signals`"

_LINKS: Final = 100
"""Maximum number of queues whose connection objects are kept."""

Work = queue.SimpleQueue[Job | None]
Handler = Callable[[Any], Any]


def main(descriptor: int) -> None:
    """Run the child process; ``descriptor`` is its socket to the worker."""
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    calm_signals()
    start = receive_message(sock)
    if start is None:
        return
    handler = load(sock, start)
    if handler is not None:
        serve(sock, handler, start)


def calm_signals() -> None:
    """Ignore SIGINT and SIGTERM, which terminals and service managers send to every process: the worker decides.

    A function is installed instead of SIG_IGN, which programs started by the handler would inherit.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _ignore)


def _ignore(number: int, frame: object) -> None:
    return


def load(sock: socket.socket, start: Message) -> Handler | None:
    """Return the handler; if it cannot be loaded, send the reason to the worker and return None."""
    sys.argv = [start["place"]]
    try:
        _bound_memory(start["memory_limit"])
        given = start["serializer"]
        if isinstance(given, bytes):
            # Written by the worker that started this process.
            given = pickle.loads(given)  # nosec B301
        start["serializer"] = serializer_of(given)
        return load_target(Target(start["place"], start["is_file"], start["function"]))
    except BaseException as error:
        short = isinstance(error, (LookupError, GlideMQError)) and not isinstance(error, (KeyError, IndexError))
        text = str(error) if short else f"{start['place']} cannot be imported:\n\n{traceback.format_exc()}"
        sock.sendall(pack_message("invalid", text=text))
        return None


def _bound_memory(limit: int | None) -> None:
    if limit is None:
        return
    import resource

    # On Linux limit private writable memory; a limit on address space would also count mapped files.
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    resource.setrlimit(kind, (limit, limit))


def serve(sock: socket.socket, handler: Handler, start: Message) -> None:
    """Run jobs until the worker closes the connection."""
    label_log_records()
    work: Work | None = None if is_async(handler) else queue.SimpleQueue()
    session = _Session(sock, handler, start, work)
    if work is None:
        asyncio.run(session.serve_messages())
        return
    threading.Thread(target=_serve_in_thread, args=(session, work), name="glidemq-sandbox", daemon=True).start()
    while (job := work.get()) is not None:
        running_job.set(job)
        try:
            result, error = handler(job), None
        except BaseException as raised:
            # Includes SystemExit: it ends the attempt, as it does outside of a sandbox.
            result, error = None, raised
        running_job.set(None)
        session.ended_in_thread(job, result, error)
        del job, result, error


def _serve_in_thread(session: _Session, work: Work) -> None:
    try:
        asyncio.run(session.serve_messages())
    finally:
        work.put(None)


class _Session:
    """Exchanges messages with the worker.

    Args:
        sock: Socket to the worker.
        handler: The handler.
        start: The message `start`.
        work: Queue of jobs for the thread of a plain handler; None for an async one.
    """

    def __init__(
        self,
        sock: socket.socket,
        handler: Handler,
        start: Message,
        work: Work | None,
    ) -> None:
        self._sock = sock
        self._handler = handler
        self._work = work
        self._memory_limit = start["memory_limit"]
        module, name = start["job_type"]
        self._job_type: type[Job] = getattr(importlib.import_module(module), name)
        self._prefix: str = start["prefix"]
        self._serializer = start["serializer"]
        self._compression = start["compression"]
        self._links: dict[str, QueueLink[SandboxTransport]] = {}
        self._job: Job | None = None
        self._task: asyncio.Task[None] | None = None
        self._requests = 0
        self._replies: dict[int, asyncio.Future[Message]] = {}

    async def serve_messages(self) -> None:
        """Process the worker's messages until it closes the connection."""
        self._loop = asyncio.get_running_loop()
        self._sock.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=self._sock)
        self._send("ready")
        while (message := await read_message(reader)) is not None:
            kind = message["kind"]
            if kind == "job":
                self._begin(message)
            elif kind == "reply":
                self._replied(message)
            elif kind == "cancel":
                self._cancel()
        if self._job is not None:
            os._exit(1)  # the worker has ended: its job will run in another worker, and must not run here as well
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _send(self, kind: str, **fields: Any) -> None:
        self._writer.write(pack_message(kind, **fields))

    # -- jobs -----------------------------------------------------------------------------------------------

    def _link_of(self, name: str, partition: list[Any] | None) -> QueueLink[SandboxTransport]:
        """Return the queue with this name; partition: which part of another queue it is, or None."""
        link = self._links.get(name)
        if link is None:
            if len(self._links) >= _LINKS:
                self._links.clear()
            keys = QueueKeys(self._prefix, name)
            link = self._links[name] = QueueLink(
                transport=SandboxTransport(self._request), keys=keys,
                waiter=SandboxWaiter(self._request, keys.prefix, keys.name), serializer=self._serializer,
                compression=self._compression, no_continuations=_NO_CONTINUATIONS,
                partition=None if partition is None else Partition(*partition),
            )  # fmt: skip
            if self._work is not None:
                link.loop = self._loop
        return link

    def _begin(self, message: Message) -> None:
        job = self._job_type._from_state(self._link_of(message["queue"], message["partition"]), message["job"])
        entry, fence, processed_on = message["attempt"]
        job._attempt = Attempt(entry, fence, processed_on, None)
        self._job = job
        if self._work is not None:
            job._attempt.owner = True
            self._work.put(job)
        else:
            self._task = job._attempt.owner = self._loop.create_task(self._run(job))

    async def _run(self, job: Job) -> None:
        running_job.set(job)
        try:
            result = await self._handler(job)
        except BaseException as error:
            self._ended(job, None, error)
        else:
            self._ended(job, result, None)

    def ended_in_thread(self, job: Job, result: Any, error: BaseException | None) -> None:
        """Report the end of a plain handler; called from its thread."""
        self._loop.call_soon_threadsafe(self._ended, job, result, error)

    def _ended(self, job: Job, result: Any, error: BaseException | None) -> None:
        try:
            message = self._outcome(job, result, error)
        except BaseException as raised:  # by the result or error, which are objects of the application
            message = self._outcome(job, None, unstored_error("outcome of the handler", raised))
        self._job = self._task = None
        self._writer.write(message)

    def _outcome(self, job: Job, result: Any, error: BaseException | None) -> bytes:
        text = packed = None
        if error is None and job._attempt is not None:
            error = job._attempt.missing_await()
        if job._memo is not None:
            error = job._memo.outcome(error)
        if error is None:
            try:
                text = self._encode(result)
            except Exception as invalid:
                error = invalid
        if error is not None:
            packed = pack_error(self._plain(error))
            if isinstance(error, MemoryError) and self._memory_limit is not None:
                packed["text"] = f"the job needed more than the sandbox's memory_limit of {self._memory_limit} bytes"
        attempt, usage = job._attempt, job._usage
        return pack_message(
            "ended", result=text, error=packed, should_recycle=isinstance(error, MemoryError),
            job=[job._data_text, job._progress_text],
            attempt={name: getattr(attempt, name) for name in ATTEMPT_FIELDS},
            usage=None if usage is None else asdict(usage),
        )  # fmt: skip

    def _encode(self, result: Any) -> str:
        if inspect.isawaitable(result):
            getattr(result, "close", lambda: None)()
            raise GlideMQError("a plain handler returned an awaitable: make it `async def`")
        return encode_result(result, self._serializer)

    def _plain(self, error: BaseException) -> BaseException:
        """Return the error to send; the data of a signal is converted to its stored form."""
        if isinstance(error, SuspendError) and error.on_resume is not None:
            return GlideMQValidationError("on_resume", None, _NO_CONTINUATIONS)
        if isinstance(error, (DelayedError, WaitingChildrenError)) and error.replace:
            serializer = self._serializer
            try:
                error.data = decode_data(encode_data(error.data, serializer), serializer)
            except GlideMQError as invalid:
                return invalid
        return error

    def _cancel(self) -> None:
        """End the attempt; the worker kills the process if the handler does not end in time."""
        if self._job is not None and self._job._attempt is not None:
            self._job._attempt.end()
        if self._task is not None:
            self._task.cancel()

    # -- requests -----------------------------------------------------------------------------------------------

    async def _request(self, what: str, *arguments: Any) -> Any:
        if asyncio.get_running_loop() is not self._loop:
            raise EventLoopError("job of a sandbox", "it belongs to another event loop", "use job.blocking")
        self._requests += 1
        number = self._requests
        future = self._replies[number] = self._loop.create_future()
        try:
            self._send("request", number=number, what=what, arguments=arguments)
            message = await future
        finally:
            del self._replies[number]
        if message["error"] is not None:
            raise unpack_error(message["error"])
        return message["value"]

    def _replied(self, message: Message) -> None:
        future = self._replies.get(message["number"])
        if future is not None and not future.done():
            future.set_result(message)


_NOT_YET: Final = object()


def fork_server(descriptor: int) -> None:
    """Import the handler once, then fork a process per request, until the worker closes the connection."""
    line = socket.socket(fileno=descriptor)
    line.set_inheritable(False)
    calm_signals()
    start = receive_message(line)
    if start is None:
        return
    loaded: Any = _NOT_YET
    while True:
        try:
            request, sockets, _, _ = socket.recv_fds(line, PID.size, 1)
        except OSError:
            return
        if len(request) < PID.size:
            return
        if not sockets:
            line.sendall(PID.pack(_wait(PID.unpack(request)[0])))
            continue
        with socket.socket(fileno=sockets[0]) as end:
            if loaded is _NOT_YET:
                # Imported at the first request, whose socket can report an import error.
                loaded = load(end, start)
            pid = os.fork()
            if pid == 0:
                line.close()
                _become_child(end, loaded, start)
            loaded = _NOT_YET if loaded is None else loaded
        line.sendall(PID.pack(pid))


def _become_child(end: socket.socket, loaded: Any, start: Message) -> None:
    code = 1
    try:
        os.setsid()
        if loaded is not None:
            serve(end, loaded, start)
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 0
