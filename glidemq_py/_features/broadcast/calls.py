"""Server calls of broadcasts and their workers (``lua/features/broadcast/functions``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from glidemq_py._core.calls import Call, pack, unpack
from glidemq_py._core.calls.adding import AddReply, Row
from glidemq_py._core.calls.working import (
    FOREIGN_CONSUMER_PREFIX,
    ExchangeReply,
    Finished,
    HeartbeatReply,
    ReattachReply,
    RecoverStalledReply,
    Tokens,
)

__all__ = [
    "DeliveryReply",
    "Marks",
    "SubscriptionPage",
    "SubscriptionRow",
    "delivery",
    "exchange",
    "heartbeat",
    "leave",
    "publish",
    "reattach",
    "recover_stalled",
    "redeliver",
    "subscribe",
    "subscriptions",
    "unsubscribe",
]

Marks = tuple[str, str]
"""Ids of the last entry of the message stream and of the wake stream."""


class SubscriptionRow(NamedTuple):
    """The progress of one subscription."""

    name: str
    lag: int
    """Number of unread entries; -1 if the server does not track it and it is large."""
    pending: int
    released: int
    last_delivered: str
    consumers: int


class SubscriptionPage(NamedTuple):
    """Some of the subscriptions."""

    rows: list[SubscriptionRow]
    cursor: str
    """Where to continue; '' = the end."""


class DeliveryReply(NamedTuple):
    """Reply of `delivery`."""

    exists: int
    record: list[str]
    """Flat fields and values."""
    place: str


def publish(meta: str, rows: Sequence[Row], quiet: bool, most: int, age: int) -> Call[AddReply]:
    """Add messages, keep only the newest ``most`` (0 = no limit), and delete those older than ``age`` ms (0 = none)."""
    return Call("broadcast_publish", meta, (pack((rows, quiet, most, age)),), _published)


def _published(reply: bytes) -> AddReply:
    return AddReply(*unpack(reply))


def exchange(
    meta: str, consumer: str, want: int, finished: Sequence[Finished], quiet: bool, no_metrics: bool, group: str,
    patterns: Sequence[str] | None, start: str, keep_marks: Callable[[Marks], None],
    limiter: tuple[int, int] | None = None, token: str | None = None, tokens: Tokens | None = None,
) -> Call[ExchangeReply]:  # fmt: skip
    """Report ``finished`` attempts and fetch up to ``want`` messages for the subscription ``group``.

    Other arguments are the same as in `working.exchange`.

    Args:
        patterns: Lua patterns of subjects; None = all.
        start: stream position of the group if it must be created.
        keep_marks: called with the marks of a reply after which no message is waiting.
        token: as in `working.idle_exchange`.
    """
    of_group: tuple[Any, ...] = (group, patterns or False, start, token or False)
    if tokens is not None:
        of_group = (*of_group, tokens)
    request = (consumer, want, finished, quiet, no_metrics, limiter or False, *of_group)
    return Call("broadcast_exchange", meta, (pack(request),), partial(_exchanged, keep_marks))


def _exchanged(keep_marks: Callable[[Marks], None], reply: bytes) -> ExchangeReply:
    *rest, marks = unpack(reply)
    if marks:
        keep_marks((marks[0], marks[1]))
    return ExchangeReply(*rest)


def heartbeat(
    meta: str, consumer: str, info: str, ttl: int, jobs: Sequence[tuple[str, str, int, int]], group: str
) -> Call[HeartbeatReply]:
    """Renew the locks of messages, as `working.heartbeat` does for jobs."""
    return Call("broadcast_heartbeat", meta, (pack((consumer, info, ttl, jobs, group)),), _beaten, repeatable=True)


def _beaten(reply: bytes) -> HeartbeatReply:
    return HeartbeatReply(*unpack(reply))


def reattach(
    meta: str, consumer: str, known: Sequence[str], want: int, quiet: bool, cursor: str, group: str, start: str
) -> Call[ReattachReply]:
    """Return messages pending for this consumer whose entries are not among those in ``known``."""
    request = (consumer, known, want, quiet, cursor, group, start)
    return Call("broadcast_reattach", meta, (pack(request),), _reattached)


def _reattached(reply: bytes) -> ReattachReply:
    return ReattachReply(*unpack(reply))


def recover_stalled(
    meta: str, holder: str, hold: int, lock_duration: int, max_stalled: int, quiet: bool, cursor: str, group: str
) -> Call[RecoverStalledReply]:
    """Recover stalled messages; for ``hold`` ms only ``holder`` may do it."""
    request = (holder, hold, lock_duration, max_stalled, quiet, cursor, group, FOREIGN_CONSUMER_PREFIX)
    return Call("broadcast_recover_stalled", meta, (pack(request),), _recovered_jobs, repeatable=True)


def _recovered_jobs(reply: bytes) -> RecoverStalledReply:
    return RecoverStalledReply(*unpack(reply))


def leave(meta: str, group: str, consumer: str) -> Call[bool]:
    """Unregister a worker and delete its consumer; returns False if messages are pending for it."""
    return Call("broadcast_leave", meta, (group, consumer), bool, repeatable=True)


def subscribe(meta: str, group: str, start: str) -> Call[str]:
    """Create a subscription that starts after entry ``start`` ('$' = now), unless it exists; returns its start."""
    return Call("broadcast_subscribe", meta, (pack((group, start)),), _text, repeatable=True)


def _text(reply: Any) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def subscriptions(meta: str, cursor: str = "") -> Call[SubscriptionPage]:
    """Return the progress of a page of subscriptions, from ``cursor`` on ('' = from the first)."""
    return Call("broadcast_subscriptions", meta, (cursor,), _page, repeatable=True)


def _page(reply: bytes) -> SubscriptionPage:
    rows, cursor = unpack(reply)
    return SubscriptionPage([SubscriptionRow(*row) for row in rows], cursor)


def unsubscribe(meta: str, group: str, force: bool) -> Call[str]:
    """Delete a subscription; returns 'ok', 'gone', or 'active' if one of its workers runs and ``force`` is False."""
    return Call("broadcast_unsubscribe", meta, (pack((group, force)),), _text, repeatable=True)


def delivery(meta: str, message_id: str, group: str) -> Call[DeliveryReply]:
    """Return the state of a message in a subscription."""
    return Call("broadcast_delivery", meta, (pack((message_id, group)),), _delivered, repeatable=True)


def _delivered(reply: bytes) -> DeliveryReply:
    return DeliveryReply(*unpack(reply))


def redeliver(meta: str, message_id: str, group: str, once: str) -> Call[str]:
    """Redeliver a message to a subscription that finished it; ``once`` is an idempotency key or ''."""
    return Call("broadcast_redeliver", meta, (pack((message_id, group, once)),), _text, repeatable=bool(once))
