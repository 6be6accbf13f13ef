"""Calls that look and change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from glidemq_py._core.calls.packing import Call, pack, unpack

__all__ = [
    "EventSlice", "Gauges", "Page", "Parked", "count_late", "count_parked", "counts", "event_slice", "gauges", "page",
    "records", "version", "workers",
]  # fmt: skip


class Page(NamedTuple):
    """One page of the jobs in a state."""

    rows: list[tuple[str, str, list[str | bool]]]
    """Id, position (score or entry id, '' in a list), values of the wanted fields (False = absent); where none were
    wanted, something that can only be counted."""
    cursor: str
    """'' = the end."""


def counts(meta: str) -> Call[list[int]]:
    """waiting, active, delayed, prioritized, completed, failed, paused, suspended, waiting children, group waiting
    (-1: too many groups for one call, ask `count_parked`), and 0 or the priority from which `count_late` goes on."""
    return Call("counts", meta, (), list, repeatable=True)


class Parked(NamedTuple):
    """Parked jobs of a page of the groups."""

    cursor: str
    """'0' = the end."""
    groups: dict[str, int]
    """Those that have any."""


def count_parked(meta: str, cursor: str) -> Call[Parked]:
    """Parked jobs of one page of the groups; ``cursor``: '0', then what the call before answered."""
    return Call("count_parked", meta, (cursor,), _parked, repeatable=True)


def _parked(reply: bytes) -> Parked:
    cursor, *flat = unpack(reply)
    return Parked(cursor, dict(zip(flat[::2], flat[1::2], strict=True)))


def count_late(meta: str, band: int) -> Call[tuple[int, int]]:
    """Jobs of priority ``band`` and later ones that are due later, and where to go on (0 = that was the end)."""
    return Call("count_late", meta, (str(band),), _late, repeatable=True)


def _late(reply: list[int]) -> tuple[int, int]:
    late, band = reply
    return late, band


def page(meta: str, state: str, cursor: str, count: int, fields: Sequence[str], name: str = "") -> Call[Page]:
    """One page of jobs, of those called ``name`` alone if it is given; see
    ``lua/core/functions/page.lua`` for what a cursor
    promises."""
    request = (state, cursor, count, fields, name) if name else (state, cursor, count, fields)
    return Call("page", meta, (pack(request),), _paged, repeatable=True)


def _paged(reply: bytes) -> Page:
    return Page(*unpack(reply))


def records(meta: str, ids: Sequence[str], fields: Sequence[str]) -> Call[list[tuple[str, list[str | bool]]]]:
    """Id and values of the wanted fields (False = absent) of those of the named jobs that are there."""
    return Call("records", meta, (pack((ids, fields)),), unpack, repeatable=True)


class EventSlice(NamedTuple):
    """Reply of `event_slice`."""

    added: int
    """Events ever written."""
    kept: int
    """Those that are still there: the newest."""
    last: str
    """Id of the newest."""
    entries: list[tuple[str, list[str]]]
    """Id and flat fields."""


def event_slice(meta: str, after: str, count: int, ids_only: bool = False) -> Call[EventSlice]:
    """Up to ``count`` events behind the id ``after``."""
    return Call("event_slice", meta, (pack((after, count, int(ids_only))),), _sliced, repeatable=True)


def _sliced(reply: bytes) -> EventSlice:
    return EventSlice(*unpack(reply))


def workers(meta: str) -> Call[list[tuple[str, str]]]:
    """Consumer name and registration JSON of every live worker."""
    return Call("workers", meta, (), _workers, repeatable=True)


def _workers(reply: list[bytes]) -> list[tuple[str, str]]:
    texts = [item.decode() for item in reply]
    return list(zip(texts[::2], texts[1::2], strict=True))


def version(key: str) -> Call[str]:
    """Name of the library that answers; ``key`` only chooses the node."""
    return Call("version", key, (), bytes.decode, repeatable=True)


class Gauges(NamedTuple):
    """What a collector of metrics asks of a queue."""

    counts: list[int]
    """As `counts` answers them."""
    oldest: int
    """For how many ms the job that waits longest has been ready."""
    workers: int
    owed: int
    """Entries of the outbox."""


def gauges(meta: str) -> Call[Gauges]:
    """Everything that a scrape wants of one queue."""
    return Call("gauges", meta, (), _gauged, repeatable=True)


def _gauged(reply: bytes) -> Gauges:
    return Gauges(*unpack(reply))
