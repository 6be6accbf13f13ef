"""`glidemq batch`: batches of jobs."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from glidemq_py import _operate as operate
from glidemq_py.cli.commands.arguments import Limit, Queue
from glidemq_py.cli.commands.jobs import STYLES
from glidemq_py.cli.commands.queues import check_exists
from glidemq_py.cli.completion import words
from glidemq_py.cli.shell import DryRun, Shell, Yes, command, group
from glidemq_py.cli.texts import age, clock
from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._operate.snapshots import BatchSnapshot

__all__ = ["app"]

app = group("batch", "Batches: sets of jobs with callbacks.")

_Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the batch.", show_default=False)]
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


@command(app, "ls")
async def ls(shell: Shell, queue: Queue, limit: Limit = 50) -> None:
    """List the batches of a queue that are open or have jobs that have not ended."""
    await check_exists(shell, queue)
    found: list[BatchSnapshot] = []
    async for each in shell.operator.iter_batches(queue):
        found.append(each)
        if len(found) > limit:
            break
    shell.print_json({"batches": found[:limit], "more": len(found) > limit})
    rows = [
        (
            each.id, _state_of(each), age(each.status.created_at), each.status.total, each.status.pending,
            each.status.completed, each.status.failed,
        )
        for each in islice(found, limit)
    ]  # fmt: skip
    columns = ("ID", "STATE", "CREATED", ">JOBS", ">PENDING", ">COMPLETED", ">FAILED")
    shell.table(columns, rows, f"queue {queue!r} has no unfinished batch")
    if len(found) > limit:
        shell.note(f"more than {limit} batches; list more with --limit")


@command(app, "show")
async def show(
    shell: Shell,
    queue: Queue,
    batch: _Id,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help="List its pending, completed or failed jobs.",
            autocompletion=words(_STATES),
        ),
    ] = None,
    limit: Limit = 50,
) -> None:
    """Show a batch, and some of its jobs."""
    if state is not None and state not in _STATES:
        raise GlideMQValidationError("--state", state, f"must be one of {', '.join(_STATES)}")
    found = await shell.operator.get_batch(queue, batch)
    if found is None:
        shell.missing(f"queue {queue!r} has no batch {batch!r}")
    jobs: list[dict[str, str]] = []
    wanted = cast("Literal['pending', 'completed', 'failed'] | None", state)
    async for each in shell.operator.iter_batch_jobs(queue, batch, wanted):
        jobs.append({"queue": each.queue, "id": each.id, "state": each.state})
        if len(jobs) > limit:
            break
    shell.print_json({"batch": found, "jobs": jobs[:limit], "more": len(jobs) > limit})
    status = found.status
    shell.facts([
        ("batch", found.id), ("queue", found.queue), ("state", _state_of(found)), ("jobs", status.total),
        ("pending", status.pending), ("completed", status.completed), ("failed", status.failed),
        ("removed", status.removed or None), ("created", clock(status.created_at)),
        ("all ended", clock(status.completed_at)), ("all completed", clock(status.succeeded_at)),
        ("first failure", clock(status.failed_at)),
    ])  # fmt: skip
    shell.say()
    rows = [(each["queue"], each["id"], (each["state"], STYLES.get(each["state"], ""))) for each in jobs[:limit]]
    shell.table(("QUEUE", "ID", "STATE"), rows, "no job of the batch matches" if state else "the batch has no jobs")
    if len(jobs) > limit:
        shell.note(f"more than {limit} jobs; list more with --limit")


@command(app, "cancel")
async def cancel(shell: Shell, queue: Queue, batch: _Id, yes: Yes = False, dry_run: DryRun = False) -> None:
    """Close a batch, reject further jobs, and cancel those that have not ended."""
    if await shell.operator.get_batch(queue, batch) is None:
        shell.missing(f"queue {queue!r} has no batch {batch!r}")
    action = operate.actions.CancelBatch(queue=queue, batch=batch)
    what = f"{{}} of batch {batch!r} of queue {queue!r}"
    await shell.change(action, f"cancel {what}", f"cancelled {what}", yes=yes, dry_run=dry_run)
