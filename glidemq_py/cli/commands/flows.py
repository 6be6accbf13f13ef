"""`glidemq flow`: jobs with the jobs they wait for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from glidemq_py._operate.parsing import span_of
from glidemq_py.cli.commands.arguments import JobId, Queue, Timeout
from glidemq_py.cli.commands.jobs import STYLES
from glidemq_py.cli.shell import ExitCode, Shell, command, group

if TYPE_CHECKING:
    from glidemq_py._operate.snapshots import FlowNode

__all__ = ["app"]

app = group("flow", "Flows: jobs and the jobs they wait for.")


@command(app, "show")
async def show(shell: Shell, queue: Queue, job_id: JobId) -> None:
    """Show a job with the jobs it waits for, as a tree."""
    found = await _flow(shell, queue, job_id)
    shell.print_json(found)
    _draw(shell, found)


@command(app, "watch")
async def watch(
    shell: Shell,
    queue: Queue,
    job_id: JobId,
    timeout: Timeout = None,
) -> None:
    """Print the states of a flow at every change, until its root ends. Exit code 1 if it fails.

    With --json, prints one line per change.
    """
    loop = asyncio.get_running_loop()
    ends = None if timeout is None else loop.time() + span_of("--timeout", timeout) / 1_000
    shown: FlowNode | None = None
    while True:
        found = await _flow(shell, queue, job_id)
        if found != shown:
            shown = found
            shell.print_json(found, line=True)
            _draw(shell, found)
        if found.state is None or found.state.is_finished:
            shell.stop(ExitCode.OK if found.state == "completed" else ExitCode.FAILED)
        if ends is not None and loop.time() >= ends:
            shell.fail(f"the flow is {found.state} after {timeout}")
        await asyncio.sleep(0.5)


async def _flow(shell: Shell, queue: str, job_id: str) -> FlowNode:
    found = await shell.operator.get_flow(queue, job_id)
    if found is None:
        shell.missing(f"queue {queue!r} has no job {job_id!r}")
    return found


def _draw(shell: Shell, root: FlowNode) -> None:
    if shell.json:
        return
    from rich.text import Text
    from rich.tree import Tree

    from glidemq_py._core.logs import escape_control

    def label(node: FlowNode) -> Text:
        state = str(node.state or "gone")
        text = Text(escape_control(f"{node.name or '?'} ({node.queue} {node.id}) "))
        text.append(state, style=STYLES.get(state, ""))
        if node.error and state == "failed":
            text.append(escape_control(f": {node.error}"))
        return text

    def grow(tree: Tree, node: FlowNode) -> Tree:
        for child in node.children:
            grow(tree.add(label(child)), child)
        if node.is_cut:
            tree.add("...")
        return tree

    shell.tree(grow(Tree(label(root)), root))
