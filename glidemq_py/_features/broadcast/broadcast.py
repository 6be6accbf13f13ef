"""`Broadcast`: publishes messages and manages their subscriptions.

A subscription has its own progress, state of each message, dead-letter entries, and redelivery.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Never, Self, Unpack, cast

from typing_extensions import TypeVar

from glidemq_py._api.job_queue import Queue
from glidemq_py._api.producer import add_bulk_ids, added_id
from glidemq_py._client.connect import Connection
from glidemq_py._core.calls import Call
from glidemq_py._core.calls.adding import AddReply, Row
from glidemq_py._core.checks import check_bool, check_int, check_iterable
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.misuse import AsyncOnly, known_arguments, reject_positional_options
from glidemq_py._core.names import parse_job_id, validate_job_name
from glidemq_py._core.payload import JSON_SERIALIZER, decode_result
from glidemq_py._core.queue_options import (
    DEFAULT_PREFIX,
    Compression,
    DeadLetterInput,
    JobInput,
    JobSpec,
    Serializer,
    SerializerName,
)
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features.broadcast import calls as broadcasting
from glidemq_py._features.broadcast import dead_letters
from glidemq_py._features.broadcast.options import (
    PublishOptionsDict,
    check_message_options,
    validate_start,
    validate_subscription,
)
from glidemq_py._features.middleware import Middleware
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import JobStateError

DeliveryState = Literal["waiting", "active", "delayed", "completed", "failed"]
_RECORDED = ("delayed", "completed", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A snapshot of a subscription.

    Attributes:
        name: name of the subscription.
        waiting: number of unread stream entries, including those that its subjects skip; None if the server does not
            track the number and it is more than 1,000.
        active: number of messages being processed.
        released: number of messages released by a worker that closed or stalled; they are delivered next.
        last_delivered: id of the last entry read.
        consumers: number of workers that have read for it, possibly including some that have stopped.
    """

    name: str
    waiting: int | None
    active: int
    released: int
    last_delivered: str
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The state of a message in one subscription.

    Attributes:
        state: "waiting", "active" (or released), "delayed" (until the next attempt), "completed" (or skipped because
            of its subject) or "failed"; None if the state is no longer known.
        attempts_made: number of failed attempts.
        failed_reason: message of the last failure.
        failed_type: exception type of the last failure.
    """

    state: DeliveryState | None
    attempts_made: int = 0
    failed_reason: str | None = None
    failed_type: str | None = None
    _result_text: str | None = field(default=None, repr=False)
    _serializer: Serializer = field(default=JSON_SERIALIZER, repr=False, compare=False)

    @property
    def returnvalue(self) -> Any:
        """The handler's return value; None before the message is completed.

        Raises:
            SerializationError: the serializer cannot decode the stored value.
        """
        return None if self._result_text is None else decode_result(self._result_text, self._serializer)


async def get_subscriptions(link: QueueLink) -> list[Subscription]:
    """Return all subscriptions of a broadcast."""
    rows: dict[str, broadcasting.SubscriptionRow] = {}
    cursor = None
    while cursor != "":
        page = await link.call(broadcasting.subscriptions, cursor or "")
        cursor = page.cursor
        rows.update((row.name, row) for row in page.rows)
    return [
        Subscription(
            name=row.name, waiting=None if row.lag < 0 else row.lag, active=row.pending - row.released,
            released=row.released, last_delivered=row.last_delivered,
            consumers=row.consumers - (row.released > 0),
        )
        for row in rows.values()
    ]  # fmt: skip


async def get_delivery(link: QueueLink, message_id: str, subscription: str) -> Delivery | None:
    """Return the state of a message in a subscription, or None if the message does not exist."""
    reply = await link.call(broadcasting.delivery, message_id, subscription)
    if not reply.exists:
        return None
    record = dict(zip(reply.record[::2], reply.record[1::2], strict=True))
    stored = record.get("state")
    state = stored if stored in _RECORDED else None
    if reply.place == "pending":
        state = "active"
    elif state is None:
        state = {"read": "completed", "unread": "waiting"}.get(reply.place)
    return Delivery(
        state=cast("DeliveryState | None", state), attempts_made=int(record.get("a", "0")),
        failed_reason=record.get("failedReason"), failed_type=record.get("failedType"),
        _result_text=record.get("returnvalue"), _serializer=link.serializer,
    )  # fmt: skip


DataT = TypeVar("DataT", default=Any)


class Broadcast(AsyncOnly, Generic[DataT]):
    """Publishes messages that every subscription gets; ``DataT`` in ``Broadcast[DataT]`` is the type of their data.

    It connects on first use. Close it, or use it as ``async with``.

    Args:
        name: name of the broadcast; do not use the name of a queue that has workers.
        connection: as for `Queue`.
        max_messages: keep only the newest messages, at most this many; None = no limit. A subscription does not get
            messages that were deleted before it read them.
        max_age: delete messages after this time, in ms or as a timedelta; None = never. Both limits are applied when a
            message is published.
        prefix: as for `Queue`.
        default_job_options: defaults for the options of messages.
        compression: as for `Queue`.
        serializer: as for `Queue`.
        dead_letter_queue: queue that gets an entry for every message that fails in a subscription whose workers name no
            dead letter queue. Same forms as for `Queue`.
        events: as for `Queue`.
        middleware: instances of `Middleware` around every `publish` and `publish_bulk`, the outermost first.

    Raises:
        GlideMQValidationError: an option is invalid.
    """

    name: str
    """Name of the broadcast."""

    @known_arguments("queue")
    def __init__(
        self,
        name: str,
        connection: Connection = None,
        *,
        max_messages: int | None = None,
        max_age: Milliseconds | None = None,
        prefix: str = DEFAULT_PREFIX,
        default_job_options: JobOptions | Mapping[str, Any] | None = None,
        compression: Compression = "none",
        serializer: Serializer | SerializerName | None = None,
        dead_letter_queue: DeadLetterInput = None,
        events: bool = True,
        middleware: Sequence[Middleware] | None = None,
    ) -> None:
        self._most = 0 if max_messages is None else check_int("max_messages", max_messages, 1, 2**40)
        self._age = 0 if max_age is None else to_ms("max_age", max_age, minimum=1)
        self._queue: Queue[DataT, Any] = self._queue_type(
            name, connection, prefix=prefix, default_job_options=default_job_options, compression=compression,
            serializer=serializer, dead_letter_queue=dead_letter_queue, events=events,
            middleware=middleware,
        )  # fmt: skip
        check_message_options(self._queue.options.default_job_options, "default_job_options.")
        self._queue._layout_known = True  # a broadcast has no partitions
        self._queue._add_call = self._publish_call
        self._queue._may_suspend = False
        self.name = self._queue.name

    _queue_type: type[Queue[Any, Any]] = Queue

    def _publish_call(self, meta: str, rows: Sequence[Row], quiet: bool) -> Call[AddReply]:
        return broadcasting.publish(meta, rows, quiet, self._most, self._age)

    # -- publishing ---------------------------------------------------------------------------------------

    async def publish(
        self, subject: str, data: DataT | None = None, *misplaced: Never, **options: Unpack[PublishOptionsDict]
    ) -> str | None:
        """Publish a message.

        Raises the errors of `Queue.add` as well.

        Args:
            subject: tokens separated by dots, such as ``orders.eu.created``; handlers get it as `Message.name`.
            data: anything the serializer takes.
            *misplaced: rejected: options are keyword arguments, not a dict.
            **options: see `JobOptions`. ``attempts`` and ``backoff`` apply to each subscription separately.

        Returns:
            The id of the message, or None if nothing was published because the ``job_id`` already exists or the
            ``deduplication`` throttles it.

        Raises:
            GlideMQValidationError: a broadcast does not support the option, such as ``priority``.
        """
        if misplaced:
            reject_positional_options(misplaced)
        validate_job_name(subject, "subject")
        if options:
            check_message_options(JobOptions.parse(cast("Mapping[str, Any]", options)))
        return added_id(await self._queue.add(subject, data, **options))

    async def publish_bulk(
        self,
        messages: Iterable[JobInput],
    ) -> list[str | None]:
        """Publish several messages, in atomic chunks.

        Args:
            messages: ``(subject, data, options)`` tuples, mappings with a ``name``, or `JobSpec` objects.

        Returns:
            For each position, what `publish` would have returned.

        Raises:
            GlideMQValidationError: a message is invalid (the error has its position); nothing was sent.
            BulkAddError: some messages were not published, or may not have been. Its ``results`` has for each position
                the id, None, or the exception.
        """
        checked: list[Any] = []
        for i, message in enumerate(check_iterable("messages", messages, "messages")):
            if not (type(message) is tuple and len(message) == 2):
                check_message_options(JobSpec.parse(message, f"jobs[{i}]").options, f"jobs[{i}].")
            checked.append(message)
        return await add_bulk_ids(self._queue, checked)

    # -- subscriptions ------------------------------------------------------------------------------------

    async def get_subscriptions(self) -> list[Subscription]:
        """Return all subscriptions with their progress."""
        return await get_subscriptions(await self._queue._connected())

    async def get_subscription(self, name: str) -> Subscription | None:
        """Return the subscription with this name, or None."""
        wanted = validate_subscription(name, "name")
        return next((each for each in await self.get_subscriptions() if each.name == wanted), None)

    async def get_delivery(self, message_id: str, subscription: str) -> Delivery | None:
        """Return the state of a message in a subscription, or None if the message does not exist.

        Results and failures are kept for one day.
        """
        link = await self._queue._connected()
        return await get_delivery(link, parse_job_id(message_id, "message_id"), validate_subscription(subscription))

    async def subscribe(self, name: str, start_from: str = "$") -> None:
        """Create a subscription before it has a worker; an existing subscription is not changed.

        Args:
            name: name of the subscription.
            start_from: as for `BroadcastWorker`.
        """
        link = await self._queue._connected()
        await link.call(broadcasting.subscribe, validate_subscription(name, "name"), validate_start(start_from))

    async def remove_subscription(self, name: str, *, force: bool = False) -> bool:
        """Delete a subscription and its position; return False if it does not exist.

        Args:
            name: name of the subscription.
            force: delete it even if one of its workers is running; that worker then creates it again.

        Raises:
            JobStateError: one of its workers is running, and ``force`` is False.
        """
        link = await self._queue._connected()
        wanted, forced = validate_subscription(name, "name"), check_bool("force", force)
        answer = await link.call(broadcasting.unsubscribe, wanted, forced)
        if answer == "active":
            message = f"cannot remove subscription {wanted!r}: one of its workers is running; stop it or use force=True"
            raise JobStateError("*", "active", "remove", message)
        return answer == "ok"

    # -- dead letters -------------------------------------------------------------------------------------

    redeliver = dead_letters.redeliver
    get_dead_letter_jobs = dead_letters.get_dead_letter_jobs
    replay_dead_letter_job = dead_letters.replay_dead_letter_job
    remove_dead_letter_job = dead_letters.remove_dead_letter_job

    # -- control ------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Pause all subscriptions. Messages being processed continue. Idempotent."""
        await self._queue.pause()

    async def resume(self) -> None:
        """Resume all subscriptions. Idempotent."""
        await self._queue.resume()

    async def is_paused(self) -> bool:
        """Return True if the broadcast is paused."""
        return await self._queue.is_paused()

    async def set_global_rate_limit(self, max: int, duration: Milliseconds, *, ttl: Milliseconds | None = None) -> None:
        """Limit the messages fetched per window, counted over all subscriptions.

        Args:
            max: maximum number of messages per window.
            duration: length of the window, in ms or as a timedelta.
            ttl: time to live, in ms or as a timedelta; afterwards the limit that applied before applies again. None =
                no end.
        """
        await self._queue.set_global_rate_limit(max, duration, ttl=ttl)

    async def remove_global_rate_limit(self) -> None:
        """Remove the global rate limit."""
        await self._queue.remove_global_rate_limit()

    @property
    def queue(self) -> Queue[DataT, Any]:
        """The queue that stores the messages, for inspection and `obliterate`. Do not add jobs to it."""
        return self._queue

    # -- lifecycle ----------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Send pending messages, and close the connection unless it was passed in. Idempotent."""
        await self._queue.close()

    async def __aenter__(self) -> Self:
        await self._queue.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Broadcast {self.name!r}>"
