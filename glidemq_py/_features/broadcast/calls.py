"""Server calls of broadcasts and their workers (``lua/features/broadcast/functions``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, declared, reader, unpack
from glidemq_py._core.calls.adding import AddReply, Row
from glidemq_py._core.calls.working import (
    ExchangeReply,
    Finished,
    HeartbeatReply,
    ReattachReply,
    RecoverStalledReply,
    Tokens,
)

Marks = tuple[str, str]
"""Ids of the last entry of the message stream and of the wake stream."""


@declared("subscription")
class SubscriptionRow(NamedTuple):
    """The progress of one subscription."""

    name: str
    lag: int
    """Number of unread entries; -1 if the server does not track it and it is large."""
    pending: int
    released: int
    last_delivered: str
    consumers: int


@declared("broadcast_subscriptions_reply")
class SubscriptionPage(NamedTuple):
    """Some of the subscriptions."""

    rows: list[SubscriptionRow]
    cursor: str
    """Where to continue; '' = the end."""


@declared("broadcast_delivery_reply")
class DeliveryReply(NamedTuple):
    """Reply of `delivery`."""

    exists: int
    record: list[str]
    """Flat fields and values."""
    place: str


def publish(meta: str, rows: Sequence[Row], quiet: bool, most: int, age: int) -> Call[AddReply]:
    """Add messages, keep only the newest ``most`` (0 = no limit), and delete those older than ``age`` ms (0 = none)."""
    return Call(
        "broadcast_publish",
        meta,
        requests.broadcast_publish(rows=rows, quiet=quiet, most=most, age=age),
        reader(AddReply),
    )


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
    arguments = requests.broadcast_exchange(
        consumer=consumer, want=want, finished=finished, quiet=quiet, no_metrics=no_metrics, limiter=limiter or False,
        group=group, patterns=patterns or False, start=start, idle=token or False, tokens=tokens or False,
    )  # fmt: skip
    return Call("broadcast_exchange", meta, arguments, partial(_exchanged, keep_marks))


def _exchanged(keep_marks: Callable[[Marks], None], reply: bytes) -> ExchangeReply:
    *rest, marks = unpack(reply)
    if marks:
        stream, wake = marks
        keep_marks((stream, wake))
    return ExchangeReply(*rest)


def heartbeat(
    meta: str, consumer: str, info: str, ttl: int, jobs: Sequence[tuple[str, str, int, int]], group: str
) -> Call[HeartbeatReply]:
    """Renew the locks of messages, as `working.heartbeat` does for jobs."""
    return Call(
        "broadcast_heartbeat",
        meta,
        requests.broadcast_heartbeat(consumer=consumer, info=info, ttl=ttl, jobs=jobs, group=group),
        reader(HeartbeatReply),
    )


def reattach(
    meta: str, consumer: str, known: Sequence[str], want: int, quiet: bool, cursor: str, group: str, start: str
) -> Call[ReattachReply]:
    """Return messages pending for this consumer whose entries are not among those in ``known``."""
    arguments = requests.broadcast_reattach(
        consumer=consumer, known=known, want=want, quiet=quiet, cursor=cursor, group=group, start=start
    )
    return Call("broadcast_reattach", meta, arguments, reader(ReattachReply))


def recover_stalled(
    meta: str, holder: str, hold: int, lock_duration: int, max_stalled: int, quiet: bool, cursor: str, group: str,
    grace: int,
) -> Call[RecoverStalledReply]:  # fmt: skip
    """Recover stalled messages; for ``hold`` ms only ``holder`` may do it."""
    arguments = requests.broadcast_recover_stalled(
        holder=holder, hold=hold, lock_duration=lock_duration, max_stalled=max_stalled, quiet=quiet, cursor=cursor,
        group=group, grace=grace,
    )  # fmt: skip
    return Call("broadcast_recover_stalled", meta, arguments, reader(RecoverStalledReply))


def subscribe(meta: str, group: str, start: str) -> Call[str]:
    """Create a subscription that starts after entry ``start`` ('$' = now), unless it exists; returns its start."""
    return Call("broadcast_subscribe", meta, requests.broadcast_subscribe(group=group, start=start), _text)


def _text(reply: Any) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def subscriptions(meta: str, cursor: str = "") -> Call[SubscriptionPage]:
    """Return the progress of a page of subscriptions, from ``cursor`` on ('' = from the first)."""
    return Call("broadcast_subscriptions", meta, requests.broadcast_subscriptions(cursor=cursor), _page)


def _page(reply: bytes) -> SubscriptionPage:
    rows, cursor = unpack(reply)
    return SubscriptionPage([SubscriptionRow(*row) for row in rows], cursor)


def unsubscribe(meta: str, group: str, force: bool) -> Call[str]:
    """Delete a subscription; returns 'ok', 'gone', or 'active' if one of its workers runs and ``force`` is False."""
    return Call("broadcast_unsubscribe", meta, requests.broadcast_unsubscribe(group=group, force=force), _text)


def delivery(meta: str, message_id: str, group: str) -> Call[DeliveryReply]:
    """Return the state of a message in a subscription."""
    return Call(
        "broadcast_delivery", meta, requests.broadcast_delivery(id=message_id, group=group), reader(DeliveryReply)
    )


def redeliver(meta: str, message_id: str, group: str, once: str) -> Call[str]:
    """Redeliver a message to a subscription that finished it; ``once`` is an idempotency key or ''."""
    arguments = requests.broadcast_redeliver(id=message_id, group=group, once=once)
    call = Call("broadcast_redeliver", meta, arguments, _text)
    return call if once else call.once()
