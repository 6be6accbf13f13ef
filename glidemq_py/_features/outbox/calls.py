"""Calls about what a queue owes to other queues: its outbox, and where its dead letters go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from glidemq_py._core.calls.packing import Call, pack, unpack

__all__ = ["OutboxEntry", "OutboxReply", "dead_letters_to", "outbox"]


class OutboxEntry(NamedTuple):
    """Something owed (``lua/features/outbox/outbox.lua``)."""

    id: str
    kind: str
    fields: dict[str, str]


class OutboxReply(NamedTuple):
    """Reply of `outbox`."""

    held: bool
    """False: somebody else is at it; nothing was read."""
    entries: list[OutboxEntry]
    """None = the end of the round."""
    writes: int = 0
    """Staged writes of the queue that have not ended."""


def outbox(meta: str, holder: str, hold: int, cursor: str, delivered: Sequence[str]) -> Call[OutboxReply]:
    """Cross off the ``delivered`` entries, and read those behind ``cursor`` ('' = from the first) as ``holder``, who
    keeps others away for ``hold`` ms."""
    return Call("outbox", meta, (pack((holder, hold, cursor, delivered)),), _read, repeatable=True)


def _read(reply: bytes) -> OutboxReply:
    held, entries, writes = unpack(reply)
    read: list[OutboxEntry] = []
    for entry_id, flat in entries:
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        read.append(OutboxEntry(entry_id, fields.pop("kind", ""), fields))
    return OutboxReply(bool(held), read, writes)


def dead_letters_to(meta: str, name: str | None = None, on: str = "", subscription: str = "") -> Call[str]:
    """Say where dead letters go ('' = nowhere, None = leave it), and of which ends; answers the name in force.

    ``subscription``: whose letters, of a broadcast; '' = the queue's.
    """
    request = (False if name is None else name, on, subscription)
    return Call("dead_letters_to", meta, (pack(request),), bytes.decode, repeatable=True)
