"""`glidemq batch`: batches of jobs; `glidemq flow`: jobs with the jobs they wait for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, cast

from glidemq_py import _operate as operate
from glidemq_py._operate.parsing import Param, span
from glidemq_py.cli.commands.jobs import STYLES
from glidemq_py.cli.shell import ExitCode, Shell, age, changes, clock, command
from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._operate.snapshots import BatchSnapshot, FlowNode

_STATES: tuple[str, ...] = ("pending", "completed", "failed")


def _state_of(batch: BatchSnapshot) -> tuple[str, str]:
    """Return the state of a batch in one word, and its style."""
    status = batch.status
    if status.is_cancelled:
        return "cancelled", STYLES["failed"]
    if not status.is_closed:
        return "open", STYLES["active"]
    if status.pending:
        return "running", STYLES["active"]
    return ("failed", STYLES["failed"]) if status.failed else ("succeeded", STYLES["completed"])


@command("batch ls")
async def ls(shell: Shell, queue: str, limit: int = 50) -> None:
    """List the batches of a queue that are open or have jobs that have not ended."""
    await shell.check_exists(queue)
    found, more = await operate.operating.some(shell.operator.iter_batches(queue), limit)
    shell.print_json({"batches": found, "more": more})
    rows = [
        (
            each.id, _state_of(each), age(each.status.created_at), each.status.total, each.status.pending,
            each.status.completed, each.status.failed,
        )
        for each in found
    ]  # fmt: skip
    columns = ("ID", "STATE", "CREATED", ">JOBS", ">PENDING", ">COMPLETED", ">FAILED")
    shell.table(columns, rows, f"queue {queue!r} has no unfinished batch")
    if more:
        shell.note(f"more than {limit} batches; list more with --limit")


@command("batch show", state=Param("--state STATE", "List its pending, completed or failed jobs.", words=_STATES))
async def show(shell: Shell, queue: str, batch: str, state: str | None = None, limit: int = 50) -> None:
    """Show a batch, and some of its jobs."""
    if state is not None and state not in _STATES:
        raise GlideMQValidationError("--state", state, f"must be one of {', '.join(_STATES)}")
    found = await shell.operator.get_batch(queue, batch)
    if found is None:
        shell.missing(f"queue {queue!r} has no batch {batch!r}")
    wanted = cast("Literal['pending', 'completed', 'failed'] | None", state)
    opened = await (await shell.operator.queue(queue)).job_batches.get(batch)
    listed, more = await operate.operating.some(opened.iter_jobs(wanted), limit)
    jobs = [{"queue": each.queue, "id": each.id, "state": each.state} for each in listed]
    shell.print_json({"batch": found, "jobs": jobs, "more": more})
    status = found.status
    shell.facts([
        ("batch", found.id), ("queue", found.queue), ("state", _state_of(found)), ("jobs", status.total),
        ("pending", status.pending), ("completed", status.completed), ("failed", status.failed),
        ("removed", status.removed or None), ("created", clock(status.created_at)),
        ("all ended", clock(status.completed_at)), ("all completed", clock(status.succeeded_at)),
        ("first failure", clock(status.failed_at)),
    ])  # fmt: skip
    shell.say()
    rows = [(each["queue"], each["id"], (each["state"], STYLES.get(each["state"], ""))) for each in jobs]
    shell.table(("QUEUE", "ID", "STATE"), rows, "no job of the batch matches" if state else "the batch has no jobs")
    if more:
        shell.note(f"more than {limit} jobs; list more with --limit")


async def _check_batch(shell: Shell, action: operate.actions.CancelBatch) -> None:
    if await shell.operator.get_batch(action.queue, action.batch) is None:
        shell.missing(f"queue {action.queue!r} has no batch {action.batch!r}")


changes(operate.actions.CancelBatch, check=_check_batch)


@command("flow show")
async def show_flow(shell: Shell, queue: str, job_id: str) -> None:
    """Show a job with the jobs it waits for, as a tree."""
    found = await _flow(shell, queue, job_id)
    shell.print_json(found)
    _draw(shell, found)


@command("flow watch")
async def watch(shell: Shell, queue: str, job_id: str, timeout: int | None = None) -> None:
    """Print the states of a flow at every change, until its root ends. Exit code 1 if it fails.

    With --json, prints one line per change.
    """
    loop = asyncio.get_running_loop()
    ends = None if timeout is None else loop.time() + timeout / 1_000
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
            shell.fail(f"the flow is {found.state} after {span(timeout or 0)}")
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
