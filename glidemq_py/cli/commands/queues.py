"""`glidemq queue` and `glidemq group`: look at queues and their groups, and change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from glidemq_py import _operate as operate
from glidemq_py._core.record import JobState
from glidemq_py._operate.parsing import rate_of, span_of
from glidemq_py.cli.arguments import Concurrency, JobName, Limit, Queue, Queues, Rate, words
from glidemq_py.cli.shell import DryRun, ExitCode, Shell, Yes, age, changes, clock, command, group, joined, span
from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._core.limits import GlobalLimits, RateLimit
    from glidemq_py._features.broadcast import Subscription
    from glidemq_py._operate.snapshots import GroupSummary, QueueSnapshot

__all__ = ["app", "groups_app"]

app = group("queue", "Look at queues and change them.")

_MINUTES_SHOWN = 5
_WAITING = {"suspended": ">SUSPENDED", "waiting_children": ">WAITING FOR CHILDREN"}
"""Columns that are shown if a queue has such jobs."""
_POINTS = ("P50", "P95", "P99")


def _red(number: int) -> tuple[int, str]:
    return number, "red" if number else ""


@command(app, "ls")
async def ls(
    shell: Shell,
    queues: Queues = None,
    match: Annotated[
        str | None, typer.Option("--match", metavar="PATTERN", help="Only names such as 'mail-*'.")
    ] = None,
    scan: Annotated[
        bool, typer.Option("--scan", help="Search all keys of the server for queues that only Node clients have used.")
    ] = False,
    busy: Annotated[bool, typer.Option("--busy", help="Only queues with unfinished or failed jobs.")] = False,
) -> None:
    """List queues with their jobs by state, workers, and the age of the oldest waiting job.

    READY of a broadcast are the messages that its slowest subscription has not read.
    """
    names = await shell.queue_names(queues, match, scan=scan)
    found = await shell.operator.get_queues(names)
    if busy:
        found = [each for each in found if each.unfinished or each.failed]
    shell.print_json(found)
    waiting = [field for field in _WAITING if any(getattr(each, field) for each in found)]
    columns = (
        "QUEUE", ">READY", ">ACTIVE", ">DELAYED", *map(_WAITING.__getitem__, waiting), ">COMPLETED", ">FAILED",
        ">WORKERS", "OLDEST", "",
    )  # fmt: skip
    shell.table(columns, (_row(each, waiting) for each in found), f"no queues (prefix {shell.settings.prefix!r})")


def _row(queue: QueueSnapshot, waiting: list[str]) -> tuple[Any, ...]:
    idle = queue.ready and not queue.workers
    kind = "broadcast" if queue.is_broadcast else ""
    return (
        queue.name, _ready(queue), queue.active, queue.delayed, *(getattr(queue, field) for field in waiting),
        queue.completed, _red(queue.failed),
        (queue.workers, "yellow" if idle else ""), span(queue.oldest_waiting) if queue.ready else "",
        (f"{kind}, paused".lstrip(", "), "yellow") if queue.paused else kind,
    )  # fmt: skip


def _ready(queue: QueueSnapshot) -> int | str:
    return ">1,000" if queue.unread is None else queue.ready


@command(app, "show")
async def show(shell: Shell, queue: Queue) -> None:
    """Show a queue: jobs by state, limits, failures by reason, and what ended in the last minutes.

    Of a broadcast: its messages and subscriptions.
    """
    await shell.check_exists(queue)
    found = await shell.operator.get_queue_details(queue)
    shell.print_json(found)
    now, stats = found.queue, found.failures
    reasons = joined(f"{reason.words} {count:,}" for reason, count in stats.by_reason.items())
    state = ("paused", "yellow") if now.paused else "running"
    common = [
        *_limits_facts(found.limits),
        ("dead letters", found.dead_letter_queue),
        ("undelivered", (now.outbox, "yellow") if now.outbox else None),
        ("features", joined(found.features)),
    ]
    if now.is_broadcast:
        shell.facts([
            ("broadcast", queue),
            ("state", state),
            ("workers", now.workers),
            ("messages kept", now.waiting),
            ("delayed", now.delayed),
            ("oldest unread", span(now.oldest_waiting) if now.ready else ""),
            *common,
        ])  # fmt: skip
    else:
        shell.facts([
            ("queue", queue),
            ("state", state),
            ("partitions", now.partitions if now.partitions > 1 else None),
            ("workers", now.workers),
            ("waiting", now.waiting),
            ("prioritized", now.prioritized),
            ("group-waiting", now.group_waiting or None),
            ("oldest waiting", span(now.oldest_waiting) if now.ready else ""),
            ("active", now.active),
            ("delayed", now.delayed),
            ("suspended", now.suspended or None),
            ("waiting-children", now.waiting_children or None),
            ("completed", now.completed),
            ("failed", _red(now.failed)),
            ("failures", f"{reasons} (since {clock(stats.since)})" if stats.total else ""),
            *common,
        ])  # fmt: skip
    points = {each.timestamp: [each.count, 0, each.avg_duration] for each in found.completed_per_minute}
    for each in found.failed_per_minute:
        points.setdefault(each.timestamp, [0, 0, each.avg_duration])[1] = each.count
    rows = [(clock(at)[:16], of[0], _red(of[1]), span(of[2])) for at, of in sorted(points.items())[-_MINUTES_SHOWN:]]
    if rows:
        shell.say()
        shell.table(("MINUTE", ">COMPLETED", ">FAILED", ">MEAN TIME"), rows, "")
    if found.subscriptions:
        shell.say()
        columns = ("SUBSCRIPTION", ">UNREAD", ">ACTIVE", ">RELEASED", ">WORKERS", "LAST READ PUBLISHED")
        shell.table(columns, map(_subscription_row, found.subscriptions), "")


def _subscription_row(each: Subscription) -> tuple[Any, ...]:
    unread = ">1,000" if each.waiting is None else f"{each.waiting:,}"
    idle = not each.consumers and each.waiting != 0
    read = age(int(each.last_delivered.partition("-")[0])) or "none yet"
    return each.name, unread, each.active, each.released, (each.consumers, "yellow" if idle else ""), read


def limit_text(limit: RateLimit | None) -> str:
    return "no limit" if limit is None else f"{limit.max:,} per {span(limit.duration)}"


changes(app, "pause", "PauseQueue", "Start no more jobs. Active jobs keep running.")
changes(app, "resume", "ResumeQueue", "Start jobs again.")
changes(
    app, "drain", "DrainQueue", "Delete the jobs that are ready to run. Active jobs are kept.", asks=True,
    delayed=Annotated[bool, typer.Option("--delayed", help="Delete delayed jobs too.")],
)  # fmt: skip


@command(app, "clean")
async def clean(
    shell: Shell,
    queue: Queue,
    state: Annotated[
        str,
        typer.Option(
            "--state",
            metavar="STATE",
            help="Delete jobs in this state; any but active.",
            autocompletion=words(each for each in JobState if each is not JobState.ACTIVE),
        ),
    ] = "completed",
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Only jobs that ended (or were added) before: 7d."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="Maximum number of jobs.")
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Delete old jobs in a state."""
    await shell.check_exists(queue)
    grace = 0 if older_than is None else span_of("--older-than", older_than)
    action = operate.actions.CleanQueue(queue=queue, state=state, grace=grace, limit=limit)
    await shell.change(action, yes=yes, dry_run=dry_run)


