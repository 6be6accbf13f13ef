"""Subscriptions: their progress, the state of a message in one, their dead-letter entries, and redelivery."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, cast

from glidemq_py._api.queue import Queue
from glidemq_py._core.checks import check_int
from glidemq_py._core.job_states import JobState
from glidemq_py._core.names import parse_job_id
from glidemq_py._core.payload import JSON_SERIALIZER, decode_result
from glidemq_py._core.queue_options import Serializer
from glidemq_py._features.broadcast import calls as broadcasting
from glidemq_py._features.broadcast.options import validate_subscription
from glidemq_py._features.dead_letters.queue_api import envelope_of, remove_dead_letter
from glidemq_py._job import Job, QueueLink, reading
from glidemq_py.errors import GlideMQValidationError, JobNotFoundError, JobStateError

__all__ = ["BroadcastDeadLetters", "Delivery", "DeliveryState", "Subscription", "get_delivery", "get_subscriptions"]

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
        page = await link.transport.call(broadcasting.subscriptions(link.keys.meta, cursor or ""))
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
    reply = await link.transport.call(broadcasting.delivery(link.keys.meta, message_id, subscription))
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


_PAGE = 500


class BroadcastDeadLetters:
    """The methods of `Broadcast` for failed messages."""

    _queue: Queue[Any, Any]

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
        await self._redeliver(parse_job_id(message_id, "message_id"), validate_subscription(subscription), "")

    async def get_dead_letter_jobs(
        self, subscription: str | None = None, start: int = 0, end: int = -1
    ) -> list[Job[Any, Any]]:
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
        letters = await self._dead_letters(subscription)
        found: list[Job[Any, Any]] = []
        if letters is None:
            return found
        async for job in reading.iterate(letters, JobState.WAITING, _PAGE):
            if last != -1 and len(found) > last:
                break
            if self._is_ours(job, subscription):
                found.append(job)
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
        letter_id = parse_job_id(job_id)
        found = await self._letter(letter_id, subscription)
        if found is None:
            return False
        letters, letter = found
        envelope = cast("dict[str, Any]", letter.data)
        await self._redeliver(str(envelope["originalJobId"]), str(envelope["subscription"]), letter_id)
        await remove_dead_letter(letters, letter)
        return True

    async def remove_dead_letter_job(self, job_id: str, subscription: str | None = None) -> bool:
        """Delete a dead-letter entry; return False if it does not exist.

        Args:
            job_id: id of the entry (not of the message).
            subscription: as for `get_dead_letter_jobs`.
        """
        found = await self._letter(parse_job_id(job_id), subscription)
        return False if found is None else await remove_dead_letter(*found)

    async def _redeliver(self, message_id: str, subscription: str, once: str) -> None:
        link = await self._queue._connected()
        call = broadcasting.redeliver(link.keys.meta, message_id, subscription, once)
        answer = await link.transport.call(call)
        if answer == "gone":
            raise JobNotFoundError(message_id)
        if answer == "no-subscription":
            raise GlideMQValidationError("subscription", subscription, "does not exist")
        if answer not in ("ok", "duplicate"):
            message = f"cannot redeliver message {message_id!r} to subscription {subscription!r}: it is {answer}"
            raise JobStateError(message_id, answer, "redeliver", message)

    async def _dead_letters(self, subscription: str | None) -> QueueLink | None:
        return await self._queue._dead_letters("" if subscription is None else validate_subscription(subscription))

    async def _letter(self, job_id: str, subscription: str | None) -> tuple[QueueLink, Job[Any, Any]] | None:
        letters = await self._dead_letters(subscription)
        job = None if letters is None else await reading.get_job(letters, job_id)
        if letters is None or job is None or not self._is_ours(job, subscription):
            return None
        return letters, job

    def _is_ours(self, job: Job[Any, Any], subscription: str | None) -> bool:
        envelope = envelope_of(job, self._queue.name)
        of = None if envelope is None else envelope.get("subscription")
        return isinstance(of, str) and subscription in (None, of)
