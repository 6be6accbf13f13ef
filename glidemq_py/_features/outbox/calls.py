"""Server calls for the outbox of a queue and its dead letter queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from glidemq_py._core.calls.packing import Call, pack, unpack

__all__ = ["OutboxEntry", "OutboxReply", "dead_letters_to", "outbox"]


class OutboxEntry(NamedTuple):
    """An undelivered entry (``lua/features/outbox/outbox.lua``)."""

    id: str
    kind: str
    fields: dict[str, str]


class OutboxReply(NamedTuple):
    """Reply of `outbox`."""

    held: bool
    """False: another client holds the outbox lock; nothing was read."""
    entries: list[OutboxEntry]
    """Empty at the end of the round."""
    writes: int = 0
    """Number of unfinished staged writes of the queue."""


def outbox(meta: str, holder: str, hold: int, cursor: str, delivered: Sequence[str]) -> Call[OutboxReply]:
    """Delete the ``delivered`` entries and read those after ``cursor`` ('' = from the first).

    ``holder`` gets the outbox lock for ``hold`` ms.
    """
    return Call("outbox", meta, (pack((holder, hold, cursor, delivered)),), _read, repeatable=True)


def _read(reply: bytes) -> OutboxReply:
    held, entries, writes = unpack(reply)
    read: list[OutboxEntry] = []
    for entry_id, flat in entries:
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        read.append(OutboxEntry(entry_id, fields.pop("kind", ""), fields))
    return OutboxReply(bool(held), read, writes)


def dead_letters_to(meta: str, name: str | None = None, on: str = "", subscription: str = "") -> Call[str]:
    """Set the dead letter queue and the outcomes that use it; returns the name in effect.

    Args:
        meta: key of the queue's meta.
        name: name of the dead letter queue; '' = none, None = keep the current setting.
        on: the outcomes, comma separated.
        subscription: the subscription of a broadcast that the setting is for; '' = the queue itself.
    """
    request = (False if name is None else name, on, subscription)
    return Call("dead_letters_to", meta, (pack(request),), bytes.decode, repeatable=True)
