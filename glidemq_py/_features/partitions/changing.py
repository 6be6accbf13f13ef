"""Calls that change the layout of a partitioned queue (lua/features/partitions/functions/partitions.lua)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, declared, reader, unpack
from glidemq_py._features.partitions.layout import Layout
from glidemq_py._features.partitions.stored import layout_text

__all__ = [
    "HAS_ID",
    "IN_USE",
    "MOVED",
    "NotedSettings",
    "SettingsPage",
    "advance_layout",
    "copy_settings",
    "dedup_keys",
    "delete_layout",
    "end_deletion",
    "hold_limits",
    "keys_in_use",
    "note_settings",
    "replace_layout",
    "settings_page",
]

MOVED: Final = 0
"""The key has no jobs in the partition."""
IN_USE: Final = 1
"""It has jobs there that it orders or deduplicates."""
HAS_ID: Final = 2
"""The job with this custom id is there."""


@declared("read_settings_reply")
class SettingsPage(NamedTuple):
    """A page of the settings of a queue."""

    settings: list[str]
    limits: list[str]
    groups: list[list[Any]]
    cursor: str


@declared("note_settings_reply")
class NotedSettings(NamedTuple):
    """Reply of `note_settings`, after a change of settings."""

    number: int
    """Number of the layout; 0 = the queue has no partitions."""
    changing: str
    """The limits of the queue if a change of its partitions has begun, or was interrupted; else empty."""


def replace_layout(meta: str, before: Layout | None, layout: Layout, settings: int = -1) -> Call[bytes]:
    """Replace the layout of a queue. Returns the one that applies: another one if it is not ``before`` any more.

    Args:
        meta: Key of partition 0.
        before: The present layout.
        layout: The following one.
        settings: Number of changes of settings before they were copied: if there were more, the layout remains.
    """
    request = requests.set_layout(
        before="" if before is None else layout_text(before), layout=layout_text(layout), epoch=layout.number,
        settings=settings,
    )  # fmt: skip
    return Call("set_layout", meta, request, bytes)


def advance_layout(meta: str, layout: Layout) -> Call[int]:
    """Let a further partition take over a layout: it refuses clients that know only layouts before this one."""
    request = requests.advance_layout(epoch=layout.number, layout=layout_text(layout))
    return Call("advance_layout", meta, request, int, repeatable=True)


def delete_layout(meta: str, before: Layout, epoch: int) -> Call[int]:
    """Delete the layout of a queue, before its partitions. Returns 0 if it has another one.

    Args:
        meta: Key of partition 0.
        before: The present layout.
        epoch: Number of the deletion, after that of the layout: layouts up to it are refused from then on.
    """
    return Call(
        "delete_layout", meta, requests.delete_layout(before=layout_text(before), epoch=epoch), int, repeatable=True
    )


def end_deletion(meta: str, epoch: int) -> Call[int]:
    """Note that the further partitions of a deleted queue are deleted, too."""
    return Call("end_deletion", meta, requests.end_deletion(epoch=epoch), int, repeatable=True)


def keys_in_use(meta: str, number: int, rows: Sequence[object], *, peek: bool = False) -> Call[list[int]]:
    """Return for each key whether it has jobs in this partition: `MOVED`, `IN_USE` or `HAS_ID`.

    Args:
        meta: Key of the partition.
        number: Number of the layout.
        rows: See `moving_row`.
        peek: False if it is a former partition of the keys: those without jobs there have moved for good. True if it
            is the present one.
    """
    request = requests.keys_in_use(epoch=number, rows=rows, peek=peek)
    return Call("keys_in_use", meta, request, unpack, repeatable=True)


_read_settings: Final = reader(SettingsPage)
_read_noted: Final = reader(NotedSettings)


def settings_page(meta: str, cursor: str) -> Call[SettingsPage]:
    """Return the settings of a queue and the limits of its keys, page by page."""
    return Call("read_settings", meta, requests.read_settings(cursor=cursor), _read_settings, repeatable=True)


def note_settings(meta: str) -> Call[NotedSettings]:
    """Count a change of settings or limits, after it was made."""
    return Call("note_settings", meta, (), _read_noted, repeatable=True)


def hold_limits(meta: str, limits: str, settings: int) -> Call[int]:
    """Store the limits of the whole queue before they are divided. Returns 0 if settings have changed since."""
    request = requests.hold_limits(limits=limits, settings=settings)
    return Call("hold_limits", meta, request, int, repeatable=True)


def dedup_keys(meta: str, start: int, count: int) -> Call[list[str]]:
    """Return the deduplication ids whose jobs may still be found by an add."""
    return Call("dedup_keys", meta, requests.dedup_keys(start=start, count=count), unpack, repeatable=True)


def copy_settings(
    meta: str, settings: list[str], limits: list[str], groups: list[list[Any]], *, used_from: int = 0, deleted: int = 0
) -> Call[int]:
    """Write settings and limits of another partition.

    Args:
        meta: Key of the partition.
        settings: Fields and values.
        limits: Fair keys and their limits; those of a key with an empty text are removed.
        groups: Rows of ordering keys; without settings, the limits of the key are removed.
        used_from: Number of the first layout that uses the partition again: its other settings are removed; 0 = in use.
        deleted: With `used_from`: the number from `remove_remains`; repetitions of the deletion skip the partition.
    """
    request = requests.copy_settings(
        settings=settings, limits=limits, groups=groups, used_from=used_from, epoch=deleted + 1
    )
    return Call("copy_settings", meta, request, int, repeatable=True)
