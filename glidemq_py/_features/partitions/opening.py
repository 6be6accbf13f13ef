"""Opening a queue: its layout is read, or created by the option ``partitions``."""

from __future__ import annotations

from typing import Final

from glidemq_py._client.transport import Transport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._features import results
from glidemq_py._features.partitions.changing import copy_settings, settings_page
from glidemq_py._features.partitions.deleting import remove_remains
from glidemq_py._features.partitions.layout import Layout, number_after, partition_names
from glidemq_py._features.partitions.repairing import agreed_layout
from glidemq_py._features.partitions.stored import (
    CREATABLE,
    SETTINGS_NUMBER,
    UNIQUE,
    create_partitions,
    may_create_partitions,
    read_layout,
)
from glidemq_py.errors import GlideMQValidationError

__all__ = ["open_layout"]

_OPTION: Final = "partitions"
_NEVER_USED: Final = 1
"""As `used_from`: the partition never had a layout."""
_ATTEMPTS: Final = 20
"""Times that partitions are created. More than two are needed only if the queue is deleted again and again."""


async def open_layout(transport: Transport, keys: QueueKeys, partitions: int | None) -> Layout | None:
    """Return the layout of the queue's partitions, after creating them if ``partitions`` is at least 2.

    Raises:
        GlideMQValidationError: The queue has another number of partitions, or has jobs or limits, and no partitions.
        GlideMQError: The stored layout is damaged.
    """
    found = await read_layout(transport, keys)
    if found is None and partitions is not None and partitions > 1:
        found = await _create(transport, keys, partitions)
    present = 1 if found is None else found.partitions
    if partitions is not None and partitions != present:
        problem = f"queue {keys.name!r} has {present} partition{'s' if present > 1 else ''}"
        raise GlideMQValidationError(_OPTION, partitions, f"{problem}; Queue.set_partitions changes the number")
    return found


async def _create(transport: Transport, keys: QueueKeys, partitions: int) -> Layout | None:
    names = partition_names(keys.name, partitions)
    restored = await agreed_layout(transport, keys, names)  # a failover may have lost it
    if restored is not None:
        return restored
    for _ in range(_ATTEMPTS):
        try:
            await _try_to_create(transport, keys, names)
            is_refused = False
        except LayoutChangedError:  # another client was faster, or deletes a queue of this name
            is_refused = True
        found = await agreed_layout(transport, keys)
        if found is not None:
            return found
        if not is_refused:
            break
    problem = f"queue {keys.name!r} has jobs or limits and is not partitioned"
    raise GlideMQValidationError(_OPTION, partitions, f"{problem}; call Queue.set_partitions({partitions})")


async def _try_to_create(transport: Transport, keys: QueueKeys, names: tuple[str, ...]) -> None:
    deleted = await remove_remains(transport, keys, names)
    layout = Layout(number_after(deleted), (len(names),), names)
    reply = await transport.call(may_create_partitions(keys.meta))
    while reply == CREATABLE:
        settings = int(await transport.command("HGET", keys.meta, SETTINGS_NUMBER) or 0)
        if not await _copy_settings(transport, keys, layout, deleted):
            break
        reply = await transport.call(create_partitions(keys.meta, layout, settings))
        if reply == UNIQUE:
            layout, reply = layout._replace(counts=(1, len(names))), CREATABLE


async def _copy_settings(transport: Transport, keys: QueueKeys, layout: Layout, deleted: int) -> bool:
    """Give new partitions the settings of the queue, instead of those that a deleted queue may have left in them.

    Returns False, and changes nothing, if keys of the queue have limits: these must be divided.
    """
    page, cursor = None, ""
    while page is None or cursor:
        found = await transport.call(settings_page(keys.meta, cursor))
        if found.limits or found.groups:
            return False
        page, cursor = page or found, found.cursor
    kept = await transport.command("HGET", keys.meta, "resultsKept")
    for name in layout.names[1:]:
        meta = QueueKeys(keys.prefix, name).meta
        await transport.call(copy_settings(meta, page.settings, [], [], used_from=_NEVER_USED, deleted=deleted))
        await transport.call(results.set_retention(meta, int(kept or 0)))
    return True
