"""Read-only calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from glidemq_py._core.calls import Argument, Flag, call, declared


class Page(NamedTuple):
    """One page of the jobs in a state."""

    rows: list[tuple[str, str, list[str | bool]]]
    """Id, position (score or entry id, '' in a list), values of the requested fields (False = absent). If no fields
    were requested, only the number of rows is meaningful."""
    cursor: str
    """'' = the end."""


@call("counts", read=list, raw=True, repeatable=True)
def counts() -> list[int]:
    """Return the counts of the jobs by state.

    The reply is: waiting, active, delayed, prioritized, completed, failed, paused, suspended, waiting children, group
    waiting (-1: too many groups for one call, use `count_parked`), 0 or the priority at which `count_delayed`
    continues, and how many of the prioritized jobs have a rank below 0.
    """
    ...


class Parked(NamedTuple):
    """Waiting jobs in one page of the ordering groups."""

    cursor: str
    """'' = the end."""
    groups: dict[str, int]
    """Number of waiting jobs by group key; groups without waiting jobs are omitted."""


@call("count_parked", repeatable=True)
def count_parked(cursor: Argument[str]) -> Parked:
    """Count the waiting jobs in one page of the ordering groups; ``cursor``: '', then that of the previous reply."""
    ...


class Late(NamedTuple):
    """Reply of `count_delayed`."""

    late: int
    band: int
    """The priority at which to continue; 0 = the end."""


@call("count_delayed", raw=True, repeatable=True)
def count_delayed(band: Argument[int]) -> Late:
    """Count delayed jobs from priority ``band``."""
    ...


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


@call("page", repeatable=True)
def page(
    state: str, cursor: str, count: int, fields: Sequence[str], name: str | None = None,
    where: Sequence[Condition] | None = None, newest: bool = False,
) -> Page:  # fmt: skip
    """Return one page of jobs, optionally only those with this ``name``, or those that may meet all conditions.

    With ``newest``, jobs of the stream, finished, suspended and parent jobs are in reverse order.

    A number in an unusual form, such as a fraction, meets every condition on numbers.
    ``lua/core/functions/page.lua`` describes the guarantees of a cursor.
    """
    ...


@call("records", repeatable=True)
def records(ids: Sequence[str], fields: Sequence[str]) -> list[tuple[str, list[str | bool]]]:
    """Return id and values of the requested fields (False = absent) of the existing jobs among these ids."""
    ...


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


@call("event_slice", repeatable=True)
def event_slice(after: str, count: int, ids_only: Flag = False) -> EventSlice:
    """Return up to ``count`` events after the id ``after``."""
    ...


def _workers(reply: list[bytes]) -> list[tuple[str, str]]:
    texts = [item.decode() for item in reply]
    return list(zip(texts[::2], texts[1::2], strict=True))


@call("workers", read=_workers, raw=True, repeatable=True)
def workers() -> list[tuple[str, str]]:
    """Return consumer name and registration JSON of each live worker."""
    ...


@call("version", repeatable=True, has_queue=False)
def version() -> str:
    """Return the name of the loaded library; ``key`` only selects the node."""
    ...


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


@call("gauges", repeatable=True)
def gauges() -> Gauges:
    """Return the metrics of one queue."""
    ...
