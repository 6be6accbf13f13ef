# pyright: reportOptionalMemberAccess=false
"""A transport that sends calls over a socket of the event loop, around GLIDE: `accelerated` returns it.

GLIDE passes every call through threads of its own and a pipe: a lone call takes two to three times as long, and a
hundred calls in flight cost five times the processor time. So, if hiredis is installed, calls of the library go
directly to the node that owns the slot of their key, and so do the reads of streams that block. GLIDE does everything
else, and the calls too after any surprise (an error reply that is not the function's own, no reply in time, a lost
connection, a cluster that has changed), until a new direct connection is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from glide_shared.exceptions import ClosingError, GlideError, RequestError
from glide_shared.exceptions import ConnectionError as GlideConnectionError
from glide_shared.exceptions import TimeoutError as GlideTimeoutError

from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._client.busy_poll import BusyPoll
from glidemq_py._client.call_retry import classify, is_of_node, load_arguments, loading_failed
from glidemq_py._client.connect_errors import tls_context
from glidemq_py._client.connection_options import ConnectionOptions, sign_in_commands
from glidemq_py._client.failures import FUNCTION_MISSING, CallOutcome, moved_to
from glidemq_py._client.loop_transport import ForwardingTransport, LoopResource, close_at_loop_end, free_socket
from glidemq_py._client.stream_reads import entries_of
from glidemq_py._client.threads import in_thread, to_first_address
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import Call
from glidemq_py._core.keys import hash_slot, hash_tag
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import ClosedError, GlideMQError

try:
    import hiredis
except ImportError:  # without the extra `speed`
    hiredis = None  # type: ignore[assignment]

T = TypeVar("T")
_log = get_logger(__name__)
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 5.0
_LONGEST_WAIT_S: Final = 1.0  # of a call for a new connection; then GLIDE serves it
_pack: Any = getattr(hiredis, "pack_command", None)
_NOWHERE: Any = object()
_INCOMPLETE: Final = object()
_new_reader: Any = partial(getattr(hiredis, "Reader", int), replyError=RequestError, notEnoughData=_INCOMPLETE)
_Words = tuple[Any, ...]
_Node = tuple[str, int] | None
_Unclaimed = Callable[[Any], None] | None


def accelerated(glide: AsyncTransport) -> Transport:
    """Return a transport that makes calls of the running loop faster, over one of GLIDE; or that one.

    It is that one without hiredis, and if the user disabled direct connections, limits the requests in flight, signs in
    by IAM (GLIDE renews its tokens), or gives a certificate as bytes (Python's ssl reads files only) or a client.
    """
    options, owner = glide.options, glide.client_owner
    if options is None or _pack is None or isinstance(options.tls_cert, bytes):
        return glide
    if not options.direct or options.iam is not None or options.inflight_requests_limit is not None:
        return glide
    nodes = next((each for each in owner.attached if isinstance(each, Nodes)), None) or Nodes(options, owner)
    if nodes not in owner.attached:
        owner.attached.append(nodes)
    return DirectTransport(glide, nodes)


class DirectTransport(ForwardingTransport):
    """A `Transport` over direct connections, and a transport of GLIDE for everything else.

    A dedicated one, for blocking reads, owns its nodes, and a client of GLIDE, created when a read first needs it.
    """

    def __init__(self, glide: AsyncTransport, nodes: Nodes) -> None:
        super().__init__()
        self.glide = glide
        self.config, self.is_cluster, self.interruptions = glide.config, glide.is_cluster, glide.interruptions
        self._nodes = nodes
        self._is_dedicated = nodes.beside is not None
        self._client: AsyncTransport | None = None if self._is_dedicated else glide
        self._owned: list[LoopResource] = [nodes if self._is_dedicated else glide]
        self._connecting = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = nodes.loop
        if self._is_dedicated:
            close_at_loop_end(nodes.loop, self)

    async def here(self) -> AsyncTransport:
        """Return the transport of GLIDE that does everything else."""
        async with self._connecting:
            if self._client is None and self._loop is not None:
                self._client = await self.glide.dedicated()
                self._owned.append(self._client)
            if self._client is None or self._loop is None:
                await self.close()  # it may have been closed meanwhile
                raise ClosedError("the connection was closed")
            return self._client

    async def call(self, call: Call[T]) -> T:
        """See `Transport.call`."""
        if self._loop is not asyncio._get_running_loop():
            return await self.glide.call(call)  # raises the error
        if (loads := self.glide.loads).is_awaited:
            await loads.ended()
        started, number = time.monotonic(), loads.number
        words = b"FCALL", self.glide.library.full_names[call.function], str(len(call.keys)), *call.keys, *call.args
        reply = await self._ask(call.key, words, unclaimed=call.pass_on)
        if isinstance(reply, GlideError) and classify(reply) is FUNCTION_MISSING:
            with contextlib.suppress(GlideMQError):  # GLIDE tries again, and raises the error
                await loads.load(partial(self._load, call.key), number)
                reply = await self._ask(call.key, words, started - time.monotonic(), unclaimed=call.pass_on)
        if reply is _NOWHERE:
            return await self.glide.call(call)
        if isinstance(reply, GlideError):
            return await self.glide.resume(call, reply, started, number)
        return call.read(reply)

    def _words(self, call: Call[Any]) -> _Words:
        # No numbers: hiredis crashes when a signal handler raises an error while it converts one.
        return b"FCALL", self.glide.library.full_names[call.function], str(len(call.keys)), *call.keys, *call.args

    def call_in_thread(self, call: Call[T]) -> T | None:
        """As `call` in any thread, for a call that is not repeatable; None: not executed, make it in the event loop."""
        connection = (nodes := self._nodes).open.get(nodes.node_of(call.key) if nodes.moved else None)
        if connection is None or self.interruptions.server.is_doubted:
            return None
        aside = connection.aside
        try:
            reply = aside.send(_pack(self._words(call)))
        except StopIteration:  # it has ended
            return None
        except (TypeError, ValueError):
            if aside.gi_frame is None:  # of a signal handler
                raise
            with contextlib.suppress(OSError, GlideError, ValueError):  # it has not begun, or another thread uses it
                next(aside, None)
            return None
        except GlideError as error:
            connection.was_silent, reply = True, error
            nodes.loop.call_soon_threadsafe(connection.end)
        except BaseException:
            connection.aside = connection.talk()
            raise
        if not isinstance(reply, GlideError):
            return call.read(reply)
        if classify(reply).outcome is CallOutcome.NOT_EXECUTED:
            return None
        raise self._failure(reply, call.key) from reply

    async def _load(self, key: str) -> None:
        # Over this connection: calls that follow one that has missed the library miss it, too.
        reply = await self._ask(key, load_arguments(self.glide.library, cluster=False)[0])
        if reply is _NOWHERE or (isinstance(reply, GlideError) and loading_failed(reply, self.glide.library)):
            await self.glide.load()

    async def _ask(
        self, key: str, words: _Words, block_s: float = 0.0, before: _Words | None = None, unclaimed: _Unclaimed = None
    ) -> Any:
        """Return the reply, or error, to a command that may block, as one sent ``before`` may; `_NOWHERE`: not sent."""
        timeout, is_redirected = self.glide.timeout_s + block_s, False
        while True:
            connection = self._nodes.find(key) or await self._nodes.connect(key)
            if connection is None:
                return _NOWHERE
            if before is not None:
                connection.send(before, timeout).cancel()
            replied = connection.send(words, timeout, unclaimed)
            try:
                reply = await replied
            except asyncio.CancelledError:
                arrived = None if replied.cancelled() or replied.exception() else replied.result()
                if unclaimed is not None and not isinstance(arrived, (GlideError, type(None))):
                    unclaimed(arrived)
                raise
            except GlideError as error:
                return error
            if (server := self.interruptions.server).is_doubted:
                server.replied()
            if not isinstance(reply, GlideError) or not is_of_node(reply):
                return reply
            if is_redirected or not (moved := moved_to(str(reply), connection.host)):
                connection.end()
                return reply
            self._nodes.moved.update(moved)
            is_redirected = True

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`. Blocking reads of streams, and their CLIENT ID, go over the direct connection."""
        is_read, reply, key = args[0] in ("XREAD", "XREADGROUP"), _NOWHERE, ""
        if self._is_dedicated and is_read:
            key = str(args[args.index("STREAMS") + 1])
            block_s = int(args[args.index("BLOCK") + 1]) / 1000 if "BLOCK" in args else 0.0
            reply = await self._ask(key, args, block_s)
        elif self._is_dedicated and args == ("CLIENT", "ID") and not self.is_cluster:
            reply = await self._ask(key, args)
        if reply is _NOWHERE:
            return await (await self.here()).command(*args)
        if isinstance(reply, GlideError):
            raise self._failure(reply, key, reads=True) from reply
        return entries_of(reply) if is_read else reply

    async def call_with(
        self, call: Call[T], waits: Sequence[Sequence[str]], block: int, grace: int | None = None,
        read: Sequence[str] | None = None,
    ) -> tuple[T, list[Any]]:  # fmt: skip
        """See `Transport.call_with`."""
        reply = _NOWHERE
        if read is not None:
            reply = await self._ask(call.key, self._words(call), block / 1000, before=tuple(read))
        if reply is _NOWHERE:
            return await (await self.here()).call_with(call, waits, block, grace, read)
        if isinstance(reply, GlideError):
            if classify(reply) is FUNCTION_MISSING:
                return await self.call(call), []
            raise self._failure(reply, call.key) from reply
        return call.read(reply), []

    def _failure(self, error: GlideError, key: str, *, reads: bool = False) -> GlideMQError:
        self.glide.note_error(error)
        if is_of_node(error):
            self.interruptions.record(hash_tag(key) if self.is_cluster else None)
        return self.glide.translated(error, reads=reads)

    async def dedicated(self) -> Transport:
        """See `Transport.dedicated`."""
        owner = self.glide.client_owner
        return DirectTransport(owner, Nodes(self._nodes.options, owner, beside=self._nodes))

    async def close(self) -> None:
        """See `Transport.close`. The direct connections of calls are closed with the client of GLIDE."""
        self._loop = None
        while self._owned:
            await self._owned.pop(0).close()

    def abandon(self) -> None:
        """See `Transport.abandon`."""
        self._loop = None
        while self._owned:
            self._owned.pop(0).abandon()


class Nodes:
    """The direct connections of the running loop, one per node. After one was silent, those ``beside`` end, too."""

    def __init__(self, options: ConnectionOptions, glide: AsyncTransport, beside: Nodes | None = None) -> None:
        self.options, self._glide, self.beside = options, glide, beside
        self.loop = asyncio.get_running_loop()
        self._poll = BusyPoll(wanted=options.busy_poll and beside is None)
        self.open: dict[_Node, DirectConnection] = {}
        """Connections by node; None is the first primary of the options, which knows the others."""
        self._opening: dict[_Node, asyncio.Task[None]] = {}
        self.moved: dict[int, _Node] = {}
        """The slots of a cluster that other nodes own, as far as they are known."""
        self._pause = _FIRST_PAUSE_S
        self._not_before = 0.0
        """When it may connect again, by the loop's clock; infinity after it was closed."""
        self._is_failing = False
        """No connection could be opened: calls do not wait for the next attempt."""

    def node_of(self, key: str) -> _Node:
        """Return the node that owns a key, as in `open`. For any thread, as `open`."""
        return self.moved.get(hash_slot(hash_tag(key) or key))

    def find(self, key: str) -> DirectConnection | None:
        """Return the connection to the node that owns the key, or None."""
        found = self.open.get(self.node_of(key) if self.moved else None)
        if found is not None and not found.pending and found.hangups.poll(0):
            found.end()  # the server has closed it while the event loop was busy
            return None
        return found

    async def connect(self, key: str) -> DirectConnection | None:
        """Return the connection as `find`; open it first, unless that has failed lately. Raises nothing."""
        if self._not_before == math.inf:
            return None
        opening = self._opening.get(node := self.node_of(key))
        if opening is None or opening.done():
            opening = self._opening[node] = self.loop.create_task(self._connect(node))
        if not self._is_failing and self.loop.time() >= self._not_before:
            done, _ = await asyncio.wait((opening,), timeout=_LONGEST_WAIT_S)
            self._is_failing |= not done
        return self.find(key)

    async def _connect(self, node: _Node) -> None:
        failure: Exception | None = None  # no error: GLIDE serves the calls, and reports the cause
        await asyncio.sleep(max(0.0, self._not_before - self.loop.time()))
        for host, port in [(each.host, each.port) for each in self.options.addresses] if node is None else [node]:
            try:
                async with asyncio.timeout(self.options.connection_timeout / 1000):
                    self.open[node] = await self._connect_to(host, port)
                    self._pause, self._is_failing = _FIRST_PAUSE_S, False
                    return
            except Exception as error:  # a node's name may be anything
                failure = error
        _log.debug("no direct connection to %s: %r", node or self.options, failure)
        self._is_failing = True
        self._forget()
        if isinstance(failure, OSError) and not isinstance(failure, ssl.SSLError):
            self._glide.note_error(GlideConnectionError(str(failure)), isinstance(failure, ConnectionRefusedError))

    async def _connect_to(self, host: str, port: int) -> DirectConnection:
        """Connect to a primary, or any node of a cluster, and sign in. Raises OSError or GlideError."""
        options, context, greeting = self.options, None, sign_in_commands(self.options)
        if options.tls:
            context = await in_thread(tls_context, self._glide.config, options.tls_cert, options.tls_key)
        make, name = partial(DirectConnection, self.loop, self._ended, self._poll), host if context else None
        connect = partial(self.loop.create_connection, make, port=port, ssl=context, server_hostname=name)
        connection: DirectConnection
        transport, connection = await to_first_address(host, port, connect)
        connection.host = host
        try:
            for words in greeting:
                found = await connection.send(words)
                if isinstance(found, GlideError):
                    raise found
                if found != b"OK" and not options.cluster and found[b"role"] != b"master":
                    raise GlideConnectionError(f"no primary: {found}")
            if context is None:
                peer = transport.get_extra_info("peername")[:2]
                connection.talk = partial(talk, peer, greeting, self._glide.timeout_s)
                connection.aside = connection.talk()
            if not connection.usable:
                raise GlideConnectionError("lost")
        except BaseException:
            connection.end(ClosingError("the connection was closed"))
            raise
        return connection

    def _forget(self) -> None:
        """Forget the owners of slots, which may have changed, and connect again later."""
        self.moved.clear()
        self._not_before = max(self._not_before, self.loop.time() + self._pause * (0.5 + random.random()))
        self._pause = min(self._pause * 2, _LAST_PAUSE_S)

    def _ended(self, connection: DirectConnection) -> None:
        if connection not in self.open.values():
            return
        self.open = {node: each for node, each in self.open.items() if each is not connection}
        if not connection.was_silent:
            self._forget()
        # Otherwise the packets of GLIDE's connections are probably dropped, too. So the next call waits for a new
        # connection to the same node, instead of losing its time there.
        elif self.beside is not None:
            for other in list(self.beside.open.values()):
                other.was_silent = True
                other.end()

    async def close(self) -> None:
        """Close the connections, in their event loop."""
        self._close()
        await asyncio.sleep(0)  # the event loop closes the sockets in its next turn

    def _close(self) -> None:
        self._not_before = math.inf
        for task in list(self._opening.values()):
            task.cancel()
        for connection in list(self.open.values()):
            connection.end(ClosingError("the connection was closed"))

    def abandon(self) -> None:
        """Free the sockets from outside the event loop, which is closed or not running."""
        try:
            self.loop.call_soon_threadsafe(self._close)
        except RuntimeError:  # it is closed
            for connection in list(self.open.values()):
                connection.pending.clear()
                free_socket(connection.transport)


def talk(address: tuple[str, int], greeting: Sequence[_Words], timeout: float) -> Generator[Any, Any]:
    """Yield the replies to packed commands, over a blocking connection of its own that any thread may use.

    Only one thread at a time can run a generator, and an exception ends it: each reply belongs to the last command.
    """
    with socket.create_connection(address, limit_s := _LONGEST_WAIT_S) as connected:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hangups, reader, lost, packed = select.poll(), _new_reader(), contextlib.suppress(OSError), None
        hangups.register(connected, select.POLLIN)

        def ask(packed: bytes) -> Any:
            with lost:
                connected.sendall(packed)
            while (reply := reader.gets()) is _INCOMPLETE:
                if not hangups.poll(limit_s * 1000):
                    raise GlideTimeoutError("no reply in time")
                data = b""
                with lost:
                    data = connected.recv(65_536)
                if not data:
                    raise GlideConnectionError("the connection was lost")
                reader.feed(data)
            return reply

        for each in greeting:
            if isinstance(error := ask(_pack(each)), GlideError):
                raise error
        connected.settimeout(limit_s := timeout)
        while not hangups.poll(0):
            packed = yield packed and ask(packed)


_TOGETHER: Final = 16
"""Commands of a write: more would let the server wait for them."""


class DirectConnection(asyncio.Protocol):
    """A connection to a server (RESP3), with GLIDE's errors. ``ended`` is called once, when it is of no more use."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Callable[..., None], poll: BusyPoll) -> None:
        self._loop, self._ended, self._poll = loop, ended, poll
        self._reader, self.hangups = _new_reader(), select.poll()
        self.pending: deque[tuple[asyncio.Future[Any], float, _Unclaimed]] = deque()
        self.transport: Any = None
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = math.inf
        self.host, self.usable = "", True
        self.was_silent = False
        """It ended because a reply did not arrive in time, on it or on another connection to the server."""
        self._held: list[bytes] | None = None
        """Commands that leave together, because several replies have arrived together; None = they leave at once."""
        self.talk: Any = None
        self.aside: Any = (None for _ in ())
        """A started `talk`, by which threads make calls without the event loop; by default an empty generator."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport; called by the event loop."""
        self.transport = transport
        if transport.get_extra_info("sslcontext") is None:  # TLS sends data of its own at any time
            self.hangups.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def send(self, words: _Words, timeout: float = math.inf, unclaimed: _Unclaimed = None) -> asyncio.Future[Any]:
        """Send a command; return a future of its reply, which is a GlideError if the server replied with an error.

        It raises GLIDE's TimeoutError after ``timeout`` seconds, ConnectionError, or ClosingError if it was closed
        here: the command may have run. If it was cancelled, ``unclaimed`` gets the reply.
        """
        future, deadline = self._loop.create_future(), self._loop.time() + timeout
        self._poll.begin(alone=not self.pending)
        if self._held is None:
            self.transport.write(_pack(words))
        else:
            self._held.append(_pack(words))
            if len(self._held) >= _TOGETHER:
                self._write_held()
        self.pending.append((future, deadline, unclaimed))
        if deadline < self._watch_at:  # earlier commands may have had more time
            self._check_at(deadline)
        return future

    def data_received(self, data: bytes) -> None:
        """Deliver the replies that are complete; called by the event loop."""
        reader, pending, is_first = self._reader, self.pending, True
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _INCOMPLETE:
                if type(reply) is hiredis.PushNotification:
                    continue
                if not is_first and self._held is None:
                    self._held = []
                is_first = False
                future, _, unclaimed = pending.popleft()
                if not future.done():
                    future.set_result(reply)
                elif unclaimed is not None and not isinstance(reply, GlideError):
                    self._loop.call_soon(unclaimed, reply)
        except (hiredis.ProtocolError, IndexError, TypeError) as error:  # TypeError: a map as the key of a map
            self.end(GlideConnectionError(f"malformed reply of the server: {error}"))
        if self._held is not None:
            self._loop.call_soon(self._flush)  # behind those who wait for the replies, which may send more
        if not pending:
            self._poll.end()
            if not self.usable:
                self.end()

    def _flush(self) -> None:
        self._write_held()
        self._held = None

    def _write_held(self) -> None:
        if self._held and not self.transport.is_closing():
            self.transport.write(b"".join(self._held))
        self._held = []

    def _check_at(self, deadline: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch, self._watch_at = self._loop.call_at(deadline, self._check), deadline

    def _check(self) -> None:
        """End the connection if the oldest command is overdue; else check again when it would be."""
        self._watch_at = math.inf
        if self.pending and (deadline := self.pending[0][1]) > self._loop.time():
            self._check_at(deadline)
        elif self.pending:
            self.was_silent = True
            self.end(GlideTimeoutError("no reply in time"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the commands without a reply; called by the event loop."""
        self.end(GlideConnectionError(f"the connection was lost: {exc or 'closed by the server'}"))

    def end(self, error: GlideError | None = None) -> None:
        """Send nothing more; close when the commands under way have replies, or now, and fail them with an error."""
        if self.usable:
            self.usable = False
            self._ended(self)
            with contextlib.suppress(ValueError):  # a thread uses it
                self.aside.close()
        if error is None and self.pending:
            return
        while error is not None and self.pending:
            future = self.pending.popleft()[0]
            if not future.done():
                future.set_exception(error)
        self._poll.end(replied=False)
        if self._watch is not None:
            self._watch.cancel()
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self.transport.abort()
