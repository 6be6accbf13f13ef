# pyright: reportOptionalMemberAccess=false
"""A transport that sends calls over a socket of the event loop, around GLIDE: `accelerated` returns it.

GLIDE passes every call through threads of its own and a pipe: a lone call takes two to three times as long as over a
socket of the event loop, and a hundred calls in flight cost five times the processor time. So, if hiredis is installed,
calls of the library go directly to the node that owns the slot of their key, and so do the reads of streams that block.
GLIDE does everything else, and the calls too after any surprise (an error reply that is not the function's own, no
reply in time, a lost connection, a cluster that has changed), until a new direct connection is open.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import math
import random
import re
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

from glide_shared.exceptions import ClosingError, GlideError, RequestError
from glide_shared.exceptions import ConnectionError as GlideConnectionError
from glide_shared.exceptions import TimeoutError as GlideTimeoutError

from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._client.busy_poll import BusyPoll
from glidemq_py._client.call_retry import classify
from glidemq_py._client.connect_errors import tls_context
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.failures import FUNCTION_MISSING, CallOutcome
from glidemq_py._client.library_loading import load_arguments, loading_failed
from glidemq_py._client.loop_transport import ForwardingTransport, close_at_loop_end
from glidemq_py._client.stream_reads import entries_of
from glidemq_py._client.threads import in_thread, to_first_address
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import Call
from glidemq_py._core.keys import hash_tag
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
_Words = tuple[Any, ...]
_Node = tuple[str, int] | None
_Unclaimed = Callable[[Any], None] | None
_MOVED: Final = re.compile(r"MOVED (\d{1,5}) ((?!\?)\S*):(\d{1,5})$")


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
    nodes = next((each for each in owner.attached if isinstance(each, Nodes)), None)
    if nodes is None:
        nodes = Nodes(options, owner)
        owner.attached.append(nodes)
    return DirectTransport(glide, nodes)


class DirectTransport(ForwardingTransport):
    """A `Transport` over direct connections, and a transport of GLIDE for everything else.

    If it is dedicated, for blocking reads, ``glide`` is not closed with it, and another client of GLIDE is created when
    a read first needs it.
    """

    def __init__(self, glide: AsyncTransport, nodes: Nodes, *, dedicated: bool = False) -> None:
        super().__init__()
        self.glide = glide
        self.config, self.is_cluster, self.interruptions = glide.config, glide.is_cluster, glide.interruptions
        self._nodes = nodes
        self._is_dedicated = dedicated
        self._client: AsyncTransport | None = None if dedicated else glide
        self._connecting = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = nodes.loop
        if dedicated:
            close_at_loop_end(nodes.loop, self)

    async def here(self) -> AsyncTransport:
        """Return the transport of GLIDE that does everything else."""
        async with self._connecting:
            client = self._client or (None if self._loop is None else await self.glide.dedicated())
            if self._loop is not None and client is not None:
                self._client = client
                return client
            if client is not None:
                await client.close()
            raise ClosedError("the connection was closed")

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
        """Make a call that is not repeatable in the calling thread, which blocks until the reply.

        Returns:
            The result; None if the call was not executed: make it in the event loop.

        Raises:
            GlideMQError: as `Transport.call`.
        """
        connection = self._nodes.find_open(call.key)
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
            self._nodes.loop.call_soon_threadsafe(connection.retire)
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
        """Return the reply to a command, or the error of the server or the connection; `_NOWHERE` without a connection.

        The command may block for ``block_s`` seconds, also because of the one ``before``, whose reply is ignored.
        """
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
            if (server := self.glide.interruptions.server).is_doubted:
                server.replied()
            if not isinstance(reply, GlideError) or not _must_leave(reply):
                return reply
            if is_redirected or not self._nodes.learn(str(reply), connection.host):
                connection.retire()
                return reply
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

    async def call_after(self, read: Sequence[str], call: Call[T], block: int) -> T:
        """See `Transport.call_after`."""
        words = self._words(call)
        reply = await self._ask(call.key, words, block / 1000, before=tuple(read))
        if reply is _NOWHERE:
            return await (await self.here()).call_after(read, call, block)
        if isinstance(reply, GlideError):
            if classify(reply) is FUNCTION_MISSING:
                return await self.call(call)
            raise self._failure(reply, call.key) from reply
        return call.read(reply)

    def _failure(self, error: GlideError, key: str, *, reads: bool = False) -> GlideMQError:
        self.glide.note_error(error)
        if _must_leave(error):
            self.interruptions.record(hash_tag(key) if self.is_cluster else None)
        return self.glide.translated(error, reads=reads)

    async def dedicated(self) -> Transport:
        """See `Transport.dedicated`."""
        owner = self.glide.client_owner
        return DirectTransport(owner, Nodes(self._nodes.options, owner, beside=self._nodes), dedicated=True)

    async def close(self) -> None:
        """See `Transport.close`. The direct connections of calls are closed with the client of GLIDE."""
        if self._loop is not None:
            self._loop = None
            if self._is_dedicated:
                await self._nodes.close()
            if self._client is not None:
                await self._client.close()

    def abandon(self) -> None:
        """See `Transport.abandon`."""
        if self._loop is not None:
            self._loop = None
            if self._is_dedicated:
                self._nodes.abandon()
            if self._client is not None:
                self._client.abandon()


def _must_leave(error: GlideError) -> bool:
    """Return whether calls must go through GLIDE after this error reply: the node cannot serve them."""
    failure = classify(error)
    return failure is not FUNCTION_MISSING and failure.outcome is not CallOutcome.PERMANENT


class Nodes:
    """The direct connections of the running loop: one per node, found by the hash slot of a key.

    If one of them has been silent, those ``beside`` must be replaced, too.
    """

    def __init__(self, options: ConnectionOptions, glide: AsyncTransport, beside: Nodes | None = None) -> None:
        self.options = options
        self.loop = asyncio.get_running_loop()
        self._glide = glide
        self._beside = beside
        self._poll = BusyPoll(wanted=options.busy_poll and beside is None)
        self._open: dict[_Node, DirectConnection] = {}
        """Connections by node; None is the first primary of the options, which knows the others."""
        self._opening: dict[_Node, asyncio.Task[None]] = {}
        self._moved: dict[int, _Node] = {}
        """The slots of a cluster that other nodes own, as far as they are known."""
        self._pause = _FIRST_PAUSE_S
        self._not_before = 0.0
        """When it may connect again, by the loop's clock."""
        self._is_failing = False
        """No connection could be opened: calls do not wait for the next attempt."""

    def _node_of(self, key: str) -> _Node:
        return self._moved.get(binascii.crc_hqx((hash_tag(key) or key).encode("utf-8", "surrogateescape"), 0) & 16_383)

    def learn(self, reply: str, host: str) -> bool:
        """Learn from a MOVED reply of a host which node owns a slot; return False if it is none."""
        found = _MOVED.search(reply)
        if found is not None:
            self._moved[int(found[1])] = found[2] or host, int(found[3])  # without a host: on the same one
        return found is not None

    def find_open(self, key: str) -> DirectConnection | None:
        """Return the connection to the node that owns the key, which may have hung up, or None. For any thread."""
        return self._open.get(self._node_of(key) if self._moved else None)

    def find(self, key: str) -> DirectConnection | None:
        """Return the connection to the node that owns the key, or None."""
        found = self._open.get(self._node_of(key) if self._moved else None)
        if found is not None and not found.pending and found.hangups.poll(0):
            found.retire()  # the server has closed it while the event loop was busy
            return None
        return found

    async def connect(self, key: str) -> DirectConnection | None:
        """Return the connection as `find`; open it first, unless that has failed lately. Raises nothing."""
        node = self._node_of(key)
        if self._not_before == math.inf:
            return None
        opening = self._opening.get(node)
        if opening is None:
            opening = self._opening[node] = self.loop.create_task(self._connect(node))
        if not self._is_failing and self.loop.time() >= self._not_before:
            done, _ = await asyncio.wait((opening,), timeout=_LONGEST_WAIT_S)
            self._is_failing |= not done
        return self.find(key)

    async def _connect(self, node: _Node) -> None:
        failure: Exception | None = None  # no error: GLIDE serves the calls, and reports the cause
        try:
            await asyncio.sleep(max(0.0, self._not_before - self.loop.time()))
            for host, port in [(each.host, each.port) for each in self.options.addresses] if node is None else [node]:
                try:
                    async with asyncio.timeout(self.options.connection_timeout / 1000):
                        self._open[node] = await self._connect_to(host, port)
                except Exception as error:  # a node's name may be anything
                    failure = error
                else:
                    self._pause, self._is_failing = _FIRST_PAUSE_S, False
                    return
            _log.debug("no direct connection to %s: %r", node or self.options, failure)
            self._is_failing = True
            self._forget()
            if isinstance(failure, OSError) and not isinstance(failure, ssl.SSLError):
                self._glide.note_error(GlideConnectionError(str(failure)), isinstance(failure, ConnectionRefusedError))
        finally:
            del self._opening[node]

    async def _connect_to(self, host: str, port: int) -> DirectConnection:
        """Connect to a primary, or any node of a cluster, and sign in. Raises OSError or GlideError."""
        options, context = self.options, None
        if options.tls:
            context = await in_thread(tls_context, self._glide.config, options.tls_cert, options.tls_key)
        hello = ["HELLO", "3"]
        if options.password is not None:
            hello += ["AUTH", options.username or "default", options.password]
        if options.client_name is not None:
            hello += ["SETNAME", options.client_name]
        greeting: list[_Words] = [tuple(hello)]
        if options.database_id:
            greeting.append(("SELECT", str(options.database_id)))
        name = None if context is None else host
        make = partial(DirectConnection, self.loop, self._ended, self._poll)
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
            connection.close()
            raise
        return connection

    def _forget(self) -> None:
        """Forget the owners of slots, which may have changed, and connect again later."""
        self._moved.clear()
        self._not_before = max(self._not_before, self.loop.time() + self._pause * (0.5 + random.random()))
        self._pause = min(self._pause * 2, _LAST_PAUSE_S)

    def _ended(self, connection: DirectConnection) -> None:
        for node, each in list(self._open.items()):
            if each is connection:
                del self._open[node]
                if not connection.was_silent:
                    self._forget()
                # Otherwise the packets of GLIDE's connections are probably dropped, too. So the next call waits for a
                # new connection to the same node, instead of losing its time there.
                elif self._beside is not None:
                    for other in list(self._beside._open.values()):
                        other.was_silent = True
                        other.retire()

    async def close(self) -> None:
        """Close the connections, in their event loop."""
        self._close()
        await asyncio.sleep(0)  # the event loop closes the sockets in its next turn

    def _close(self) -> None:
        self._not_before = math.inf
        for task in list(self._opening.values()):
            task.cancel()
        for connection in list(self._open.values()):
            connection.close()

    def abandon(self) -> None:
        """Free the sockets from outside the event loop, which is closed or not running."""
        try:
            self.loop.call_soon_threadsafe(self._close)
        except RuntimeError:  # it is closed
            for connection in list(self._open.values()):
                connection.abandon()


