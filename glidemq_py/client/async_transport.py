"""The transport of an event loop, over valkey-glide."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar, cast

from glide_shared.exceptions import GlideError, RequestError

from glidemq_py.client.blocking_transport import ThreadTransport
from glidemq_py.client.busy_poll import BusyPoll
from glidemq_py.client.connect import GlideClient, GlideConfig, ServerConnection, create_async, resolve_async
from glidemq_py.client.failures import is_function_missing, translate, was_lost
from glidemq_py.client.glide_modules import glide
from glidemq_py.client.loader import load_arguments, loading_failed
from glidemq_py.errors import ClosedError
from glidemq_py.wire.calls import Call
from glidemq_py.wire.library import Library, assemble

__all__ = ["AsyncTransport"]

T = TypeVar("T")


class AsyncTransport:
    """A `Transport` over one GLIDE client.

    Args:
        client: a connected client of the running loop.
        config: what it was made from, so that dedicated connections can be made alike.
        owned: close it with this transport; an injected client is never closed by us.
        library: which rendering of the function library to call.
        busy_poll: stay awake for the answer of a lone call (busy_poll.py).
    """

    def __init__(
        self,
        client: GlideClient,
        config: GlideConfig,
        *,
        owned: bool,
        library: Library | None = None,
        busy_poll: bool = True,
    ) -> None:
        # GLIDE types replies as everything a server may say; what a call means is for its `decode` to know.
        self._client: Any = client
        self.config = config
        self._owned = owned
        self.library = library or assemble()
        self._names = {name: self.library.function(name).encode() for name in self.library.functions}
        self._new_batch: Any = glide.ClusterBatch if self.is_cluster else glide.Batch
        self._loading: asyncio.Task[None] | None = None
        self._under_way = 0
        self._busy_poll = busy_poll
        self._poll = BusyPoll(wanted=busy_poll)
        self._closed = False

    @classmethod
    async def connect(cls, connection: ServerConnection, *, library: Library | None = None) -> AsyncTransport:
        """A transport for whatever a user gives as `connection`. Raises GlideMQConnectionError."""
        found = await resolve_async(connection)
        return cls(found.client, found.config, owned=found.owned, library=library, busy_poll=found.busy_poll)

    @property
    def is_cluster(self) -> bool:
        """True for a cluster client."""
        return isinstance(self._client, glide.GlideClusterClient)

    async def call(self, call: Call[T]) -> T:
        """See `Transport.call`."""
        if self._loading is not None:
            await asyncio.shield(self._loading)  # calls that came before and missed the library go first
        try:
            reply = await self._run(call)
        except GlideError as error:
            reply = await self._recover(call, error)
        return call.decode(reply)

    async def _run(self, call: Call[Any]) -> Any:
        # A batch of one, not `fcall`: that one wakes a thread of GLIDE's, which watches the time, with every call, and
        # costs a tenth of the whole round trip more.
        batch = self._new_batch(is_atomic=False)
        batch.fcall(self._names[call.function], [call.key], list(call.args))
        self._under_way += 1
        if self._under_way == 1 and (not call.args or len(call.args[-1]) <= _SHORT):
            self._poll.begin()
        else:
            self._poll.end()
        try:
            (reply,) = await self._client.exec(batch, raise_on_error=False)
        finally:
            self._under_way -= 1
            self._poll.end()
        if isinstance(reply, GlideError):
            raise reply
        return reply

    async def _recover(self, call: Call[Any], error: GlideError) -> Any:
        """Load the library and run the call again where that is what was missing; else raise what it means."""
        if self._closed:
            raise ClosedError("the connection was closed") from error
        if isinstance(error, RequestError) and is_function_missing(error):
            await self._load()
        elif not (call.repeatable and was_lost(error)):
            raise translate(error, self.library) from error
        try:
            return await self._run(call)
        except GlideError as again:
            raise translate(again, self.library) from again

    async def _load(self) -> None:
        """Load once for all the calls that miss it at the same time."""
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._load_now())
            self._loading.add_done_callback(self._loaded)
        await asyncio.shield(self._loading)

    def _loaded(self, _: asyncio.Task[None]) -> None:
        self._loading = None

    async def _load_now(self) -> None:
        args, route = load_arguments(self.library, self.is_cluster)
        try:
            if route is None:
                await self._client.custom_command(list(args))
            else:
                await self._client.custom_command(list(args), route)
        except GlideError as error:
            failure = loading_failed(error, self.library)
            if failure is not None:
                raise failure from error

    async def command(self, *args: str | bytes) -> Any:
        """See `Transport.command`."""
        try:
            return await self._client.custom_command(list(args))
        except GlideError as error:
            if self._closed:
                raise ClosedError("the connection was closed") from error
            raise translate(error, self.library) from error

    async def call_after(self, read: Sequence[str], call: Call[T], block: int) -> T:
        """See `Transport.call_after`."""
        batch, options = _pipeline(self.is_cluster, block + (self.config.request_timeout or _REQUEST_TIMEOUT))
        batch.custom_command(list(read))
        batch.fcall(self._names[call.function], [call.key], list(call.args))
        try:
            _, reply = await self._client.exec(batch, raise_on_error=False, options=options)
        except GlideError as error:
            if self._closed:
                raise ClosedError("the connection was closed") from error
            raise translate(error, self.library) from error
        if isinstance(reply, GlideError):
            if isinstance(reply, RequestError) and is_function_missing(reply):
                return await self.call(call)
            raise translate(reply, self.library) from reply
        return call.decode(reply)

    async def scan(self, pattern: str) -> AsyncIterator[list[bytes]]:
        """See `Transport.scan`."""
        try:
            cursor: Any
            if self.is_cluster:
                cursor = cast("Any", glide.ClusterScanCursor)()
                while not cursor.is_finished():
                    cursor, keys = await self._client.scan(cursor, match=pattern, count=1000)
                    yield keys
            else:
                cursor = b"0"
                while True:
                    cursor, keys = await self._client.scan(cursor, match=pattern, count=1000)
                    yield keys
                    if cursor == b"0":
                        break
        except GlideError as error:
            raise translate(error, self.library) from error

    async def dedicated(self) -> AsyncTransport:
        """See `Transport.dedicated`."""
        client = await create_async(self.config)
        return AsyncTransport(client, self.config, owned=True, library=self.library, busy_poll=self._busy_poll)

    def shared(self) -> AsyncTransport:
        """Another one over the same client, which it does not close."""
        return AsyncTransport(self._client, self.config, owned=False, library=self.library, busy_poll=self._busy_poll)

    def for_thread(self) -> ThreadTransport:
        """See `Transport.for_thread`."""
        return ThreadTransport(self.config, self.library)

    def abandon(self) -> None:
        """Close without an event loop: this client's own has ended. Nothing of GLIDE's closing is waited for."""
        if self._closed:
            return
        self._closed = True
        if self._owned:
            closing = self._client.close()
            # Calls that nobody waits for any more cannot be told on a loop that is closed.
            with contextlib.suppress(StopIteration, RuntimeError):
                closing.send(None)
            closing.close()

    async def close(self) -> None:
        """See `Transport.close`."""
        if not self._closed:
            self._closed = True
            if self._owned:
                await self._client.close()


_SHORT = 2_048
"""Length of an argument up to which a call is one that is answered soon."""
_REQUEST_TIMEOUT = 30_000
"""Milliseconds, for a client of the user's that states none."""


def _pipeline(cluster: bool, timeout: int) -> tuple[Any, Any]:
    """An empty pipeline (not a transaction), and options that give it ``timeout`` ms."""
    if cluster:
        return glide.ClusterBatch(is_atomic=False), glide.ClusterBatchOptions(timeout=timeout)
    return glide.Batch(is_atomic=False), glide.BatchOptions(timeout=timeout)
