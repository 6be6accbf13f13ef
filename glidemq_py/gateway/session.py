"""One connection of a client: reads frames, runs their commands, and writes the answers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import inspect
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from glidemq_py._api.flow_producer import FlowProducer
from glidemq_py._api.job_queue import Queue
from glidemq_py._client.transport import Transport
from glidemq_py._core.logs import get_logger
from glidemq_py._features.schedulers.entry import JobScheduler
from glidemq_py._web.repeated_warnings import RepeatedWarnings, address_of
from glidemq_py.errors import GlideMQError, GlideMQValidationError, PayloadTooLargeError
from glidemq_py.errors.base import show_value
from glidemq_py.gateway.backups import BackupFigures
from glidemq_py.gateway.commands import COMMANDS, PROTOCOL
from glidemq_py.gateway.deadlines import Deadlines
from glidemq_py.gateway.events import News
from glidemq_py.gateway.fetched import Fetched
from glidemq_py.gateway.figures import Figures
from glidemq_py.gateway.frames import MAX_FRAME, MAX_UNAUTHENTICATED_FRAME, FrameReader
from glidemq_py.gateway.held import HeldJobs
from glidemq_py.gateway.hub import Hub
from glidemq_py.gateway.job_ids import JobIds
from glidemq_py.gateway.job_values import LIMIT
from glidemq_py.gateway.options import GatewayOptions
from glidemq_py.gateway.partition_hubs import PartitionHubs
from glidemq_py.gateway.push_order import PushOrder
from glidemq_py.gateway.rate import FrameLimit
from glidemq_py.gateway.shared_reads import SharedRead
from glidemq_py.gateway.slices import VALUE_PARTS, Parts, large_content
from glidemq_py.gateway.table import Answer, Begun, CommandError, check_fields
from glidemq_py.gateway.values import (
    InvalidValueError,
    LargeAnswer,
    PortableMap,
    ValueLimitError,
    frame_of,
    portable,
    request_id_of,
    value_of,
)
from glidemq_py.gateway.webhooks.service import Webhooks

__all__ = ["MAX_RUNNING", "GatewayState", "Session", "token_digests"]

_log = get_logger(__name__)

T = TypeVar("T")

MAX_RUNNING: Final = 50
"""Commands of one connection that run at a time; the next ones wait."""
_AUTH_S: Final = 10.0
"""Maximum time of a connection until it is authenticated, unless that of a frame is shorter."""
_NOTHING_READY: Final = frozenset(("PULL", "PULLB", "JobHeartbeat", "JobHeartbeatB", "Heartbeat"))
"""Frequent commands that make no job ready."""
_WITH_PREFETCHED: Final = frozenset((
    *(
        name
        for group in ("connection", "core", "cron", "workers", "webhooks", "locks", "logs", "events")
        for name in PROTOCOL[group]
    ),
    "GetResult", "GetProgress", "WaitJob", "Progress", "ListQueues", "StorageStatus",
))  # fmt: skip
"""Commands that may run while jobs are prefetched. Before others, these jobs return to their queue."""
_READING: Final = frozenset((
    *PROTOCOL["query"], *PROTOCOL["monitoring"], "Dlq", "CronGet", "CronList", "PULL", "PULLB",
))  # fmt: skip
"""Commands that only read, besides those with a verb below. Jobs that a PULL fetches nevertheless are released."""
_READING_VERBS: Final = ("Get", "Is", "List")
_INVALID_FORMAT: Final = "Invalid command format"
_NOT_DURABLE: Final = "durable: the server has no append-only file; set its option appendonly to yes"
_DATA_TOO_LARGE: Final = "Job data too large (max 10MB)"
_MOST_AT_ONCE: Final = 50
"""Frames that are answered without a task in one turn of the event loop."""
_MAX_UNSTARTED: Final = 100
"""Frames that wait before the connection is read no further."""
_LARGE_FRAME: Final = 262_144
"""Bytes of a frame above which it is decoded in a thread: as small maps, this much takes about 0.1 s."""
_Decoded: TypeAlias = tuple[Any, str | None]
"""The value of a frame and None; or a map with its `reqId`, or None, and the error of its answer."""

_decoder: Final = ThreadPoolExecutor(1, "glidemq-gateway-decoder")
"""One thread, so that the event loop gets at least half of the time of the interpreter."""


class GatewayState(Protocol):
    """What sessions use of their gateway."""

    options: GatewayOptions
    version: str
    held: HeldJobs
    deadlines: Deadlines
    figures: Figures
    backup_figures: BackupFigures
    warnings: RepeatedWarnings
    """Warnings about clients."""
    http_clients: Counter[str]
    """Open WebSockets (`websocket`) and streams of events (`sse`)."""
    counts: SharedRead[dict[str, dict[str, int]]]
    """The jobs of all queues by state, by the name of the queue on the wire."""
    schedulers: SharedRead[list[tuple[str, JobScheduler]]]
    """The schedulers of all queues by name, with their queues."""

    @property
    def webhooks(self) -> Webhooks:
        """The webhooks that clients have registered."""
        ...

    @property
    def ids(self) -> JobIds:
        """Makes and reads the ids of jobs."""
        ...

    @property
    def transport(self) -> Transport:
        """The connection to the server of the queues, for commands that are about no queue."""
        ...

    @property
    def flows(self) -> FlowProducer:
        """Adds flows."""
        ...

    @property
    def connections(self) -> int:
        """Number of open connections of clients."""
        ...

    @property
    def digests(self) -> Sequence[bytes]:
        """Digests of the tokens; empty without authentication."""
        ...

    async def queue(self, name: str) -> Queue[Any, Any]:
        """Return the open queue of this name."""
        ...

    def known_queue(self, name: str) -> Queue[Any, Any] | None:
        """Return the queue of this name if it is open already."""
        ...

    async def subscribe(self, session: Session, queue: str) -> None:
        """Send the events of a queue to a session, instead of those of another one."""
        ...

    def unsubscribe(self, session: Session) -> None:
        """Send no more events to a session."""
        ...

    async def follow(self, queue: str, news: News) -> None:
        """Notify of new events of a queue from now on."""
        ...

    def unfollow(self, queue: str, news: News) -> None:
        """Notify no more."""
        ...

    async def part(self, name: str) -> Queue[Any, Any]:
        """Return the open queue, or the partition of one, whose keys have this name."""
        ...

    def known_hub(self, name: str) -> Hub | PartitionHubs | None:
        """Return what clients fetch from, for the queue of this name, if there is one."""
        ...

    async def fetching(self, queue: Queue[Any, Any]) -> Hub | PartitionHubs:
        """Return what clients fetch from, for a queue."""
        ...

    async def hub(self, name: str) -> Hub:
        """Return the hub of the queue or partition of this name, through which jobs are reported."""
        ...

    def known_reporting_hub(self, name: str) -> Hub | None:
        """Return the hub of the queue or partition of this name if there is one already."""
        ...

    async def forget_parts(self, queue: Queue[Any, Any]) -> None:
        """Close what uses the queue or its partitions; the next command opens it again."""
        ...

    def release(self, queue: str, jobs: Sequence[Fetched]) -> None:
        """Release jobs of a queue or partition that no client gets."""
        ...

    def adding(self, name: str) -> None:
        """Note that a call that adds a job to a queue or partition leaves in this turn of the event loop.

        If another one is in flight, it leaves later.
        """
        ...

    def added(self, name: str) -> None:
        """Note that jobs were added to a partition."""
        ...

    def extended(self, name: str, duration: int) -> None:
        """Note that locks of jobs of a queue or partition now end in ``duration`` ms."""
        ...

    def changed(self, fields: Mapping[str, Any]) -> None:
        """Note that a command with these fields may have made jobs ready."""
        ...

    def without_prefetched(
        self, fields: Mapping[str, Any], *, reads: bool
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """Return a context before which prefetched jobs return to their queues, and in which none are prefetched.

        It concerns the queue that a command names, or that of its job; all queues if it names none.

        Args:
            fields: The fields of the command.
            reads: Whether it changes nothing. Then only a prefetched job that it names matters.
        """
        ...

    def maintain(self, queue: Queue[Any, Any], *, now: bool = False) -> None:
        """Run the maintenance of a queue, which is needed while it has no worker."""
        ...

    async def finished(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a part of a command that continues if the client leaves."""
        ...

    def opened(self, session: Session) -> bool:
        """Register a session; return False if there are too many."""
        ...

    def closed(self, session: Session, running: Sequence[asyncio.Future[Any]]) -> None:
        """Forget a session, and release its jobs after its running commands have ended."""
        ...


