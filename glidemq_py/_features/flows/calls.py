"""Server calls for parents and children, and for adding flows (``lua/features/flows/functions``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, declared, reader, unpack
from glidemq_py._core.calls.adding import Row


@declared("child_outcome")
class ChildOutcome(NamedTuple):
    """The outcome of a child in another queue."""

    parent: str
    """Id of the parent."""
    member: str
    """Key base and id of the child."""
    how: str
    text: str
    policy: str
    generation: str = ""
    """Generation of the parent; "" = any."""


@declared("open_children_reply")
class Open(NamedTuple):
    """The pending children of a parent."""

    number: int
    failure: str | bool
    """Failure reason of a child whose failure fails the parent; False if there is none."""


@declared("children_reply")
class Children(NamedTuple):
    """One page of a parent's children."""

    rows: list[tuple[str, str]]
    """Member, and one of: '' (pending), 'd' (finished), 'v' + result, 'f' + failure reason, or 'm' ('v' or 'f', too
    large for the page: read it separately)."""
    cursor: str


@declared("watch_children_reply")
class Watched(NamedTuple):
    """Parents that have been waiting for a long time."""

    rows: list[tuple[str, list[str]]]
    """Id of a parent, and its children whose outcome is not yet counted."""
    more: int
    peers: int
    """1 if workers of a peer are registered, or were during the last day."""
    batches: int
    """1 if the queue has unfinished batches."""


@declared("child_outcomes_reply")
class ChildOutcomes(NamedTuple):
    """The outcomes of jobs."""

    outbox_pending: int
    """1 if the outbox of their queue has undelivered entries."""
    rows: list[tuple[str, str, str] | bool]
    """Outcome, result or failure reason, and failure policy of each job; False for an unfinished job."""


@declared("flow_reserve_reply")
class Reserved(NamedTuple):
    """Ids reserved for jobs."""

    ids: list[str]
    taken: str | bool
    """A custom id that is already used; False if there is none."""
    costly: int
    """1-based number of the ordering whose bucket holds less than the job costs; 0 if none."""


@declared("flow_add_reply")
class FlowAdded(NamedTuple):
    """Reply of `flow_add`."""

    now: int
    ids: list[str]
    refused: tuple[int, str] | bool
    """1-based row number and the reason why nothing was added ('duplicate' or 'cost'); False if all was added."""


def children_ended(meta: str, ends: Sequence[ChildOutcome]) -> Call[bool]:
    """Report finished children to parents in this queue; returns True if the queue's outbox has new entries."""
    return Call("children_ended", meta, requests.children_ended(outcomes=ends), bool)


def notify_parents(meta: str) -> Call[bool]:
    """Continue to notify the parents of children with very many; returns True if there may be more."""
    return Call("notify_parents", meta, (), bool)


def add_remote_children(meta: str, parent: str, members: Sequence[str], generation: str = "") -> Call[str]:
    """Add children of other queues to a parent.

    Returns 'ok' and the generation of the parent, 'gone', or the final state of a finished parent.
    """
    return Call(
        "add_remote_children",
        meta,
        requests.add_remote_children(parent=parent, members=members, generation=generation),
        bytes.decode,
    )


@declared("notify_remote_parents_reply")
class RemoteNotified(NamedTuple):
    """Reply of `notify_remote_parents`."""

    notified: int
    """Number of entries added to the outbox of the queue."""
    cursor: str
    left: int
    """Number of children whose outcome is not yet delivered to a parent in another slot."""


def notify_remote_parents(meta: str, cursor: str, pause: int) -> Call[RemoteNotified]:
    """Add undelivered outcomes of children with parents in other slots to the outbox, one page per call.

    A round (cursor '') that begins within ``pause`` ms of the previous one does nothing.
    """
    return Call(
        "notify_remote_parents",
        meta,
        requests.notify_remote_parents(cursor=cursor, pause=pause),
        reader(RemoteNotified),
    )


def remote_children(meta: str, empty: Sequence[str]) -> Call[list[str]]:
    """Return key prefixes of queues in other slots with children of this queue's parents.

    The prefixes in ``empty`` have no such children any more; they are removed after a grace period.
    """
    return Call("remote_children", meta, requests.remote_children(empty=empty), unpack)


def sweep_parents(meta: str) -> Call[bool]:
    """Remove parents that no longer wait from the index of waiting parents; returns True if more may remain."""
    return Call("sweep_parents", meta, (), bool)


def open_children(meta: str, parent: str) -> Call[Open]:
    """Return the number of pending children of a parent, and the failure that fails it, if any."""
    return Call("open_children", meta, requests.open_children(parent=parent), reader(Open))


def children(meta: str, parent: str, cursor: str, count: int) -> Call[Children]:
    """Return one page of a parent's children; a child may appear twice."""
    return Call("children", meta, requests.children(parent=parent, cursor=cursor, count=count), reader(Children))


def flow_nodes(meta: str, ids: Sequence[str], fields: Sequence[str]) -> Call[list[tuple[int, list[str | bool]] | bool]]:
    """Return the number of children and the given fields of each job; False for a deleted job."""
    return Call("flow_nodes", meta, requests.flow_nodes(ids=ids, fields=fields), _unpacked)


def _unpacked(reply: bytes) -> Any:
    return unpack(reply)


