"""A dedicated connection that blocks: direct, with a client of GLIDE only where a direct connection cannot serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from glide_shared.exceptions import GlideError
from glide_shared.exceptions import TimeoutError as GlideTimeoutError

from glidemq_py._client.call_retry import classify, translate
from glidemq_py._client.direct import must_leave
from glidemq_py._client.direct.connection import DirectConnection
from glidemq_py._client.direct.nodes import DirectNodes
from glidemq_py._client.failures import DEFAULT_REQUEST_TIMEOUT_MS, FUNCTION_MISSING, Interruptions
from glidemq_py._client.loop_transport import close_at_loop_end
from glidemq_py._client.transport import Transport
from glidemq_py._core.calls import Call
from glidemq_py._core.keys import hash_tag
from glidemq_py.errors import ClosedError

if TYPE_CHECKING:
    from glidemq_py._client.async_transport import AsyncTransport
    from glidemq_py._client.library_source import Library

T = TypeVar("T")
_WAIT: Final = "BLOCK"
_READS: Final = ("XREAD", "XREADGROUP")


class DirectTransport:
    """A `Transport` whose reads of streams, and the calls behind them, go over a direct connection.

    Everything else goes through a client of GLIDE, which is created when it is first needed.

    Args:
        source: the transport that it is derived from.
        nodes: connections of this transport alone.
    """

    def __init__(self, source: AsyncTransport, nodes: DirectNodes) -> None:
        self._source = source
        self._nodes = nodes
        self._glide: AsyncTransport | None = None
        self._creating = asyncio.Lock()
        self._timeout_s = (source.config.request_timeout or DEFAULT_REQUEST_TIMEOUT_MS) / 1000
        self._closed = False
        close_at_loop_end(asyncio.get_running_loop(), self)

    @property
    def interruptions(self) -> Interruptions:
        """See `Transport.interruptions`."""
        return self._source.interruptions

    @property
    def is_cluster(self) -> bool:
        """See `Transport.is_cluster`."""
        return self._source.is_cluster

    @property
    def config(self) -> Any:
        """The configuration of the client of GLIDE."""
        return self._source.config

    @property
    def library(self) -> Library:
        """The rendering of the function library that is called."""
        return self._source.library

    async def _client(self) -> AsyncTransport:
        async with self._creating:
            self._check_open()
            if self._glide is None:
                client = await self._source.dedicated_client()
                try:
                    self._check_open()  # it may have been closed while connecting
                except ClosedError:
                    await client.close()
                    raise
                self._glide = client
            return self._glide

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the connection was closed")

    async def call(self, call: Call[T]) -> T:
        """See `Transport.call`."""
        return await (await self._client()).call(call)

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`. Reads of streams and their CLIENT ID go over the direct connection."""
        connection = None
        if args[0] in _READS:
            connection = await self._connection(str(args[args.index("STREAMS") + 1]))
        elif args == ("CLIENT", "ID") and not self.is_cluster:
            connection = await self._connection("")
        if connection is None:
            return await (await self._client()).command(*args)
        block = int(args[args.index(_WAIT) + 1]) / 1000 if _WAIT in args else 0.0
        reply = await self._reply(connection, connection.send(args, self._timeout_s + block), str(args[0]), reads=True)
        if isinstance(reply, GlideError):
            raise translate(reply, self._source.library) from reply
        return _entries(reply) if args[0] in _READS else reply

    async def call_all(self, calls: Sequence[Call[T]]) -> list[T]:
        """See `Transport.call_all`."""
        return await (await self._client()).call_all(calls)

    async def send_reads(self, key: str | None, commands: Sequence[Sequence[str | bytes]]) -> list[Any]:
        """See `Transport.send_reads`."""
        return await (await self._client()).send_reads(key, commands)

    async def call_after(self, read: Sequence[str], call: Call[T], block: int) -> T:
        """See `Transport.call_after`."""
        connection = await self._connection(call.key)
        if connection is None:
            return await (await self._client()).call_after(read, call, block)
        words = self._source.words_of(call)
        reading, called = connection.send_together((tuple(read), words), self._timeout_s + block / 1000)
        reading.add_done_callback(_ignore)
        reply = await self._reply(connection, called, call.key)
        if isinstance(reply, GlideError):
            if classify(reply) is FUNCTION_MISSING:
                return await self.call(call)
            raise translate(reply, self._source.library) from reply
        return call.read(reply)

    async def _connection(self, key: str) -> DirectConnection | None:
        self._check_open()
        return self._nodes.find(key) or await self._nodes.ready(key)

    async def _reply(
        self, connection: DirectConnection, future: asyncio.Future[Any], key: str, *, reads: bool = False
    ) -> Any:
        try:
            reply = await future
        except GlideError as error:
            if self._closed:
                raise ClosedError("the connection was closed") from error
            self._source._note_error(error)
            if isinstance(error, GlideTimeoutError):
                self._source.doubt_direct()
            raise self._source._translated(error, reads=reads) from error
        if self.interruptions.server.is_doubted:
            self.interruptions.server.replied()
        if isinstance(reply, GlideError) and must_leave(reply):
            self._nodes.retire(connection)
            self.interruptions.record(hash_tag(key) if self.is_cluster else None)
        return reply

    async def call_before(
        self, call: Call[T], waits: Sequence[Sequence[str]], block: int, grace: int | None = None
    ) -> tuple[T, list[Any]]:
        """See `Transport.call_before`."""
        return await (await self._client()).call_before(call, waits, block, grace)

    async def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """See `Transport.scan`."""
        async for keys in (await self._client()).scan(pattern):
            yield keys

    async def dedicated(self) -> Transport:
        """See `Transport.dedicated`."""
        return await self._source.dedicated()

    async def elsewhere(self) -> Transport:
        """See `Transport.elsewhere`."""
        return await self._source.elsewhere()

    async def close(self) -> None:
        """See `Transport.close`."""
        self._closed = True
        self._nodes.close()
        if self._glide is not None:
            await self._glide.close()

    def abandon(self) -> None:
        """See `Transport.abandon`."""
        if not self._closed:
            self._closed = True
            self._nodes.abandon()
            if self._glide is not None:
                self._glide.abandon()

    def fail_overdue(self) -> None:
        """See `LoopResource.fail_overdue`: direct connections watch the time themselves, and GLIDE's is registered."""


def _entries(reply: Any) -> dict[bytes, dict[bytes, list[tuple[bytes, bytes]]]] | None:
    """Return the entries of each stream as GLIDE does: names and values of fields in pairs, by the id of the entry."""
    if not reply:
        return None
    return {
        stream: {entry: list(zip(words[::2], words[1::2], strict=True)) for entry, words in entries}
        for stream, entries in reply.items()
    }


def _ignore(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
