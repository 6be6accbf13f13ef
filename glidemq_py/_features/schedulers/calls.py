"""Server calls of schedulers (``lua/features/schedulers/functions``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from glidemq_py._core.calls.adding import Row
from glidemq_py._core.calls.packing import Call, pack, unpack

__all__ = [
    "DueReply",
    "DueRow",
    "FireReply",
    "FireRow",
    "ReadReply",
    "StoredRow",
    "schedules_due",
    "schedules_fire",
    "schedules_put",
    "schedules_read",
]

_PAGE = 100


class StoredRow(NamedTuple):
    """One stored entry."""

    name: str
    home: int
    """0: in the hash shared with Node clients; 1: in the hash for Python only."""
    text: str


class ReadReply(NamedTuple):
    """Reply of `schedules_read`."""

    now: int
    rows: list[StoredRow]
    cursor: str


class DueRow(NamedTuple):
    """One entry that is due."""

    name: str
    home: int
    text: str
    last_job: tuple[str, str, str, int]
    """For repeat-after-complete: state of its job ('gone', or '' if it names none); when that job finished;
    ``<time>:<id>`` of the job whose end was reported; 1 if no job is unfinished."""


class DueReply(NamedTuple):
    """Reply of `schedules_due`."""

    now: int
    rows: list[DueRow]
    wait: int
    """Milliseconds until the next entry may be due."""
    revision: int
    """As in the flags of an exchange; 0 = the queue never had a scheduler."""
    leader: str
    """The holder that fired last, for some seconds; '' = none."""


class FireRow(NamedTuple):
    """The jobs and the new state of one entry that was due."""

    name: str
    home: int
    expected: str
    text: str
    """'' = delete the entry."""
    due: int
    jobs: list[Row]
    instants: list[int]
    tracked: bool


class FireReply(NamedTuple):
    """Reply of `schedules_fire`."""

    now: int
    outcomes: list[str | list[Any]]
    """For each row: 'busy', 'changed', or the results of its jobs as in `add`."""


def schedules_read(meta: str, name: str | None, cursor: str = "") -> Call[ReadReply]:
    """Return one scheduler, or one page of all schedulers."""
    request = (name,) if name is not None else (False, cursor, _PAGE)
    return Call("schedules_read", meta, (pack(request),), _read, repeatable=True)


def _read(reply: bytes) -> ReadReply:
    now, rows, cursor = unpack(reply)
    return ReadReply(now, [StoredRow(*row) for row in rows], cursor)


def schedules_put(meta: str, name: str, home: int, expected: str, text: str, due: int) -> Call[str]:
    """Replace the text of a scheduler ('' = none); returns 'ok', 'busy' or 'changed'."""
    return Call("schedules_put", meta, (pack((name, home, expected, text, due)),), bytes.decode)


def schedules_due(meta: str, holder: str) -> Call[DueReply]:
    """Return the due entries for ``holder`` to fire."""
    return Call("schedules_due", meta, (pack((holder,)),), _due, repeatable=True)


def _due(reply: bytes) -> DueReply:
    now, rows, *rest = unpack(reply)
    return DueReply(now, [DueRow(*row) for row in rows], *rest)


def schedules_fire(meta: str, holder: str, rows: Sequence[FireRow], quiet: bool) -> Call[FireReply]:
    """Add the jobs of entries that have not changed since they were read. Repeatable: firing changes them."""
    return Call("schedules_fire", meta, (pack((holder, rows, quiet)),), _fired, repeatable=True)


def _fired(reply: bytes) -> FireReply:
    return FireReply(*unpack(reply))
