"""`BroadcastWorker`: runs the messages of one subscription. A `Worker` whose jobs come from another source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from glidemq_py._client.connect import Connection
from glidemq_py._core.queue_options import DEFAULT_PREFIX, Compression, Serializer, SerializerName
from glidemq_py._core.times import Milliseconds
from glidemq_py._features.broadcast.message import Message
from glidemq_py._features.broadcast.options import validate_start, validate_subscription
from glidemq_py._features.broadcast.progress import get_subscriptions
from glidemq_py._features.broadcast.source import SubscriptionSource
from glidemq_py._features.broadcast.subjects import parse_subjects
from glidemq_py._features.dead_letters.options import DeadLetterInput
from glidemq_py._features.limits.options import RateLimit, RateLimitDict, TokenLimiter, TokenLimiterDict
from glidemq_py._job import QueueLink
from glidemq_py._worker.batch_options import BatchDict, BatchOptions
from glidemq_py._worker.components import WorkerComponents
from glidemq_py._worker.failure_log_options import FailureLogDict, FailureLogOptions
from glidemq_py._worker.options import BackoffStrategy, ExceptionTypes
from glidemq_py._worker.sandbox.options import SandboxDict, SandboxOptions
from glidemq_py._worker.tasks import TaskDecorator
from glidemq_py._worker.worker import Worker
from glidemq_py.errors import GlideMQError, GlideMQValidationError

__all__ = ["BroadcastWorker"]


class BroadcastWorker(Worker):
    """Runs the messages that one subscription of a broadcast gets: each at least once, whoever else gets it too.

    Workers of the same subscription share its messages. It is used like a `Worker`: ``run()``, ``async with``,
    ``on``, ``pause``, ``close``; its handlers get a `Message`. Retries, failures and results are the
    subscription's own.

    Args:
        name: of the broadcast.
        handler: ``async def`` or plain ``def`` (runs in a thread) that takes the message; with ``batch``, a list of
            messages; ``"module:function"`` or the path of a file runs it in processes of its own.
        connection: as for `Worker`.
        subscription: whose messages. It is kept on the server, with how far it is, until it is removed.
        start_from: where it begins if there is none of that name yet: "$" with what is published from now on, "0-0"
            with the oldest message there is, or after the stream entry of that id.
        subjects: patterns (``orders.*.created``, ``orders.>``); what matches none of them is passed over. None = all.
        limiter: at most so many messages are taken in a window, by all workers of the broadcast that have a limiter.
        dead_letter_queue: gets a job for every message that has failed for good in this subscription; None = as it
            was set before, or as the `Broadcast` says; False = none.
        concurrency, lock_duration, stalled_interval, max_stalled_count, retry_on, no_retry_on, backoff_strategies,
        token_limiter, batch, sandbox, events, metrics, log_failures, lifespan, serializer, compression, prefix: as for
            `Worker`.

    Raises:
        GlideMQValidationError: an option cannot be; it is named with its value.
    """

    def __init__(
        self,
        name: str,
        handler: Callable[[Any], Any] | str,
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
        token_limiter: TokenLimiter | TokenLimiterDict | None = None,
        batch: BatchOptions | BatchDict | None = None,
        sandbox: SandboxOptions | SandboxDict | None = None,
        lifespan: Callable[[Worker], AbstractAsyncContextManager[Any]] | None = None,
        serializer: Serializer | SerializerName | None = None,
        compression: Compression = "none",
        dead_letter_queue: DeadLetterInput = None,
        events: bool = True,
        metrics: bool = True,
        log_failures: bool | FailureLogOptions | FailureLogDict = True,
    ) -> None:
        if handler is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise GlideMQValidationError("handler", handler, "must be a function, or a text that names it")
        self.subscription = validate_subscription(subscription)
        self.subjects = parse_subjects("subjects", subjects)
        self.start_from = validate_start(start_from)
        super().__init__(
            name, handler, connection, concurrency=concurrency, prefix=prefix, lock_duration=lock_duration,
            stalled_interval=stalled_interval, max_stalled_count=max_stalled_count, retry_on=retry_on,
            no_retry_on=no_retry_on, backoff_strategies=backoff_strategies, limiter=limiter,
            token_limiter=token_limiter, batch=batch, sandbox=sandbox, lifespan=lifespan, serializer=serializer,
            compression=compression, dead_letter_queue=dead_letter_queue, events=events, metrics=metrics,
            log_failures=log_failures,
        )  # fmt: skip

    _job_type = Message

    def _prepare(self) -> WorkerComponents:
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
        await super().drain()

    async def _is_drained(self, link: QueueLink) -> bool:
        if await link.transport.command("ZCARD", link.keys.scheduled):
            return False
        mine = [each for each in await get_subscriptions(link) if each.name == self.subscription]
        return all(each.waiting == 0 and not each.active and not each.handed_back for each in mine)

    def __repr__(self) -> str:
        return f"<BroadcastWorker of subscription {self.subscription!r} of {self.queue_name!r}>"
