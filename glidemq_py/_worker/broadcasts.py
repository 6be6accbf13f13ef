"""`BroadcastWorker`: a worker that processes the messages of one subscription, fetched from its job source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Generic

from typing_extensions import TypeVar

from glidemq_py._client.transport import Connection
from glidemq_py._core.calls import Call, working
from glidemq_py._core.calls.working import (
    ExchangeReply,
    Finished,
    HeartbeatReply,
    ReattachReply,
    RecoverStalledReply,
    completed,
)
from glidemq_py._core.keys import DEFAULT_PREFIX, QueueKeys, validate_prefix, validate_queue_name
from glidemq_py._core.limits import RateLimit, RateLimitDict, TokenLimiter, TokenLimiterDict
from glidemq_py._core.misuse import known_arguments
from glidemq_py._core.option_values import BackoffStrategy
from glidemq_py._core.payload import encode_result
from glidemq_py._core.queue_options import (
    Compression,
    DeadLetterInput,
    QueueOptions,
    Serializer,
    SerializerName,
    parse_dead_letter_queue,
)
from glidemq_py._core.times import Milliseconds
from glidemq_py._features import broadcast as broadcasting
from glidemq_py._features.broadcast import (
    Marks,
    get_subscriptions,
    lua_patterns,
    parse_subjects,
    validate_start,
    validate_subscription,
)
from glidemq_py._job.message import Message
from glidemq_py._job.middleware import Middleware
from glidemq_py._job.run import Run
from glidemq_py._partitions.link import QueueLink
from glidemq_py._worker.base_worker import BaseWorker
from glidemq_py._worker.fetch_calls import BLOCK_MS, ExchangeBuilder, QueueSource
from glidemq_py._worker.opening import WorkerComponents
from glidemq_py._worker.options import (
    BatchDict,
    BatchOptions,
    ExceptionTypes,
    FailureLogDict,
    FailureLogOptions,
    SandboxDict,
    SandboxOptions,
    WorkerOptions,
)
from glidemq_py._worker.results import Outcomes
from glidemq_py.errors import DelayedError, GlideMQError, GlideMQValidationError, JobSignal, RateLimitError


class MessageRun(Run):
    """A message being processed."""

    job_type = Message
    __slots__ = ()


class _Outcomes(Outcomes):
    """Outcomes of attempts at messages."""

    def completed(self, run: Run, result: Any) -> Finished:
        """Return the row of a completed attempt, with a record only if there is a result or a failed attempt."""
        text = "null" if result is None else encode_result(result, self._link.serializer)
        attempt = run.attempt
        recorded = result is not None or run.job.attempts_made or run.job.stalled_count
        return completed(run.job.id, attempt.entry, attempt.fence, attempt.processed_on, text, 1 if recorded else 0)

    def signalled(self, run: Run, signal: JobSignal) -> Finished:
        """Return the row of a signalled attempt; messages support only delays."""
        if not isinstance(signal, (DelayedError, RateLimitError)):
            raise GlideMQError(f"{type(signal).__name__} is not supported for messages of a broadcast") from signal
        if isinstance(signal, DelayedError) and signal.replace:
            raise GlideMQError("the data of a message is shared by all subscriptions and cannot be replaced")
        return super().signalled(run, signal)


class SubscriptionSource(QueueSource):
    """The messages of one subscription.

    Args:
        keys: as for `QueueSource`.
        consumer: as for `QueueSource`.
        options: as for `QueueSource`.
        group: name of the subscription.
        subjects: subject patterns; () = all.
        start: stream position of a new subscription.
    """

    run_type = MessageRun
    wakes_one = False

    def __init__(
        self, keys: QueueKeys, consumer: str, options: WorkerOptions, group: str, subjects: Sequence[str], start: str
    ) -> None:
        super().__init__(keys, consumer, options)
        self._subscription = group
        self.label = f"subscription {group!r} of broadcast {keys.name!r}"
        self._patterns = lua_patterns(subjects)
        self._start = start
        self._marks: Marks = ("$", "$")

    async def open(self, link: QueueLink) -> None:
        """Create the subscription if it does not exist, and store its start in case it must be created again."""
        link.subscription = self._subscription
        self._start = await link.transport.call(broadcasting.subscribe(self._meta, self._subscription, self._start))

    def outcomes(self, link: QueueLink) -> Outcomes:
        """Return the outcomes of attempts at messages; see `QueueSource`."""
        return _Outcomes(link, self._options)

    def _note(self, marks: Marks) -> None:
        self._marks = marks

    def exchange_builder(self) -> ExchangeBuilder:
        """Return the function that builds exchange calls, without budgets and suspects; see `QueueSource`."""
        return self._exchange

    def _exchange(
        self,
        want: int,
        finished: Sequence[Finished],
        limiter: tuple[int, int] | None = None,
        tokens: working.Tokens | None = None,
        charges: Sequence[working.BudgetCharge] | None = None,
        held: working.Held | None = None,
        by_name: working.NameMetricsReport | None = None,
    ) -> Call[ExchangeReply]:
        return broadcasting.exchange(
            self._meta, self._consumer, want, finished, self._quiet, self._no_metrics, self._subscription,
            self._patterns, self._start, self._note, limiter, tokens=tokens,
        )  # fmt: skip

    def idle_exchange(self, want: int, token: str, held: working.Held | None = None) -> Call[ExchangeReply]:
        """See `QueueSource.idle_exchange`."""
        return broadcasting.exchange(
            self._meta, self._consumer, want, (), self._quiet, self._no_metrics, self._subscription, self._patterns,
            self._start, self._note, None, token,
        )  # fmt: skip

    def heartbeat(self, info: str, ttl: int, jobs: Sequence[tuple[str, str, int, int]]) -> Call[HeartbeatReply]:
        """Return the heartbeat call; see `broadcasting.heartbeat`."""
        return broadcasting.heartbeat(self._meta, self._consumer, info, ttl, jobs, self._subscription)

    def reattach(self, known: Sequence[str], want: int, cursor: str, known_ids: Sequence[str]) -> Call[ReattachReply]:
        """Return the call that finds this worker's messages; see `broadcasting.reattach`."""
        return broadcasting.reattach(
            self._meta, self._consumer, known, want, self._quiet, cursor, self._subscription, self._start
        )

    def recover_stalled(self, cursor: str) -> Call[RecoverStalledReply]:
        """Return the call that recovers stalled messages; see `broadcasting.recover_stalled`."""
        options = self._options
        return broadcasting.recover_stalled(
            self._meta, self._consumer, options.stalled_interval * 8 // 10, options.lock_duration,
            options.max_stalled_count, self._quiet, cursor, self._subscription, options.stalled_grace,
        )  # fmt: skip

    async def is_drained(self, link: QueueLink) -> bool:
        """Return True if no message is waiting, active or delayed in the subscription."""
        if await link.command("ZCARD", link.keys.scheduled):
            return False
        mine = [each for each in await get_subscriptions(link) if each.name == self._subscription]
        return all(each.waiting == 0 and not each.active and not each.released for each in mine)

    def wake_command(self) -> tuple[str, ...]:
        """Return a blocking read that starts after the entries covered by the last reply, so that none is missed."""
        return (
            "XREAD", "COUNT", "1", "BLOCK", str(BLOCK_MS), "STREAMS", self._keys.stream, self._keys.wake, *self._marks,
        )  # fmt: skip


