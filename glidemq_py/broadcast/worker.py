"""`BroadcastWorker`: runs the messages of one subscription. A `Worker` whose jobs come from another source."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Final

from glidemq_py.broadcast.options import validate_start, validate_subscription
from glidemq_py.broadcast.progress import get_subscriptions
from glidemq_py.broadcast.source import SubscriptionSource
from glidemq_py.broadcast.subjects import parse_subjects
from glidemq_py.client.connect import Connection
from glidemq_py.errors import GlideMQError, GlideMQValidationError
from glidemq_py.options.limits import RateLimit, RateLimitDict
from glidemq_py.options.queue import DEFAULT_PREFIX, Compression, Serializer, SerializerName
from glidemq_py.options.times import Milliseconds
from glidemq_py.options.worker import BackoffStrategy, ExceptionTypes
from glidemq_py.worker import Worker
from glidemq_py.worker.opening import Opening
from glidemq_py.worker.tasks import TaskDecorator

__all__ = ["BroadcastWorker"]

_POLL_S: Final = 0.1


class BroadcastWorker(Worker):
    """Runs the messages that one subscription of a broadcast gets: each at least once, whoever else gets it too.

    Workers of the same subscription share its messages. It is used like a `Worker`: ``run()``, ``async with``,
    ``on``, ``pause``, ``close``; its handlers get a `Message`. Retries, failures and results are the
    subscription's own.

    Args:
        name: of the broadcast.
        handler: ``async def`` or plain ``def`` (runs in a thread) that takes the message.
        connection: as for `Worker`.
        subscription: whose messages. It is kept on the server, with how far it is, until it is removed.
        start_from: where it begins if there is none of that name yet: "$" with what is published from now on, "0-0"
            with the oldest message there is, or after the stream entry of that id.
        subjects: patterns (``orders.*.created``, ``orders.>``); what matches none of them is passed over. None = all.
        limiter: at most so many messages are taken in a window, by all workers of the broadcast that have a limiter.
        concurrency, lock_duration, stalled_interval, max_stalled_count, retry_on, no_retry_on, backoff_strategies,
        events, metrics, lifespan, serializer, compression, prefix: as for `Worker`.

    Raises:
        GlideMQValidationError: an option cannot be; it is named with its value.
    """

    def __init__(
        self,
        name: str,
        handler: Callable[[Any], Any],
        connection: Connection = None,
        *,
        subscription: str,
        start_from: str = "$",
        subjects: Iterable[str] | None = None,
        concurrency: int = 1,
        prefix: str = DEFAULT_PREFIX,
        lock_duration: Milliseconds = 30_000,
        stalled_interval: Milliseconds = 30_000,
        max_stalled_count: int = 1,
        retry_on: ExceptionTypes | None = None,
        no_retry_on: ExceptionTypes | None = None,
        backoff_strategies: Mapping[str, BackoffStrategy] | None = None,
        limiter: RateLimit | RateLimitDict | None = None,
        lifespan: Callable[[Worker], AbstractAsyncContextManager[Any]] | None = None,
        serializer: Serializer | SerializerName | None = None,
        compression: Compression = "none",
        events: bool = True,
        metrics: bool = True,
    ) -> None:
        if not callable(handler):
            raise GlideMQValidationError("handler", handler, "must be a function")
        self.subscription = validate_subscription(subscription)
        self.subjects = parse_subjects("subjects", subjects)
        self.start_from = validate_start(start_from)
        super().__init__(
            name, handler, connection, concurrency=concurrency, prefix=prefix, lock_duration=lock_duration,
            stalled_interval=stalled_interval, max_stalled_count=max_stalled_count, retry_on=retry_on,
            no_retry_on=no_retry_on, backoff_strategies=backoff_strategies, limiter=limiter, lifespan=lifespan,
            serializer=serializer, compression=compression, events=events, metrics=metrics,
        )  # fmt: skip

    def _prepare(self) -> Opening:
        source = SubscriptionSource(
            self._keys, self.consumer, self.options, self.subscription, self.subjects, self.start_from
        )
        return replace(super()._prepare(), source=source)

    @property
    def task(self) -> TaskDecorator:
        """Not for subscriptions: a task is added by its own queue. Raises GlideMQError."""
        raise GlideMQError("a broadcast has no tasks: give the worker a handler, and publish messages")

    async def drain(self) -> None:
        """Work until the subscription has read everything and nothing is in hand or due later any more, then close."""
        parts = self._life.parts
        if parts is None:
            raise GlideMQError("the worker has not been started")
        while not self._life.is_closing:
            if not parts.runner.running and await self._is_worked_off(parts.link):
                break
            await asyncio.sleep(_POLL_S)
        await self.close()

    async def _is_worked_off(self, link: Any) -> bool:
        if await link.transport.command("ZCARD", link.keys.scheduled):
            return False
        mine = [each for each in await get_subscriptions(link) if each.name == self.subscription]
        return all(each.waiting == 0 and not each.active and not each.handed_back for each in mine)

    def __repr__(self) -> str:
        return f"<BroadcastWorker of subscription {self.subscription!r} of {self.queue_name!r}>"
