"""`Broadcast`: publishes messages, and tells how far their subscriptions are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Self, Unpack, cast

from typing_extensions import TypeVar

from glidemq_py._api.producer import add_bulk_ids, added_id
from glidemq_py._api.queue import Queue
from glidemq_py._client.connect import Connection
from glidemq_py._core.calls.adding import AddReply, Row
from glidemq_py._core.calls.packing import Call
from glidemq_py._core.checks import check_bool, check_int, check_iterable
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.names import parse_job_id, validate_job_name
from glidemq_py._core.queue_options import DEFAULT_PREFIX, Compression, JobSpec, Serializer, SerializerName
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features.broadcast import calls as broadcasting
from glidemq_py._features.broadcast.dead_letters import BroadcastDeadLetters
from glidemq_py._features.broadcast.options import (
    PublishOptionsDict,
    check_message_options,
    validate_start,
    validate_subscription,
)
from glidemq_py._features.broadcast.progress import Delivery, Subscription, get_delivery, get_subscriptions
from glidemq_py._features.dead_letters.options import DeadLetterInput
from glidemq_py.errors import JobStateError

__all__ = ["Broadcast"]

DataT = TypeVar("DataT", default=Any)


class Broadcast(BroadcastDeadLetters, Generic[DataT]):
    """Publishes messages of which every subscription gets each; ``Broadcast[DataT]`` names what they carry.

    It connects when it is first used. Close it, or use it as ``async with``.

    Args:
        name: of the broadcast; it must not be that of a queue that workers work on.
        max_messages: keep that many messages, the newest; None = any number. What a subscription has not got by then
            it does not get.
        max_age: keep messages for that long, ms or timedelta; None = for ever. Both are seen to when something is
            published.
        default_job_options: what a message gets where its own options say nothing.
        dead_letter_queue: gets a job for every message that has failed for good in a subscription whose workers name
            no dead letter queue of its own. Written as for `Queue`.
        connection, prefix, compression, serializer, events: as for `Queue`.

    Raises:
        GlideMQValidationError: an option cannot be; it is named with its value.
    """

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
    ) -> None:
        self._most = 0 if max_messages is None else check_int("max_messages", max_messages, 1, 2**40)
        self._age = 0 if max_age is None else to_ms("max_age", max_age, minimum=1)
        self._queue: Queue[DataT, Any] = self._queue_type(
            name, connection, prefix=prefix, default_job_options=default_job_options, compression=compression,
            serializer=serializer, dead_letter_queue=dead_letter_queue, events=events,
        )  # fmt: skip
        check_message_options(self._queue.options.default_job_options, "default_job_options.")
        self._queue._add_call = self._publish_call
        self.name = self._queue.name

    _queue_type: type[Queue[Any, Any]] = Queue

    def _publish_call(self, meta: str, rows: Sequence[Row], quiet: bool) -> Call[AddReply]:
        return broadcasting.publish(meta, rows, quiet, self._most, self._age)

    # -- publishing ---------------------------------------------------------------------------------------

    async def publish(
        self, subject: str, data: DataT | None = None, **options: Unpack[PublishOptionsDict]
    ) -> str | None:
        """Publish a message.

        Args:
            subject: tokens between dots, such as ``orders.eu.created``; handlers get it as the message's name.
            data: anything the serializer takes.
            **options: see `JobOptions`. ``attempts`` and ``backoff`` are each subscription's.

        Returns:
            The message's id; None where nothing was published: one of that ``job_id`` stands already, or one of that
            ``deduplication`` was published not long ago.

        Raises:
            UnsupportedOptionError: an option that a broadcast cannot honour, such as ``priority``.
            and what `Queue.add` raises.
        """
        validate_job_name(subject, "subject")
        if options:
            check_message_options(JobOptions.parse(cast("Mapping[str, Any]", options)))
        return added_id(await self._queue.add(subject, data, **options))

    async def publish_bulk(
        self, messages: Iterable[JobSpec | tuple[str] | tuple[str, Any] | tuple[str, Any, Mapping[str, Any] | None]]
    ) -> list[str | None]:
        """Publish many: ``(subject, data, options)`` tuples or `JobSpec` objects, in chunks that are atomic each.

        Returns:
            For every position what `publish` would have returned.

        Raises:
            GlideMQValidationError: a message cannot be; it is named by its position, and nothing was sent.
            BulkAddError: some were not published, or may not have been. Its ``results`` have for every position the
                id, None, or the exception that kept the message out.
        """
        checked: list[Any] = []
        for i, message in enumerate(check_iterable("messages", messages, "messages")):
            if not (type(message) is tuple and len(message) == 2):
                check_message_options(JobSpec.parse(message, f"jobs[{i}]").options, f"jobs[{i}].")
            checked.append(message)
        return await add_bulk_ids(self._queue, checked)

    # -- subscriptions ------------------------------------------------------------------------------------

    async def get_subscriptions(self) -> list[Subscription]:
        """Every subscription, and how far it is."""
        return await get_subscriptions(await self._queue._connected())

    async def get_subscription(self, name: str) -> Subscription | None:
        """One subscription; None if there is none of that name."""
        wanted = validate_subscription(name, "name")
        return next((each for each in await self.get_subscriptions() if each.name == wanted), None)

    async def get_delivery(self, message_id: str, subscription: str) -> Delivery | None:
        """What a subscription has made of a message; None if there is no such message.

        Results and failures are kept for a day.
        """
        link = await self._queue._connected()
        return await get_delivery(link, parse_job_id(message_id, "message_id"), validate_subscription(subscription))

    async def subscribe(self, name: str, start_from: str = "$") -> None:
        """Make a subscription before there is a worker for it; one that exists stays as it is.

        Args:
            name: of the subscription.
            start_from: as for `BroadcastWorker`.
        """
        link = await self._queue._connected()
        await link.transport.call(
            broadcasting.subscribe(link.keys.meta, validate_subscription(name, "name"), validate_start(start_from))
        )

    async def remove_subscription(self, name: str, *, force: bool = False) -> bool:
        """Forget a subscription and how far it was; False if there was none.

        Args:
            force: also where a worker of it is running, which makes it anew.

        Raises:
            JobStateError: a worker of it is running, and ``force`` is off.
        """
        link = await self._queue._connected()
        wanted, forced = validate_subscription(name, "name"), check_bool("force", force)
        answer = await link.transport.call(broadcasting.unsubscribe(link.keys.meta, wanted, forced))
        if answer == "active":
            raise JobStateError("*", "active", f"remove the subscription {wanted!r} of (force=True does)")
        return answer == "ok"

    # -- steering -----------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Hand out no more messages, to no subscription; what is running runs on. Idempotent."""
        await self._queue.pause()

    async def resume(self) -> None:
        """Hand out messages again. Idempotent."""
        await self._queue.resume()

    async def is_paused(self) -> bool:
        """True if it hands out no messages."""
        return await self._queue.is_paused()

    async def set_global_rate_limit(self, max: int, duration: Milliseconds) -> None:
        """Let at most ``max`` messages be taken in a window of ``duration``, by all subscriptions together."""
        await self._queue.set_global_rate_limit(max, duration)

    async def remove_global_rate_limit(self) -> None:
        """Let any number be taken."""
        await self._queue.remove_global_rate_limit()

    @property
    def queue(self) -> Queue[DataT, Any]:
        """The queue that the messages are in, to look at them, check or obliterate it. Add nothing by it."""
        return self._queue

    # -- life ---------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Send what is still to be sent, and close the connection if it is ours; idempotent."""
        await self._queue.close()

    async def __aenter__(self) -> Self:
        await self._queue.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Broadcast {self.name!r}>"
