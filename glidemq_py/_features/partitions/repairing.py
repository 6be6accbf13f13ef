"""Bringing a queue and its partitions to one layout (docs/design/partitions.md, "A layout that was lost").

Partition 0 has the layout; every other partition stores the number and the text of the one that it took over. They
differ during a change, and after a failover of some of them. The client or worker that finds a difference repairs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._core.logs import get_logger
from glidemq_py._features.partitions.changing import advance_layout, replace_layout
from glidemq_py._features.partitions.deleting import delete_keys
from glidemq_py._features.partitions.layout import Layout, number_after
from glidemq_py._features.partitions.stored import FIELD, layout_in, parse_layout, read_layout, read_meta
from glidemq_py.errors import GlideMQError

__all__ = ["agreed_layout", "renewed_layout"]

_log = get_logger(__name__)
_ATTEMPTS: Final = 20
"""Times that the layout is read. More than two are needed only if it changes again and again."""


async def renewed_layout(
    transport: JobTransport, keys: QueueKeys, known: Layout | None, refusals: Iterable[LayoutChangedError] = ()
) -> Layout | None:
    """Read the layout of a queue again; None if it has no partitions. Differences between partitions are repaired.

    Args:
        transport: The connection.
        keys: Keys of the queue.
        known: The layout that the client has used; None if it knew of no partitions.
        refusals: Errors of partitions that have refused it.

    Raises:
        GlideMQError: As `agreed_layout`.
    """
    layout = await read_layout(transport, keys)
    number = 0 if layout is None else layout.number
    is_lost = known is not None and known.number > number
    if is_lost or any(each.stored not in (None, number) or each.used > number for each in refusals):
        return await agreed_layout(transport, keys, () if known is None else known.names)
    return layout


async def agreed_layout(transport: JobTransport, keys: QueueKeys, names: Iterable[str] = ()) -> Layout | None:
    """Let all partitions of a queue have the same layout, and return it; None if it has no partitions.

    Partitions with an older layout take over the present one. If one has a later layout, a failover has lost that of
    partition 0: a layout that includes both replaces it. A layout that was deleted with its queue is not restored.

    Args:
        transport: The connection.
        keys: Keys of the queue.
        names: Names of partitions that the caller knows, also of layouts that may be lost.

    Raises:
        LayoutChangedError: If other clients change the layout again and again.
        GlideMQError: If a stored layout is damaged.
    """
    known = dict.fromkeys(names)
    for _ in range(_ATTEMPTS):
        stored, deleted = await _present(transport, keys)
        present = Layout.plain(keys.name) if stored is None else stored
        known.update(dict.fromkeys(present.names))
        states = {name: await _state(transport, keys, name) for name in known if name != keys.name}
        later = {name: each.number for name, each in states.items() if each.number > max(present.number, deleted)}
        closed = max((each.deleted for each in states.values()), default=0)
        if later:
            newest = max(later, key=lambda name: later[name])
            await _restore(transport, keys, stored, await _layout_of(transport, keys, newest, present))
        elif stored is not None and closed >= present.number:
            await _restore_deleted(transport, keys, stored, closed)
        else:
            for name in present.served[1:]:
                if 0 < states[name].number <= deleted:  # a failover of the partition has lost its deletion
                    await delete_keys(transport, QueueKeys(keys.prefix, name), force=True, epoch=deleted)
            if await _advanced(transport, keys, present, states):
                return stored
    raise LayoutChangedError(f"queue {keys.name!r}: its partitions change all the time")


class _State(NamedTuple):
    """What a further partition stores."""

    number: int
    """Number of its layout; 0 = none."""
    deleted: int
    """Layouts up to this number are deleted."""


async def _present(transport: JobTransport, keys: QueueKeys) -> tuple[Layout | None, int]:
    """Return the layout of a queue, and the number of the last deletion."""
    meta, deletion = await transport.send_reads(  # repeatable
        keys.meta, [("HMGET", keys.meta, FIELD), ("HMGET", keys.deleted_layout, "number")]
    )
    return layout_in(keys.name, meta), _number(deletion)


async def _state(transport: JobTransport, keys: QueueKeys, name: str) -> _State:
    part = QueueKeys(keys.prefix, name)
    number, deletion = await transport.send_reads(  # repeatable
        part.meta, [("HMGET", part.meta, "layoutNumber"), ("HMGET", part.deleted_layout, "number")]
    )
    return _State(_number(number), _number(deletion))


def _number(reply: Any) -> int:
    if isinstance(reply, GlideMQError):
        raise reply
    (value,) = reply
    return int(value or 0)


async def _layout_of(transport: JobTransport, keys: QueueKeys, name: str, present: Layout) -> Layout:
    """Return the layout that a partition has taken over."""
    number, text = await read_meta(transport, QueueKeys(keys.prefix, name), "layoutNumber", "knownLayout")
    if not text:
        return present._replace(number=int(number or 0))
    return parse_layout(keys.name, text.decode("utf-8", "replace"))


async def _restore(transport: JobTransport, keys: QueueKeys, stored: Layout | None, lost: Layout) -> None:
    """Replace the layout of partition 0 by one that includes a lost one, unless another client is faster."""
    present = Layout.plain(keys.name) if stored is None else stored
    following = present.including(lost)
    reply = await transport.call(replace_layout(keys.meta, stored, following))
    if parse_layout(keys.name, reply.decode("utf-8", "replace")) == following:
        _log.warning(
            "queue %r: partition 0 had lost a layout of its partitions; restored, with %d partitions",
            keys.name, following.partitions,
        )  # fmt: skip


async def _restore_deleted(transport: JobTransport, keys: QueueKeys, stored: Layout, deleted: int) -> None:
    """Give a layout a number that its partitions accept: only partition 0 has lost that the queue was deleted."""
    following = stored._replace(number=number_after(deleted))
    reply = await transport.call(replace_layout(keys.meta, stored, following))
    if parse_layout(keys.name, reply.decode("utf-8", "replace")) == following:
        _log.warning(
            "queue %r: partition 0 had lost the deletion of the queue; its partitions are in use again: obliterate it",
            keys.name,
        )  # fmt: skip


async def _advanced(transport: JobTransport, keys: QueueKeys, layout: Layout, states: dict[str, _State]) -> bool:
    """Let the partitions take over the layout. Return False if one has a later one meanwhile."""
    for name in layout.served[1:]:
        if states[name].number < layout.number:
            try:
                await transport.call(advance_layout(QueueKeys(keys.prefix, name).meta, layout))
            except LayoutChangedError:
                return False
    return True
