"""Server calls for parents and children, and for adding flows (``lua/features/flows/functions``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from glidemq_py._core.calls import Argument, Call, Flag, Packed, call, declared
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


class Open(NamedTuple):
    """The pending children of a parent."""

    number: int
    failure: str | bool
    """Failure reason of a child whose failure fails the parent; False if there is none."""


class Children(NamedTuple):
    """One page of a parent's children."""

    rows: list[tuple[str, str]]
    """Member, and one of: '' (pending), 'd' (finished), 'v' + result, 'f' + failure reason, or 'm' ('v' or 'f', too
    large for the page: read it separately)."""
    cursor: str


class Watched(NamedTuple):
    """Parents that have been waiting for a long time."""

    rows: list[tuple[str, list[str]]]
    """Id of a parent, and its children whose outcome is not yet counted."""
    more: int
    peers: int
    """1 if workers of a peer are registered, or were during the last day."""
    batches: int
    """1 if the queue has unfinished batches."""


class ChildOutcomes(NamedTuple):
    """The outcomes of jobs."""

    outbox_pending: int
    """1 if the outbox of their queue has undelivered entries."""
    rows: list[tuple[str, str, str] | bool]
    """Outcome, result or failure reason, and failure policy of each job; False for an unfinished job."""


class Reserved(NamedTuple):
    """Ids reserved for jobs."""

    ids: list[str]
    taken: str | bool
    """A custom id that is already used; False if there is none."""
    costly: int
    """1-based number of the ordering whose bucket holds less than the job costs; 0 if none."""


class FlowAdded(NamedTuple):
    """Reply of `flow_add`."""

    now: int
    ids: list[str]
    refused: tuple[int, str] | bool
    """1-based row number and the reason why nothing was added ('duplicate' or 'cost'); False if all was added."""


@call("children_ended", repeatable=True)
def children_ended(outcomes: Packed[Sequence[ChildOutcome]]) -> bool:
    """Report finished children to parents in this queue; returns True if the queue's outbox has new entries."""
    ...


@call("notify_parents", repeatable=True)
def notify_parents() -> bool:
    """Continue to notify the parents of children with very many; returns True if there may be more."""
    ...


@call("add_remote_children", repeatable=True)
def add_remote_children(parent: str, members: Sequence[str], generation: str = "") -> str:
    """Add children of other queues to a parent.

    Returns 'ok' and the generation of the parent, 'gone', or the final state of a finished parent.
    """
    ...


class RemoteNotified(NamedTuple):
    """Reply of `notify_remote_parents`."""

    notified: int
    """Number of entries added to the outbox of the queue."""
    cursor: str
    left: int
    """Number of children whose outcome is not yet delivered to a parent in another slot."""


@call("notify_remote_parents", repeatable=True)
def notify_remote_parents(cursor: str, pause: int) -> RemoteNotified:
    """Add undelivered outcomes of children with parents in other slots to the outbox, one page per call.

    A round (cursor '') that begins within ``pause`` ms of the previous one does nothing.
    """
    ...


@call("remote_children", repeatable=True)
def remote_children(empty: Packed[Sequence[str]]) -> list[str]:
    """Return key prefixes of queues in other slots with children of this queue's parents.

    The prefixes in ``empty`` have no such children any more; they are removed after a grace period.
    """
    ...


@call("sweep_parents", repeatable=True)
def sweep_parents() -> bool:
    """Remove parents that no longer wait from the index of waiting parents; returns True if more may remain."""
    ...


@call("open_children", repeatable=True)
def open_children(parent: Argument[str]) -> Open:
    """Return the number of pending children of a parent, and the failure that fails it, if any."""
    ...


@call("children", repeatable=True)
def children(parent: str, cursor: str, count: int) -> Children:
    """Return one page of a parent's children; a child may appear twice."""
    ...


@call("flow_nodes", repeatable=True)
def flow_nodes(ids: Sequence[str], fields: Sequence[str]) -> list[tuple[int, list[str | bool]] | bool]:
    """Return the number of children and the given fields of each job; False for a deleted job."""
    ...


