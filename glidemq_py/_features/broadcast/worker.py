"""`BroadcastWorker`: a `Worker` that processes the messages of one subscription."""

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
    """Processes the messages of one subscription of a broadcast, each at least once.

    Every subscription gets every message; the workers of one subscription share its messages. Use it like a `Worker`:
    ``run()``, ``async with``, ``on``, ``pause``, ``close``. Its handlers get a `Message`. Retries, failures and results
    are separate for each subscription.

    Options that are not listed here are the same as for `Worker`.

    Args:
        name: name of the broadcast.
        handler: ``async def``, or plain ``def`` (runs in a thread), that takes the message, or a list of messages with
            ``batch``; ``"module:function"`` or the path of a file runs it in separate processes.
        connection: as for `Worker`.
        subscription: name of the subscription. It is stored on the server, with its position, until it is removed.
        start_from: start of a new subscription: "$" for messages published from now on, "0-0" for the oldest stored
            message, or a stream entry id to start after it. Ignored if the subscription exists.
        subjects: subject patterns (``orders.*.created``, ``orders.>``); other messages are skipped. None = all.
        limiter: maximum number of messages fetched per window, shared by all workers of the broadcast with a limiter.
        dead_letter_queue: queue that gets an entry for every message that fails in this subscription; None keeps the
            previous setting, or that of the `Broadcast`; False disables it.

    Raises:
        GlideMQValidationError: an option is invalid.
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
            raise GlideMQValidationError("handler", handler, "must be a function, or a str that names it")
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
        """Not supported for subscriptions: tasks belong to queues.

        Raises:
            GlideMQError: always.
        """
        raise GlideMQError("a broadcast has no tasks; pass a handler to the worker and publish messages")

    async def drain(self) -> None:
        """Process messages until none is waiting, active or delayed in the subscription, then close."""
        await super().drain()

    async def _is_drained(self, link: QueueLink) -> bool:
        if await link.transport.command("ZCARD", link.keys.scheduled):
            return False
        mine = [each for each in await get_subscriptions(link) if each.name == self.subscription]
        return all(each.waiting == 0 and not each.active and not each.handed_back for each in mine)

    def __repr__(self) -> str:
        return f"<BroadcastWorker for subscription {self.subscription!r} of {self.queue_name!r}>"
