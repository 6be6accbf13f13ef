"""Reading the events of queues, and adding a delivery for each webhook that wants one.

The hash `<prefix>:gateway:webhook-cursors` has the last event of each queue, or partition, whose deliveries were added.
One gateway reads at a time: it holds the lock `<prefix>:gateway:webhook-lock`. A gateway that was paused cannot advance
a cursor that another one has advanced since, because it changes a cursor only if it has the value that it knows; and
the ids of deliveries follow from the events, so a delivery that it adds again is not a second one.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._api.queue_events import QueueEvent, QueueEvents
from glidemq_py._client.failures import repeated_level
from glidemq_py._client.runtime import stop_task
from glidemq_py._client.transport import Connection, Transport
from glidemq_py._core.calls.administration import lock, renew, unlock
from glidemq_py._core.keys import entry_order
from glidemq_py._core.logs import get_logger
from glidemq_py.errors import ClosedError, GlideMQError
from glidemq_py.gateway.chosen_ids import claim_ids
from glidemq_py.gateway.events import WireEvents, tell_starts
from glidemq_py.gateway.job_ids import JobIds
from glidemq_py.gateway.webhook_registry import NAMES, Figures, Message, Webhook, WebhookRegistry, message_of

_log = get_logger(__name__)

LOCK_MS: Final = 5_000
_SAFE_S: Final = 3.5
"""How long after a renewal the lock is surely held."""
EVENTS_KEPT: Final = 20_000
"""Least number of events that a queue with webhooks keeps."""
_PAUSE_S: Final = 0.1
_MOST_PAUSE_S: Final = 5.0

_TELL_AGAIN_S: Final = 60.0

Delivery = tuple[str, str, Message]
"""Id of the webhook, queue, and message."""
AddDeliveries = Callable[[Sequence[Delivery]], Awaitable[None]]


def wanted_by(queue: str, webhooks: Mapping[str, tuple[Webhook, Figures]]) -> dict[str, Webhook]:
    """Return the enabled webhooks for events of a queue, by id."""
    return {
        webhook_id: webhook for webhook_id, (webhook, _) in webhooks.items()
        if webhook.enabled and webhook.queue in (None, queue)
    }  # fmt: skip


async def prepare(queue: Queue, events: Iterable[str]) -> None:
    """Let a queue keep enough events, and report the starts of its jobs for three minutes if they are among `events`.

    Raises:
        GlideMQError: If the server cannot be reached.
    """
    if await queue.settings.get_event_retention() < EVENTS_KEPT:
        await queue.settings.set_event_retention(EVENTS_KEPT)
    if "job.started" in events:
        await tell_starts(queue)


class ReadingLock:
    """The right to read events, held by one gateway process at a time.

    Args:
        transport: Connection to the server of the queues.
        prefix: First part of every key.
    """

    def __init__(self, transport: Transport, prefix: str) -> None:
        self._transport = transport
        self._key = f"{prefix}:gateway:webhook-lock"
        self._token = secrets.token_hex(8)
        self._held_from: float | None = None

    def is_surely_held(self) -> bool:
        """Return whether it is held now, also if this process was paused."""
        return self._held_from is not None and time.monotonic() - self._held_from < _SAFE_S

    async def hold(self) -> bool:
        """Acquire or renew it; return whether it is held.

        Raises:
            GlideMQConnectionError: If the server cannot be reached.
        """
        started = time.monotonic()
        call = lock if self._held_from is None else renew
        held = await self._transport.call(call(self._key, self._token, LOCK_MS))
        self._held_from = started if held else None
        return held

    async def release(self) -> None:
        """Let another gateway read."""
        if self._held_from is not None:
            self._held_from = None
            with contextlib.suppress(GlideMQError):
                await self._transport.call(unlock(self._key, self._token))


class EventReading:
    """Reads the events of a queue or partition from where the last gateway stopped.

    It ends when it is closed, or has lost the lock.

    Args:
        queue: The queue, or the partition.
        connection: As for `QueueEvents`.
        transport: Connection to the server of the queues.
        lock: The right to read.
        ids: Returns the ids of jobs on the wire.
        add: Adds deliveries, all or none; again for the same events if it failed.
        registry: The webhooks.
    """

    def __init__(
        self, queue: Queue, connection: Connection, transport: Transport, lock: ReadingLock,
        ids: JobIds, add: AddDeliveries, registry: WebhookRegistry,
    ) -> None:  # fmt: skip
        self._queue, self._connection, self._transport = queue, connection, transport
        self._lock, self._wire, self._add, self._registry = lock, WireEvents(queue, ids), add, registry
        self._revision = -1
        self._cursors = f"{queue.options.prefix}:gateway:webhook-cursors"
        self._stored = ""
        self._prepared = 0.0
        self._events: QueueEvents | None = None
        self._task: asyncio.Task[None] | None = None
        self.webhooks: Mapping[str, Webhook] = {}
        """The enabled webhooks for events of this queue, as of a revision of the registry."""

    @property
    def has_ended(self) -> bool:
        """Whether it no longer reads."""
        return self._task is None or self._task.done()

    def start(self, revision: int, webhooks: Mapping[str, Webhook]) -> None:
        """Start to read."""
        self.update(revision, webhooks)
        self._task = asyncio.create_task(self._run(), name=f"gateway-webhooks-{self._queue.name}")

    def update(self, revision: int, webhooks: Mapping[str, Webhook]) -> bool:
        """Replace the webhooks, unless newer ones are known; return whether there is a new one."""
        if revision <= self._revision:
            return False
        is_new = any(each not in self.webhooks for each in webhooks)
        self._revision, self.webhooks = revision, webhooks
        return is_new

    async def _refresh(self) -> None:
        """Read the webhooks if they have changed: one that was added before an event gets it."""
        revision = await self._registry.revision()
        if revision > self._revision:
            found = wanted_by(self._queue._shown_name, await self._registry.all())
            await self.keep_prepared(always=self.update(revision, found))

    async def keep_prepared(self, *, always: bool = False) -> None:
        """Prepare the queue again in time; see `prepare`."""
        now = time.monotonic()
        if always or now - self._prepared >= _TELL_AGAIN_S:
            await prepare(self._queue, {event for webhook in self.webhooks.values() for event in webhook.events})
            self._prepared = now

    async def close(self) -> None:
        """Stop. Idempotent."""
        if self._task is not None:
            await stop_task(self._task)
        if self._events is not None:
            await self._events.close()

    async def _run(self) -> None:
        pause = _PAUSE_S
        while True:
            try:
                await self._read()
                return
            except ClosedError:
                return
            except GlideMQError as error:
                level = repeated_level(self._transport, error)
                _log.log(level, "gateway: queue %r: webhooks are delayed: %s", self._queue.name, error)
            except Exception:
                _log.exception("gateway: queue %r: webhooks are delayed", self._queue.name)
            await asyncio.sleep(pause * (0.5 + random.random()))
            pause = min(2 * pause, _MOST_PAUSE_S)

    async def _read(self) -> None:
        if self._events is not None:
            await self._events.close()
        await self.keep_prepared(always=True)
        position = await self._start_position()
        self._events = QueueEvents(
            self._queue.name, self._connection, prefix=self._queue.options.prefix, last_event_id=position
        )
        self._events._reads_layout = False
        await self._events.wait_until_ready()
        while True:
            page = await self._events._read()
            if page and not await self._deliver(page):
                return

    async def _start_position(self) -> str:
        """Return the event after which to read."""
        found = await self._transport.command("HGET", self._cursors, self._queue.name)
        self._stored = "" if found is None else found.decode("utf-8", "replace")
        since = min((each.since for each in self.webhooks.values()), default=0)
        first = f"{max(since - 1, 0)}-0"
        if not _is_entry(self._stored) or entry_order(self._stored) < entry_order(first):
            return first
        await self._check_gap()
        return self._stored

    async def _check_gap(self) -> None:
        """Log if events were deleted from the stream before they were read."""
        link = await self._queue._connected()
        oldest = await link.command("XRANGE", link.keys.events, "-", "+", "COUNT", "1")
        for entry in oldest or ():
            if entry_order(entry.decode()) > entry_order(self._stored):
                _log.warning(
                    "gateway: queue %r: events after %s were deleted from its stream; their webhooks may be missing",
                    self._queue.name, self._stored,
                )  # fmt: skip

    async def _deliver(self, page: Sequence[QueueEvent]) -> bool:
        """Add the deliveries of events, and advance the cursor. Return False if another gateway reads them."""
        if not self._lock.is_surely_held():
            return False
        await self._refresh()
        deliveries: list[Delivery] = []
        for event in page:
            name = NAMES.get(event.event)
            wanted = [
                webhook_id for webhook_id, webhook in self.webhooks.items()
                if name in webhook.events and event.timestamp >= webhook.since
            ]  # fmt: skip
            message = await message_of(event, self._wire) if wanted else None
            if message is not None:
                deliveries += [(webhook_id, self._queue.name, message) for webhook_id in wanted]
        if deliveries:
            if not self._lock.is_surely_held():
                return False
            await self._add(deliveries)
        last = page[-1].id
        (before,) = await self._transport.call(claim_ids(self._cursors, [self._queue.name, self._stored, last]))
        if before not in (self._stored, last):
            _log.warning("gateway: queue %r: another gateway reads its events now", self._queue.name)
            return False
        self._stored = last
        return True


def _is_entry(text: str) -> bool:
    ms, dash, number = text.partition("-")
    return bool(dash) and ms.isdecimal() and number.isdecimal() and len(text) <= 40
