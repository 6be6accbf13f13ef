"""The pages of a broadcast: its subscriptions, its messages, and a message."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from glidemq_py._features.broadcast import Subscription
from glidemq_py._operate.conversion import redacted
from glidemq_py._operate.lists import (
    dead_letter_queues,
    get_deliveries,
    get_message,
    get_messages,
    get_newest_dead_letters,
    slowest_first,
)
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.snapshots import DeadLetter, JobDetails, MessageSummary
from glidemq_py.dashboard.visit import Visit, parse_filter, search_of, without_state
from glidemq_py.errors import GlideMQValidationError, ScriptError

KEPT: Final = ("waiting", "delayed")
"""States of the messages of a list; those that are kept are waiting jobs of its queue."""
_MESSAGES_A_PAGE: Final = 50
_EXAMINED: Final = 1_500
_SUBSCRIPTIONS_READ: Final = 50
"""Subscriptions whose dead letter queues, and whose states of a message, are shown: a call each."""
_LETTERS_COUNTED: Final = 200
_TARGETS_MS: Final = 10_000
"""Time between two reads of the dead letters of an open page."""


async def _subscriptions(visit: Visit) -> list[Subscription]:
    try:
        found = await visit.read(Operator.get_subscriptions)
    except ScriptError:  # the stream has more consumer groups than a call may read
        return []
    return slowest_first(found)


async def subscription_targets(visit: Visit) -> dict[str, str | None]:
    """Return the dead letter queues of the broadcast ('') and of its slowest subscriptions."""
    wanted = [each.name for each in (await _subscriptions(visit))[:_SUBSCRIPTIONS_READ]]
    return await visit.shared(
        "subscriptions' dead letters", tuple(wanted), lifetime=_TARGETS_MS,
        read=lambda: dead_letter_queues(visit.operator, visit.queue, wanted),
    )  # fmt: skip


async def broadcast(visit: Visit, common: dict[str, Any]) -> dict[str, Any]:
    """Return the overview of a broadcast: subscriptions, rates and limits."""
    found, targets, name = await _subscriptions(visit), await subscription_targets(visit), visit.queue

    async def read() -> tuple[list[DeadLetter], bool]:
        return await get_newest_dead_letters(visit.operator, name, _LETTERS_COUNTED)

    letters, is_cut = list[DeadLetter](), False
    if any(targets.values()):
        letters, is_cut = await visit.shared("newest dead letters", read=read, lifetime=_TARGETS_MS)
    return {
        **common, "template": "broadcast.html", "tab": "queue", "subscriptions": found, "targets": targets,
        "active": sum(each.active for each in found), "letters": Counter(each.subscription for each in letters),
        "letter_count": len(letters), "is_cut": is_cut,
        "activity": visit.reader.activity({name: await visit.reader.rates(name)}),
        "limits": await visit.read(Operator.get_limits), "dead_letter_queue": targets.get(""),
    }  # fmt: skip


async def messages(visit: Visit, common: dict[str, Any]) -> dict[str, Any]:
    """Return messages of a broadcast, fifty at a time."""
    text, state = visit.arguments.get("filter", ""), visit.arguments.get("state") or KEPT[0]
    shown, cursor, problem, search = list[MessageSummary](), "", "", None
    try:
        if state not in KEPT:
            raise GlideMQValidationError("state", state, f"must be {' or '.join(KEPT)}")
        wanted, message_id = parse_filter(text, state, visit.options.redact)
        state, text = wanted.state or state, without_state(text)
        if message_id is None:
            page = await get_messages(
                visit.operator, visit.queue, wanted, cursor=visit.arguments.get("cursor", ""),
                count=_MESSAGES_A_PAGE, most_examined=_EXAMINED,
            )  # fmt: skip
            shown, cursor = list(page.messages), page.cursor
            search = search_of(visit, wanted, page, common["queue"], (state,))
        else:
            details = await visit.operator.get_job(visit.queue, message_id, log_lines=0)
            shown = [] if details is None else [get_message(details)]
            problem = "" if details else f"There is no message {message_id}."
    except GlideMQValidationError as error:
        problem = str(error)
    rows = [(each, redacted(each.data, visit.options.redact)) for each in shown]
    return {
        **common, "template": "messages.html", "messages": rows, "cursor": cursor, "problem": problem, "state": state,
        "filter": text, "search": search,
    }  # fmt: skip


async def message(visit: Visit, details: JobDetails) -> dict[str, Any]:
    """Return a message of a broadcast, and its state in each subscription."""
    names = [each.name for each in await _subscriptions(visit)]
    read, message_id = sorted(names[:_SUBSCRIPTIONS_READ]), details.job.id
    deliveries = await visit.shared(
        "deliveries", message_id, tuple(read),
        read=lambda: get_deliveries(visit.operator, visit.queue, message_id, read),
    )  # fmt: skip
    return {
        "template": "message.html", "message": get_message(details), "deliveries": deliveries,
        "more": len(names) - len(read), "details": details,
    }  # fmt: skip
