"""`DagNode`: the definition of a job of a graph, and topological sorting. Nothing is sent here."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from glidemq_py._core.checks import check_iterable
from glidemq_py._core.job_options import JobOptions
from glidemq_py._features.flows.definition import FlowMember, member_fields
from glidemq_py.errors import CycleError, GlideMQValidationError

__all__ = ["MAX_DEPENDENTS", "DagNode", "topo_sort", "validate_dag"]

MAX_DEPENDENTS: Final = 1_000
"""Maximum number of jobs that may wait for one job: the call that finishes it updates all of them."""
_KEYS: Final = ("name", "queue", "data", "options", "deps")


@dataclass(frozen=True, slots=True, init=False)
class DagNode(FlowMember):
    """A job of a graph: it runs when its dependencies have finished.

    Args:
        name: name of the job and of the node; unique in the graph.
        queue: name of its queue.
        data: anything the serializer takes.
        options: `JobOptions` or a mapping of keyword options; no `parent` and no `deduplication`.
        deps: names of the nodes that must finish first.

    Raises:
        GlideMQValidationError: an option is invalid.
    """

    deps: tuple[str, ...]

    def __init__(
        self,
        name: str,
        queue: str,
        data: Any = None,
        options: JobOptions | Mapping[str, Any] | None = None,
        deps: Sequence[str] = (),
    ) -> None:
        FlowMember.__init__(self, name, queue, data, options)
        if isinstance(deps, str) or not isinstance(deps, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError("deps", cast("object", deps), "must be a sequence of names")
        object.__setattr__(self, "deps", tuple(dict.fromkeys(deps)))

    @classmethod
    def parse(cls, value: object, option: str = "nodes") -> DagNode:
        """Return a `DagNode` built from a `DagNode` or from a mapping of its fields."""
        if isinstance(value, DagNode):
            return value
        return cls(**member_fields(value, option, _KEYS))


def _parsed(nodes: Iterable[DagNode | Mapping[str, Any]]) -> list[DagNode]:
    return [DagNode.parse(node) for node in check_iterable("nodes", nodes, "nodes")]


def validate_dag(nodes: Iterable[DagNode | Mapping[str, Any]]) -> list[DagNode]:
    """Return the validated nodes: names are unique, dependencies exist, there is no cycle.

    Raises:
        CycleError: the dependencies form a cycle.
        GlideMQValidationError: a node, a name or a dependency is invalid.
    """
    parsed = _parsed(nodes)
    topo_sort(parsed)
    return parsed


def topo_sort(nodes: Iterable[DagNode | Mapping[str, Any]]) -> list[DagNode]:
    """Return the nodes sorted so that each comes after its dependencies (Kahn's algorithm).

    The given order is kept where the dependencies allow it.

    Raises:
        CycleError: the dependencies form a cycle.
        GlideMQValidationError: a node, a name or a dependency is invalid.
    """
    parsed = _parsed(nodes)
    by_name: dict[str, DagNode] = {}
    for node in parsed:
        if by_name.setdefault(node.name, node) is not node:
            raise GlideMQValidationError("nodes", node.name, "is the name of two nodes")
    dependents: dict[str, list[DagNode]] = {name: [] for name in by_name}
    for node in parsed:
        for dep in node.deps:
            if dep not in by_name:
                raise GlideMQValidationError("deps", dep, f"unknown node; node {node.name!r} depends on it")
            dependents[dep].append(node)
    for name, waiting in dependents.items():
        if len(waiting) > MAX_DEPENDENTS:
            raise GlideMQValidationError("deps", name, f"more than {MAX_DEPENDENTS} nodes depend on it")
    left = {node.name: len(node.deps) for node in parsed}
    ready = deque(node for node in parsed if not node.deps)
    ordered: list[DagNode] = []
    while ready:
        node = ready.popleft()
        ordered.append(node)
        for dependent in dependents[node.name]:
            left[dependent.name] -= 1
            if not left[dependent.name]:
                ready.append(dependent)
    if len(ordered) < len(parsed):
        raise CycleError(_cycle(by_name, {name for name, count in left.items() if count}))
    return ordered


def _cycle(by_name: Mapping[str, DagNode], stuck: set[str]) -> list[str]:
    """Return a cycle among nodes that each depend on another of them."""
    path: list[str] = []
    name = min(stuck)
    while name not in path:
        path.append(name)
        name = next(dep for dep in by_name[name].deps if dep in stuck)
    return [*path[path.index(name) :], name]
