"""`Broadcast`: publishes messages and manages their subscriptions.

A subscription has its own progress, state of each message, dead-letter entries, and redelivery.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Never, Self, Unpack, cast

from typing_extensions import TypeVar

from glidemq_py._api.dead_letters import envelope_of, remove_dead_letter, shown_entry
from glidemq_py._api.job_queue import Queue
from glidemq_py._api.producer import add_bulk_ids, added_id
from glidemq_py._client.transport import Connection
from glidemq_py._core.calls import Call
from glidemq_py._core.calls.adding import AddReply, Row
from glidemq_py._core.checks import check_bool, check_int, check_iterable, lists_options
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import DEFAULT_PREFIX, parse_job_id, validate_job_name
from glidemq_py._core.misuse import AsyncOnly, known_arguments, reject_positional_options
from glidemq_py._core.option_dicts_twin import PublishOptionsDict
from glidemq_py._core.queue_options import Compression, DeadLetterInput, JobInput, JobSpec, Serializer, SerializerName
from glidemq_py._core.record import JobState
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features import broadcast as broadcasting
from glidemq_py._features.broadcast import (
    Delivery,
    Subscription,
    check_message_options,
    get_delivery,
    get_subscriptions,
    redeliver_message,
    validate_start,
    validate_subscription,
)
from glidemq_py._features.dead_letters import open_dead_letters
from glidemq_py._job import reading
from glidemq_py._job.job import Job
from glidemq_py._job.middleware import Middleware
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import JobStateError

_PAGE: Final = 500

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

    _queue_type: type[Queue] = Queue

    def _publish_call(self, meta: str, rows: Sequence[Row], quiet: bool) -> Call[AddReply]:
        return broadcasting.publish(meta, rows, quiet, self._most, self._age)

    # -- publishing ---------------------------------------------------------------------------------------

    @lists_options(JobOptions, PublishOptionsDict)
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

    async def redeliver(self, message_id: str, subscription: str) -> None:
        """Deliver a message again to a subscription that has finished it, with all attempts available again.

        Args:
            message_id: id of the message.
            subscription: name of the subscription.

        Raises:
            JobNotFoundError: the message does not exist or was deleted.
            JobStateError: the message is waiting or active in the subscription.
            GlideMQValidationError: the subscription does not exist.
        """
        wanted, name = parse_job_id(message_id, "message_id"), validate_subscription(subscription)
        await redeliver_message(await self._queue._connected(), wanted, name)

    async def get_dead_letter_jobs(self, subscription: str | None = None, start: int = 0, end: int = -1) -> list[Job]:
        """Return dead-letter entries by position, oldest first.

        Each entry is a waiting job in the dead letter queue. Its ``data`` is the envelope: ``originalQueue`` (the
        broadcast), ``originalJobId`` (the message), ``subscription``, ``data``, ``failedReason``, ``attemptsMade``.

        Args:
            subscription: return only entries of this subscription, from its dead letter queue; None returns all
                entries in the dead letter queue of the broadcast.
            start: position of the first entry.
            end: position of the last entry, inclusive; -1 = the last one.
        """
        first = check_int("start", start, 0, 2**53)
        last = check_int("end", end, -1, 2**53)
        dead_queue = await self._open_dead_letters(subscription)
        link = await self._queue._connected()
        found: list[Job] = []
        if dead_queue is None:
            return found
        async for job in reading.iterate(dead_queue, JobState.WAITING, _PAGE):
            if last != -1 and len(found) > last:
                break
            if self._is_ours(job, subscription):
                found.append(shown_entry(job, link))
        return found[first:]

    async def replay_dead_letter_job(self, job_id: str, subscription: str | None = None) -> bool:
        """Redeliver the message of a dead-letter entry to its subscription (`redeliver`), and delete the entry.

        Repeating an interrupted replay does not deliver the message twice. Raises the errors of `redeliver`; the entry
        is then kept.

        Args:
            job_id: id of the entry (not of the message).
            subscription: as for `get_dead_letter_jobs`.

        Returns:
            False if there is no such entry.
        """
        entry_id = parse_job_id(job_id)
        found = await self._find_dead_letter(entry_id, subscription)
        if found is None:
            return False
        await replay_entry(await self._queue._connected(), *found)
        return True

    async def remove_dead_letter_job(self, job_id: str, subscription: str | None = None) -> bool:
        """Delete a dead-letter entry; return False if it does not exist.

        Args:
            job_id: id of the entry (not of the message).
            subscription: as for `get_dead_letter_jobs`.
        """
        found = await self._find_dead_letter(parse_job_id(job_id), subscription)
        return False if found is None else await remove_dead_letter(*found)

    async def _open_dead_letters(self, subscription: str | None) -> QueueLink | None:
        name = "" if subscription is None else validate_subscription(subscription)
        return await open_dead_letters(await self._queue._connected(), name)

    async def _find_dead_letter(self, job_id: str, subscription: str | None) -> tuple[QueueLink, Job] | None:
        dead_queue = await self._open_dead_letters(subscription)
        job = None if dead_queue is None else await reading.get_job(dead_queue, job_id)
        if dead_queue is None or job is None or not self._is_ours(job, subscription):
            return None
        return dead_queue, job

    def _is_ours(self, job: Job, subscription: str | None) -> bool:
        envelope = envelope_of(job, self._queue.name)
        of = None if envelope is None else envelope.get("subscription")
        return isinstance(of, str) and subscription in (None, of)

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
        await self._queue.limits.set_rate_limit(max, duration, ttl=ttl)

    async def remove_global_rate_limit(self) -> None:
        """Remove the global rate limit."""
        await self._queue.limits.remove_rate_limit()

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


async def replay_entry(link: QueueLink, dead_queue: QueueLink, entry: Job) -> None:
    """Redeliver the message of an entry, as `Broadcast.replay_dead_letter_job` does, and delete the entry."""
    envelope = cast("dict[str, Any]", entry.data)
    await redeliver_message(link, str(envelope["originalJobId"]), str(envelope["subscription"]), entry.id)
    await remove_dead_letter(dead_queue, entry)
