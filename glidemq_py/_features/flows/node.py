"""`JobNode`: a job of a flow and its children, as added or read back, with a Mermaid export."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from glidemq_py._core.job_states import JobState
from glidemq_py._job import Job

__all__ = ["JobNode"]

_CLASSES: Final = {
    "completed": "fill:#d4f4dd,stroke:#2e7d32",
    "failed": "fill:#fddede,stroke:#c62828",
    "active": "fill:#fff3cd,stroke:#b8860b",
    "waiting-children": "fill:#e3e8ff,stroke:#3949ab",
    "gone": "fill:#eeeeee,stroke:#9e9e9e",
}
_UNSAFE: Final = re.compile(r'["<>\n\r]')


@dataclass(slots=True, eq=False, repr=False)
class JobNode:
    """A job of a flow.

    Attributes:
        job: the job.
        children: the jobs it waits for. A node of a graph with several parents is a single object.
        state: its state when it was read or added; None if the job was deleted or the state is unknown.
        is_cut: it has more children than were read (see ``depth`` and ``max_jobs`` of `FlowProducer.get_flow`).
    """

    job: Job[Any, Any]
    children: list[JobNode] = field(default_factory=list["JobNode"])
    state: JobState | None = None
    is_cut: bool = False

    def __repr__(self) -> str:
        state = "" if self.state is None else f", {self.state}"
        return f"<JobNode {self.job!r}{state}, children: {len(self.children)}>"

    def walk(self) -> Iterator[JobNode]:
        """Yield every node once, breadth first, starting with this one."""
        seen: set[int] = set()
        waiting = [self]
        for node in waiting:
            if id(node) not in seen:
                seen.add(id(node))
                yield node
                waiting += node.children

    def counts(self) -> dict[str, int]:
        """Return the number of jobs of the flow per state; deleted jobs count as "gone"."""
        return dict(Counter(str(node.state) if node.state else "gone" for node in self.walk()))

    def to_mermaid(self) -> str:
        """Return the flow as a Mermaid flowchart, with arrows from each job to its parents."""
        names: dict[int, str] = {}
        lines = ["flowchart BT"]
        nodes = list(self.walk())
        for i, node in enumerate(nodes):
            names[id(node)] = f"n{i}"
            state = str(node.state) if node.state else "gone"
            label = _UNSAFE.sub("'", f"{node.job.name or node.job.id} ({node.job.queue_name} {node.job.id}): {state}")
            css = f":::{state.replace('-', '_')}" if state in _CLASSES else ""
            lines.append(f'    n{i}["{label}"]{css}')
        lines += [f"    {names[id(child)]} --> {names[id(node)]}" for node in nodes for child in node.children]
        lines += [f"    classDef {state.replace('-', '_')} {style}" for state, style in _CLASSES.items()]
        return "\n".join(lines) + "\n"
