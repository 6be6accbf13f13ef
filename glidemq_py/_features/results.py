"""The result sequence of a queue: finished jobs, numbered by the server in the order in which it learns of them.

It is off until a reader turns it on. ``docs/design/results.md`` describes why a reader by number misses no job.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

from glidemq_py._core.calls import Call, Flag, call, declared

DEFAULT_KEPT: Final = 1_000_000
"""About how many finished jobs a sequence keeps; an entry takes about 30 bytes."""


def start_sequence(meta: str, kept: int = DEFAULT_KEPT) -> Call[int]:
    """Turn the result sequence on; nothing changes if it is on."""
    return _set(meta, kept, secrets.token_hex(4), True)


def set_retention(meta: str, kept: int) -> Call[int]:
    """Set about how many finished jobs the sequence keeps, and turn it on; 0 turns it off and deletes it."""
    return _set(meta, kept, secrets.token_hex(4), False)


@call("set_result_retention", repeatable=True)
def _set(count: int, token: str, only_if_off: Flag) -> int:
    """Set how many finished jobs the sequence keeps; ``token`` becomes the id of a new sequence."""
    ...


class Found(NamedTuple):
    """Reply of `find`."""

    cursor: str
    """'' = the end of the search."""
    found: int
    """Number of jobs that got a number."""


@call("results_find", repeatable=True)
def find(cursor: str, count: int) -> Found:
    """Give numbers to finished jobs without one: ``count`` from the cursor on ('' at first), and the newest ones."""
    ...


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


@call("results_range", repeatable=True)
def range_of(start: int = 0, most: int = 0, target: int = 0) -> Range:
    """Return the ends of the sequence, and where to stop after ``start``.

    That is ``most`` entries later, at ``target``, or at the end; 0 = no limit.
    """
    ...


@declared("numbered_result")
class NumberedResult(NamedTuple):
    """A finished job, followed by the values of the requested fields of its record; False = absent."""

    id: str
    state: str


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


@call("results_page", repeatable=True)
def page(after: int, stop: int, count: int, states: Sequence[str], fields: Sequence[str]) -> Page:
    """Return up to ``count`` entries after the number ``after`` up to ``stop``, of jobs that finished in ``states``."""
    ...


class Since(NamedTuple):
    """Reply of `since`."""

    number: int
    """Number before the first finish at the time or later, or of the last entry searched."""
    done: int
    """1 = found, or the end of the sequence; 0 = continue after `number`."""


@call("results_since", repeatable=True)
def since(at: int, after: int, count: int) -> Since:
    """Search ``count`` entries after the number ``after`` for one that finished at ``at`` (epoch ms) or later."""
    ...