def watch_children(
    meta: str, age: int, pause: int, peer_age: int | None = None, peer_pause: int | None = None
) -> Call[Watched]:
    """Return the next page of parents that have waited for ``age`` ms; empty for ``pause`` ms after the last page."""
    return Call(
        "watch_children",
        meta,
        requests.watch_children(age=age, pause=pause, peer_age=_or(peer_age, age), peer_pause=_or(peer_pause, pause)),
        reader(Watched),
    )


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def child_outcomes(meta: str, ids: Sequence[str]) -> Call[ChildOutcomes]:
    """Return the outcomes of jobs."""
    return Call("child_outcomes", meta, requests.child_outcomes(ids=ids), reader(ChildOutcomes))


# -- dependencies ----------------------------------------------------------------------------------------------


@declared("dependency_answer")
class DependencyAnswer(NamedTuple):
    """Whether a job that another one waits for has ended."""

    how: str
    """open, completed, failed or gone."""
    text: str
    """Result or failure reason."""


def depend(meta: str, rows: Sequence[tuple[str, Sequence[str], str]]) -> Call[list[DependencyAnswer]]:
    """Register waiting jobs (members; "" only checks) with the ids that they wait for; one answer per id.

    Each row ends with the generation of the waiting job.
    """
    return Call("depend", meta, requests.depend(rows=rows), _read_answers)


def _read_answers(reply: bytes) -> list[DependencyAnswer]:
    return [DependencyAnswer(*row) for row in unpack(reply)]


def add_dependency(meta: str, job_id: str, member: str, policy: str) -> Call[str]:
    """Let a job that has not started wait for another one; return 'ok' and its generation, or why it cannot."""
    request = requests.add_dependency(id=job_id, member=member, policy=policy)
    return Call("add_dependency", meta, request, bytes.decode)


def remove_dependency(meta: str, job_id: str, member: str) -> Call[str]:
    """Let a job no longer wait for another one; return 'ok', 'gone', 'unknown' or 'done'."""
    return Call("remove_dependency", meta, requests.remove_dependency(id=job_id, member=member), bytes.decode)


def withdraw_dependent(meta: str, job_id: str) -> Call[bool]:
    """Delete a job that waits for dependencies and has not started; return False if it does not wait."""
    return Call("withdraw_dependent", meta, requests.withdraw_dependent(id=job_id), bool)


# -- adding ----------------------------------------------------------------------------------------------------


def flow_reserve(
    meta: str, count: int, custom: Sequence[str], orderings: Sequence[object], token: str, layout: int
) -> Call[Reserved]:
    """Reserve ids for ``count`` jobs, unless a ``custom`` id is already used or a cost exceeds its bucket.

    ``layout`` is the number of the layout of the queue's partitions, in which the flow ``token`` then has jobs; False:
    it is not checked.
    """
    request = requests.flow_reserve(count=count, ids=custom, orderings=orderings, token=token, layout=layout)
    return Call("flow_reserve", meta, request, reader(Reserved))


def flow_request(
    token: str,
    number: int,
    rows: Sequence[Row],
    deps: Sequence[tuple[str, Sequence[str]]],
    ready: Sequence[str],
    quiet: bool,
    budget: tuple[str, Sequence[str] | bool] | None,
    flow_id: str | None = None,
    mark: str | None = None,
    layout: int = False,
) -> bytes:
    """Return the packed argument of `flow_add`; see ``lua/features/flows/functions/flow_add.lua``."""
    (packed,) = requests.flow_add(
        token=token, number=number, rows=rows, deps=deps, ready=ready, quiet=quiet, budget=budget or False,
        flow=flow_id or False, mark=mark or False, layout=layout,
    )  # fmt: skip
    return packed


def flow_add(meta: str, request: bytes) -> Call[FlowAdded]:
    """Add a whole flow in one step. Not repeatable."""
    return flow_step(meta, request).once()


def flow_step(meta: str, request: bytes) -> Call[FlowAdded]:
    """Execute one step of a recorded flow; repeating it does nothing."""
    return Call("flow_add", meta, (request,), reader(FlowAdded))


def flow_stage(meta: str, token: str, commit: bool, at: int, steps: Sequence[str | bytes]) -> Call[bool]:
    """Record steps (meta key and request, flat); once committed, a worker executes them if this client stops.

    ``at`` is the number of steps that were recorded before. Returns False if these are lost, or the flow was withdrawn.
    """
    request = requests.flow_stage(token=token, commit=int(commit), at=at, steps=steps)
    return Call("flow_stage", meta, request, bool)


def flow_withdraw(meta: str, token: str) -> Call[bool]:
    """Prevent that any step of a flow is executed in this queue; returns False if one was executed."""
    return Call("flow_withdraw", meta, requests.flow_withdraw(token=token), bool)


def flow_done(meta: str, token: str) -> Call[bool]:
    """Delete the record of a flow whose steps are all done."""
    return Call("flow_done", meta, requests.flow_done(token=token), bool)


def flows_due(meta: str, age: int, count: int) -> Call[list[str]]:
    """Return tokens of unfinished flows that were committed at least ``age`` ms ago."""
    return Call("flows_due", meta, requests.flows_due(age=age, count=count), _unpacked)
