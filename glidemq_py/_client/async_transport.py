"""The transport for an event loop, over valkey-glide, and sources of transports that share one client."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from glide_shared.config import ReadFrom
from glide_shared.exceptions import GlideError
from glide_shared.exceptions import TimeoutError as GlideTimeoutError

from glidemq_py._client.async_client import create_async, glide, resolve_async
from glidemq_py._client.busy_poll import BusyPoll
from glidemq_py._client.call_retry import (
    CallRetry,
    Loads,
    classify,
    is_of_node,
    load_arguments,
    loading_failed,
    not_read,
    only_reads,
    translate,
)
from glidemq_py._client.connect_errors import LAST_CHANCE_MS, GlideConfig, silence_of
from glidemq_py._client.connection_options import ConnectionOptions
from glidemq_py._client.failures import (
    CLOSED,
    DEFAULT_REQUEST_TIMEOUT_MS,
    FUNCTION_MISSING,
    LOST,
    TIMEOUT,
    Interruptions,
    reachability_of,
)
from glidemq_py._client.glide_faults import ClientReplacement, abandon_client, loop_of
from glidemq_py._client.library_source import Library, assemble
from glidemq_py._client.loop_transport import LoopResource, close_at_loop_end
from glidemq_py._client.runtime import uncancelled
from glidemq_py._client.transport import GlideClient, ServerConnection
from glidemq_py._core.calls import Call
from glidemq_py._core.keys import hash_tag
from glidemq_py.errors import (
    ClosedError,
    ConnectionRejectedError,
    EventLoopError,
    GlideMQConnectionError,
    GlideMQError,
)

T = TypeVar("T")


class AsyncTransport:
    """A `Transport` over one GLIDE client.

    Args:
        client: a connected client of the running loop.
        config: the client's configuration, used to create dedicated connections.
        owned: close the client with this transport; a client given by the user is never closed.
        library: the rendering of the function library to call.
        options: how to connect; None if the user gave the client.
        interruptions: record of server outages; shared with connections derived from this one.
    """

    def __init__(
        self,
        client: GlideClient,
        config: GlideConfig,
        *,
        owned: bool,
        library: Library | None = None,
        options: ConnectionOptions | None = None,
        interruptions: Interruptions | None = None,
    ) -> None:
        # GLIDE types replies as any server value; `Call.decode` gives each reply its type.
        self.client: Any = client
        self.config = config
        self._owned = owned
        self.library = library or assemble()
        self._names = self.library.full_names
        self._is_cluster = isinstance(client, glide.GlideClusterClient)  # not each time: its class is a slow protocol
        self._new_batch: Any = glide.ClusterBatch if self._is_cluster else glide.Batch
        self.loads = Loads()
        self._under_way = 0
        self.options = options
        self._poll = BusyPoll(wanted=options is None or options.busy_poll)
        self.timeout_s = (config.request_timeout or DEFAULT_REQUEST_TIMEOUT_MS) / 1000
        self.lock_ms = 0
        """Of the connection of a worker: repeatable calls are repeated for as long as a lock of its jobs lasts, ms."""
        self._closed = False
        self._answered = 0
        """Number of calls that had a reply."""
        self.server: Hashable | None = None
        """Identifies the server if the client is shared by all transports of the loop to it."""
        self.connect_elsewhere: Callable[..., Awaitable[AsyncTransport]] | None = None
        """Returns a transport over the shared client of the running loop."""
        self._source: AsyncTransport | None = None
        self._release: Callable[[], AsyncTransport | None] | None = None
        self._sharing: weakref.WeakSet[AsyncTransport] = weakref.WeakSet()
        """Transports over the same client, which `_source` owns."""
        self.attached: list[LoopResource] = []
        """Closed with the client."""
        self._replacement = ClientReplacement(self) if owned else None
        if interruptions is None:
            interruptions = Interruptions(reachability_of((each.host, each.port) for each in config.addresses))
        self.interruptions = interruptions
        self._reachability = interruptions.server
        self._loop: asyncio.AbstractEventLoop | None = loop_of(client)
        if owned:
            close_at_loop_end(asyncio.get_running_loop(), self)

    @classmethod
    async def connect(
        cls, connection: ServerConnection, *, library: Library | None = None, check: bool = True
    ) -> AsyncTransport:
        """Return a transport for the `connection` option of a user. Raises the errors of `resolve_async`."""
        found = await resolve_async(connection, check=check)
        return cls(found.client, found.config, owned=found.owned, library=library, options=found.options)

    @property
    def glide(self) -> AsyncTransport:
        """See `glide_of`."""
        return self

    @property
    def is_cluster(self) -> bool:
        """Whether the client is a cluster client."""
        return self._is_cluster

    async def call(self, call: Call[T]) -> T:
        """See `Transport.call`."""
        if self._loop is not _current_loop():
            raise self._foreign_loop()
        if self.loads.is_awaited:
            await self.loads.ended()
        started, answered, loads = time.monotonic(), self._answered, self.loads.number
        try:
            reply = await self._run(call)
        except GlideError as error:
            return await self._end_call(call, error, started, answered, loads)
        if self._reachability.is_doubted:
            self._reachability.replied()
        try:
            return call.decode(reply)  # as `call.read`, with one function less in the path of a job
        except GlideMQError:
            raise
        except Exception as error:
            raise call.malformed(error) from error

    async def call_all(self, calls: Sequence[Call[T]]) -> list[T]:
        """See `Transport.call_all`."""
        if len(calls) == 1:
            return [await self.call(calls[0])]
        if self._loop is not _current_loop():
            raise self._foreign_loop()
        started, answered, loads = time.monotonic(), self._answered, self.loads.number
        replies: list[Any]
        try:
            replies = await self._run_all(calls)
        except GlideError as error:
            replies = [error] * len(calls)
        found: list[T] = []
        has_failed = False
        for call, reply in zip(calls, replies, strict=True):
            if isinstance(reply, GlideError):
                has_failed = True
                found.append(await self._end_call(call, reply, started, answered, loads))
            elif has_failed and call.repeatable:
                found.append(await self.call(call))
            else:
                found.append(call.read(reply))
        return found

    async def _run_all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Return the replies to calls that are sent together; some may be GlideErrors."""
        batch = self._new_batch(is_atomic=False)
        for call in calls:
            batch.fcall(self._names[call.function], call.keys, list(call.args))
        replies: list[Any] = await self.client.exec(batch, raise_on_error=False)
        self._note_reply()
        return replies

    async def resume(self, call: Call[T], error: GlideError, started: float, loads: int) -> T:
        """Finish a call that has failed on another connection to the server.

        Args:
            call: the call.
            error: why it failed.
            started: when it was sent, by ``time.monotonic``.
            loads: the number of loads of the library, when it was sent.

        Raises:
            GlideMQError: as `Transport.call`.
        """
        return await self._end_call(call, error, started, self._answered, loads)

    async def _end_call(
        self, call: Call[T], error: GlideError, started: float, answered: int, loads: int
    ) -> T:  # fmt: skip
        self._check_client(error, answered, call.key)
        reply = await self._recover(call, error, started, loads)
        if self._reachability.is_doubted:
            self._reachability.replied()
        return call.read(reply)

    async def _run(self, call: Call[Any], timeout_s: float | None = None) -> Any:
        """Run a call once; it waits for its reply for ``timeout_s``, by default the request timeout."""
        work = self._send(call, timeout_s)
        return await (work if call.unclaimed is None else uncancelled(work, call.pass_on))

    async def _send(self, call: Call[Any], timeout_s: float | None) -> Any:
        # A batch of one, not `fcall`: `fcall` wakes a timer thread of GLIDE for every call, which adds a tenth to the
        # round trip.
        batch = self._new_batch(is_atomic=False)
        batch.fcall(self._names[call.function], call.keys, list(call.args))
        self._under_way += 1
        self._poll.begin(alone=self._under_way == 1 and (not call.args or len(call.args[-1]) <= _SHORT))
        try:
            if timeout_s is None:
                (reply,) = await self.client.exec(batch, raise_on_error=False)
            else:
                options = _batch_options(self.is_cluster, timeout_s)
                (reply,) = await self.client.exec(batch, raise_on_error=False, options=options)
        finally:
            self._under_way -= 1
            self._poll.end()
        self._answered += 1
        if isinstance(reply, GlideError):
            raise reply
        return reply

    async def _recover(self, call: Call[Any], error: GlideError, started: float, loads: int) -> Any:
        """Retry a call while it fails for a transient reason and is safe to repeat.

        ``started`` and ``loads``: the time, and the number of loads of the library, when it was sent.

        Raises the last error, translated.
        """
        retry = self._retry(call.function, call.repeatable, started, (call.key,))
        refused: GlideMQError | None = None
        while True:
            if self._closed:
                raise ClosedError("the connection was closed") from error
            step = retry.after(error)
            if step is None:
                raise refused or self.translated(error, reads=self.library.only_reads(call.function)) from error
            if step.pause:
                await asyncio.sleep(step.pause)
            if step.load:
                try:
                    await self.loads.load(self.load, loads)
                except GlideMQConnectionError as away:  # it cannot be loaded now
                    refused = away
            loads = self.loads.number
            try:
                return await self._run(call, min(retry.left_s, self.timeout_s))
            except GlideError as again:
                error = again
                self._check_client(error)
                if classify(error) is not FUNCTION_MISSING:
                    refused = None

    def _retry(self, name: str, repeatable: bool, started: float, words: Sequence[str | bytes]) -> CallRetry:
        tags = (hash_tag(word) for word in words) if self.is_cluster else ()
        limit = self.config.request_timeout or DEFAULT_REQUEST_TIMEOUT_MS
        return CallRetry(
            name, repeatable=repeatable, started=started, limit_ms=max(limit, self.lock_ms) if repeatable else limit,
            interruptions=self.interruptions, tag=next(filter(None, tags), None),
        )  # fmt: skip

    async def load(self) -> None:
        """Load the library. Raises GlideMQError."""
        args, route = load_arguments(self.library, self.is_cluster)
        try:
            if route is None:
                await self.client.custom_command(list(args))
            else:
                await self.client.custom_command(list(args), route)
        except GlideError as error:
            self._check_client(error)
            failure = loading_failed(error, self.library)
            if failure is not None:
                raise failure from error

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`."""
        if self._loop is not _current_loop():
            raise self._foreign_loop()
        started, words, retry = time.monotonic(), list(args), None
        while True:
            answered = self._answered
            try:
                reply = await self.client.custom_command(words)
                self._note_reply()
                return reply
            except GlideError as error:
                self._check_client(error, answered, args[min(1, len(args) - 1)])
                if self._closed:
                    raise ClosedError("the connection was closed") from error
                reads = only_reads(args)
                retry = retry or self._retry(str(args[0]), reads and "BLOCK" not in args, started, args[1:])
                step = retry.after(error)
                if step is None:
                    raise self.translated(error, reads=reads) from error
            await asyncio.sleep(step.pause)

    async def send_reads(self, key: str | None, commands: Sequence[Sequence[str | bytes]]) -> list[Any]:
        """See `Transport.send_reads`."""
        if self._loop is not _current_loop():
            raise self._foreign_loop()
        if key is None and self.is_cluster and self.config.read_from != ReadFrom.PRIMARY:
            return [reply for command in commands for reply in await self.send_reads(str(command[1]), [command])]
        timeout = self.config.request_timeout or DEFAULT_REQUEST_TIMEOUT_MS
        batch, options = _pipeline(self.is_cluster, timeout, key)
        for command in commands:
            batch.custom_command(list(command))
        retry = self._retry(str(commands[0][0]), True, time.monotonic(), () if key is None else (key,))
        replies: list[Any]
        while True:
            answered = self._answered
            try:
                replies = await self.client.exec(batch, raise_on_error=False, options=options)
                self._note_reply()
                failed = not_read(replies)
            except GlideError as error:
                self._check_client(error, answered, key or "")
                replies, failed = [], error
            if failed is None:
                return [translate(each, self.library) if isinstance(each, GlideError) else each for each in replies]
            if self._closed:
                raise ClosedError("the connection was closed") from failed
            step = retry.after(failed)
            if step is None:
                raise self.translated(failed, reads=True) from failed
            await asyncio.sleep(step.pause)
            _, options = _pipeline(self.is_cluster, min(timeout, round(retry.left_s * 1000)), key)

    async def call_with(
        self, call: Call[T], waits: Sequence[Sequence[str]], block: int, grace: int | None = None,
        read: Sequence[str] | None = None,
    ) -> tuple[T, list[Any]]:  # fmt: skip
        """See `Transport.call_with`."""
        if self._loop is not _current_loop():
            raise self._foreign_loop()
        late = self.config.request_timeout or DEFAULT_REQUEST_TIMEOUT_MS
        timeout = block + (late if grace is None else min(late, grace))
        batch, options = _pipeline(self.is_cluster, timeout, call.key if read is None else None)
        if read is not None:
            batch.custom_command(list(read))
        batch.fcall(self._names[call.function], call.keys, list(call.args))
        for wait in waits:
            batch.custom_command(list(wait))
        answered, loads = self._answered, self.loads.number
        try:
            replies: list[Any] = await self.client.exec(batch, raise_on_error=False, options=options)
            self._note_reply()
        except GlideError as error:
            self._check_client(error, answered, call.key)
            if self._closed:
                raise ClosedError("the connection was closed") from error
            raise self.translated(error) from error
        reply, *others = replies[read is not None :]
        if isinstance(reply, GlideError):
            self._check_client(reply)
            if classify(reply) is FUNCTION_MISSING:
                if read is not None:
                    return await self.call(call), []
                await self.loads.load(self.load, loads)
                return await self.call_with(call, waits, block, grace)
            if is_of_node(reply):
                self.interruptions.record(hash_tag(call.key) if self.is_cluster else None)
            raise translate(reply, self.library) from reply
        found = [translate(each, self.library) if isinstance(each, GlideError) else each for each in others]
        return call.read(reply), found

    async def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """See `Transport.scan`."""
        if self._loop is not _current_loop():
            raise self._foreign_loop()
        try:
            cursor: Any
            if self.is_cluster:
                cursor = cast("Any", glide.ClusterScanCursor)()
                while not cursor.is_finished():
                    cursor, keys = await self.client.scan(cursor, match=pattern, count=1000)
                    yield keys
            else:
                cursor = b"0"
                while True:
                    cursor, keys = await self.client.scan(cursor, match=pattern, count=1000)
                    yield keys
                    if cursor == b"0":
                        break
        except GlideError as error:
            raise translate(error, self.library) from error

    async def dedicated(self) -> AsyncTransport:
        """See `Transport.dedicated`."""
        return self._over(await self.connect_client(), owned=True)

    def shared(
        self,
        release: Callable[[], AsyncTransport | None] | None = None,
        interruptions: Interruptions | None = None,
    ) -> AsyncTransport:
        """Return another transport over the same client.

        Args:
            release: called once, when it is closed; returns the transport to close then. None: the client stays open.
            interruptions: record of outages; None uses that of this transport.
        """
        source = self._source or self
        sharing = self._over(source.client, owned=False)
        sharing._source = source
        sharing.loads = source.loads
        sharing._release = release
        if interruptions is not None:
            sharing.interruptions = interruptions
        source._sharing.add(sharing)
        return sharing

    @property
    def client_owner(self) -> AsyncTransport:
        """The transport that owns the client."""
        return self._source or self

    @property
    def is_closed(self) -> bool:
        """Whether `close` or `abandon` was called."""
        return self._closed

    def _check_client(self, error: GlideError, answered: int | None = None, key: str | bytes = "") -> None:
        """Replace the client if its connection seems half-open, or if its server became a replica.

        Args:
            error: why a call failed.
            answered: number of replies before the call: a timeout is suspicious if none came since. None: it is not.
            key: a key of the call, for the node that may be silent.
        """
        self.note_error(error)
        replacement = (self._source or self)._replacement
        if replacement is not None:
            replacement.check(error, key, is_silent=self._answered == answered)

    def _note_reply(self) -> None:
        self._answered += 1
        if self._reachability.is_doubted:
            self._reachability.replied()

    def note_error(self, error: GlideError, is_refusal: bool = False) -> None:
        """Note whether an error is a reply of the server, or none came; ``is_refusal``: it refused a connection."""
        failure = classify(error)
        if failure in _WITHOUT_REPLY:
            waited_s = self.timeout_s if failure is TIMEOUT else 0.0
            self._reachability.failed(waited_s, self.timeout_s, partial(silence_of, self.config))
            if is_refusal and not self.is_cluster:
                self._reachability.refuse()
        elif failure is not CLOSED and self._reachability.is_doubted:
            self._reachability.replied()

    def translated(self, error: GlideError, *, reads: bool = False) -> GlideMQError:
        """Return our error for an error of GLIDE; the caller raises it from the original."""
        server = self._reachability
        if reads and server.rejection and classify(error) in _WITHOUT_REPLY:
            return ConnectionRejectedError(server.rejection)
        return translate(error, self.library, reads=reads, refused=server.refused)

    async def connect_client(self) -> GlideClient:
        """Return another client with the same configuration. Raises GlideMQConnectionError."""
        return await create_async(self.config)

    def use_client(self, client: GlideClient) -> None:
        """Make all further calls of this transport, and those that share its client, over another client."""
        for each in (self, *self._sharing):
            each.client = client

    async def is_silent(self, key: str | bytes) -> bool:
        """Return whether a trivial command for the key's node has no reply."""
        batch, options = _pipeline(self.is_cluster, LAST_CHANCE_MS)
        batch.custom_command(["EXISTS", key])
        try:
            await self.client.exec(batch, raise_on_error=False, options=options)
        except GlideError as error:
            return isinstance(error, GlideTimeoutError)
        return False

    def _over(self, client: GlideClient, *, owned: bool) -> AsyncTransport:
        return AsyncTransport(
            client, self.config, owned=owned, library=self.library, options=self.options,
            interruptions=self.interruptions,
        )  # fmt: skip

    async def elsewhere(self) -> AsyncTransport:
        """See `Transport.elsewhere`. With options to share it, the client is that of the running loop."""
        if self.connect_elsewhere is not None:
            return await self.connect_elsewhere(source=self)
        return AsyncTransport(
            await create_async(self.config), self.config, owned=True, library=self.library,
            interruptions=self.interruptions,
        )  # fmt: skip

    def abandon(self) -> None:
        """See `Transport.abandon`. Frees the socket immediately; GLIDE needs no loop for that."""
        if self._closed:
            return
        self._closed = True
        last = self._released()
        if last is not None:
            last.abandon()
        if self._owned:
            for each in self.attached:
                each.abandon()
            abandon_client(self.client, self._loop)

    def _released(self) -> AsyncTransport | None:
        """Return the shared transport to close with this one, which is closed."""
        release, self._release = self._release, None
        if release is None:
            return None
        self._loop = None  # calls are rejected from now on
        return release()

    def _foreign_loop(self) -> GlideMQError:
        if self._loop is None:
            return ClosedError("the connection was closed")
        if (self._source or self)._owned:
            return EventLoopError(
                "connection", "belongs to another event loop",
                "use it in that loop; in a handler that is a plain function, use job.blocking",
            )  # fmt: skip
        return EventLoopError(
            "connection", "the given GLIDE client belongs to another event loop",
            "give a URL or ConnectionOptions, for which every event loop gets a client of its own",
        )  # fmt: skip

    async def close(self) -> None:
        """See `Transport.close`. A cancelled close leaves nothing open."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._replacement is not None:
                await self._replacement.stop()
        finally:
            if self._owned:
                await self.client.close()  # does not suspend
            last = self._released()
            if last is not None:
                await last.close()
            for each in self.attached:
                await each.close()


_current_loop = asyncio._get_running_loop
_WITHOUT_REPLY = (TIMEOUT, LOST)
_SHORT = 2_048
"""Longest last argument, in characters or bytes, of a call that counts as short (worth busy polling)."""


def _batch_options(cluster: bool, timeout_s: float) -> Any:
    kind: Any = glide.ClusterBatchOptions if cluster else glide.BatchOptions
    return kind(timeout=max(1, round(timeout_s * 1000)))


def _pipeline(cluster: bool, timeout: int, key: str | None = None) -> tuple[Any, Any]:
    """Return an empty pipeline (not a transaction), and its options with a timeout of ``timeout`` ms.

    In a cluster, ``key`` sends the whole pipeline to the primary of this key.
    """
    if cluster:
        route = None if key is None else glide.SlotKeyRoute(glide.SlotType.PRIMARY, key)
        return glide.ClusterBatch(is_atomic=False), glide.ClusterBatchOptions(timeout=timeout, route=route)
    return glide.Batch(is_atomic=False), glide.BatchOptions(timeout=timeout)
