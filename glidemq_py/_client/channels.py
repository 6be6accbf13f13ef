"""Subscribe to Pub/Sub channels of the server, with a client of its own."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from glidemq_py._client.connect import GlideClient
from glidemq_py._client.loop_transport import close_at_loop_end
from glidemq_py._client.reservations import Reservation, claim_read
from glidemq_py._client.shared_reads import glide_of
from glidemq_py._client.transport import Transport

if TYPE_CHECKING:
    from glidemq_py._client.memory.server import MemoryTransport


class Subscription(Protocol):
    """A subscription that ends with `close`."""

    async def close(self) -> None:
        """End the subscription."""
        ...


async def subscribe(transport: Transport, prefix: str, on_message: Callable[[str], None]) -> Subscription | None:
    """Subscribe to all channels that begin with ``prefix``.

    GLIDE subscribes again after a reconnect. Messages sent meanwhile are lost.

    Args:
        transport: a connection to the server.
        prefix: first part of the channels, without special characters of patterns.
        on_message: called in the running event loop with the channel of each message.

    Returns:
        The subscription; None if this kind of connection does not support any.

    Raises:
        GlideMQConnectionError: if the server cannot be reached.
    """
    loop = asyncio.get_running_loop()

    def deliver(channel: str | bytes) -> None:
        text = channel.decode() if isinstance(channel, bytes) else channel
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(on_message, text)

    glide = glide_of(transport)
    if glide is None:
        from glidemq_py._client.memory.server import MemoryTransport  # loaded only where it is used

        return _InMemory(transport, prefix, deliver) if isinstance(transport, MemoryTransport) else None
    from glidemq_py._client.async_client import create_async  # imports GLIDE, which is loaded only to connect

    config: Any = copy.copy(glide.config)
    kind = cast("Any", type(config))

    def receive(message: Any, _: object) -> None:
        deliver(message.channel)

    patterns = {kind.PubSubChannelModes.Pattern: {f"{prefix}*"}}
    config.pubsub_subscriptions = kind.PubSubSubscriptions(patterns, receive, None)
    reservation = claim_read(glide.server)
    try:
        return _Client(loop, await create_async(config), reservation)
    except BaseException:
        reservation.release()
        raise


class _Client:
    """The client of a subscription. It is closed at the end of its event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: GlideClient, reservation: Reservation) -> None:
        self._client: Any = client
        self._reservation = reservation
        self._closed = False
        close_at_loop_end(loop, self)

    async def close(self) -> None:
        """See `Subscription.close`. Idempotent."""
        if not self._closed:
            self._closed = True
            self._reservation.release()
            await self._client.close()

    def abandon(self) -> None:
        """See `LoopResource.abandon`. Frees the socket immediately; GLIDE needs no loop for that."""
        if not self._closed:
            self._closed = True
            self._reservation.release()
            from glidemq_py._client.glide_faults import close_at_once  # imports GLIDE

            close_at_once(self._client)


class _InMemory:
    def __init__(self, transport: MemoryTransport, prefix: str, deliver: Callable[[bytes], None]) -> None:
        self._listeners = transport.listeners
        self._prefix = prefix.encode()
        self._deliver = deliver
        self._listeners.append(self._publish)

    def _publish(self, channel: bytes) -> bool:
        mine = channel.startswith(self._prefix)
        if mine:
            self._deliver(channel)
        return mine

    async def close(self) -> None:
        with contextlib.suppress(ValueError):
            self._listeners.remove(self._publish)
