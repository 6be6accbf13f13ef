"""Convert flows between the JSON of the protocol and Python values, without recursion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from glidemq_py._features.flows.definition import DagNode, FlowJob
from glidemq_py._features.flows.parent_option import JobRef
from glidemq_py._features.flows.reading import JobNode
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.proxy.schemas import FLOW_JOB, FLOW_NODE
from glidemq_py.proxy.shapes import job_options, members_of, snake

__all__ = ["DEEPEST", "budget_of", "dag_of", "node_shape", "ref_shape", "tree_of", "tree_shape"]

DEEPEST: Final = 100
"""Maximum levels of a tree in one request or response: other JSON parsers limit nesting."""

Check = Callable[[str], None]


def budget_of(given: Any) -> dict[str, Any]:
    """Return the option `budget` in snake case; category names are unchanged."""
    if not isinstance(given, dict):
        raise GlideMQValidationError("budget", given, "must be an object")
    members = cast("dict[str, Any]", given)
    for name, value in members.items():
        if value is None:
            raise GlideMQValidationError(f"budget.{name}", None, "must have a value or be omitted")
    return {snake(name): value for name, value in members.items()}


def tree_of(given: Any, check: Check) -> FlowJob:
    """Return the tree of a request.

    Args:
        given: the root, as JSON.
        check: raises if a queue may not be used.

    Raises:
        GlideMQValidationError: if a member is invalid.
        NotAllowedError: if a queue may not be used.
    """
    found: list[tuple[dict[str, Any], str, list[int]]] = []
    waiting: list[tuple[Any, str, int, int]] = [(given, "flow", 1, -1)]
    for job, where, level, parent in waiting:  # grows during iteration: parents before their children
        if level > DEEPEST:
            raise GlideMQValidationError("flow", where, f"must be at most {DEEPEST} levels deep over HTTP")
        members = _job(job, where, FLOW_JOB, check)
        found.append((members, where, []))
        if parent >= 0:
            found[parent][2].append(len(found) - 1)
        here = len(found) - 1
        children = _array(members.get("children", []), f"{where}.children")
        waiting += [(child, f"{where}.children[{i}]", level + 1, here) for i, child in enumerate(children)]
    made: dict[int, FlowJob] = {}
    for i in reversed(range(len(found))):
        members, where, below = found[i]
        options = job_options(members, f"{where}.")
        children_made = [made.pop(child) for child in below]
        made[i] = FlowJob(members["name"], members["queueName"], members.get("data"), options, children_made)
    return made[0]


def dag_of(given: Any, check: Check) -> list[DagNode]:
    """Return the graph of a request; see `tree_of`."""
    nodes = _array(members_of(given, "dag", ("nodes",)).get("nodes"), "dag.nodes")
    found: list[DagNode] = []
    for i, node in enumerate(nodes):
        where = f"dag.nodes[{i}]"
        members = _job(node, where, FLOW_NODE, check)
        deps = _array(members.get("deps", []), f"{where}.deps")
        if not all(isinstance(dep, str) for dep in deps):
            raise GlideMQValidationError(f"{where}.deps", deps, "must be an array of names")
        options = job_options(members, f"{where}.")
        found.append(DagNode(members["name"], members["queueName"], members.get("data"), options, deps))
    return found


def _array(given: Any, where: str) -> list[Any]:
    if not isinstance(given, list):
        raise GlideMQValidationError(where, given, "must be an array")
    return given  # pyright: ignore[reportUnknownVariableType]


def _job(given: Any, where: str, schema: Mapping[str, Any], check: Check) -> dict[str, Any]:
    data: Any = None
    if isinstance(given, dict) and "data" in given:
        # `data` is the only member that may be null.
        given = dict(cast("dict[str, Any]", given))
        data = given.pop("data")
    members = dict(members_of(given, where, schema["properties"]))
    for needed in schema["required"]:
        if needed not in members:
            raise GlideMQValidationError(f"{where}.{needed}", None, "is missing")
    check(members["queueName"])
    members["data"] = data
    return members


def ref_shape(ref: JobRef) -> dict[str, Any]:
    """Return the JSON reference to a job."""
    return {"id": ref.id, "queueName": ref.queue}


def node_shape(node: JobNode) -> dict[str, Any]:
    """Return a job of a flow as JSON; ``state`` is null if the job no longer exists."""
    job = node.job
    return {
        "id": job.id, "queueName": job.queue_name, "name": job.name or None, "state": node.state,
        "timestamp": job.timestamp, "attemptsMade": job.attempts_made, "progress": job.progress,
        "failedReason": job.failed_reason, "processedOn": job.processed_on, "finishedOn": job.finished_on,
    }  # fmt: skip


def tree_shape(root: JobNode, may_show: Callable[[str], bool]) -> dict[str, Any]:
    """Return a job of a flow with its children as JSON.

    A job with several parents has its children at its first occurrence and ``more`` at the others. A job at the
    maximum depth has ``more`` as well. A job in a queue that may not be used is reduced to its reference.
    """
    top: dict[str, Any] = {}
    seen: set[int] = set()
    waiting: list[tuple[JobNode, dict[str, Any], int]] = [(root, top, 1)]
    for node, shape, level in waiting:  # grows during iteration
        if not may_show(node.job.queue_name):
            shape.update(ref_shape(JobRef(node.job.queue_name, node.job.id)))
            continue
        shape.update(node_shape(node))
        if not node.children:
            continue
        if id(node) in seen or level >= DEEPEST:
            shape["more"] = True
            continue
        seen.add(id(node))
        below: list[dict[str, Any]] = [{} for _ in node.children]
        shape["children"] = below
        waiting += [(child, inside, level + 1) for child, inside in zip(node.children, below, strict=True)]
    return top