ContextT = TypeVar("ContextT", default=Any)

MessageHandler = Callable[[Message[Any, Any, ContextT]], Any] | Callable[[list[Message[Any, Any, ContextT]]], Any]
"""A function that runs a message, or with the option ``batch`` a list of messages."""
Lifespan = Callable[[Any], AbstractAsyncContextManager[ContextT]]
"""A function that takes the worker (also one that is written for a `Worker`) and returns its context manager."""


class BroadcastWorker(BaseWorker, Generic[ContextT]):
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
        middleware: Instances of `Middleware` around the run of every message, the outermost first, in this process.

    Raises:
        GlideMQValidationError: an option is invalid.
    """

    @known_arguments("worker")
    def __init__(
        self,
        name: str,
        handler: MessageHandler[ContextT] | str,
        connection: Connection = None,
        *,
        subscription: str,
        start_from: str = "$",
        subjects: Iterable[str] | None = None,
        concurrency: int = 1,
        prefix: str = DEFAULT_PREFIX,
        lock_duration: Milliseconds = 30_000,
        stalled_interval: Milliseconds | None = None,
        max_stalled_count: int | None = None,
        stalled_grace: Milliseconds | None = None,
        retry_on: ExceptionTypes | None = None,
        no_retry_on: ExceptionTypes | None = None,
        backoff_strategies: Mapping[str, BackoffStrategy] | None = None,
        limiter: RateLimit | RateLimitDict | None = None,
        token_limiter: TokenLimiter | TokenLimiterDict | None = None,
        batch: BatchOptions | BatchDict | None = None,
        sandbox: SandboxOptions | SandboxDict | None = None,
        lifespan: Lifespan[ContextT] | None = None,
        serializer: Serializer | SerializerName | None = None,
        compression: Compression = "none",
        dead_letter_queue: DeadLetterInput = None,
        events: bool = True,
        metrics: bool = True,
        log_failures: bool | FailureLogOptions | FailureLogDict = True,
        middleware: Sequence[Middleware] | None = None,
    ) -> None:
        if handler is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise GlideMQValidationError("handler", handler, "must be a function, or a str that names it")
        validate_queue_name(name)
        self.subscription = validate_subscription(subscription)
        self.subjects = parse_subjects("subjects", subjects)
        self.start_from = validate_start(start_from)
        options = WorkerOptions(
            concurrency=concurrency, lock_duration=lock_duration, stalled_interval=stalled_interval,
            max_stalled_count=max_stalled_count, stalled_grace=stalled_grace, retry_on=retry_on,
            no_retry_on=no_retry_on, backoff_strategies=backoff_strategies, limiter=limiter,
            token_limiter=token_limiter, batch=batch, events=events, metrics=metrics, log_failures=log_failures,
        )  # fmt: skip
        queue_options = QueueOptions(
            prefix=validate_prefix(prefix), serializer=serializer, compression=compression,
            dead_letter_queue=parse_dead_letter_queue(dead_letter_queue, name), middleware=middleware,
        )  # fmt: skip
        super().__init__(name, handler, connection, options, queue_options, sandbox, lifespan)

    _job_type = Message

    def _prepare(self) -> WorkerComponents:
        source = SubscriptionSource(
            self._keys, self.consumer, self.options, self.subscription, self.subjects, self.start_from
        )
        return replace(super()._prepare(), source=source)

    async def drain(self) -> None:
        """Process messages until none is waiting, active or delayed in the subscription, then close."""
        await super().drain()

    def __repr__(self) -> str:
        return f"<BroadcastWorker for subscription {self.subscription!r} of {self.queue_name!r}>"
