"""Turn a tree or a graph into validated, encoded rows, parents before their children.

A small flow in one queue takes one call. Any other flow is a list of steps, each a call to one queue: first the jobs
that wait, with their dependencies, then the jobs that can run. So no job runs too early if adding is interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from glidemq_py._core.calls import pieces
from glidemq_py._core.calls.adding import DATA, FLOW_JOB, Row, encode_row
from glidemq_py._core.checks import name_within
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.payload import serializer_of
from glidemq_py._core.queue_options import TaskCall
from glidemq_py._features.budgets import Budget
from glidemq_py._features.flows.calls import flow_request
from glidemq_py._features.flows.definition import MAX_DEPTH, DagNode, FlowJob, FlowMember, too_deep, topo_sort
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQValidationError

T = TypeVar("T")

ROWS: Final = 100
CHARS: Final = 512 * 1024
MEMBERS: Final = 1_000
_ID, _ORDERING, _WIDTH = (FLOW_JOB.index(name) for name in ("id", "ordering", "flow"))


@dataclass(slots=True, kw_only=True)
class Planned:
    """A job of a flow, ready to be added.

    Attributes:
        link: the queue.
        name: name of the job.
        data: data of the job, before serialization.
        options: options of the job.
        row: the row for `add`, without the fields below.
        parents: positions in the plan of the jobs that wait for it.
        inner: it waits for other jobs.
        multi: it is stored as a job that may have several parents.
        id: the custom or reserved id; "" until one is reserved.
        key: name of the node.
        read_result: converts the result of a call of a task; None for another job.
        layout: number of the layout by which the queue was chosen; 0 = it has no partitions, False = not checked.
    """

    link: QueueLink
    name: str
    data: Any
    options: JobOptions
    row: Row
    parents: list[int]
    inner: bool
    multi: bool
    id: str
    key: str
    read_result: Callable[[Any], Any] | None
    layout: int = 0

    @property
    def shown_id(self) -> str:
        """The id that users know."""
        return self.id if self.link.partition is None else self.link.partition.id_of(self.id)

    def rename(self, name: str) -> None:
        """Replace the name of the job. Raises GlideMQValidationError."""
        self.name = name
        self.row = _row(self.link, name, self.data, self.options)

    def change(self, data: Any, options: JobOptions) -> None:
        """Replace data and options, and encode the row again. Raises GlideMQValidationError."""
        if data is not self.data or options is not self.options:
            self.data, self.options, self.row = data, options, _row(self.link, self.name, data, options)

    @property
    def ordering(self) -> Any:
        """The ordering of the row; False if there is none."""
        return self.row[_ORDERING]


@dataclass(frozen=True, slots=True)
class Step:
    """One call to the queue of ``meta``; ``ids`` are the ids of the jobs it adds."""

    meta: str
    request: bytes
    ids: tuple[str, ...] = ()


LinkOf = Callable[[str], QueueLink]


def _row(link: QueueLink, name: str, data: Any, options: JobOptions) -> Row:
    row = encode_row(link, name, data, options)
    return [*row, *[False] * (_WIDTH - len(row))]


def _check_call(link: QueueLink, call: TaskCall) -> None:
    given = call.queue.options
    if given.prefix != link.keys.prefix or serializer_of(given.serializer) is not link.serializer:
        problem = "the worker of the task has another prefix or serializer than the flow producer"
        raise GlideMQValidationError("call", call.task, problem)


def _planned(
    link: QueueLink, job: FlowMember, parents: list[int], inner: bool, multi: bool, place: Callable[[], str]
) -> Planned:
    try:
        call = job.call
        if call is not None:
            _check_call(link, call)
        row = _row(link, job.name, job.data, job.options)
    except GlideMQValidationError as error:
        name_within(error, f"{place()}.options" if error.option == "cost" else place())
        raise
    return Planned(
        link=link, name=job.name, data=job.data, options=job.options, row=row, parents=parents, inner=inner,
        multi=multi, id=job.options.job_id or "", key=job.key, read_result=None if call is None else call.read_result,
    )  # fmt: skip


def plan_tree(root: FlowJob, link_of: LinkOf, where: str = "flow") -> list[Planned]:
    """Return the jobs of a tree, each parent before its children.

    Args:
        root: the root of the tree.
        link_of: returns the link of a queue.
        where: name of the root in errors.

    Raises:
        GlideMQValidationError: a job is invalid, or the tree is too deep.
    """
    plan: list[Planned] = []
    waiting: list[tuple[FlowJob, list[int], int, int]] = [(root, [], 0, 0)]

    def place() -> str:
        parts: list[str] = []
        _, parents, _, number = waiting[len(plan)]
        while parents:
            parts.append(f".children[{number}]")
            _, parents, _, number = waiting[parents[0]]
        return where + "".join(reversed(parts))

    for job, parents, depth, _ in waiting:  # grows while it is read: level by level
        if depth > MAX_DEPTH:
            raise too_deep(job.name)
        plan.append(_planned(link_of(job.queue), job, parents, bool(job.children), False, place))
        here = [len(plan) - 1]
        waiting += [(child, here, depth + 1, i) for i, child in enumerate(job.children)]
    return plan


def plan_dag(nodes: Sequence[DagNode], link_of: LinkOf) -> list[Planned]:
    """Return the jobs of a graph, each before its dependencies.

    Raises:
        GlideMQValidationError: a job or the graph is invalid.
    """
    level: dict[str, int] = {}
    for node in topo_sort(nodes):
        level[node.key] = 1 + max((level[dep] for dep in node.deps), default=-1)
    ordered = sorted(nodes, key=lambda node: -level[node.key])
    place = {node.key: i for i, node in enumerate(ordered)}
    parents: list[list[int]] = [[] for _ in ordered]
    for node in ordered:
        for dep in node.deps:
            parents[place[dep]].append(place[node.key])
    given = {node.key: i for i, node in enumerate(nodes)}
    return [
        # As Node clients store it: a node without dependencies and with one dependent is an ordinary child.
        _planned(
            link_of(node.queue), node, above, bool(node.deps), bool(node.deps) or len(above) > 1,
            partial("nodes[{}]".format, given[node.key]),
        )
        for node, above in zip(ordered, parents, strict=True)
    ]  # fmt: skip


NextMark = Callable[[str], str]
"""Returns the mark of the next call for a queue, given its declared key, if the flow is durable."""


def _size(job: Planned) -> int:
    """Return the length of the encoded data, in characters."""
    return len(str(job.row[DATA]))


def is_small(plan: Sequence[Planned]) -> bool:
    """Return True if one call can add the plan."""
    return len(plan) <= ROWS and len({job.link.keys.name for job in plan}) == 1 and sum(map(_size, plan)) <= CHARS


def _flow_row(job: Planned, parents: list[object]) -> Row:
    return [*job.row[:_ID], job.id, *job.row[_ID + 1 : _WIDTH], [int(job.inner), int(job.multi), parents],
            *job.row[_WIDTH + 1 :]]  # fmt: skip


def whole_request(
    plan: Sequence[Planned], quiet: bool, budget: Budget | None, flow_id: str | None = None, mark: str | None = None
) -> bytes:
    """Return the argument of the call that adds a whole small flow."""
    rows = [_flow_row(job, [i + 1 for i in job.parents]) for job in plan]
    charged = None if budget is None else ("", budget.to_fields())
    return flow_request("", 0, rows, (), (), quiet, charged, flow_id, mark, plan[0].layout)


def steps_of(
    plan: Sequence[Planned],
    token: str,
    quiet: bool,
    budget: Budget | None,
    flow_id: str | None = None,
    next_mark: NextMark | None = None,
) -> Iterator[Step]:
    """Yield the steps that add a flow whose jobs all have ids."""
    root, number = plan[0], 0
    key = root.link.keys.budget(root.id)

    def step(meta: str, jobs: Sequence[Planned] = (), deps: Sequence[Any] = (), ready: Sequence[str] = ()) -> Step:
        nonlocal number
        number += 1
        charged = None
        if budget is not None and jobs:
            charged = (root.id, budget.to_fields()) if number == 1 else (key, False)
        rows = [_flow_row(job, _refs(plan, job)) for job in jobs]
        mark = None if next_mark is None else next_mark(meta)
        request = flow_request(token, number, rows, deps, ready, quiet, charged, flow_id, mark)
        return Step(meta, request, tuple(job.id for job in jobs))

    inner = _by_queue(plan, True)
    deps = {meta: list(_members(of_queue)) for meta, of_queue in _deps(plan).items()}
    for meta, jobs in inner.items():
        calls = list(chunks(jobs, ROWS, _size))
        fits = len(calls) == len(deps.get(meta, ())) == 1
        for chunk in calls:
            yield step(meta, chunk, deps.pop(meta)[0] if fits else ())
    for meta, of_queue in deps.items():
        for members in of_queue:
            yield step(meta, deps=members)
    for meta, jobs in _by_queue(plan, False).items():
        for chunk in chunks(jobs, ROWS, _size):
            yield step(meta, chunk)
    for meta, jobs in inner.items():
        for piece in pieces(jobs, ROWS):
            yield step(meta, ready=[job.id for job in piece])


def _refs(plan: Sequence[Planned], job: Planned) -> list[object]:
    return [[plan[i].id, plan[i].link.keys.name] for i in job.parents]


def _by_queue(plan: Sequence[Planned], inner: bool) -> dict[str, list[Planned]]:
    found: dict[str, list[Planned]] = {}
    for job in plan:
        if job.inner is inner:
            found.setdefault(job.link.keys.meta, []).append(job)
    return found


def chunks(items: Sequence[T], most: int, size_of: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """Yield items in chunks for a call each: of at most ``most``, and not longer once they have `CHARS`."""
    start = size = 0
    for end, item in enumerate(items):
        if end > start and (end - start >= most or size >= CHARS):
            yield items[start:end]
            start, size = end, 0
        size += size_of(item)
    if start < len(items):
        yield items[start:]


def _deps(plan: Sequence[Planned]) -> dict[str, list[tuple[str, str]]]:
    """Return pairs of parent id and child member, grouped by the queue of the parent."""
    found: dict[str, list[tuple[str, str]]] = {}
    for job in plan:
        for i in job.parents:
            member = job.link.keys.member(job.id)
            found.setdefault(plan[i].link.keys.meta, []).append((plan[i].id, member))
    return found


def _members(deps: Sequence[tuple[str, str]]) -> Iterator[list[tuple[str, list[str]]]]:
    for piece in pieces(deps, MEMBERS):
        by_parent: dict[str, list[str]] = {}
        for parent, member in piece:
            by_parent.setdefault(parent, []).append(member)
        yield list(by_parent.items())
