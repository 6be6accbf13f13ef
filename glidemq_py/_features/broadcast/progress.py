"""The progress of subscriptions, and the state of a message in one. Read only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from glidemq_py._features.broadcast import calls as broadcasting
from glidemq_py._job import QueueLink

__all__ = ["Delivery", "DeliveryState", "Subscription", "get_delivery", "get_subscriptions"]

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
        handed_back: number of messages released by a worker that closed or stalled; they are delivered next.
        last_delivered: id of the last entry read.
        consumers: number of workers that have read for it, possibly including some that have stopped.
    """

    name: str
    waiting: int | None
    active: int
    handed_back: int
    last_delivered: str
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The state of a message in one subscription.

    Attributes:
        state: "waiting", "active" (or released), "delayed" (until the next attempt), "completed" (or skipped because
            of its subject) or "failed"; None if the state is no longer known.
        attempts_made: number of failed attempts.
        returnvalue: the return value of the handler as serialized text; None if it returned None.
        failed_reason: message of the last failure.
        failed_type: exception type of the last failure.
    """

    state: DeliveryState | None
    attempts_made: int = 0
    returnvalue: str | None = None
    failed_reason: str | None = None
    failed_type: str | None = None


async def get_subscriptions(link: QueueLink) -> list[Subscription]:
    """Return all subscriptions of a broadcast."""
    return [
        Subscription(
            name=row.name, waiting=None if row.lag < 0 else row.lag, active=row.pending - row.handed_back,
            handed_back=row.handed_back, last_delivered=row.last_delivered,
            consumers=row.consumers - (row.handed_back > 0),
        )
        for row in await link.transport.call(broadcasting.subscriptions(link.keys.meta))
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
        returnvalue=record.get("returnvalue"), failed_reason=record.get("failedReason"),
        failed_type=record.get("failedType"),
    )  # fmt: skip
