"""State shared by the requests of one proxy: a connection, the open queues, the closing flag."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from glidemq_py._api.queue import Queue
from glidemq_py._client.async_transport import SharedClient
from glidemq_py._client.connect import Connection
from glidemq_py._client.transport import ConnectionSource
from glidemq_py._core.logs import get_logger
from glidemq_py._core.names import validate_queue_name
from glidemq_py._features.broadcast.broadcast import Broadcast
from glidemq_py._features.broadcast.worker import BroadcastWorker
from glidemq_py.errors import ClosedError
from glidemq_py.proxy.options import ProxyOptions
from glidemq_py.proxy.refusals import INTERNAL, NotAllowedError, status_of
from glidemq_py.proxy.subscription_hub import SubscriptionHub
from glidemq_py.proxy.watching import EventHub

__all__ = ["ProxyState"]

_log = get_logger("glidemq_py.proxy")

_QUEUES_KEPT: Final = 1_000


class ProxyState:
    """One connection for all queues; a queue is opened at its first request."""

    def __init__(self, connection: Connection, options: ProxyOptions) -> None:
        self.options = options
        self.closing = asyncio.Event()
        self.started = time.monotonic()
        self._connection = connection
        self._client: ConnectionSource | None = None
        self._connecting = asyncio.Lock()
        self._queues: OrderedDict[str, Queue[Any, Any]] = OrderedDict()
        self._broadcasts: OrderedDict[str, Broadcast[Any]] = OrderedDict()
        self._hubs: dict[str, EventHub] = {}
        self._subscriptions: dict[tuple[str, str], SubscriptionHub] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def open_queues(self) -> int:
        """Return the number of open queues."""
        return len(self._queues)

    @property
    def client(self) -> ConnectionSource:
        """Return the shared connection; requires `connect`."""
        assert self._client is not None
        return self._client

    async def connect(self) -> None:
        """Connect if not connected.

        Raises:
            ClosedError: if the proxy is closing.
            GlideMQConnectionError: if the server cannot be reached; a later request retries.
        """
        if self.closing.is_set():
            raise ClosedError("the proxy is closing")
        if self._client is None:
            async with self._connecting:
                if self._client is None:
                    self._client = await SharedClient.open(self._connection)

    def check_allowed(self, name: str) -> None:
        """Check that a queue may be used.

        Raises:
            GlideMQValidationError: if the name is invalid.
            NotAllowedError: if the queue may not be used.
        """
        validate_queue_name(name)
        allowed = self.options.queues
        if allowed is not None and name not in allowed:
            raise NotAllowedError(f"queue {name!r} is not available through this proxy")

    def queue(self, name: str) -> Queue[Any, Any]:
        """Return the queue of this name; requires `connect`."""
        found = self._queues.get(name)
        if found is not None:
            self._queues.move_to_end(name)
            return found
        self.check_allowed(name)
        options = self.options
        found = self._queues[name] = Queue(
            name, self.client, prefix=options.prefix, compression=options.compression, events=options.events
        )
        if len(self._queues) > _QUEUES_KEPT:
            self._close_later(self._queues.popitem(last=False)[1])
        return found

    def broadcast(self, name: str) -> Broadcast[Any]:
        """Return the broadcast of this name; requires `connect`."""
        found = self._broadcasts.get(name)
        if found is not None:
            self._broadcasts.move_to_end(name)
            return found
        options = self.options
        found = self._broadcasts[name] = Broadcast(
            name, self.client, prefix=options.prefix, compression=options.compression, events=options.events
        )
        if len(self._broadcasts) > _QUEUES_KEPT:
            self._close_later(self._broadcasts.popitem(last=False)[1])
        return found

    def _close_later(self, oldest: Queue[Any, Any] | Broadcast[Any]) -> None:
        task = asyncio.create_task(oldest.close())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def subscription(self, name: str, subscription: str) -> SubscriptionHub:
        """Return the hub that delivers the messages of a subscription."""
        key = (name, subscription)
        hub = self._subscriptions.get(key)
        if hub is None:

            def worker_of(handler: Any) -> BroadcastWorker:
                return BroadcastWorker(
                    name, handler, self.client, subscription=subscription, prefix=self.options.prefix
                )

            hub = self._subscriptions[key] = SubscriptionHub(worker_of, lambda: self._subscriptions.pop(key, None))
        return hub

    def hub(self, name: str) -> EventHub:
        """Return the hub that notifies of a queue's events."""
        hub = self._hubs.get(name)
        if hub is None:
            hub = self._hubs[name] = EventHub(self.queue(name), lambda: self._hubs.pop(name, None))
        return hub

    def report(self, error: Exception, request: Request) -> None:
        """Call `on_error` if the error is internal (status 500, code ``internal``)."""
        on_error = self.options.on_error
        if on_error is None or isinstance(error, HTTPException) or status_of(error)[1] != INTERNAL:
            return
        try:
            on_error(error, request)
        except Exception:
            _log.exception("on_error failed")

    def begin_closing(self) -> None:
        """End the streams and reject new requests; running requests continue."""
        self.closing.set()

    async def close(self) -> None:
        """Close all hubs, queues and the connection."""
        self.begin_closing()
        for hub in list(self._hubs.values()):
            await hub.close()
        for subscription in list(self._subscriptions.values()):
            await subscription.close()
        users: list[Queue[Any, Any] | Broadcast[Any]] = [*self._queues.values(), *self._broadcasts.values()]
        await asyncio.gather(*(user.close() for user in users), return_exceptions=True)
        self._queues.clear()
        self._broadcasts.clear()
        if isinstance(self._client, SharedClient):
            await self._client.close()
