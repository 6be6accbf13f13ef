"""Calls about parents and children, and those that add flows (``lua/own/flow*.lua``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from glidemq_py._core.calls.adding import Row
from glidemq_py._core.calls.packing import Call, pack, unpack

__all__ = [
    "ChildEnd",
    "ChildOutcomes",
    "Children",
    "FlowAdded",
    "Open",
    "RemoteNotified",
    "Reserved",
    "Watched",
    "adopt",
    "child_outcomes",
    "children",
    "children_ended",
    "family",
    "flow_add",
    "flow_done",
    "flow_request",
    "flow_reserve",
    "flow_stage",
    "flow_step",
    "flows_due",
    "notify_remote_parents",
    "open_children",
    "remote_children",
    "sweep_parents",
    "watch_children",
]


class ChildEnd(NamedTuple):
    """How a child of another queue ended."""

    parent: str
    """Id of the parent."""
    member: str
    """Key base and id of the child."""
    how: str
    text: str
    policy: str


class Open(NamedTuple):
    """What a parent still waits for."""

    number: int
    failure: str | bool
    """Why a child has failed that takes its parent along; False if none has."""


class Children(NamedTuple):
    """One page of a parent's children."""

    rows: list[tuple[str, str]]
    """Member, and '' (open), 'd' (ended), 'v' and its result, 'f' and why it failed, or 'm' (one of these; ask)."""
    cursor: str


class Watched(NamedTuple):
    """Parents that have waited for long."""

    rows: list[tuple[str, list[str]]]
    """Id of a parent, and its children whose end is not counted."""
    more: int


class ChildOutcomes(NamedTuple):
    """What became of jobs."""

    outbox_pending: int
    """1: what their queue owes to others is not all delivered."""
    rows: list[tuple[str, str, str] | bool]
    """How it ended, its result or why it failed, and its policy; False for one that has not ended."""


class Reserved(NamedTuple):
    """Ids for jobs that are still to be added."""

    ids: list[str]
    taken: str | bool
    """A custom id that another job has; False if none is."""
    costly: int
    """Number of the ordering whose bucket holds less than the job costs; 0 if none."""


class FlowAdded(NamedTuple):
    """What became of one `flow_add`."""

    now: int
    ids: list[str]
    refused: tuple[int, str] | bool
    """Number of a row and why nothing was added: duplicate, cost; False if all was."""


def children_ended(meta: str, ends: Sequence[ChildEnd]) -> Call[bool]:
    """Tell parents in this queue; True if the queue owes something to others now."""
    return Call("children_ended", meta, (pack(ends),), bool, repeatable=True)


def adopt(meta: str, parent: str, members: Sequence[str]) -> Call[str]:
    """Have a parent wait for children of other queues: 'ok', 'gone', or the state in which it has ended."""
    return Call("adopt", meta, (pack((parent, members)),), bytes.decode, repeatable=True)


class RemoteNotified(NamedTuple):
    """Reply of `notify_remote_parents`."""

    told: int
    """Entries that the outbox of the queue has got."""
    cursor: str
    left: int
    """Children of the queue whose end a parent in another slot is still to learn of."""


def notify_remote_parents(meta: str, cursor: str, pause: int) -> Call[RemoteNotified]:
    """Write into the outbox which children with parents in other slots have ended without telling them, a page per
    call. A round (cursor '') that begins within ``pause`` ms of another one does nothing."""
    return Call("tell_remote_parents", meta, (pack((cursor, pause)),), _remote_notified, repeatable=True)


def _remote_notified(reply: bytes) -> RemoteNotified:
    return RemoteNotified(*unpack(reply))


def remote_children(meta: str, empty: Sequence[str]) -> Call[list[str]]:
    """Key prefixes of queues in other slots with children of this queue's parents; ``empty`` ones may be removed."""
    return Call("remote_children", meta, (pack(empty),), unpack, repeatable=True)


