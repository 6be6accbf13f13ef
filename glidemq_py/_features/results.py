"""The result sequence of a queue: finished jobs, numbered by the server in the order in which it learns of them.

It is off until a reader turns it on. ``docs/design/results.md`` describes why a reader by number misses no job.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, declared, reader

DEFAULT_KEPT: Final = 1_000_000
"""About how many finished jobs a sequence keeps; an entry takes about 30 bytes."""


def start_sequence(meta: str, kept: int = DEFAULT_KEPT) -> Call[int]:
    """Turn the result sequence on; nothing changes if it is on."""
    return _set(meta, kept, only_if_off=True)


def set_retention(meta: str, kept: int) -> Call[int]:
    """Set about how many finished jobs the sequence keeps, and turn it on; 0 turns it off and deletes it."""
    return _set(meta, kept, only_if_off=False)


def _set(meta: str, kept: int, *, only_if_off: bool) -> Call[int]:
    token = secrets.token_hex(4)
    arguments = requests.set_result_retention(count=kept, token=token, only_if_off=int(only_if_off))
    return Call("set_result_retention", meta, arguments, int)


@declared("results_find_reply")
class Found(NamedTuple):
    """Reply of `find`."""

    cursor: str
    """'' = the end of the search."""
    found: int
    """Number of jobs that got a number."""


def find(meta: str, cursor: str, count: int) -> Call[Found]:
    """Give numbers to finished jobs without one: ``count`` from the cursor on ('' at first), and the newest ones."""
    return Call("results_find", meta, requests.results_find(cursor=cursor, count=count), reader(Found))


@declared("results_range_reply")
class Range(NamedTuple):
    """Reply of `range_of`."""

    id: str
    """Id of the sequence; '' = it is off."""
    first: int
    """Number of the first kept entry."""
    last: int
    """Number of the last entry; `first` - 1 if there is none."""
    start_job: str
    """Id of the job at the start, '' = it is not kept."""
    stop: int
    """Number at which the reader may stop."""
    stop_job: str
    """Id of the job at `stop`, '' = it is not kept."""


def range_of(meta: str, start: int = 0, most: int = 0, target: int = 0) -> Call[Range]:
    """Return the ends of the sequence, and where to stop after ``start``.

    That is ``most`` entries later, at ``target``, or at the end; 0 = no limit.
    """
    arguments = requests.results_range(start=start, most=most, target=target)
    return Call("results_range", meta, arguments, reader(Range))


@declared("numbered_result")
class NumberedResult(NamedTuple):
    """A finished job, followed by the values of the requested fields of its record; False = absent."""

    id: str
    state: str


@declared("results_page_reply")
class Page(NamedTuple):
    """Reply of `page`."""

    rows: list[list[str | bool]]
    """The fields of a `NumberedResult` each, followed by the requested values."""
    scanned: int
    """Number of entries read."""
    last: int
    """Number of the last entry read."""
    removed: int
    """Number of results that were removed or replaced before they were read."""


def page(meta: str, after: int, stop: int, count: int, states: Sequence[str], fields: Sequence[str]) -> Call[Page]:
    """Return up to ``count`` entries after the number ``after`` up to ``stop``, of jobs that finished in ``states``."""
    arguments = requests.results_page(after=after, stop=stop, count=count, states=states, fields=fields)
    return Call("results_page", meta, arguments, reader(Page))


@declared("results_since_reply")
class Since(NamedTuple):
    """Reply of `since`."""

    number: int
    """Number before the first finish at the time or later, or of the last entry searched."""
    done: int
    """1 = found, or the end of the sequence; 0 = continue after `number`."""


def since(meta: str, at: int, after: int, count: int) -> Call[Since]:
    """Search ``count`` entries after the number ``after`` for one that finished at ``at`` (epoch ms) or later."""
    arguments = requests.results_since(at=at, after=after, count=count)
    return Call("results_since", meta, arguments, reader(Since))
