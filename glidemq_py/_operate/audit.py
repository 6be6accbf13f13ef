"""The audit stream: who changed what, and when, through a page or a command.

A change has two entries: one before it is made, and one with its result, so a change whose process died is listed, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

from glidemq_py._core import json_text as json
from glidemq_py._operate.action import Action, ActionResult, perform
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.snapshots import as_json
from glidemq_py.errors import GlideMQError

_KEPT: Final = 10_000
_PAGE: Final = 50
_TEXT: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An entry of the audit stream.

    Attributes:
        id: Id of the entry.
        at: When it was written, epoch ms of the server's clock.
        user: Who made the change.
        action: Kind of the change (`Action.kind`).
        queue: Name of the queue.
        detail: Its other arguments as JSON, at most 1,000 characters.
        result: "begun", "done 3", or "rejected: " and the error.
        of: Id of the entry that began the change; "" for that entry.
    """

    id: str
    at: int
    user: str
    action: str
    queue: str
    detail: str
    result: str
    of: str


def audit_key(prefix: str) -> str:
    """Return the key of the audit stream of all queues with a prefix."""
    return f"{prefix}:audit"


async def perform_audited(
    operator: Operator, action: Action, user: str, *, hide: Callable[[Any], Any] = lambda given: given
) -> ActionResult:
    """Make a change, with an entry of the audit stream before and after it.

    Args:
        operator: Performs the action.
        action: The change.
        user: Who makes it.
        hide: Gets the arguments of the action as JSON types, and returns what the stream may hold of them.

    Raises:
        AccessDeniedError: The operator's access does not allow it; nothing is written.
        GlideMQError: As `perform`; the error is written.
    """
    operator.access.check_action(action.kind, action.queue)
    names = [each.name for each in fields(action) if each.name != "queue"]
    given = {name: as_json(getattr(action, name)) for name in names if getattr(action, name) not in (None, (), "")}
    detail = json.dumps(hide(given))[:_TEXT]
    begun = await write_audit(operator, action.kind, action.queue, user, detail, "begun")
    try:
        result = await perform(operator, action)
    except (GlideMQError, ValueError, TypeError) as error:
        await write_audit(operator, action.kind, action.queue, user, detail, f"rejected: {error}", begun)
        raise
    await write_audit(operator, action.kind, action.queue, user, detail, f"done {result.done}", begun)
    return result


async def write_audit(
    operator: Operator, kind: str, queue: str, user: str, detail: str, result: str, begun: str = ""
) -> str:
    """Add an entry and return its id; ``begun``: id of the entry that began the change."""
    transport = await operator.transport()
    entry = await transport.command(
        "XADD", audit_key(operator.prefix), "MAXLEN", "~", str(_KEPT), "*", "user", user, "action", kind,
        "queue", queue, "detail", detail, "result", result[:_TEXT], "of", begun,
    )  # fmt: skip
    return _text(entry)


async def read_audit(operator: Operator, *, before: str = "") -> tuple[list[AuditEntry], str]:
    """Return the latest entries, newest first, and the id before which the next page begins ("" = no more).

    Entries of queues that may not be read are left out, so a page may have fewer than 50.
    """
    transport = await operator.transport()
    end = f"({before}" if before else "+"
    found: Any = await transport.command("XREVRANGE", audit_key(operator.prefix), end, "-", "COUNT", str(_PAGE))
    rows: Any = found.items() if hasattr(found, "items") else found or ()
    entries: list[AuditEntry] = []
    name, seen = "", 0
    for entry_id, pairs in rows:
        seen += 1
        held: dict[str, str] = {_text(name): _text(value) for name, value in pairs}
        name = _text(entry_id)
        if operator.access.may_see(held.get("queue", "")):
            entries.append(
                AuditEntry(
                    id=name,
                    at=int(name.split("-")[0]),
                    user=held.get("user", ""),
                    action=held.get("action", ""),
                    queue=held.get("queue", ""),
                    detail=held.get("detail", ""),
                    result=held.get("result", ""),
                    of=held.get("of", ""),
                )
            )
    return entries, name if seen == _PAGE else ""


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
