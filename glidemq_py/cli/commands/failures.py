"""`glidemq failures` and `glidemq dlq`: failed jobs, and dead-letter entries."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from glidemq_py import _operate as operate
from glidemq_py._operate.parsing import time_of
from glidemq_py.cli.arguments import JobName, Limit, Newest, Queue, Reason, Since, Until
from glidemq_py.cli.shell import Shell, age, changes, clock, command, group
from glidemq_py.errors import GlideMQValidationError

__all__ = ["app", "dead_letters_app"]

app = group("failures", "Failed jobs: list, count, requeue and delete them.")
dead_letters_app = group("dlq", "Dead-letter entries: list, replay and delete them.")
_LONG = 100


async def _reject_broadcast(shell: Shell, queue: str) -> None:
    instead = f"for the failed ones of its subscriptions: glidemq dlq ls {queue}, or glidemq job show {queue} ID"
    await shell.reject_broadcast(queue, instead)


def _criteria(
    reason: list[str] | None, name: str | None, since: str | None, until: str | None, **others: Any
) -> dict[str, Any]:
    return {
        **others, "reason": tuple(reason or ()), "name": name, "since": time_of("--since", since),
        "until": time_of("--until", until),
    }  # fmt: skip


@command(app, "ls")
async def ls(
    shell: Shell,
    queue: Queue,
    reason: Reason = None,
    name: JobName = None,
    since: Since = None,
    until: Until = None,
    newest: Newest = False,
    limit: Limit = 50,
) -> None:
    """List failed jobs, oldest failure first, or with --newest, newest first."""
    await _reject_broadcast(shell, queue)
    criteria = {**_criteria(reason, name, since, until), "reason": reason or None}
    failures = (
        operate.lists.iter_newest_failures(shell.operator, queue, **criteria)
        if newest
        else shell.operator.iter_failures(queue, **criteria)
    )
    found, more = await operate.lists.some(failures, limit)
    shell.print_json({"failures": found, "more": more})
    rows = [
        (
            each.job_id, each.name, age(each.failed_at), each.attempts_made, each.reason.words,
            (f"{each.error_type}: {each.error}" if each.error_type else each.error)[:_LONG],
        )
        for each in found
    ]  # fmt: skip
    shell.table(("ID", "NAME", "FAILED", ">ATTEMPTS", "REASON", "ERROR"), rows, f"no such failures in queue {queue!r}")
    if more:
        of_newest = "" if newest else ", or the newest ones with --newest"
        shell.note(f"more than {limit:,} failures match; list more with --limit{of_newest}")


@command(app, "stats")
async def stats(shell: Shell, queue: Queue) -> None:
    """Count failures by reason and job name."""
    await _reject_broadcast(shell, queue)
    found = await (await shell.operator.queue(queue)).failures.get_stats()
    shell.print_json(found)
    shell.facts([
        ("kept now", found.kept), ("oldest", clock(found.oldest)), ("newest", clock(found.newest)),
        ("counted since", clock(found.since)), ("total", found.total),
    ])  # fmt: skip
    if found.counts:
        shell.say()
        rows = sorted(
            ((reason.words, name, number) for (reason, name), number in found.counts.items()), key=lambda row: -row[2]
        )
        shell.table(("REASON", "NAME", ">FAILURES"), rows, "")


_CRITERIA: Final[dict[str, Any]] = {"reason": Reason, "name": JobName, "since": Since, "until": Until}
changes(
    app, "retry", "RetryFailures", "Requeue the failed jobs that match all given criteria, with all their attempts.",
    _criteria, counts=True, **_CRITERIA,
)  # fmt: skip
changes(
    app, "purge", "PurgeFailures", "Delete the failed jobs that match all given criteria.", _criteria, asks=True,
    **_CRITERIA,
)  # fmt: skip


# -- dead letters -----------------------------------------------------------------------------------------

_Ids = Annotated[list[str] | None, typer.Argument(metavar="ENTRIES", help="Ids of entries.", show_default=False)]
_All = Annotated[bool, typer.Option("--all", help="All entries of the queue.")]
_Subscription = Annotated[
    str | None,
    typer.Option(
        "--subscription", metavar="NAME", help="Only entries of this subscription of a broadcast; default: of all."
    ),
]


@command(dead_letters_app, "ls")
async def dlq_ls(shell: Shell, queue: Queue, subscription: _Subscription = None, limit: Limit = 50) -> None:
    """List the dead-letter entries of a queue, or of all subscriptions of a broadcast, oldest first."""
    await _check(shell, queue, subscription)
    letters = operate.lists.iter_dead_letters(shell.operator, queue, subscription)
    found, more = await operate.lists.some(letters, limit)
    shell.print_json({"entries": found, "more": more})
    if any(each.subscription is not None for each in found):
        of_messages = [
            (each.id, each.subscription or "", each.name, each.job_id, age(each.added_at), each.error[:_LONG])
            for each in found
        ]
        shell.table(("ENTRY", "SUBSCRIPTION", "SUBJECT", "MESSAGE", "ADDED", "ERROR"), of_messages, "")
    else:
        rows = [(each.id, each.name, each.job_id, age(each.added_at), each.error[:_LONG]) for each in found]
        of = f"queue {queue!r}" if subscription is None else f"subscription {subscription!r} of broadcast {queue!r}"
        shell.table(("ENTRY", "NAME", "JOB", "ADDED", "ERROR"), rows, f"{of} has no dead letters")
        source = None if found else await shell.operator.get_dead_letter_source(queue)
        if source is not None:
            shell.note(f"it is the dead letter queue of {source!r}: glidemq dlq ls {source}")
    if more:
        shell.note(f"more than {limit:,} entries; list more with --limit")


def _entries(ids: list[str] | None, every: bool, **others: Any) -> dict[str, Any]:
    if bool(ids) == every:
        raise GlideMQValidationError("--all", None, "give ids of entries, or --all")
    return {**others, "ids": tuple(ids or ())}


async def _check(shell: Shell, queue: str, subscription: str | None) -> None:
    """End the command if the queue or the subscription does not exist."""
    await shell.check_exists(queue)
    try:
        if subscription is not None:
            await operate.lists.Letters.open(shell.operator, queue, subscription)
    except operate.lists.NoSubscriptionError as error:
        shell.missing(str(error))


async def _check_letters(shell: Shell, action: Any) -> None:
    await _check(shell, action.queue, action.subscription)


_LETTERS: Final[dict[str, Any]] = {
    "ids": _Ids, "every": _All, "subscription": _Subscription,
    "check": _check_letters,
}  # fmt: skip
changes(
    dead_letters_app, "replay", "ReplayDeadLetters",
    """Add the jobs of entries to their queue again, and delete the entries.

    A message of a broadcast is delivered again to the subscription in which it failed.
    """,
    _entries, counts=True, **_LETTERS,
)  # fmt: skip
changes(dead_letters_app, "purge", "PurgeDeadLetters", "Delete entries.", _entries, asks=True, **_LETTERS)
