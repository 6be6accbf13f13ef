"""Calls about schedulers (``lua/features/schedulers/functions``)."""

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
    """One entry as it stands."""

    name: str
    home: int
    """0: where peers look; 1: ours alone."""
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
    """Of repeat-after-complete: state of the job that it names ('gone', or '' where it names none), when that ended;
    ``<when>:<id>`` of the job whose end was told; 1 where no job at all is yet to end."""


class DueReply(NamedTuple):
    """Reply of `schedules_due`."""

    now: int
    rows: list[DueRow]
    wait: int
    """Milliseconds until there may be more."""
    revision: int
    """As the flags of an exchange carry it; 0 = there never was a scheduler."""
    leader: str
    """The holder that has fired last, for some seconds; '' = nobody."""


class FireRow(NamedTuple):
    """What becomes of one entry that was due."""

    name: str
    home: int
    expected: str
    text: str
    """'' = the entry goes."""
    due: int
    jobs: list[Row]
    instants: list[int]
    tracked: bool


class FireReply(NamedTuple):
    """Reply of `schedules_fire`."""

    now: int
    outcomes: list[str | list[Any]]
    """'busy', 'changed', or the results of its jobs, as those of `add`."""


def schedules_read(meta: str, name: str | None, cursor: str = "") -> Call[ReadReply]:
    """One scheduler, or a page of all."""
    request = (name,) if name is not None else (False, cursor, _PAGE)
    return Call("schedules_read", meta, (pack(request),), _read, repeatable=True)


def _read(reply: bytes) -> ReadReply:
    now, rows, cursor = unpack(reply)
    return ReadReply(now, [StoredRow(*row) for row in rows], cursor)


def schedules_put(meta: str, name: str, home: int, expected: str, text: str, due: int) -> Call[str]:
    """Replace the text of a scheduler, '' where there is none: 'ok', 'busy' or 'changed'."""
    return Call("schedules_put", meta, (pack((name, home, expected, text, due)),), bytes.decode)


def schedules_due(meta: str, holder: str) -> Call[DueReply]:
    """What is due, for ``holder`` to fire."""
    return Call("schedules_due", meta, (pack((holder,)),), _due, repeatable=True)


def _due(reply: bytes) -> DueReply:
    now, rows, *rest = unpack(reply)
    return DueReply(now, [DueRow(*row) for row in rows], *rest)


def schedules_fire(meta: str, holder: str, rows: Sequence[FireRow], quiet: bool) -> Call[FireReply]:
    """Add jobs of entries that still stand as they were read. Repeatable: a second time they no longer do."""
    return Call("schedules_fire", meta, (pack((holder, rows, quiet)),), _fired, repeatable=True)


def _fired(reply: bytes) -> FireReply:
    return FireReply(*unpack(reply))
