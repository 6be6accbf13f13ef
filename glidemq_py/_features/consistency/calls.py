"""Calls of the consistency check (``lua/features/consistency/functions``).

The ``check_*`` calls change nothing. The repairs verify the state again before they change it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, declared, reader, unpack


@declared("check_places_reply")
class PlacesChecked(NamedTuple):
    """One page of a stream, list or set."""

    rows: list[tuple[str, str, str, str]]
    """Wrong members: job id, entry or member, reason, mark of the job's record."""
    seen: list[str]
    """Correct members: job id and entry (or key), flat."""
    cursor: str
    """Cursor of the next page; '' = the last page."""


@declared("check_jobs_reply")
class JobsChecked(NamedTuple):
    """Jobs compared with the stream, list or set that their state implies."""

    lost: list[tuple[str, str, str]]
    """Job id, state (or 'ghost' or 'foreign'), mark."""
    unsure: list[tuple[str, str, str, int, int]]
    """Job id, state, mark, 1 = may be a list job of a Node worker, ms since its last heartbeat."""
    members: list[tuple[str, str, int, int, int]]
    """Job id, group, sequence, slot (0 none, 1 has one, 2 may have one), 1 = parked or active."""


@declared("group")
class GroupRow(NamedTuple):
    """The stored record of an ordering group."""

    name: str
    issued: int
    active: int
    next_seq: int
    parked: int


@declared("group_facts")
class GroupFacts(NamedTuple):
    """Facts about the jobs of a group, as `check_group` and `repair_group` send them.

    The fields are described in ``lua/features/consistency/functions/check_groups.lua``.
    """

    name: str
    ids: Sequence[str]
    covered: int
    assumed: int
    gaps: Sequence[int]
    first: int
    top: int
    calm: int


@declared("check_group_reply")
class GroupVerdict(NamedTuple):
    """Problems found in an ordering group."""

    moved: int
    """1 = the group has changed since its facts were read; it was not checked."""
    rows: list[tuple[str, str]]
    """Kind (slots, sequence, counter, parked) and detail."""


def check_places(meta: str, source: str, cursor: str, count: int) -> Call[PlacesChecked]:
    """Check one page of the stream, list or set ``source``."""
    return Call(
        "check_places", meta, requests.check_places(source=source, cursor=cursor, count=count), reader(PlacesChecked)
    )


def check_jobs(meta: str, ids: Sequence[str]) -> Call[JobsChecked]:
    """Check that these jobs are in the stream, list or set that their state implies."""
    return Call("check_jobs", meta, requests.check_jobs(ids=ids), reader(JobsChecked))


def check_keys(meta: str, suffixes: Sequence[str]) -> Call[list[str]]:
    """Return those of these key suffixes (``log:7``) whose job does not exist."""
    return Call("check_keys", meta, requests.check_keys(suffixes=suffixes), _unpacked)


def check_scope(meta: str) -> Call[tuple[int, int]]:
    """Return 1 if subscriptions read the stream, and 1 if workers of other libraries are registered."""
    return Call("check_scope", meta, (), _unpacked)


def check_groups(meta: str, cursor: str, count: int, names: Sequence[str] = ()) -> Call[tuple[list[GroupRow], str]]:
    """Return one page of groups and the cursor of the next page, or the groups with these names."""
    return Call("check_groups", meta, requests.check_groups(cursor=cursor, count=count, names=names), _groups)


def _groups(reply: bytes) -> tuple[list[GroupRow], str]:
    rows, cursor = unpack(reply)
    return [GroupRow(*row) for row in rows], cursor


def blocked_groups(
    meta: str, holder: str, hold: int, blocked: int, full: int, cursor: str, peers: bool
) -> Call[tuple[list[str], str]]:
    """Return one page of ordering groups that a Node client may have blocked.

    Args:
        meta: meta key of the queue.
        holder: id of the caller, which gets the lock of this task.
        hold: how long the lock lasts, ms.
        blocked: how long a group must have made no progress, ms.
        full: the same for a group whose slots are all taken, ms.
        cursor: '' for the first page, else the cursor of the reply before.
        peers: the library of Node clients is loaded; without it, groups are only checked if a Node worker is or was
            registered.

    Returns:
        Names of groups, and the cursor of the next page ('' = the last page).
    """
    return Call(
        "blocked_groups",
        meta,
        requests.blocked_groups(holder=holder, hold=hold, blocked=blocked, full=full, cursor=cursor, peers=int(peers)),
        unpack,
    )


def check_group(meta: str, group: GroupFacts) -> Call[GroupVerdict]:
    """Check one group atomically."""
    return Call("check_group", meta, requests.check_group(**group._asdict()), reader(GroupVerdict))


def check_counters(meta: str, top: int, others: Sequence[str], peers: bool) -> Call[list[tuple[str, int, int]]]:
    """Return wrong counters: name, stored value, correct value."""
    return Call("check_counters", meta, requests.check_counters(top=top, others=others, peers=int(peers)), _unpacked)


def apply_repair(meta: str, rows: Sequence[Sequence[str]]) -> Call[list[int]]:
    """Repair the given rows; per row, return 1 if it was repaired."""
    return Call("repair", meta, requests.repair(rows=rows), _unpacked)


def repair_group(meta: str, group: GroupFacts) -> Call[list[str]]:
    """Repair a group and return the kinds of problems repaired."""
    return Call("repair_group", meta, requests.repair_group(**group._asdict()), _unpacked)


def repair_counters(meta: str, top: int, others: Sequence[str], peers: bool) -> Call[list[str]]:
    """Repair the counters and return the names of those that changed."""
    return Call("repair_counters", meta, requests.repair_counters(top=top, others=others, peers=int(peers)), _unpacked)


def _unpacked(reply: bytes) -> Any:
    return unpack(reply)
