"""`glidemq flow`, the verbs of `worker`, `group`, `events`, `backup` and `restore`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from glidemq_py import _operate as operate
from glidemq_py._operate.parsing import pairs_of, span_of
from glidemq_py.cli.commands.arguments import JobId, Limit, Queue, Queues
from glidemq_py.cli.commands.jobs import STYLES
from glidemq_py.cli.commands.queues import check_exists, concurrency_of, limit_of, limit_text, queue_names
from glidemq_py.cli.completion import complete_queue, complete_worker, words
from glidemq_py.cli.shell import ExitCode, Shell, command, group
from glidemq_py.cli.texts import age, clock, size_text, span
from glidemq_py.errors import GlideMQValidationError, WorkerNotFoundError

if TYPE_CHECKING:
    from glidemq_py._core.job_states import WorkerInfo
    from glidemq_py._operate.snapshots import FlowNode, GroupSummary

__all__ = ["events_app", "flow_app", "group_app", "register_backups", "workers_app"]

_T = TypeVar("_T")

flow_app = group("flow", "Flows: jobs and the jobs they wait for.")
workers_app = group("workers", "Live workers of queues: list, inspect, quiet and resize them.")
group_app = group("group", "Ordering groups and their limits.")
events_app = group("events", "Events of a queue.")


# -- flows ------------------------------------------------------------------------------------------------


@command(flow_app, "show")
async def show(shell: Shell, queue: Queue, job_id: JobId) -> None:
    """Show a job with the jobs it waits for, as a tree."""
    found = await _flow(shell, queue, job_id)
    shell.print_json(found)
    _draw(shell, found)


@command(flow_app, "watch")
async def watch(
    shell: Shell,
    queue: Queue,
    job_id: JobId,
    timeout: Annotated[str | None, typer.Option("--timeout", metavar="TIME", help="Give up after this time.")] = None,
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


# -- workers ----------------------------------------------------------------------------------------------


@command(workers_app, "ls")
async def ls(shell: Shell, queues: Queues = None) -> None:
    """List the live workers of queues."""
    found = {
        each.name: await shell.operator.get_workers(each.name)
        for each in await shell.operator.get_queues(await queue_names(shell, queues))
        if each.workers
    }
    shell.print_json([{"queue": name, "worker": each} for name, workers in found.items() for each in workers])
    rows = [
        (
            name,
            each.id,
            each.host,
            str(each.pid),
            _slots(each),
            size_text(each.memory),
            span(each.age),
            ("quiet", "yellow") if each.paused else "",
        )
        for name, workers in found.items()
        for each in workers
    ]
    columns = ("QUEUE", "WORKER", "HOST", ">PID", ">SLOTS", ">MEMORY", "RUNNING FOR", "")
    shell.table(columns, rows, "no live workers")


def _slots(worker: WorkerInfo) -> str:
    return f"{worker.active_jobs:,}" if worker.concurrency is None else f"{worker.active_jobs:,}/{worker.concurrency:,}"


_Worker = Annotated[
    str | None,
    typer.Argument(
        metavar="WORKER", help="Id of one worker; default: all workers of the queue.", show_default=False,
        autocompletion=complete_worker,
    ),
]  # fmt: skip
_Timeout = Annotated[str, typer.Option("--timeout", metavar="TIME", help="How long to wait for answers.")]


@command(workers_app, "ping")
async def ping(shell: Shell, queue: Queue, worker: _Worker = None, timeout: _Timeout = "15s") -> None:
    """Print the ids of the workers that answer; exit code 1 if a worker does not, or there is none."""
    wait = span_of("--timeout", timeout)
    await check_exists(shell, queue)
    answered = await _of_worker(shell, queue, worker, shell.operator.ping_workers(queue, worker, timeout=wait))
    listed = [worker] if worker else [each.id for each in await shell.operator.get_workers(queue)]
    silent = sorted(set(listed) - set(answered))
    shell.print_json({"answered": answered, "silent": silent})
    for each in answered:
        shell.say(each)
    if silent:
        shell.fail(f"no answer within {timeout}: {', '.join(silent)}")
    if not answered:
        shell.fail(f"queue {queue!r} has no live workers")


@command(workers_app, "inspect")
async def inspect(shell: Shell, queue: Queue, worker: _Worker = None, timeout: _Timeout = "15s") -> None:
    """List the running jobs of workers, as the workers report them."""
    wait = span_of("--timeout", timeout)
    await check_exists(shell, queue)
    found = await _of_worker(shell, queue, worker, shell.operator.inspect_workers(queue, worker, timeout=wait))
    shell.print_json([
        {
            "id": each.id, "is_paused": each.is_paused, "concurrency": each.concurrency, "active": each.active,
            "jobs": [job._asdict() for job in each.jobs],
        }
        for each in found
    ])  # fmt: skip
    rows: list[tuple[Any, ...]] = []
    for each in found:
        state = ("quiet", "yellow") if each.is_paused else "fetching"
        slots = f"{each.active:,} of {each.concurrency:,}"
        rows += [(each.id, state, slots, job.queue, job.id, job.name, age(job.started_at)) for job in each.jobs] or [
            (each.id, state, slots, "", "", "", "")
        ]
    columns = ("WORKER", "STATE", "SLOTS", "QUEUE", "JOB", "NAME", "STARTED")
    shell.table(columns, rows, f"queue {queue!r} has no live workers")


@command(workers_app, "quiet")
async def quiet(shell: Shell, queue: Queue, worker: _Worker = None, timeout: _Timeout = "15s") -> None:
    """Let workers fetch no further jobs, for example before a deploy. Their active jobs keep running."""
    action = operate.actions.QuietWorker(queue=queue, worker=worker, timeout=span_of("--timeout", timeout))
    await _change_workers(shell, action, worker, "quieted")


@command(workers_app, "resume")
async def resume(shell: Shell, queue: Queue, worker: _Worker = None, timeout: _Timeout = "15s") -> None:
    """Let quiet workers fetch jobs again."""
    action = operate.actions.ResumeWorker(queue=queue, worker=worker, timeout=span_of("--timeout", timeout))
    await _change_workers(shell, action, worker, "resumed")


@command(workers_app, "resize")
async def resize(
    shell: Shell,
    queue: Queue,
    concurrency: Annotated[int, typer.Argument(metavar="CONCURRENCY", help="Jobs at a time.", show_default=False)],
    worker: _Worker = None,
    timeout: _Timeout = "15s",
) -> None:
    """Change how many jobs workers run at the same time, until they end."""
    wait = span_of("--timeout", timeout)
    action = operate.actions.ResizeWorker(queue=queue, worker=worker, concurrency=concurrency, timeout=wait)
    await _change_workers(shell, action, worker, "resized")


async def _change_workers(shell: Shell, action: operate.actions.Action, worker: str | None, done: str) -> None:
    result = await _of_worker(shell, action.queue, worker, operate.actions.perform(shell.operator, action))
    shell.print_json(result)
    for each in result.ids:
        shell.say(f"{done} {each}")
    if not result.done:
        shell.note(f"queue {action.queue!r} has no live workers")


async def _of_worker(shell: Shell, queue: str, worker: str | None, request: Coroutine[Any, Any, _T]) -> _T:
    try:
        return await request
    except WorkerNotFoundError:
        shell.missing(f"queue {queue!r} has no worker {worker!r}")


# -- groups -----------------------------------------------------------------------------------------------


@command(group_app, "ls")
async def group_ls(shell: Shell, queue: Queue, limit: Limit = 100) -> None:
    """List the ordering groups and fair keys of a queue that have waiting jobs."""
    await check_exists(shell, queue)
    groups: dict[str, GroupSummary] = {}
    cursor = ""
    while len(groups) <= limit:
        page = await shell.operator.get_groups(queue, cursor=cursor)
        groups |= {each.key: each for each in page.groups}
        cursor = page.cursor
        if not cursor:
            break
    keys: list[Any] = []
    async for info in shell.operator.iter_fair_keys(queue):
        if len(keys) == limit:
            break
        keys.append(info)
    found = list(groups.values())[:limit]
    shell.print_json({"groups": found, "fair_keys": keys})
    rows: list[tuple[Any, ...]] = [("group", each.key, each.waiting, "", "") for each in found]
    rows += [
        ("fair key", each.key, each.backlog, each.active, ("paused", "yellow") if each.paused else "") for each in keys
    ]
    shell.table(("KIND", "KEY", ">WAITING", ">ACTIVE", ""), rows, f"no group of queue {queue!r} has waiting jobs")


@command(group_app, "limit")
async def group_limit(
    shell: Shell,
    queue: Queue,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Ordering key of the group.", show_default=False)],
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", min=0, help="Active jobs; 0 = no limit.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="JOBS/TIME", help="Jobs per window, such as 100/1m; off = no limit.")
    ] = None,
) -> None:
    """Show the limits of an ordering group, or set them."""
    if concurrency is not None or rate is not None:
        action = operate.actions.SetGroupLimits(
            queue=queue, group=key, concurrency=concurrency_of(concurrency),
            rate_limit=None if rate is None else limit_of(rate),
        )  # fmt: skip
        await operate.actions.perform(shell.operator, action)
    found = await shell.operator.get_group(queue, key)
    if found is None:
        shell.missing(f"queue {queue!r} has no ordering group {key!r}")
    shell.print_json(found)
    limits = found.limits
    shell.facts([
        ("group", found.key), ("active", found.active), ("waiting", found.parked),
        ("concurrency", limits.concurrency or "no limit"),
        ("rate limit", limit_text(limits.rate_limit)),
        ("rate limited until", clock(found.limited_until)),
    ])  # fmt: skip


@command(group_app, "fair")
async def group_fair(
    shell: Shell,
    queue: Queue,
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]",
            help="Fair key; without it, the limits of each key that has none of its own.",
            show_default=False,
        ),
    ] = None,
    weight: Annotated[
        int | None, typer.Option("--weight", metavar="N", min=1, help="Jobs served per job of a key with weight 1.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", min=0, help="Active jobs; 0 = no limit.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="JOBS/TIME", help="Jobs per window, such as 100/1m; off = no limit.")
    ] = None,
    max_backlog: Annotated[
        int | None,
        typer.Option("--max-backlog", metavar="N", min=0, help="Ready jobs above which adds fail; 0 = no limit."),
    ] = None,
) -> None:
    """Show or set the limits of a fair key, or of each fair key."""
    await check_exists(shell, queue)
    if any(given is not None for given in (weight, concurrency, rate, max_backlog)):
        action = operate.actions.SetFairKeyLimits(
            queue=queue, key=key, weight=weight, concurrency=concurrency_of(concurrency),
            rate_limit=None if rate is None else limit_of(rate), max_backlog=concurrency_of(max_backlog),
        )  # fmt: skip
        await operate.actions.perform(shell.operator, action)
    if key is None:
        each = await shell.operator.get_fair_key_defaults(queue)
        shell.print_json(each)
        shell.facts([
            ("concurrency of each key", each.concurrency or "no limit"),
            ("rate limit of each key", limit_text(each.rate_limit)),
            ("maximum backlog of each key", each.max_backlog or "no limit"),
        ])  # fmt: skip
        return
    found = await shell.operator.get_fair_key(queue, key)
    shell.print_json(found)
    shell.facts([
        ("fair key", found.key), ("active", found.active), ("ready", found.backlog), ("weight", found.weight),
        ("concurrency", found.concurrency or "no limit"),
        ("rate limit", limit_text(found.rate_limit)),
        ("maximum backlog", found.max_backlog or "no limit"), ("paused", "yes" if found.paused else ""),
        ("rate limited until", clock(found.limited_until)),
    ])  # fmt: skip


# -- events -----------------------------------------------------------------------------------------------


def _event_names(incomplete: str) -> list[str]:
    from glidemq_py._client.event_reader import QUEUE_EVENTS

    return words(QUEUE_EVENTS)(incomplete)


@command(events_app, "tail")
async def tail(
    shell: Shell,
    queue: Queue,
    event: Annotated[
        list[str] | None,
        typer.Option(
            "--event", metavar="EVENT", help="Only events with this name; repeatable.", autocompletion=_event_names
        ),
    ] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="ID", help="Start after this event; 0 = the oldest kept.")
    ] = None,
    number: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, help="Stop after so many events.")
    ] = None,
) -> None:
    """Print the events of a queue as they happen, until Ctrl-C. With --json, one line per event."""
    from glidemq_py._client.event_reader import QUEUE_EVENTS

    for each in event or ():
        if each not in QUEUE_EVENTS:
            raise GlideMQValidationError("--event", each, f"must be one of {', '.join(QUEUE_EVENTS)}")
    left = number
    if not await shell.operator.queue_exists(queue):
        shell.note(f"queue {queue!r} does not exist (prefix {shell.settings.prefix!r}); waiting for its first event")
    async for found in shell.operator.iter_events(queue, after=after):
        if event and found.event not in event:
            continue
        shell.print_json(found, line=True)
        more = " ".join(f"{key}={value}" for key, value in found.fields.items())
        shell.say(f"{clock(found.timestamp)}  {found.event:<12} {found.job_id} {more}".rstrip())
        if left is not None:
            left -= 1
            if left <= 0:
                return


# -- backups ----------------------------------------------------------------------------------------------

_Destination = Annotated[
    str, typer.Argument(metavar="DESTINATION", help="Directory, or URL of an object store.", show_default=False)
]
_Storage = Annotated[
    list[str] | None,
    typer.Option("--storage-option", metavar="NAME=VALUE", help="Setting of the object store; repeatable."),
]


def register_backups(app: typer.Typer) -> None:
    """Register `backup` and `restore`."""
    command(app, "backup")(backup)
    command(app, "restore")(restore)


async def backup(
    shell: Shell,
    destination: _Destination,
    queues: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUEUES",
            help="Names of queues; default: queues in [tool.glidemq].",
            show_default=False,
            autocompletion=complete_queue,
        ),
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=1, help="Number of backups to keep per queue.")
    ] = None,
    storage_option: _Storage = None,
) -> None:
    """Write a backup of queues while they are in use. See also `python -m glidemq_py.backup`."""
    names = list(dict.fromkeys(queues or shell.settings.queues))
    await _check_order(shell, "backup", destination, names)
    if not names:
        shell.fail("no queues given; name them, or set queues in [tool.glidemq]", ExitCode.USAGE)
    for name in names:
        await check_exists(shell, name)
    options = {key: str(value) for key, value in pairs_of("--storage-option", storage_option or ()).items()}
    found: list[Any] = []
    for name in names:
        queue = await shell.operator.queue(name)
        with shell.working(f"backing up queue {name!r}"):
            info = await queue.backup(destination, keep=keep, storage_options=options or None)
        found.append(info)
        shell.say(f"queue {name!r}: created {info.id}: {info.jobs:,} jobs, {info.size:,} bytes")
    shell.print_json(found)


async def restore(
    shell: Shell,
    destination: _Destination,
    queue: Queue,
    backup_id: Annotated[str | None, typer.Option("--backup", metavar="ID", help="Default: the newest one.")] = None,
    source: Annotated[str | None, typer.Option("--source", metavar="QUEUE", help="Queue that was backed up.")] = None,
    storage_option: _Storage = None,
) -> None:
    """Restore a backup into an empty queue."""
    await _check_order(shell, "restore", destination, [queue])
    options = {key: str(value) for key, value in pairs_of("--storage-option", storage_option or ()).items()}
    target = await shell.operator.queue(queue)
    with shell.working(f"restoring queue {queue!r}"):
        report = await target.restore(destination, backup_id=backup_id, source=source, storage_options=options or None)
    shell.print_json(report)
    again = " (continued)" if report.resumed else ""
    shell.say(f"queue {queue!r}: restored {report.jobs:,} jobs from {report.backup.id}{again}")


async def _check_order(shell: Shell, verb: str, destination: str, names: list[str]) -> None:
    """End the command if its destination is a queue or missing: the destination comes first.

    Args:
        shell: The command.
        verb: "backup" or "restore".
        destination: The first argument.
        names: Names of queues, the other arguments.
    """
    paths = [name for name in names if _is_place(name)]
    if _is_place(destination) or not (paths or (not names and await _is_queue(shell, destination))):
        return
    place, queues = (paths[0], [destination, *(name for name in names if name != paths[0])]) if paths else ("", [])
    right = f"glidemq {verb} {place or 'DESTINATION'} {' '.join(queues or [destination])}"
    what = (
        f"{destination!r} is taken for the destination" if paths else f"no destination given for queue {destination!r}"
    )
    shell.fail(f"{what}; a directory or URL comes first: {right}", ExitCode.USAGE)


def _is_place(text: str) -> bool:
    """Return True if an argument is a directory or a URL, not the name of a queue."""
    return "://" in text or text.startswith(("/", "./", "../", "~")) or Path(text).is_dir()


async def _is_queue(shell: Shell, name: str) -> bool:
    try:
        return await shell.operator.queue_exists(name)
    except GlideMQValidationError:
        return False