def talk(address: tuple[str, int], greeting: Sequence[_Words], timeout: float) -> Generator[Any, Any]:
    """Yield the replies to packed commands, over a blocking connection of its own that any thread may use.

    Only one thread at a time can run a generator, and an exception ends it. So each reply belongs to the command that
    was sent last.

    Raises:
        OSError: it cannot connect.
        GlideError: as of `DirectConnection.send`.
    """
    limit_s = _LONGEST_WAIT_S
    with socket.create_connection(address, limit_s) as connected:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        hangups, reader, lost = select.poll(), _new_reader(), contextlib.suppress(OSError)
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
        packed = yield None
        while not hangups.poll(0):
            packed = yield packed and ask(packed)


def _new_reader() -> Any:
    return hiredis.Reader(replyError=cast("Any", RequestError), notEnoughData=_INCOMPLETE)


class DirectConnection(asyncio.Protocol):
    """One connection to one server. Sends commands and returns their replies in the same order (RESP3).

    Errors are those of GLIDE, so that `call_retry` classifies them in the same way. ``ended`` is called once, when it
    must not be used any more.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, ended: Callable[[DirectConnection], None], poll: BusyPoll
    ) -> None:
        self._loop, self._ended, self._poll = loop, ended, poll
        self._reader = _new_reader()
        self.pending: deque[tuple[asyncio.Future[Any], float, _Unclaimed]] = deque()
        self._transport: Any = None
        self.hangups = select.poll()
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = math.inf
        """When it calls `_check`."""
        self.host, self.usable = "", True
        self.was_silent = False
        """It ended because a reply did not arrive in time, on it or on another connection to the server."""
        self.talk: Any = None
        self.aside: Any = (None for _ in ())
        """A started `talk`, by which threads make calls without the event loop; by default an empty generator."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport; called by the event loop."""
        self._transport = transport
        if transport.get_extra_info("sslcontext") is None:  # TLS sends data of its own at any time
            self.hangups.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def send(self, words: _Words, timeout: float = math.inf, unclaimed: _Unclaimed = None) -> asyncio.Future[Any]:
        """Send a command; return a future of its reply, which is a GlideError if the server replied with an error.

        It raises GLIDE's TimeoutError without a reply in ``timeout`` seconds, ConnectionError if it ends, ClosingError
        if it was closed here: the command may have run. If it was cancelled, ``unclaimed`` gets the reply.
        """
        future, deadline = self._loop.create_future(), self._loop.time() + timeout
        if self.pending:
            self._poll.end(replied=False)
        else:
            self._poll.begin()
        self._transport.write(_pack(words))
        self.pending.append((future, deadline, unclaimed))
        if deadline < self._watch_at:  # earlier commands may have had more time
            self._check_at(deadline)
        return future

    def data_received(self, data: bytes) -> None:
        """Deliver the replies that are complete; called by the event loop."""
        reader, pending = self._reader, self.pending
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _INCOMPLETE:
                if type(reply) is hiredis.PushNotification:
                    continue
                future, _, unclaimed = pending.popleft()
                if not future.done():
                    future.set_result(reply)
                elif unclaimed is not None and not isinstance(reply, GlideError):
                    self._loop.call_soon(unclaimed, reply)
        except (hiredis.ProtocolError, IndexError, TypeError) as error:  # TypeError: a map as the key of a map
            self._end(GlideConnectionError(f"malformed reply of the server: {error}"))
        if not pending:
            self._poll.end()
            if not self.usable:
                self.close()

    def _check_at(self, deadline: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch, self._watch_at = self._loop.call_at(deadline, self._check), deadline

    def _check(self) -> None:
        """End the connection if the oldest command is overdue; else check again when it would be."""
        self._watch, self._watch_at = None, math.inf
        if self.pending:
            deadline = self.pending[0][1]
            if deadline > self._loop.time():
                self._check_at(deadline)
            else:
                self.was_silent = True
                self._end(GlideTimeoutError("no reply in time"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the commands without a reply; called by the event loop."""
        self._fail(GlideConnectionError(f"the connection was lost: {exc or 'closed by the server'}"))

    def _end(self, error: GlideError) -> None:
        self._fail(error)
        self._transport.abort()

    def _fail(self, error: GlideError) -> None:
        self._leave()
        while self.pending:
            future = self.pending.popleft()[0]
            if not future.done():
                future.set_exception(error)
        self._poll.end(replied=False)
        if self._watch is not None:
            self._watch.cancel()

    def _leave(self) -> None:
        if self.usable:
            self.usable = False
            self._ended(self)
            with contextlib.suppress(ValueError):  # a thread uses it
                self.aside.close()

    def retire(self) -> None:
        """Send nothing more; close when the commands under way have replies."""
        self._leave()
        if not self.pending:
            self.close()

    def close(self) -> None:
        """Close the connection; the commands under way fail with ClosingError. Idempotent."""
        self._end(ClosingError("the connection was closed"))

    def abandon(self) -> None:
        """Free the socket after the event loop was closed. Idempotent."""
        self.pending.clear()
        # asyncio's own last step, which a closed loop does not run any more; uvloop has closed the socket itself.
        finish = getattr(self._transport, "_call_connection_lost", None)
        if finish is not None and getattr(self._transport, "_sock", None) is not None:
            finish(None)
