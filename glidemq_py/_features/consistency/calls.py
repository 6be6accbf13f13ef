"""Calls of the consistency check (``lua/features/consistency/functions``).

The ``check_*`` calls change nothing. The repairs verify the state again before they change it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls import Flag, Packed, call, declared
from glidemq_py._partitions.link import QueueLink

_PEERS_KNOWN_S: Final = 5.0


class PlacesChecked(NamedTuple):
    """One page of a stream, list or set."""

    rows: list[tuple[str, str, str, str]]
    """Wrong members: job id, entry or member, reason, mark of the job's record."""
    seen: list[str]
    """Correct members: job id and entry (or key), flat."""
    cursor: str
    """Cursor of the next page; '' = the last page."""


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


class GroupVerdict(NamedTuple):
    """Problems found in an ordering group."""

    moved: int
    """1 = the group has changed since its facts were read; it was not checked."""
    rows: list[tuple[str, str]]
    """Kind (slots, sequence, counter, parked) and detail."""


@call("check_places", repeatable=True)
def check_places(source: str, cursor: str, count: int) -> PlacesChecked:
    """Check one page of the stream, list or set ``source``."""
    ...


@call("check_jobs", repeatable=True)
def check_jobs(ids: Packed[Sequence[str]]) -> JobsChecked:
    """Check that these jobs are in the stream, list or set that their state implies."""
    ...


@call("check_keys", repeatable=True)
def check_keys(suffixes: Packed[Sequence[str]]) -> list[str]:
    """Return those of these key suffixes (``log:7``) whose job does not exist."""
    ...


class Scope(NamedTuple):
    """Reply of `check_scope`."""

    broadcast: int
    """1 if subscriptions read the stream."""
    peers: int
    """1 if workers of other libraries are registered."""


@call("check_scope", repeatable=True)
def check_scope() -> Scope:
    """Return what kind of queue it is."""
    ...


async def has_peers(link: QueueLink[JobTransport]) -> bool:
    """Return whether workers of glide-mq for Node are registered; it is read again after five seconds."""
    now = time.monotonic()
    if now >= link.peers_read_at + _PEERS_KNOWN_S:
        link.has_peers = bool((await link.call(check_scope)).peers)
        link.peers_read_at = now
    return link.has_peers


NODE_WORKER: Final = (
    "jobs have stored steps, and a worker of glide-mq for Node is registered: it would run them from their start"
)
"""Problem of a queue for which `endangers_steps` returns True."""
NODE_WORKER_REMEDY: Final = "stop the Node workers, or move such jobs to another queue (docs/learn/steps.md)"


async def endangers_steps(link: QueueLink[JobTransport]) -> bool:
    """Return whether jobs have stored steps while a worker of glide-mq for Node is registered."""
    features = await link.command("HGET", link.keys.meta, "features") or b""
    return b"steps:" in features and bool((await link.call(check_scope)).peers)


class GroupPage(NamedTuple):
    """Some ordering groups."""

    rows: list[GroupRow]
    cursor: str
    """Where the next page begins."""


@call("check_groups", repeatable=True)
def check_groups(cursor: str, count: int, names: Sequence[str] = ()) -> GroupPage:
    """Return one page of groups, or the groups with these names."""
    ...


class BlockedGroups(NamedTuple):
    """Names of ordering groups that a Node client may have blocked."""

    names: list[str]
    cursor: str
    """'' = the last page."""


@call("blocked_groups", repeatable=True)
def blocked_groups(holder: str, hold: int, blocked: int, full: int, cursor: str, peers: Flag) -> BlockedGroups:
    """Return one page of ordering groups that a Node client may have blocked.

    Args:
        holder: id of the caller, which gets the lock of this task.
        hold: how long the lock lasts, ms.
        blocked: how long a group must have made no progress, ms.
        full: the same for a group whose slots are all taken, ms.
        cursor: '' for the first page, else the cursor of the reply before.
        peers: the library of Node clients is loaded; without it, groups are only checked if a Node worker is or was
            registered.
    """
    ...


@call("check_group", repeatable=True)
def check_group(
    name: str, ids: Sequence[str], covered: int, assumed: int, gaps: Sequence[int], first: int, top: int, calm: int
) -> GroupVerdict:
    """Check one group atomically, given its `GroupFacts`."""
    ...


@call("check_counters", repeatable=True)
def check_counters(top: int, others: Sequence[str], peers: Flag) -> list[tuple[str, int, int]]:
    """Return wrong counters: name, stored value, correct value."""
    ...


@call("repair", repeatable=True)
def apply_repair(rows: Packed[Sequence[Sequence[str]]]) -> list[int]:
    """Repair the given rows; per row, return 1 if it was repaired."""
    ...


@call("repair_group", repeatable=True)
def repair_group(
    name: str, ids: Sequence[str], covered: int, assumed: int, gaps: Sequence[int], first: int, top: int, calm: int
) -> list[str]:
    """Repair a group, given its `GroupFacts`, and return the kinds of problems repaired."""
    ...


@call("repair_counters", repeatable=True)
def repair_counters(top: int, others: Sequence[str], peers: Flag) -> list[str]:
    """Repair the counters and return the names of those that changed."""
    ...
