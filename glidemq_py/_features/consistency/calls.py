"""Calls of the consistency check: looks that change nothing, and repairs that look once more (``lua/own/check_*``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from glidemq_py._core.calls.packing import Call, pack, unpack

__all__ = [
    "GroupFacts",
    "GroupRow",
    "GroupVerdict",
    "JobsChecked",
    "PlacesChecked",
    "apply_repair",
    "check_counters",
    "check_group",
    "check_groups",
    "check_jobs",
    "check_keys",
    "check_places",
    "check_scope",
    "repair_counters",
    "repair_group",
]


class PlacesChecked(NamedTuple):
    """One page of a place."""

    rows: list[tuple[str, str, str, str]]
    """Id, entry or member, why it should not be there, mark of the job's record."""
    seen: list[str]
    """Id and entry (or place) of what is as it should be, flat."""
    cursor: str
    """'' = the end."""


class JobsChecked(NamedTuple):
    """Some jobs, looked for in the place that their state names."""

    lost: list[tuple[str, str, str]]
    """Id, state or 'ghost' or 'foreign', mark."""
    unsure: list[tuple[str, str, str, int, int]]
    """Id, state, mark, 1 = may be a peer's list job, ms since its last heartbeat."""
    members: list[tuple[str, str, int, int, int]]
    """Id, group, sequence, hold (0 no slot, 1 a slot, 2 perhaps), 1 = parked or active."""


class GroupRow(NamedTuple):
    """A group as its record has it."""

    name: str
    issued: int
    active: int
    next_seq: int
    parked: int


class GroupFacts(NamedTuple):
    """Facts about a group's jobs, for the server to judge (``lua/features/consistency/functions/check_groups.lua``)."""

    name: str
    ids: Sequence[str]
    covered: int
    assumed: int
    gaps: Sequence[int]
    first: int
    top: int
    calm: int


class GroupVerdict(NamedTuple):
    """What is wrong with a group."""

    moved: int
    """1: it has gone on since it was looked at; nothing was judged."""
    rows: list[tuple[str, str]]
    """Kind (slots, sequence, counter, parked) and detail."""


def check_places(meta: str, source: str, cursor: str, count: int) -> Call[PlacesChecked]:
    """One page of what a place names."""
    return Call("check_places", meta, (pack((source, cursor, count)),), _places, repeatable=True)


def _places(reply: bytes) -> PlacesChecked:
    return PlacesChecked(*unpack(reply))


def check_jobs(meta: str, ids: Sequence[str]) -> Call[JobsChecked]:
    """Whether these jobs stand where their state says."""
    return Call("check_jobs", meta, (pack(ids),), _jobs, repeatable=True)


def _jobs(reply: bytes) -> JobsChecked:
    return JobsChecked(*unpack(reply))


def check_keys(meta: str, suffixes: Sequence[str]) -> Call[list[str]]:
    """Which of these keys (``log:7``) belong to jobs that do not exist."""
    return Call("check_keys", meta, (pack(suffixes),), _unpacked, repeatable=True)


def check_scope(meta: str) -> Call[tuple[int, int]]:
    """1 if subscriptions read the stream, 1 if workers of other libraries are registered."""
    return Call("check_scope", meta, (), _unpacked, repeatable=True)


def check_groups(meta: str, cursor: str, count: int, names: Sequence[str] = ()) -> Call[tuple[list[GroupRow], str]]:
    """One page of the groups and the cursor of the next, or the groups of these names."""
    return Call("check_groups", meta, (pack((cursor, count, names)),), _groups, repeatable=True)


def _groups(reply: bytes) -> tuple[list[GroupRow], str]:
    rows, cursor = unpack(reply)
    return [GroupRow(*row) for row in rows], cursor


def blocked_groups(
    meta: str, holder: str, hold: int, blocked: int, full: int, cursor: str
) -> Call[tuple[list[str], str]]:
    """Names of ordering groups that a peer's library may have blocked, and the cursor of the next page ('' = the end).

    Args:
        holder: who looks, and ``hold``: how long nobody else does, ms.
        blocked: how long a group must have stood still, ms; ``full``: one whose slots are all taken.
    """
    return Call("blocked_groups", meta, (pack((holder, hold, blocked, full, cursor)),), unpack, repeatable=True)


def check_group(meta: str, group: GroupFacts) -> Call[GroupVerdict]:
    """One group, judged in one step."""
    return Call("check_group", meta, (pack(group),), _verdict, repeatable=True)


def _verdict(reply: bytes) -> GroupVerdict:
    return GroupVerdict(*unpack(reply))


def check_counters(meta: str, top: int, others: Sequence[str], peers: bool) -> Call[list[tuple[str, int, int]]]:
    """Counters that are wrong: name, what it is, what it should be."""
    return Call("check_counters", meta, (pack((top, others, int(peers))),), _unpacked, repeatable=True)


def apply_repair(meta: str, rows: Sequence[Sequence[str]]) -> Call[list[int]]:
    """Repair; 1 for each row that was."""
    return Call("repair", meta, (pack(rows),), _unpacked, repeatable=True)


def repair_group(meta: str, group: GroupFacts) -> Call[list[str]]:
    """Repair a group; the kinds that were."""
    return Call("repair_group", meta, (pack(group),), _unpacked, repeatable=True)


def repair_counters(meta: str, top: int, others: Sequence[str], peers: bool) -> Call[list[str]]:
    """Repair the counters; the names of those that were set."""
    return Call("repair_counters", meta, (pack((top, others, int(peers))),), _unpacked, repeatable=True)


def _unpacked(reply: bytes) -> Any:
    return unpack(reply)