def sweep_parents(meta: str) -> Call[bool]:
    """Take parents that wait no more out of the index of waiting parents; True if there may be many more."""
    return Call("sweep_parents", meta, (), bool, repeatable=True)


def open_children(meta: str, parent: str) -> Call[Open]:
    """Whether a parent has anything to wait for."""
    return Call("open_children", meta, (parent,), _open, repeatable=True)


def _open(reply: bytes) -> Open:
    return Open(*unpack(reply))


def children(meta: str, parent: str, cursor: str, count: int) -> Call[Children]:
    """One page of a parent's children; one may come twice."""
    return Call("children", meta, (pack((parent, cursor, count)),), _children, repeatable=True)


def _children(reply: bytes) -> Children:
    return Children(*unpack(reply))


def family(meta: str, ids: Sequence[str], fields: Sequence[str]) -> Call[list[tuple[int, list[str | bool]] | bool]]:
    """Number of children and values of some fields of jobs; False for one that is gone."""
    return Call("family", meta, (pack((ids, fields)),), _unpacked, repeatable=True)


def _unpacked(reply: bytes) -> Any:
    return unpack(reply)


def watch_children(meta: str, age: int, pause: int) -> Call[Watched]:
    """The next page of parents that have waited for ``age`` ms; none for ``pause`` ms after the last."""
    return Call("watch_children", meta, (pack((age, pause)),), _watched)


def _watched(reply: bytes) -> Watched:
    return Watched(*unpack(reply))


def child_outcomes(meta: str, ids: Sequence[str]) -> Call[ChildOutcomes]:
    """How jobs have ended."""
    return Call("child_outcomes", meta, (pack(ids),), _child_outcomes, repeatable=True)


def _child_outcomes(reply: bytes) -> ChildOutcomes:
    return ChildOutcomes(*unpack(reply))


# -- adding ----------------------------------------------------------------------------------------------------


def flow_reserve(meta: str, count: int, custom: Sequence[str], orderings: Sequence[object]) -> Call[Reserved]:
    """Ids for ``count`` jobs, if none of the ``custom`` ones is taken and every cost can be paid."""
    return Call("flow_reserve", meta, (pack((count, custom, orderings)),), _reserved)


def _reserved(reply: bytes) -> Reserved:
    return Reserved(*unpack(reply))


def flow_request(
    token: str,
    number: int,
    rows: Sequence[Row],
    deps: Sequence[tuple[str, Sequence[str]]],
    ready: Sequence[str],
    quiet: bool,
    budget: tuple[str, Sequence[str] | bool] | None,
    flow_id: str | None = None,
) -> bytes:
    """The packed argument of `flow_add`; see ``lua/features/flows/functions/flow_add.lua``."""
    return pack((token, number, rows, deps, ready, quiet, budget or False, flow_id or False))


def flow_add(meta: str, request: bytes) -> Call[FlowAdded]:
    """A whole flow in one step. Not repeatable."""
    return Call("flow_add", meta, (request,), _added)


def flow_step(meta: str, request: bytes) -> Call[FlowAdded]:
    """One step of a flow that was written down; a second time it does nothing."""
    return Call("flow_add", meta, (request,), _added, repeatable=True)


def _added(reply: bytes) -> FlowAdded:
    return FlowAdded(*unpack(reply))


def flow_stage(meta: str, token: str, commit: bool, steps: Sequence[str | bytes]) -> Call[bool]:
    """Write down steps (meta key and request, flat); with ``commit`` they will be done, whatever happens to us."""
    return Call("flow_stage", meta, (pack((token, int(commit), steps)),), bool)


def flow_done(meta: str, token: str) -> Call[bool]:
    """All steps are done: the record goes."""
    return Call("flow_done", meta, (token,), bool, repeatable=True)


def flows_due(meta: str, age: int, count: int) -> Call[list[str]]:
    """Tokens of flows that were committed at least ``age`` ms ago and are not done."""
    return Call("flows_due", meta, (pack((age, count)),), _unpacked, repeatable=True)
