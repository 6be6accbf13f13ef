"""A flow as HTML, for notebooks: the tree of its jobs with their states."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from glidemq_py._features.flows.reading import JobNode

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
