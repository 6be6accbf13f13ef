"""`glidemq group`: ordering groups, fair keys and their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from glidemq_py import _operate as operate
from glidemq_py.cli.commands.arguments import Concurrency, Limit, Queue, Rate
from glidemq_py.cli.commands.queues import check_exists, concurrency_of, limit_of, limit_text
from glidemq_py.cli.shell import Shell, command, group
from glidemq_py.cli.texts import clock

if TYPE_CHECKING:
    from glidemq_py._operate.snapshots import GroupSummary

__all__ = ["app"]

app = group("group", "Ordering groups and their limits.")


@command(app, "ls")
async def ls(shell: Shell, queue: Queue, limit: Limit = 100) -> None:
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


@command(app, "limit")
async def limit(
    shell: Shell,
    queue: Queue,
    key: Annotated[str, typer.Argument(metavar="KEY", help="Ordering key of the group.", show_default=False)],
    concurrency: Concurrency = None,
    rate: Rate = None,
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


@command(app, "fair")
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