@command(app, "check")
async def check(shell: Shell, queue: Queue) -> None:
    """Look for inconsistent state; exit code 1 if there is any."""
    await _check(shell, queue, repair=False)


@command(app, "repair")
async def repair(shell: Shell, queue: Queue, dry_run: DryRun = False) -> None:
    """Look for inconsistent state and repair it; exit code 1 if any is left. --dry-run is `glidemq queue check`."""
    await _check(shell, queue, repair=not dry_run)


async def _check(shell: Shell, queue: str, *, repair: bool) -> None:
    await shell.check_exists(queue)
    with shell.working(f"checking queue {queue!r}"):
        report = await operate.actions.check_queue(shell.operator, queue, repair=repair)
    shell.print_json({"ok": report.ok, "report": report})
    for line in str(report).splitlines():
        shell.say(line)
    if not report.ok:
        if not repair:
            shell.note(f"to repair it: glidemq queue repair {queue}")
        shell.stop(ExitCode.FAILED)


changes(
    app, "obliterate", "ObliterateQueue", "Delete a queue with all its jobs, schedules and settings.", asks=True,
    force=Annotated[bool, typer.Option("--force", help="Also if jobs are active.")],
)  # fmt: skip


@command(app, "limits")
async def limits(
    shell: Shell,
    queue: Queue,
    concurrency: Concurrency = None,
    rate: Rate = None,
    ttl: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Then the limits before apply again, such as 30m.")
    ] = None,
) -> None:
    """Show the limits of a queue, or set them."""
    await shell.check_exists(queue)
    given = _limits_of(concurrency, rate)
    if given and ttl is not None:
        given["ttl"] = span_of("--for", ttl)
    elif ttl is not None:
        raise GlideMQValidationError("--for", ttl, "requires --concurrency or --rate")
    if given:
        await operate.actions.perform(shell.operator, operate.actions.SetQueueLimits(queue=queue, **given))
    found = await (await shell.operator.queue(queue)).limits.get()
    shell.print_json(found)
    shell.facts(_limits_facts(found))


