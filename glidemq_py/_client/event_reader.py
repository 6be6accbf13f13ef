"""Read the events stream of a queue without gaps, and subscribe to Pub/Sub channels of the server.

Events are notifications, not state: the stream keeps about the last thousand (docs/reference/data-model.md), or the
number set by `Queue.settings.set_event_retention`. To get a job's result, read the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from glidemq_py._client.loop_transport import close_at_loop_end
from glidemq_py._client.shared_reads import ReadConnection, Reservation, claim_read, glide_of
from glidemq_py._client.transport import GlideClient, Transport
from glidemq_py._core.keys import entry_order
from glidemq_py._core.logs import get_logger

if TYPE_CHECKING:
    from glidemq_py._client.memory.server import MemoryTransport

_log = get_logger(__name__)

_BLOCK_MS = 1_000
_PAGE = 200
_MAX_PAUSE_S = 5.0
_NAME_LENGTH = 1_024

QUEUE_EVENTS: Final = (
    "added", "active", "progress", "completed", "retrying", "failed", "expired", "stalled", "promoted", "retried",
    "removed", "revoked", "deduplicated", "delay-changed", "priority-changed", "rank-changed", "group-rate-limited",
    "waiting-children", "budget-exceeded", "usage", "drained", "cleaned", "trimmed", "suspended", "resumed", "paused",
    "scheduler-paused", "scheduler-resumed",
)  # fmt: skip
"""Names of the events of a queue, of this package and of glide-mq for Node (docs/learn/events.md)."""

_Entries = dict[bytes, list[list[bytes]]]
EventEntry = tuple[bytes, list[list[bytes]]]
"""An event as the server sends it: the id of its entry, and pairs of names and values."""


@dataclass(frozen=True, slots=True)
class QueueEvent:
    """One event of a queue.

    Attributes:
        id: stream entry id, ``<epoch ms>-<number>``; ids increase. In a partitioned queue it names the partition, as
            ``3||<epoch ms>-<number>``, and ids of one partition increase.
        event: name of the event, such as ``completed`` (docs/reference/data-model.md lists the names).
        job_id: id of the job; "0" or a count for events of the whole queue.
        fields: all other fields of the entry, as text.
    """

    id: str
    event: str
    job_id: str
    fields: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def timestamp(self) -> int:
        """Time of the event, server time in epoch ms."""
        return int(self.id.rpartition("|")[2].partition("-")[0])


class EventReader:
    """Reads an events stream from a position on; needs a connection for blocking reads (`open_reader`)."""

    def __init__(self, transport: ReadConnection, key: str) -> None:
        self._transport = transport
        self._key = key
        self.position = ""

    async def resolve(self) -> None:
        """Set the position to the newest event, so that no event after this call is missed."""
        found = await self._transport.command("XREVRANGE", self._key, "+", "-", "COUNT", "1")
        self.position = next(iter(found)).decode() if found else "0-0"

    async def resume(self, position: str) -> None:
        """Set the position, or the newest event if that is before it: of another stream, all new ones are missing."""
        await self.resolve()
        if entry_order(position) < entry_order(self.position):
            self.position = position

    async def read(self) -> list[QueueEvent]:
        """Return the events after the position, waiting up to a second for one; an empty list if none came."""
        return [event_of(*entry) for entry in await self.entries()]

    async def entries(self) -> list[EventEntry]:
        """Return the entries of the events that `read` returns."""
        reply: dict[bytes, _Entries] | None = await self._transport.command(
            "XREAD", "COUNT", str(_PAGE), "BLOCK", str(_BLOCK_MS), "STREAMS", self._key, self.position
        )
        if not reply:
            return []
        found = [entry for entries in reply.values() for entry in entries.items()]
        if found:
            self.position = found[-1][0].decode("utf-8", "replace")
        return found

    async def page(self, count: int) -> list[QueueEvent]:
        """Return up to ``count`` events after the position, without waiting."""
        start = f"({self.position}" if self.position != "0-0" else "-"
        found: _Entries | None = await self._transport.command("XRANGE", self._key, start, "+", "COUNT", str(count))
        events = [event_of(entry, pairs) for entry, pairs in (found or {}).items()]
        if events:
            self.position = events[-1].id
        return events

    async def close(self) -> None:
        """Close the connection."""
        await self._transport.close()

    async def check_rewound(self) -> None:
        """Restart at the beginning if the stream was emptied (FLUSHALL, a new server). Called after a reconnect."""
        found = await self._transport.command("XREVRANGE", self._key, "+", "-", "COUNT", "1")
        last = next(iter(found)).decode() if found else "0-0"
        if entry_order(last) < entry_order(self.position):
            self.position = "0-0"


def event_of(entry: bytes, pairs: list[list[bytes]]) -> QueueEvent:
    """Return the event of an entry."""
    fields = {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in pairs}
    return QueueEvent(entry.decode("utf-8", "replace"), fields.pop("event", ""), fields.pop("jobId", ""), fields)


class News:
    """Names of the queues or partitions with new events, for one follower."""

    def __init__(self) -> None:
        self._changed: set[str] = set()
        self._event = asyncio.Event()

    def add(self, queue: str) -> None:
        """Note that a queue has new events."""
        self._changed.add(queue)
        self._event.set()

    def wake(self) -> None:
        """End the wait of `take`."""
        self._event.set()

    async def take(self, seconds: float) -> set[str]:
        """Return the names and forget them; wait for one up to some seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self._event.clear()
        taken, self._changed = self._changed, set()
        return taken


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
