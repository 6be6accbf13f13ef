"""`glidemq failures` and `glidemq dlq`: failed jobs, and dead-letter entries."""

from __future__ import annotations

from typing import Any, Final

from glidemq_py import _operate as operate
from glidemq_py._operate.parsing import CRITERIA, PARAMETERS, Param
from glidemq_py.cli.shell import Shell, age, changes, clock, command
from glidemq_py.errors import GlideMQValidationError

_LONG = 100


async def _reject_broadcast(shell: Shell, queue: str) -> None:
    instead = f"for the failed ones of its subscriptions: glidemq dlq ls {queue}, or glidemq job show {queue} ID"
    await shell.reject_broadcast(queue, instead)


_CRITERIA: Final[dict[str, Any]] = {
    "reason": PARAMETERS["reason"],
    **{each: CRITERIA[each] for each in ("name", "since", "until")},
}


@command("failures ls", **_CRITERIA)
async def ls(
    shell: Shell, queue: str, newest: bool = False, limit: int = 50, *, reason: tuple[str, ...], **others: Any
) -> None:
    """List failed jobs, oldest failure first, or with --newest, newest first."""
    await _reject_broadcast(shell, queue)
    criteria: dict[str, Any] = {**others, "reason": reason or None}
    failures = (
        operate.lists.iter_newest_failures(shell.operator, queue, **criteria)
        if newest
        else shell.operator.iter_failures(queue, **criteria)
    )
    found, more = await operate.operating.some(failures, limit)
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


@command("failures stats")
async def stats(shell: Shell, queue: str) -> None:
    """Count failures by reason and job name."""
    await _reject_broadcast(shell, queue)
    found = await shell.operator.get_failure_stats(queue)
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


changes(operate.job_actions.RetryFailures, **_CRITERIA)
changes(operate.job_actions.PurgeFailures, **_CRITERIA)


# -- dead letters -----------------------------------------------------------------------------------------


@command("dlq ls")
async def dlq_ls(shell: Shell, queue: str, subscription: str | None = None, limit: int = 50) -> None:
    """List the dead-letter entries of a queue, or of all subscriptions of a broadcast, oldest first."""
    await _check(shell, queue, subscription)
    letters = operate.lists.iter_dead_letters(shell.operator, queue, subscription)
    found, more = await operate.operating.some(letters, limit)
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


def _entries(ids: tuple[str, ...], every: bool, **others: Any) -> dict[str, Any]:
    if bool(ids) == every:
        raise GlideMQValidationError("--all", None, "give ids of entries, or --all")
    return {**others, "ids": ids}


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


for _action in (operate.job_actions.ReplayDeadLetters, operate.job_actions.PurgeDeadLetters):
    changes(
        _action, _entries, check=_check_letters,
        ids=PARAMETERS["ids"]._replace(name="ENTRIES", text="Ids of entries."),
        every=Param("--all", "All entries of the queue."), subscription=PARAMETERS["subscription"],
    )  # fmt: skip