def token_digests(tokens: Sequence[str] | None) -> list[bytes]:
    """Return digests of the tokens; they have equal lengths, so comparing them reveals no length."""
    return [_digest(token) for token in tokens or ()]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class Session(asyncio.Protocol):
    """The protocol of one connection.

    Commands may end in any order, and those that add jobs keep the order of their frames. While `MAX_RUNNING` run, or
    the client does not read its answers, the connection is not read. The event loop turns after every `_MOST_AT_ONCE`
    frames that need no call, so that other connections are served.

    Args:
        state: The gateway.
    """

    parts: Parts = VALUE_PARTS
    """Encodes large answers."""

    def __init__(self, state: GatewayState) -> None:
        self.state = state
        self._is_authenticated = not state.digests
        self._reader = FrameReader(MAX_FRAME if self._is_authenticated else MAX_UNAUTHENTICATED_FRAME)
        self._transport: asyncio.Transport | None = None
        self._unstarted: deque[bytes] = deque()
        self._running: set[asyncio.Future[Any]] = set()
        """Tasks of commands, and the calls of those without a task."""
        self._polls: set[asyncio.Future[Any]] = set()
        """Fetches that may wait, by task or call."""
        self._timer: asyncio.TimerHandle | None = None
        """Closes the connection if its incomplete frame does not end in time."""
        self._remaining: float | None = None
        """Time that the incomplete frame has left, s, while the connection is not read."""
        self._auth_timer: asyncio.TimerHandle | None = None
        """Closes the connection if it is not authenticated in time."""
        self._is_reading = True
        self._is_write_paused = False
        self._is_ending = False
        self._is_continuing = False
        """Whether the next frames start in the next turn of the event loop."""
        self._unsent: list[bytes] = []
        """Frames that leave together at the end of this turn of the event loop."""
        self._limit: FrameLimit | None = None
        if state.options.rate_limit is not None:
            self._limit = FrameLimit(state.options.rate_limit, state.options.rate_limit_window / 1_000)
        self._large = asyncio.Lock()
        self._room_changed = asyncio.Event()
        """Set while the client reads its answers, and when the session ends."""
        self._room_changed.set()
        self.pushing = asyncio.Lock()
        """Held while a PUSH gets its place, so that those of a connection keep their order."""
        self.unplaced: set[asyncio.Task[None]] = set()
        """Commands that add jobs and have not got their place yet: later ones must not overtake them."""
        self.push_order = PushOrder()
        """The jobs that have got their place, and are not added yet."""
        self.has_noted_policies = False
        """Whether it was logged that options of the jobs of this connection have no effect."""
        self.subscription: str | None = None
        """Name of the queue whose events this connection gets."""
        self.workers: set[str] = set()
        """Ids of the workers that this connection has registered."""

    # -- connection ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection unless there are too many."""
        # Of uvloop it is no subclass.
        self._transport = cast("asyncio.Transport", transport)
        if not self.state.opened(self):
            self._abort()
        elif not self._is_authenticated:
            seconds = min(_AUTH_S, self.state.options.frame_timeout / 1_000)
            self._auth_timer = asyncio.get_running_loop().call_later(seconds, self._end_unauthenticated, seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session; running commands are cancelled."""
        self._is_ending = True
        self._stop_timer()
        self._stop_auth_timer()
        self._unstarted.clear()
        for task in self._running:
            task.cancel()
        self._transport = None
        self.state.closed(self, tuple(self._running))

    def pause_writing(self) -> None:
        """Stop reading: the client does not read its answers."""
        self._is_write_paused = True
        self._room_changed.clear()
        self._update_reading()

    def resume_writing(self) -> None:
        """Read again."""
        self._is_write_paused = False
        self._room_changed.set()
        self._start()
        self._update_reading()

    def data_received(self, data: bytes) -> None:
        """Run the commands of the frames that are complete."""
        if self._is_ending:
            return
        frames = self._reader.feed(data)
        if frames:
            self._unstarted.extend(frames)
            if self._timer is not None or self._remaining is not None:
                self._stop_timer()  # of a frame that is complete now
        self._start()
        if self._reader.oversized:
            if self._is_authenticated or not self._running:
                limit, size = self._reader.limit, self._reader.oversized
                self._answer(None, _failure(f"Frame too large: {size} bytes exceeds maximum {limit}"))
                self._end()  # once the commands before it are answered
            # else an Auth before the frame may permit it
        elif self._timer is None and self._remaining is None and self._reader.has_partial:
            self._start_timer(self.state.options.frame_timeout / 1_000)
        self._update_reading()

    async def drain(self, seconds: float) -> None:
        """Accept no more commands, wait for the running ones, and close the connection."""
        self._is_ending = True
        self._room_changed.set()
        self._unstarted.clear()
        for task in self._polls:
            task.cancel()
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._running and loop.time() < until:  # a call may be followed by a task
            await asyncio.wait(self._running, timeout=until - loop.time())
        if self._running:
            self._abort()  # connection_lost cancels them
        self._end()

    @property
    def peer(self) -> str:
        """Address of the client."""
        return address_of(self._transport)

    def abort(self) -> None:
        """Close the connection at once, and cancel the running commands."""
        self._abort()

    # -- commands --------------------------------------------------------------------------------------------

    async def polled(self, fetching: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of a fetch that may wait; None if the gateway closes meanwhile."""
        task = asyncio.current_task()
        assert task is not None, "commands run in tasks"
        self._polls.add(task)
        try:
            return await fetching
        except asyncio.CancelledError:
            if not self.ends_poll(task):
                raise
            return None  # draining: the client is answered that there is no job
        finally:
            self._polls.discard(task)

    def poll(self, fetching: asyncio.Future[Any]) -> None:
        """Let a fetch that may wait, and has no task, end when the gateway closes."""
        self._polls.add(fetching)
        fetching.add_done_callback(self._polls.discard)

    def ends_poll(self, fetching: asyncio.Future[Any]) -> bool:
        """Return whether a cancelled fetch is answered that there is no job: the gateway closes."""
        return not self.is_lost and not self.state.deadlines.has_ended(fetching)

    @property
    def is_lost(self) -> bool:
        """Whether the connection is closed, or is being closed."""
        return self._transport is None or self._transport.is_closing()

    @contextlib.asynccontextmanager
    async def room(self) -> AsyncGenerator[None]:
        """Wait until a large answer may be built: one at a time, and only while the client reads its answers.

        So the memory of the answers of a connection is bounded, however many commands it sends.

        Raises:
            CommandError: If the gateway closes meanwhile.
        """
        async with self._large:
            await self._until_read()
            yield

    async def _until_read(self) -> None:
        await self._room_changed.wait()
        if self._is_ending:
            raise CommandError("The gateway is closing")

    def authenticate(self, token: str) -> bool:
        """Accept a token; return False if it is invalid."""
        given = _digest(token)
        # All digests are compared, so that the time does not reveal which one matches.
        fits = [hmac.compare_digest(given, each) for each in self.state.digests]
        if not any(fits):
            self.state.warnings.warn("token", f"gateway: rejected an invalid token of {self.peer}")
            return False
        self._is_authenticated = True
        self._stop_auth_timer()
        self._reader.limit = MAX_FRAME
        return True

    def _start(self) -> None:
        if self._is_continuing:
            return
        answered = 0
        while self._unstarted and len(self._running) < MAX_RUNNING and not self._is_write_paused:
            if answered == _MOST_AT_ONCE:
                self._is_continuing = True
                asyncio.get_running_loop().call_soon(self._continue)
                return
            payload = self._unstarted.popleft()
            if len(payload) > _LARGE_FRAME:
                self._start_large(payload)
                return
            answered += not self._start_decoded(_decoded(payload))

    def _start_large(self, payload: bytes) -> None:
        """Decode a large frame in a thread, so that other connections are served; the frames behind it wait."""
        self._is_continuing = True
        task = asyncio.get_running_loop().create_task(self._decode_large(payload))
        self._running.add(task)
        task.add_done_callback(self._large_started)

    async def _decode_large(self, payload: bytes) -> None:
        decoded = await asyncio.get_running_loop().run_in_executor(_decoder, _decoded, payload)
        del payload
        if not self._is_ending:
            self._start_decoded(decoded)

    def _large_started(self, task: asyncio.Task[None]) -> None:
        self._is_continuing = False
        self._ended(task)

    def _continue(self) -> None:
        self._is_continuing = False
        self._start_next()

    def _start_decoded(self, decoded: _Decoded) -> bool:
        """Start the command of a decoded frame; return False if it is answered already."""
        is_allowed = self._limit is None or self._limit.allows()
        value, error = decoded
        if error is not None:
            self._answer(value, _failure(error))
            return False
        if value.__class__ is not dict:
            self._answer(None, _failure(_INVALID_FORMAT if value is None else "Invalid command"))
            return False
        given, name = value, value.get("cmd")
        if not is_allowed:
            self._answer(given, _failure("Rate limit exceeded"))
            return False
        if not isinstance(name, str) or not name:
            self._answer(given, _failure(_INVALID_FORMAT if _has_bytes_key(given) else "Invalid command"))
            return False
        command, fields = COMMANDS.get(name), None
        if command is not None and self._is_authenticated and (command.quick or command.begin):
            try:
                fields = check_fields(command, given)
                answer = None if command.quick is None else command.quick(self, fields)
            except CommandError as error:
                self._answer(given, _failure(str(error)))
                return False
            if answer is not None:
                self.state.figures.executed(name, fields, answer, 0.0)
                self._answer(given, {"ok": True, **answer})
                return False
            try:
                begun = None if command.begin is None else command.begin(self, fields)
            except Exception:
                begun = None  # the handler fails in the same way, and its error is the answer
            if begun is not None:
                return self._follow(begun, name, given, fields)
        task = self._start_task(self._run(name, given, fields))
        if command is not None and command.adds:
            self.unplaced.add(task)
        return True

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _follow(self, begun: Begun, name: str, given: Mapping[Any, Any], fields: dict[str, Any]) -> bool:
        """Answer a command without a task when its call has ended; return False if it is answered already."""
        start, future = time.perf_counter(), begun.future
        if future.done():
            self._end_begun(begun, name, given, fields, start)
            return False

        def answer(future: asyncio.Future[Any]) -> None:
            self.state.deadlines.running.pop(future, None)
            self._end_begun(begun, name, given, fields, start)
            self._ended(future)

        self._running.add(future)
        self.state.deadlines.running[future] = start, name, fields
        future.add_done_callback(answer)
        return True

    def _end_begun(
        self, begun: Begun, name: str, given: Mapping[Any, Any], fields: dict[str, Any], start: float
    ) -> None:  # fmt: skip
        """Answer a command whose call has ended."""
        future = begun.future
        try:
            found = begun.finish(future)
        except asyncio.CancelledError:
            late = self.state.deadlines.error_of_call(future, name, changes_nothing=_only_reads(name))
            if late is not None:
                self._answer(given, _failure(str(late)))
        except Exception:
            _log.exception("gateway: command %s failed", name)
            self._answer(given, _failure("Internal error"))
            if begun.withdraw is not None:
                begun.withdraw()
        else:
            if isinstance(found, dict):
                self._answer(given, self._succeeded(name, fields, found, start))
            else:
                self._start_rest(begun, name, given, fields, found, start)
        if name not in _NOTHING_READY:
            self.state.changed(fields)

    def _start_rest(
        self, begun: Begun, name: str, given: Mapping[Any, Any], fields: dict[str, Any],
        rest: Coroutine[Any, Any, Answer], began: float,
    ) -> None:  # fmt: skip
        """Run the rest of a command in a task."""
        task = self._start_task(self._run(name, given, fields, rest, began))
        if COMMANDS[name].adds:
            self.unplaced.add(task)

        def check(_: asyncio.Future[None]) -> None:
            if inspect.getcoroutinestate(rest) == inspect.CORO_CREATED:  # the task was cancelled before its first step
                rest.close()
                if begun.withdraw is not None:
                    begun.withdraw()

        task.add_done_callback(check)

    async def _run(
        self, name: str, given: Mapping[Any, Any], fields: dict[str, Any] | None,
        rest: Coroutine[Any, Any, Answer] | None = None, began: float | None = None,
    ) -> None:  # fmt: skip
        self._answer(given, await self.execute(name, given, fields, rest, began))

    async def execute(
        self, name: str, given: Mapping[Any, Any], fields: dict[str, Any] | None = None,
        rest: Coroutine[Any, Any, Answer] | None = None, began: float | None = None,
    ) -> Answer:  # fmt: skip
        """Execute a command and return its answer, which has `ok`.

        Args:
            name: Name of the command.
            given: The value that was sent.
            fields: The values of its fields, if they were checked.
            rest: The rest of a command that has begun without a task.
            began: When that was, by ``time.perf_counter``.
        """
        try:
            return await self._execute(name, given, fields, rest, began)
        except PayloadTooLargeError as error:
            return _failure(_too_large(error))
        except GlideMQValidationError as error:
            return _failure(_NOT_DURABLE if error.option == "durable" else str(error))
        except (CommandError, GlideMQError) as error:
            return _failure(str(error))
        except asyncio.CancelledError:
            late = self.state.deadlines.error_of(name, changes_nothing=_only_reads(name))
            if late is None:
                raise
            return _failure(str(late))
        except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can express and a key cannot
            return _failure(f"{show_value(error.object)} must not contain a lone surrogate")
        except Exception:
            _log.exception("gateway: command %s failed", name)
            return _failure("Internal error")

    async def _execute(
        self, name: str, given: Mapping[Any, Any], fields: dict[str, Any] | None,
        rest: Coroutine[Any, Any, Answer] | None, began: float | None,
    ) -> Answer:  # fmt: skip
        command = COMMANDS.get(name)
        # Tasks start in the order of their frames, so that an Auth counts for the frames right behind it.
        if not self._is_authenticated and (command is None or not command.is_public):
            raise CommandError("Not authenticated")
        if command is None:
            raise CommandError(f"Unknown command: {name}")
        if fields is None:
            fields = check_fields(command, given)
        start = time.perf_counter() if began is None else began
        running, task = self.state.deadlines.running, asyncio.current_task()
        running[task] = start, name, fields
        try:
            if rest is not None:
                answer = await rest
            elif name in _WITH_PREFETCHED:
                answer = await command.handler(self, fields)
            else:
                async with self.state.without_prefetched(fields, reads=_only_reads(name)):
                    answer = await command.handler(self, fields)
            return self._succeeded(name, fields, answer, start)
        finally:
            running.pop(task, None)
            if name not in _NOTHING_READY:
                self.state.changed(fields)

    def _succeeded(self, name: str, fields: Mapping[str, Any], answer: Answer, start: float) -> Answer:
        self.state.figures.executed(name, fields, answer, time.perf_counter() - start)
        if answer.__class__ is PortableMap or answer.__class__ is LargeAnswer:
            return answer.__class__(ok=True, **answer)
        return {"ok": True, **answer}

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._running.discard(task)
        if self.unplaced:
            self.unplaced.discard(cast("asyncio.Task[None]", task))
        if self._unstarted or self._is_ending or not self._is_reading or self._reader.oversized:
            self._start_next()

    def _start_next(self) -> None:
        self._start()
        if self._reader.oversized and not self._is_ending and (self._is_authenticated or not self._running):
            self.data_received(b"")
        elif self._is_ending:
            self._end()
        else:
            self._update_reading()

    def _answer(self, given: Mapping[Any, Any] | None, answer: Answer) -> None:
        if given is not None and "reqId" in given:
            request = given["reqId"]
            answer["reqId"] = request if request.__class__ is str else portable(request)
        if answer.__class__ is LargeAnswer:
            pieces = large_content(answer, self.parts)
            self.notify(b"".join((sum(map(len, pieces)).to_bytes(4, "big"), *pieces)))
            return
        try:
            frame = frame_of(answer)
        except (RecursionError, ValueError):  # data of another program
            failure = _failure("The answer is nested too deeply for MessagePack")
            frame = frame_of({**failure, "reqId": answer["reqId"]} if "reqId" in answer else failure)
        self._send(frame)

    def notify(self, frames: bytes) -> None:
        """Send frames at once, such as events."""
        self._unsent.append(frames)
        self._flush()

    def _send(self, frame: bytes) -> None:
        # A lone answer leaves at once. Each write costs a system call, so several wait for the end of the turn.
        unsent = self._unsent
        unsent.append(frame)
        if len(unsent) > 1:
            return
        if len(self._running) > 1:
            asyncio.get_running_loop().call_soon(self._flush)
        else:
            self._flush()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        transport = self._transport
        if not unsent or transport is None or transport.is_closing():
            return
        transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))
        if transport.get_write_buffer_size() > self.state.options.max_unsent:
            self.state.warnings.warn(
                "unsent", f"gateway: closed a connection of {self.peer} that did not read its answers"
            )
            self._abort()

    # -- flow control ----------------------------------------------------------------------------------------

    def _update_reading(self) -> None:
        is_full = len(self._unstarted) > _MAX_UNSTARTED or self._reader.oversized
        is_reading = not (self._is_write_paused or self._is_ending or is_full)
        transport = self._transport
        if is_reading is self._is_reading or transport is None or transport.is_closing():
            return
        self._is_reading = is_reading
        if not is_reading:
            transport.pause_reading()
            if self._timer is not None:  # the client cannot complete its frame now
                remaining = self._timer.when() - asyncio.get_running_loop().time()
                self._stop_timer()
                self._remaining = max(0.0, remaining)
        else:
            transport.resume_reading()
            if self._remaining is not None:
                self._start_timer(self._remaining)

    def _start_timer(self, seconds: float) -> None:
        self._remaining = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._abort)

    def _stop_timer(self) -> None:
        self._remaining = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_unauthenticated(self, seconds: float) -> None:
        self._auth_timer = None
        self.state.warnings.warn(
            "unauthenticated",
            f"gateway: closed a connection of {self.peer} that was not authenticated in {seconds:g} s",
        )
        self._answer(None, _failure(f"Not authenticated within {seconds:g} s"))
        self._unstarted.clear()
        self._end()

    def _stop_auth_timer(self) -> None:
        if self._auth_timer is not None:
            self._auth_timer.cancel()
            self._auth_timer = None

    def _end(self) -> None:
        self._is_ending = True
        self._stop_timer()
        if self._transport is not None and not self._running and not self._unstarted:
            self._flush()
            self._transport.close()

    def _abort(self) -> None:
        self._is_ending = True
        if self._transport is not None:
            self._transport.abort()


def _only_reads(name: str) -> bool:
    """Return whether the command of this name changes nothing."""
    return name in _READING or name.startswith(_READING_VERBS)


def _decoded(payload: bytes) -> _Decoded:
    """Return the value of a frame; or its known part, and the error of its answer."""
    try:
        return value_of(payload), None
    except ValueLimitError as error:
        return request_id_of(payload), f"{_INVALID_FORMAT}: {error}"
    except InvalidValueError:
        return None, _INVALID_FORMAT


def _has_bytes_key(given: Mapping[Any, Any]) -> bool:
    return any(isinstance(key, bytes) for key in given)


def _too_large(error: PayloadTooLargeError) -> str:
    """Return the text of the protocol if the data of a job are too large."""
    where, _, name = error.option.rpartition(".")
    if name != "data" or error.limit != LIMIT:
        return str(error)
    return f"{where}: {_DATA_TOO_LARGE}" if where else _DATA_TOO_LARGE


def _failure(error: str) -> Answer:
    return {"ok": False, "error": error}