@call("watch_children")
def watch_children(age: int, pause: int, peer_age: int, peer_pause: int) -> Watched:
    """Return the next page of parents that have waited for ``age`` ms; empty for ``pause`` ms after the last page.

    The other two are those of parents whose children are jobs of a peer.
    """
    ...


@call("child_outcomes", repeatable=True)
def child_outcomes(ids: Packed[Sequence[str]]) -> ChildOutcomes:
    """Return the outcomes of jobs."""
    ...


# -- dependencies ----------------------------------------------------------------------------------------------


@declared("dependency_answer")
class DependencyAnswer(NamedTuple):
    """Whether a job that another one waits for has ended."""

    how: str
    """open, completed, failed or gone."""
    text: str
    """Result or failure reason."""


@call("depend", repeatable=True)
def depend(rows: Packed[Sequence[tuple[str, Sequence[str], str]]]) -> list[DependencyAnswer]:
    """Register waiting jobs (members; "" only checks) with the ids that they wait for; one answer per id.

    Each row ends with the generation of the waiting job.
    """
    ...


@call("add_dependency", repeatable=True)
def add_dependency(id: str, member: str, policy: str) -> str:
    """Let a job that has not started wait for another one; return 'ok' and its generation, or why it cannot."""
    ...


@call("remove_dependency", repeatable=True)
def remove_dependency(id: str, member: str) -> str:
    """Let a job no longer wait for another one; return 'ok', 'gone', 'unknown' or 'done'."""
    ...


@call("withdraw_dependent", repeatable=True)
def withdraw_dependent(id: Argument[str]) -> bool:
    """Delete a job that waits for dependencies and has not started; return False if it does not wait."""
    ...


# -- adding ----------------------------------------------------------------------------------------------------


@call("flow_reserve")
def flow_reserve(count: int, ids: Sequence[str], orderings: Sequence[object], token: str, layout: int) -> Reserved:
    """Reserve ids for ``count`` jobs, unless one of ``ids`` is already used or a cost exceeds its bucket.

    ``layout`` is the number of the layout of the queue's partitions, in which the flow ``token`` then has jobs; False:
    it is not checked.
    """
    ...


@call("flow_add", repeatable=True)
def _flow_add(
    token: str, number: int, rows: Sequence[Row], deps: Sequence[tuple[str, Sequence[str]]], ready: Sequence[str],
    quiet: bool, budget: tuple[str, Sequence[str] | bool] | None, flow: str | None, mark: str | None, layout: int,
) -> FlowAdded:  # fmt: skip
    """Execute one step of a flow; see ``lua/features/flows/functions/flow_add.lua``."""
    ...


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
    made = _flow_add("", token, number, rows, deps, ready, quiet, budget, flow_id, mark, layout)
    return cast("bytes", made.args[0])


def flow_add(meta: str, request: bytes) -> Call[FlowAdded]:
    """Add a whole flow in one step. Not repeatable."""
    return flow_step(meta, request).once()


def flow_step(meta: str, request: bytes) -> Call[FlowAdded]:
    """Execute one step of a recorded flow; repeating it does nothing."""
    return Call("flow_add", meta, (request,), _flow_add.read, True)


@call("flow_stage", repeatable=True)
def flow_stage(token: str, commit: Flag, at: int, steps: Sequence[str | bytes]) -> bool:
    """Record steps (meta key and request, flat); once committed, a worker executes them if this client stops.

    ``at`` is the number of steps that were recorded before. Returns False if these are lost, or the flow was withdrawn.
    """
    ...


@call("flow_withdraw", repeatable=True)
def flow_withdraw(token: Argument[str]) -> bool:
    """Prevent that any step of a flow is executed in this queue; returns False if one was executed."""
    ...


@call("flow_done", repeatable=True)
def flow_done(token: Argument[str]) -> bool:
    """Delete the record of a flow whose steps are all done."""
    ...


@call("flows_due", repeatable=True)
def flows_due(age: int, count: int) -> list[str]:
    """Return tokens of unfinished flows that were committed at least ``age`` ms ago."""
    ...
