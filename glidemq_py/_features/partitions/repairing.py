"""Bringing a queue and its partitions to one layout (docs/design/partitions.md, "A layout that was lost").

Partition 0 has the layout; every other partition stores the number and the text of the one that it took over. They
differ during a change, and after a failover of some of them. The client or worker that finds a difference repairs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._core.logs import get_logger
from glidemq_py._features.partitions.changing import advance_layout, replace_layout
from glidemq_py._features.partitions.layout import Layout
from glidemq_py._features.partitions.stored import parse_layout, read_layout, read_meta

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
    partition 0: a layout that includes both replaces it.

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
        stored = await read_layout(transport, keys)
        present = Layout.plain(keys.name) if stored is None else stored
        known.update(dict.fromkeys(present.names))
        numbers = {name: await _number(transport, keys, name) for name in known if name != keys.name}
        newest = max(numbers, key=lambda name: numbers[name], default=keys.name)
        if numbers.get(newest, 0) > present.number:
            await _restore(transport, keys, stored, await _layout_of(transport, keys, newest, present))
        elif await _advanced(transport, keys, present, numbers):
            return stored
    raise LayoutChangedError(f"queue {keys.name!r}: its partitions change all the time")


async def _number(transport: JobTransport, keys: QueueKeys, name: str) -> int:
    (number,) = await read_meta(transport, QueueKeys(keys.prefix, name), "layoutNumber")
    return int(number or 0)


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


async def _advanced(transport: JobTransport, keys: QueueKeys, layout: Layout, numbers: dict[str, int]) -> bool:
    """Let the partitions take over the layout. Return False if one has a later one meanwhile."""
    for name in layout.served[1:]:
        if numbers[name] < layout.number:
            try:
                await transport.call(advance_layout(QueueKeys(keys.prefix, name).meta, layout))
            except LayoutChangedError:
                return False
    return True
