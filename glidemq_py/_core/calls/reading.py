"""Read-only calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, declared, reader, unpack


@declared("page_reply")
class Page(NamedTuple):
    """One page of the jobs in a state."""

    rows: list[tuple[str, str, list[str | bool]]]
    """Id, position (score or entry id, '' in a list), values of the requested fields (False = absent). If no fields
    were requested, only the number of rows is meaningful."""
    cursor: str
    """'' = the end."""


def counts(meta: str) -> Call[list[int]]:
    """Return the counts of the jobs by state.

    The reply is: waiting, active, delayed, prioritized, completed, failed, paused, suspended, waiting children, group
    waiting (-1: too many groups for one call, use `count_parked`), 0 or the priority at which `count_delayed`
    continues, and how many of the prioritized jobs have a rank below 0.
    """
    return Call("counts", meta, (), list)


class Parked(NamedTuple):
    """Waiting jobs in one page of the ordering groups."""

    cursor: str
    """'' = the end."""
    groups: dict[str, int]
    """Number of waiting jobs by group key; groups without waiting jobs are omitted."""


def count_parked(meta: str, cursor: str) -> Call[Parked]:
    """Count the waiting jobs in one page of the ordering groups; ``cursor``: '', then that of the previous reply."""
    return Call("count_parked", meta, requests.count_parked(cursor=cursor), _parked)


def _parked(reply: bytes) -> Parked:
    cursor, *flat = unpack(reply)
    return Parked(cursor, dict(zip(flat[::2], flat[1::2], strict=True)))


def count_delayed(meta: str, band: int) -> Call[tuple[int, int]]:
    """Count delayed jobs from priority ``band``; return the count and the priority at which to continue (0 = end)."""
    return Call("count_delayed", meta, requests.count_delayed(band=str(band)), _late)


def _late(reply: list[int]) -> tuple[int, int]:
    late, band = reply
    return late, band


@declared("condition")
class Condition(NamedTuple):
    """A condition on a field of a job's record; a job without the field does not meet it."""

    field: str
    texts: list[str] | Literal[False]
    """Allowed values; False = any."""
    low: int | Literal[False]
    """Least number, inclusive; False = any."""
    high: int | Literal[False]
    """Greatest number, inclusive; False = any."""
    contains: list[str] | Literal[False] = False
    """Texts that the value contains; False = any."""


def page(
    meta: str,
    state: str,
    cursor: str,
    count: int,
    fields: Sequence[str],
    name: str = "",
    where: Sequence[Condition] = (),
    newest: bool = False,
) -> Call[Page]:
    """Return one page of jobs, optionally only those with this ``name``, or those that may meet all conditions.

    With ``newest``, jobs of the stream, finished, suspended and parent jobs are in reverse order.

    A number in an unusual form, such as a fraction, meets every condition on numbers.
    ``lua/core/functions/page.lua`` describes the guarantees of a cursor.
    """
    arguments = requests.page(
        state=state, cursor=cursor, count=count, fields=fields, name=name or False, where=list(where) or False,
        newest=newest,
    )  # fmt: skip
    return Call("page", meta, arguments, reader(Page))


def records(meta: str, ids: Sequence[str], fields: Sequence[str]) -> Call[list[tuple[str, list[str | bool]]]]:
    """Return id and values of the requested fields (False = absent) of the existing jobs among these ids."""
    return Call("records", meta, requests.records(ids=ids, fields=fields), unpack)


@declared("event_slice_reply")
class EventSlice(NamedTuple):
    """Reply of `event_slice`."""

    added: int
    """Number of events ever written."""
    kept: int
    """Number of events that are kept, the newest."""
    last: str
    """Id of the newest event."""
    entries: list[tuple[str, list[str]]]
    """Id and flat list of fields per event."""


def event_slice(meta: str, after: str, count: int, ids_only: bool = False) -> Call[EventSlice]:
    """Return up to ``count`` events after the id ``after``."""
    return Call(
        "event_slice", meta, requests.event_slice(after=after, count=count, ids_only=int(ids_only)), reader(EventSlice)
    )


def workers(meta: str) -> Call[list[tuple[str, str]]]:
    """Return consumer name and registration JSON of each live worker."""
    return Call("workers", meta, (), _workers)


def _workers(reply: list[bytes]) -> list[tuple[str, str]]:
    texts = [item.decode() for item in reply]
    return list(zip(texts[::2], texts[1::2], strict=True))


def version(key: str) -> Call[str]:
    """Return the name of the loaded library; ``key`` only selects the node."""
    return Call("version", key, (), bytes.decode)


@declared("gauges_reply")
class Gauges(NamedTuple):
    """Metrics of one queue."""

    counts: list[int]
    """Counts in the format of `counts`."""
    oldest: int
    """Milliseconds since the oldest waiting job became ready."""
    workers: int
    outbox: int
    """Number of outbox entries."""
    subscriptions: int
    """Number of subscriptions of a broadcast; 0 = a queue."""
    unread: int
    """Stream entries that the slowest subscription has not read; -1 = more than 1,000."""


def gauges(meta: str) -> Call[Gauges]:
    """Return the metrics of one queue."""
    return Call("gauges", meta, (), reader(Gauges))
