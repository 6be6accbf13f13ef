"""How far subscriptions are, and what one has made of a message. Reading only."""

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
    """A subscription at one moment.

    Attributes:
        name: of the subscription.
        waiting: entries of the stream that it has not read yet, those that its subjects leave out among them; None
            where nobody has counted them and they are more than a thousand.
        active: messages in the hands of its workers.
        handed_back: messages that were in the hands of a worker that died or closed, and come next.
        last_delivered: id of the last entry that it has read.
        consumers: workers that have read for it, also some that are gone.
    """

    name: str
    waiting: int | None
    active: int
    handed_back: int
    last_delivered: str
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What a subscription has made of a message.

    Attributes:
        state: "waiting", "active" (also: handed back), "delayed" (its next attempt), "completed" (also: of a subject
            that does not concern the subscription) or "failed"; None where it cannot be told any more.
        attempts_made: attempts that have failed.
        returnvalue: what the handler returned, as the serialized text; None where it returned nothing.
        failed_reason, failed_type: of the last failure.
    """

    state: DeliveryState | None
    attempts_made: int = 0
    returnvalue: str | None = None
    failed_reason: str | None = None
    failed_type: str | None = None


async def get_subscriptions(link: QueueLink) -> list[Subscription]:
    """Every subscription of a broadcast."""
    return [
        Subscription(
            name=row.name, waiting=None if row.lag < 0 else row.lag, active=row.pending - row.handed_back,
            handed_back=row.handed_back, last_delivered=row.last_delivered,
            consumers=row.consumers - (row.handed_back > 0),
        )
        for row in await link.transport.call(broadcasting.subscriptions(link.keys.meta))
    ]  # fmt: skip


async def get_delivery(link: QueueLink, message_id: str, subscription: str) -> Delivery | None:
    """What the subscription has made of the message; None if there is no such message."""
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