@command(app, "partitions")
async def partitions(shell: Shell, queue: Queue) -> None:
    """Show the number of partitions of a queue."""
    await shell.reject_broadcast(queue, "its messages are not divided into partitions")
    opened = await shell.operator.queue(queue)
    found = await opened.settings.get_partitions()
    shell.print_json(found)
    shell.say(f"queue {queue!r}: {'no partitions' if found.count == 1 else f'{found.count} partitions'}")


@command(app, "metrics")
async def metrics(
    shell: Shell,
    queue: Queue,
    window: Annotated[str, typer.Option("--window", metavar="TIME", help="The last 1h, 90m or 7d.")] = "1h",
    name: JobName = None,
    keep: Annotated[
        str | None, typer.Option("--keep", metavar="TIME", help="Record, and keep for so long, such as 1d; off = stop.")
    ] = None,
) -> None:
    """Show counts and percentiles of waiting and running times by job name, or set how long they are recorded."""
    await shell.reject_broadcast(queue, operate.actions.NO_NAMES.format(queue=queue))
    if keep is not None:
        minutes = 0 if keep == "off" else max(1, span_of("--keep", keep) // 60_000)
        await operate.actions.perform(shell.operator, operate.actions.SetMetricsByName(queue=queue, minutes=minutes))
    found, setting = await shell.operator.get_metrics_by_name(queue, span_of("--window", window), name=name)
    shell.print_json({"kept_minutes": setting.minutes, "names": found})
    rows = [
        (
            each.name or "(others)", each.completed, _red(each.failed), each.retried,
            *(span(round(getattr(part, point))) for part in (each.wait, each.run) for point in ("p50", "p95", "p99")),
        )
        for each in found
    ]  # fmt: skip
    columns = ("NAME", ">DONE", ">FAILED", ">RETRIED", *(f">{part} {p}" for part in ("WAIT", "RUN") for p in _POINTS))
    shell.table(columns, rows, f"no jobs of queue {queue!r} were recorded in this time")
    if not setting.minutes:
        shell.note(f"metrics by name are off; record them: glidemq queue metrics {queue} --keep 1d")


def _limits_facts(found: GlobalLimits) -> list[tuple[str, Any]]:
    rate = found.rate_limit
    facts = [
        ("concurrency", f"{found.concurrency or 'no limit'}{_for(found.concurrency_ttl)}"),
        ("rate limit", f"{limit_text(rate)}{_for(found.rate_limit_ttl)}"),
    ]
    if rate is not None:
        wait = found.rate_limit_resets_in
        until = "" if wait is None else f", next window in {span(wait)}"
        facts.append(("rate used", f"{found.rate_limit_used:,} of {rate.max:,}{until}"))
    return facts


def _for(ttl: int | None) -> str:
    return "" if ttl is None else f" (for {span(ttl)})"


def _limits_of(concurrency: int | None, rate: str | None, **others: int | None) -> dict[str, Any]:
    """Return the limits that are given; 0, or off, is none."""
    numbers = {"concurrency": concurrency, **others}
    given: dict[str, Any] = {name: number or False for name, number in numbers.items() if number is not None}
    if rate is not None:
        given["rate_limit"] = False if rate in ("off", "0") else rate_of("--rate", rate)
    return given


groups_app = group("group", "Ordering groups and their limits.")


@command(groups_app, "ls")
async def group_ls(shell: Shell, queue: Queue, limit: Limit = 100) -> None:
    """List the ordering groups and fair keys of a queue that have waiting jobs."""
    await shell.check_exists(queue)
    groups: dict[str, GroupSummary] = {}
    cursor = ""
    while len(groups) <= limit:
        page = await shell.operator.get_groups(queue, cursor=cursor)
        groups |= {each.key: each for each in page.groups}
        cursor = page.cursor
        if not cursor:
            break
    keys, _ = await operate.lists.some((await shell.operator.queue(queue)).fair_keys.iter(), limit)
    found = list(groups.values())[:limit]
    shell.print_json({"groups": found, "fair_keys": keys})
    rows: list[tuple[Any, ...]] = [("group", each.key, each.waiting, "", "") for each in found]
    rows += [
        ("fair key", each.key, each.backlog, each.active, ("paused", "yellow") if each.paused else "") for each in keys
    ]
    shell.table(("KIND", "KEY", ">WAITING", ">ACTIVE", ""), rows, f"no group of queue {queue!r} has waiting jobs")


@command(groups_app, "limit")
async def limit(
    shell: Shell,
    queue: Queue,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Ordering key of the group.", show_default=False)],
    concurrency: Concurrency = None,
    rate: Rate = None,
) -> None:
    """Show the limits of an ordering group, or set them."""
    given = _limits_of(concurrency, rate)
    if given:
        await operate.actions.perform(shell.operator, operate.actions.SetGroupLimits(queue=queue, group=key, **given))
    found = await (await shell.operator.queue(queue)).groups.get(key)
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


@command(groups_app, "fair")
async def fair(
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
    concurrency: Concurrency = None,
    rate: Rate = None,
    max_backlog: Annotated[
        int | None,
        typer.Option("--max-backlog", metavar="N", min=0, help="Ready jobs above which adds fail; 0 = no limit."),
    ] = None,
) -> None:
    """Show or set the limits of a fair key, or of each fair key."""
    await shell.check_exists(queue)
    given = _limits_of(concurrency, rate, weight=weight, max_backlog=max_backlog)
    if given:
        await operate.actions.perform(shell.operator, operate.actions.SetFairKeyLimits(queue=queue, key=key, **given))
    fair_keys = (await shell.operator.queue(queue)).fair_keys
    if key is None:
        each = await fair_keys.get_defaults()
        shell.print_json(each)
        shell.facts([
            ("concurrency of each key", each.concurrency or "no limit"),
            ("rate limit of each key", limit_text(each.rate_limit)),
            ("maximum backlog of each key", each.max_backlog or "no limit"),
        ])  # fmt: skip
        return
    found = await fair_keys.get(key)
    shell.print_json(found)
    shell.facts([
        ("fair key", found.key), ("active", found.active), ("ready", found.backlog), ("weight", found.weight),
        ("concurrency", found.concurrency or "no limit"),
        ("rate limit", limit_text(found.rate_limit)),
        ("maximum backlog", found.max_backlog or "no limit"), ("paused", "yes" if found.paused else ""),
        ("rate limited until", clock(found.limited_until)),
    ])  # fmt: skip
