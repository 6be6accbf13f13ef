"""A stored flow as a tree of `JobNode` objects, read level by level in short pages, and as HTML for notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Final, Generic

from glidemq_py._core.calls import pieces
from glidemq_py._core.option_values import JobRef
from glidemq_py._core.record import JobRecord, JobState
from glidemq_py._features.flows import calls as flows
from glidemq_py._features.flows.children import ref_of_member
from glidemq_py._features.flows.references import name_partition, references_of
from glidemq_py._job.contents import ResultT
from glidemq_py._job.job import Job
from glidemq_py._partitions.link import QueueLink

_COLORS: Final = {
    "completed": "#2e7d32", "failed": "#c62828", "active": "#b8860b", "waiting-children": "#3949ab", "gone": "#9e9e9e",
}  # fmt: skip
_MAX_SHOWN: Final = 500
"""A notebook file stores its output."""


def flow_html(root: JobNode) -> str:
    """Return a nested list of at most 500 jobs. A job with several parents is shown under the first one only."""
    counts = root.counts()
    total = sum(counts.values())
    shown = ", ".join(f"{counts[state]:,} {state}" for state in sorted(counts))
    return f"<div><strong>{total:,} jobs</strong>: {escape(shown)}{_tree(root, total)}</div>"


def _tree(root: JobNode, total: int) -> str:
    parts: list[str] = []
    seen: set[int] = set()
    stack: list[JobNode | str] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            parts.append(node)
            continue
        if id(node) in seen or len(seen) >= _MAX_SHOWN:
            continue
        seen.add(id(node))
        parts.append(f"<ul><li>{_line(node)}")
        stack.append("</li></ul>")
        stack.extend(reversed(node.children))
    if total > len(seen):
        parts.append(f"<p>and {total - len(seen):,} more</p>")
    return "".join(parts)


def _state(node: JobNode) -> str:
    return str(node.state) if node.state else "gone"


def _line(node: JobNode) -> str:
    job, state = node.job, _state(node)
    color = _COLORS.get(state, "inherit")
    cut = " (more children not read)" if node.is_cut else ""
    place = f"<small>{escape(job.queue_name)} {escape(job.id)}</small>"
    return f'{escape(job.name or job.id)} {place}: <span style="color:{color}">{escape(state)}</span>{cut}'


@dataclass(slots=True, eq=False, repr=False)
class JobNode(Generic[ResultT]):
    """A job of a flow. In ``JobNode[ResultT]``, the parameter is the type of the job's result.

    Attributes:
        job: the job; ``await node.job.wait_until_finished()`` returns its result.
        children: the jobs it waits for. A node of a graph with several parents is a single object.
        state: its state when it was read or added; None if the job was deleted or the state is unknown.
        is_cut: it has more children than were read (see ``depth`` and ``max_jobs`` of `FlowProducer.get_flow`).
    """

    job: Job[Any, ResultT]
    children: list[JobNode] = field(default_factory=list["JobNode"])
    state: JobState | None = None
    is_cut: bool = False

    def __repr__(self) -> str:
        state = "" if self.state is None else f", {self.state}"
        return f"<JobNode {self.job!r}{state}, children: {len(self.children)}>"

    def _repr_html_(self) -> str:
        from glidemq_py._api.flow_reading import flow_html  # for notebooks only

        return flow_html(self)

    def walk(self) -> Iterator[JobNode]:
        """Yield every node once, breadth first, starting with this one."""
        seen: set[int] = set()
        waiting: list[JobNode] = [self]
        for node in waiting:
            if id(node) not in seen:
                seen.add(id(node))
                yield node
                waiting += node.children

    def counts(self) -> dict[str, int]:
        """Return the number of jobs of the flow per state; deleted jobs count as "gone"."""
        return dict(Counter(str(node.state) if node.state else "gone" for node in self.walk()))


_PAGE: Final = 200
_SMALL_PAGE: Final = 100
_FIELDS: Final = (
    "name", "data", "opts", "state", "timestamp", "attemptsMade", "delay", "priority", "rank", "processedOn",
    "finishedOn",
    "returnvalue", "failedReason", "failedType", "stacktrace", "progress", "stalledCount",
)  # fmt: skip


class _Reader:
    def __init__(self, link_of: Callable[[str], QueueLink]) -> None:
        self._link_of = link_of
        self.nodes: dict[JobRef, JobNode] = {}

    async def jobs(self, refs: list[JobRef]) -> list[JobRef]:
        """Read these jobs and return those that have children."""
        parents: list[JobRef] = []
        by_queue: dict[str, list[str]] = {}
        for ref in refs:
            by_queue.setdefault(ref.queue, []).append(ref.id)
        for queue, ids in by_queue.items():
            link = self._link_of(queue)
            await name_partition(link)
            for page in pieces(ids, _SMALL_PAGE):
                rows = await link.call(flows.flow_nodes, page, _FIELDS)
                for job_id, row in zip(page, rows, strict=True):
                    self.nodes[JobRef(queue, job_id)] = _node(link, job_id, row)
                    if isinstance(row, bool):
                        continue
                    number_of_children, _ = row
                    if number_of_children:
                        parents.append(JobRef(queue, job_id))
        return parents

    async def children(self, parent: JobRef, room: int) -> tuple[list[JobRef], bool]:
        """Return at most ``room`` children of a job, and whether there are more."""
        link, cursor = self._link_of(parent.queue), ""
        found: dict[JobRef, None] = {}
        while len(found) <= room:
            page = await link.call(flows.children, parent.id, cursor, _PAGE)
            for member, _ in page.rows:
                try:
                    found[ref_of_member(member)] = None
                except ValueError:
                    continue
            cursor = page.cursor
            if not cursor:
                break
        return list(found)[:room], len(found) > room


def _node(link: QueueLink, job_id: str, row: Any) -> JobNode:
    if isinstance(row, bool):
        return JobNode(Job(link, job_id, ""))
    _, stored = row
    values = (value if isinstance(value, str) else None for value in stored)
    job: Job = Job._from_record(link, JobRecord.parse(job_id, dict(zip(_FIELDS, values, strict=True))))
    return JobNode(job, state=job.state)


async def read_jobs(refs: Sequence[JobRef], link_of: Callable[[str], QueueLink]) -> dict[JobRef, JobNode]:
    """Return jobs by reference, without their children; the state of a deleted job is None."""
    reader = _Reader(link_of)
    if not refs:
        return {}
    placed = await references_of(link_of(refs[0].queue)).placed(refs)
    await reader.jobs([placed[ref] for ref in refs])
    return {ref: reader.nodes[placed[ref]] for ref in refs}


async def read_flow(root: JobRef, link_of: Callable[[str], QueueLink], depth: int, max_jobs: int) -> JobNode | None:
    """Read a flow; see `FlowProducer.get_flow`."""
    reader = _Reader(link_of)
    root = (await references_of(link_of(root.queue)).placed([root]))[root]
    level = await reader.jobs([root])
    top = reader.nodes[root]
    if top.state is None and not top.job.name:
        return None
    for _ in range(depth):
        if not level:
            break
        wanted: dict[JobRef, None] = {}
        edges: list[tuple[JobRef, JobRef]] = []
        for parent in level:
            room = max_jobs - len(reader.nodes) - len(wanted)
            children, reader.nodes[parent].is_cut = await reader.children(parent, max(0, room))
            for child in sorted(children, key=_order):
                edges.append((parent, child))
                if child not in reader.nodes:
                    wanted[child] = None
        level = await reader.jobs(list(wanted))
        for parent, child in edges:
            reader.nodes[parent].children.append(reader.nodes[child])
    for parent in level:
        reader.nodes[parent].is_cut = True
    return top


def _order(ref: JobRef) -> tuple[str, int, str]:
    """Return a sort key: by queue, then numeric ids in numeric order."""
    return ref.queue, len(ref.id), ref.id
