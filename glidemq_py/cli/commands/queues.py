"""`glidemq queue` and `glidemq group`: look at queues and their groups, and change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glidemq_py import _operate as operate
from glidemq_py._operate.actions import SetFairKeyLimits, SetGroupLimits, SetMetricsByName, SetQueueLimits
from glidemq_py._operate.parsing import Param, span, span_of
from glidemq_py.cli.shell import ExitCode, Shell, age, clock, command, joined, params_of
from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._core.limits import GlobalLimits, RateLimit
    from glidemq_py._features.broadcast import Subscription
    from glidemq_py._operate.snapshots import GroupSummary, QueueSnapshot

_MINUTES_SHOWN = 5
_WAITING = {"suspended": ">SUSPENDED", "waiting_children": ">WAITING FOR CHILDREN"}
"""Columns that are shown if a queue has such jobs."""
_FAIR_KEY = {"fair key": "key", "active": "active", "ready": "backlog", "weight": "weight"}
_POINTS = ("P50", "P95", "P99")


def _red(number: int) -> tuple[int, str]:
    return number, "red" if number else ""


@command(
    "queue ls", match=Param("--match PATTERN", "Only names such as 'mail-*'."),
    scan=Param("--scan", "Search all keys of the server for queues that only Node clients have used."),
    busy=Param("--busy", "Only queues with unfinished or failed jobs."),
)  # fmt: skip
async def ls(
    shell: Shell, queues: list[str] | None = None, match: str | None = None, scan: bool = False, busy: bool = False
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


@command("queue show")
async def show(shell: Shell, queue: str) -> None:
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


def _limit_text(limit: RateLimit | None) -> str:
    return "no limit" if limit is None else f"{limit.max:,} per {span(limit.duration)}"


@command("queue check")
async def check(shell: Shell, queue: str) -> None:
    """Look for inconsistent state; exit code 1 if there is any."""
    await _check(shell, queue, repair=False)


@command("queue repair")
async def repair(shell: Shell, queue: str, dry_run: bool = False) -> None:
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


@command("queue limits", **params_of(SetQueueLimits))
async def limits(shell: Shell, queue: str, **given: Any) -> None:
    """Show the limits of a queue, or set them."""
    await shell.check_exists(queue)
    if given["ttl"] is not None and given["concurrency"] is given["rate_limit"] is None:
        raise GlideMQValidationError("--for", span(given["ttl"]), "requires --concurrency or --rate")
    await shell.set(SetQueueLimits, given, queue=queue)
    found = await shell.operator.get_limits(queue)
    shell.print_json(found)
    shell.facts(_limits_facts(found))


@command("queue partitions")
async def partitions(shell: Shell, queue: str) -> None:
    """Show the number of partitions of a queue."""
    await shell.reject_broadcast(queue, "its messages are not divided into partitions")
    opened = await shell.operator.queue(queue)
    found = await opened.settings.get_partitions()
    shell.print_json(found)
    shell.say(f"queue {queue!r}: {'no partitions' if found.count == 1 else f'{found.count} partitions'}")


def _minutes_of(option: str, text: str) -> int:
    return 0 if text == "off" else max(1, span_of(option, text) // 60_000)


@command(
    "queue metrics", window=Param("--window TIME", "The last 1h, 90m or 7d.", span_of),
    keep=Param("--keep TIME", "Record, and keep for so long, such as 1d; off = stop.", _minutes_of),
)  # fmt: skip
async def metrics(
    shell: Shell, queue: str, window: int = 3_600_000, name: str | None = None, keep: int | None = None
) -> None:
    """Show counts and percentiles of waiting and running times by job name, or set how long they are recorded."""
    await shell.reject_broadcast(queue, operate.actions.NO_NAMES.format(queue=queue))
    if keep is not None:
        await operate.action.perform(shell.operator, SetMetricsByName(queue=queue, minutes=keep))
    found, setting = await shell.operator.get_metrics_by_name(queue, window, name=name)
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
        ("rate limit", f"{_limit_text(rate)}{_for(found.rate_limit_ttl)}"),
    ]
    if rate is not None:
        wait = found.rate_limit_resets_in
        until = "" if wait is None else f", next window in {span(wait)}"
        facts.append(("rate used", f"{found.rate_limit_used:,} of {rate.max:,}{until}"))
    return facts


def _for(ttl: int | None) -> str:
    return "" if ttl is None else f" (for {span(ttl)})"


@command("group ls")
async def group_ls(shell: Shell, queue: str, limit: int = 100) -> None:
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
    keys = await shell.operator.get_fair_keys(queue, limit)
    found = list(groups.values())[:limit]
    shell.print_json({"groups": found, "fair_keys": keys})
    rows: list[tuple[Any, ...]] = [("group", each.key, each.waiting, "", "") for each in found]
    rows += [
        ("fair key", each.key, each.backlog, each.active, ("paused", "yellow") if each.paused else "") for each in keys
    ]
    shell.table(("KIND", "KEY", ">WAITING", ">ACTIVE", ""), rows, f"no group of queue {queue!r} has waiting jobs")


@command("group limit", key=Param("KEY", "Ordering key of the group."), **params_of(SetGroupLimits))
async def limit(shell: Shell, queue: str, key: str, **given: Any) -> None:
    """Show the limits of an ordering group, or set them."""
    await shell.set(SetGroupLimits, given, queue=queue, group=key)
    found = await shell.operator.get_group(queue, key)
    if found is None:
        shell.missing(f"queue {queue!r} has no ordering group {key!r}")
    shell.print_json(found)
    limits = found.limits
    shell.facts([
        ("group", found.key), ("active", found.active), ("waiting", found.parked),
        ("concurrency", limits.concurrency or "no limit"),
        ("rate limit", _limit_text(limits.rate_limit)),
        ("rate limited until", clock(found.limited_until)),
    ])  # fmt: skip


@command(
    "group fair", key=Param("[KEY]", "Fair key; without it, the limits of each key that has none of its own."),
    **params_of(SetFairKeyLimits),
)  # fmt: skip
async def fair(shell: Shell, queue: str, key: str | None = None, **given: Any) -> None:
    """Show or set the limits of a fair key, or of each fair key."""
    await shell.check_exists(queue)
    await shell.set(SetFairKeyLimits, given, queue=queue, key=key)
    found: Any = await shell.operator.get_fair_key(queue, key)
    shell.print_json(found)
    of, own = (" of each key", False) if key is None else ("", True)
    shell.facts([
        *((each, getattr(found, field)) for each, field in _FAIR_KEY.items() if own),
        (f"concurrency{of}", found.concurrency or "no limit"), (f"rate limit{of}", _limit_text(found.rate_limit)),
        (f"maximum backlog{of}", found.max_backlog or "no limit"), ("paused", "yes" if own and found.paused else ""),
        ("rate limited until", clock(found.limited_until) if own else ""),
    ])  # fmt: skip
