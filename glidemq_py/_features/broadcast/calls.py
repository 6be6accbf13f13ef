"""Server calls of broadcasts and their workers (``lua/features/broadcast/functions``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from glidemq_py._core.calls import Argument, Call, call, declared, unpack
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


class SubscriptionPage(NamedTuple):
    """Some of the subscriptions."""

    rows: list[SubscriptionRow]
    cursor: str
    """Where to continue; '' = the end."""


class _Exchanged(NamedTuple):
    """Reply of `exchange`: that of a worker, and `Marks` after which no message is waiting."""

    now: int
    statuses: list[int]
    jobs: list[Any]
    next_due: int
    flags: int
    dropped: list[list[str]]
    marks: Any


class DeliveryReply(NamedTuple):
    """Reply of `delivery`."""

    exists: int
    record: list[str]
    """Flat fields and values."""
    place: str


def _text(reply: Any) -> str:
    return reply.decode() if isinstance(reply, bytes) else str(reply)


@call("broadcast_publish")
def publish(rows: Sequence[Row], quiet: bool, most: int, age: int) -> AddReply:
    """Add messages, keep only the newest ``most`` (0 = no limit), and delete those older than ``age`` ms (0 = none)."""
    ...


@call("broadcast_exchange")
def _exchange(
    consumer: str, want: int, finished: Sequence[Finished], quiet: bool, no_metrics: bool,
    limiter: tuple[int, int] | None, group: str, patterns: Sequence[str] | None, start: str, idle: str | None,
    tokens: Tokens | None,
) -> _Exchanged:  # fmt: skip
    """Report attempts and fetch messages."""
    ...


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
    made = _exchange(meta, consumer, want, finished, quiet, no_metrics, limiter, group, patterns, start, token, tokens)

    def read(reply: bytes) -> ExchangeReply:
        *rest, marks = unpack(reply)
        if marks:
            stream, wake = marks
            keep_marks((stream, wake))
        return ExchangeReply(*rest)

    return Call(made.function, meta, made.args, read, made.repeatable)


@call("broadcast_heartbeat", repeatable=True)
def heartbeat(
    consumer: str, info: str, ttl: int, jobs: Sequence[tuple[str, str, int, int]], group: str
) -> HeartbeatReply:
    """Renew the locks of messages, as `working.heartbeat` does for jobs."""
    ...


@call("broadcast_reattach")
def reattach(
    consumer: str, known: Sequence[str], want: int, quiet: bool, cursor: str, group: str, start: str
) -> ReattachReply:
    """Return messages pending for this consumer whose entries are not among those in ``known``."""
    ...


@call("broadcast_recover_stalled", repeatable=True)
def recover_stalled(
    holder: str, hold: int, lock_duration: int, max_stalled: int, quiet: bool, cursor: str, group: str, grace: int
) -> RecoverStalledReply:
    """Recover stalled messages; for ``hold`` ms only ``holder`` may do it."""
    ...


@call("broadcast_subscribe", read=_text, repeatable=True)
def subscribe(group: str, start: str) -> str:
    """Create a subscription that starts after entry ``start`` ('$' = now), unless it exists; returns its start."""
    ...


@call("broadcast_subscriptions", repeatable=True)
def subscriptions(cursor: Argument[str] = "") -> SubscriptionPage:
    """Return the progress of a page of subscriptions, from ``cursor`` on ('' = from the first)."""
    ...


@call("broadcast_unsubscribe", read=_text, repeatable=True)
def unsubscribe(group: str, force: bool) -> str:
    """Delete a subscription; returns 'ok', 'gone', or 'active' if one of its workers runs and ``force`` is False."""
    ...


@call("broadcast_delivery", repeatable=True)
def delivery(id: str, group: str) -> DeliveryReply:
    """Return the state of a message in a subscription."""
    ...


@call("broadcast_redeliver", read=_text, repeatable=True)
def _redeliver(id: str, group: str, once: str) -> str:
    """Redeliver a message to a subscription that finished it."""
    ...


def redeliver(meta: str, message_id: str, group: str, once: str) -> Call[str]:
    """Redeliver a message to a subscription that finished it; ``once`` is an idempotency key or ''."""
    made = _redeliver(meta, message_id, group, once)
    return made if once else made.once()
