"""What is stored about changes: who made which, in the audit stream; and the progress of those of many jobs.

A change has two entries of the stream: one before it is made, and one with its result, so a change whose process died
is listed, too.

A bulk change is one of many jobs that a page starts, shows with its progress, cancels and continues. Its action, its
progress, and the position at which it continues are stored. So any process shows it, a page may be closed meanwhile,
and one whose process has died is continued by another process at the same place. Each step is a few short calls.

Keys: ``<prefix>:audit`` is the stream, ``<prefix>:bulk`` lists the bulk changes by time, ``<prefix>:bulk:<id>`` holds
one for a week, and ``<prefix>:bulk:<id>:lock`` exists while a process performs it.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import fields
from typing import Any, Final, Literal, cast

from glidemq_py._core import json_text as json
from glidemq_py._core.calls.administration import lock, renew, unlock
from glidemq_py._operate.action import Action, ActionResult, ManyAction, check_kind, perform
from glidemq_py._operate.actions import ACTIONS
from glidemq_py._operate.filters import JobFilter
from glidemq_py._operate.operating import Operator
from glidemq_py._operate.snapshots import as_json, record
from glidemq_py._partitions.link import server_time
from glidemq_py.errors import GlideMQError

_KEPT: Final = 10_000
_PAGE: Final = 50


_FIELDS: Final = ("user", "action", "queue", "detail", "result", "of")


@record
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
    detail = json.dumps(hide(_arguments(action)))[:_TEXT]
    begun = await write_audit(operator, action.kind, action.queue, user, detail, "begun")
    try:
        result = await perform(operator, action)
    except (GlideMQError, ValueError, TypeError) as error:
        await write_audit(operator, action.kind, action.queue, user, detail, f"rejected: {error}", begun)
        raise
    await write_audit(operator, action.kind, action.queue, user, detail, f"done {result.done}", begun)
    return result


def _arguments(action: Action) -> dict[str, Any]:
    """Return the arguments of a change that are given, as JSON types."""
    given = {each.name: getattr(action, each.name) for each in fields(action) if each.name != "queue"}
    return {name: as_json(value) for name, value in given.items() if value not in (None, (), "")}


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
                AuditEntry(id=name, at=int(name.split("-")[0]), **{each: held.get(each, "") for each in _FIELDS})
            )
    return entries, name if seen == _PAGE else ""


_KEPT_S: Final = 7 * 86_400
_LISTED: Final = 100
_LOCK_MS: Final = 30_000
_EXAMPLES: Final = 5
_WRITTEN_EVERY_S: Final = 0.2
"""Time between two writes of the progress; a step of a hundred jobs takes a few ms."""
_TEXT: Final = 1_000

BulkState = Literal["running", "interrupted", "finished", "cancelled", "rejected"]


@record
class BulkChange:
    """A bulk change.

    Attributes:
        id: Its id.
        user: Who started it.
        kind: Kind of the change (`Action.kind`).
        queue: Name of the queue.
        label: Name of the change on its page.
        total: Number of jobs that matched when it was started; None = unknown.
        done: Number of jobs changed so far.
        problems: Number of jobs that could not be changed.
        examples: Some of these problems.
        state: "running"; "interrupted": its process has ended; "finished"; "cancelled"; "rejected": an error ended it.
        error: That error; "" = none.
        began_at: When it was started, epoch ms of the server's clock.
        updated_at: When its state was last written.
        now: The time at which this was read.
    """

    id: str
    user: str
    kind: str
    queue: str
    label: str
    total: int | None
    done: int
    problems: int
    examples: tuple[str, ...]
    state: BulkState
    error: str
    began_at: int
    updated_at: int
    now: int

    @property
    def is_over(self) -> bool:
        """True if it ended by itself or was cancelled; others are running, or can be continued."""
        return self.state in ("finished", "cancelled")

    @property
    def left_ms(self) -> int | None:
        """About how long it still runs, ms; None = unknown."""
        spent = self.updated_at - self.began_at
        if self.state != "running" or not self.total or not self.done or spent < 1_000:
            return None
        return round(spent * max(0, self.total - self.done - self.problems) / (self.done + self.problems))


def _lock_key(operator: Operator, bulk_id: str) -> str:
    return f"{operator.prefix}:bulk:{bulk_id}:lock"


async def _stored(operator: Operator, command: str, bulk_id: str, *rest: str) -> Any:
    """Return the reply to a command about a bulk change, or with ``bulk_id`` "" about their list."""
    key = f"{operator.prefix}:bulk:{bulk_id}".removesuffix(":")
    return await (await operator.transport()).command(command, key, *rest)


async def _is_performed(operator: Operator, bulk_id: str) -> bool:
    return bool(await _stored(operator, "EXISTS", f"{bulk_id}:lock"))


async def create_bulk(
    operator: Operator, action: ManyAction, user: str, label: str, total: int | None,
    *, hide: Callable[[Any], Any] = lambda given: given,
) -> str:  # fmt: skip
    """Store a bulk change and return its id; `perform_bulk` performs it.

    Raises:
        AccessDeniedError: The operator's access does not allow it; nothing is stored.
        BroadcastActionError: The queue is a broadcast, which does not support it.
    """
    operator.access.check_action(action.kind, action.queue)
    await check_kind(operator, action)
    transport, bulk_id = await operator.transport(), secrets.token_hex(8)
    given = _arguments(action)
    detail = json.dumps(hide(given))[:_TEXT]
    begun = await write_audit(operator, action.kind, action.queue, user, detail, "begun")
    now = str(await server_time(transport))
    await _stored(
        operator, "HSET", bulk_id, "user", user, "kind", action.kind, "class", type(action).__name__, "queue",
        action.queue, "arguments", json.dumps(given), "detail", detail, "label", label,
        "total", "" if total is None else str(total),
        "state", "running", "began", now, "updated", now, "audit", begun,
    )  # fmt: skip
    await _stored(operator, "EXPIRE", bulk_id, str(_KEPT_S))
    await _stored(operator, "ZADD", "", now, bulk_id)
    older = await _stored(operator, "ZRANGE", "", "0", str(-_LISTED - 1))
    if older:
        await _stored(operator, "ZREM", "", *map(_text, older))
    return bulk_id


async def read_bulk(operator: Operator, bulk_id: str) -> BulkChange | None:
    """Return a bulk change; None if it does not exist, or is of a queue that may not be read."""
    found = await _read(operator, bulk_id)
    if not found or not operator.access.may_see(found["queue"]):
        return None
    transport = await operator.transport()
    state = found["state"] or "running"
    if state == "running" and not await _is_performed(operator, bulk_id):
        # It may have ended between the two calls, or not have begun yet.
        found = await _read(operator, bulk_id) or found
        state = found["state"] or "running"
        if state == "running" and await server_time(transport) - _int(found, "updated") > 1_000:
            state = "interrupted"
    return BulkChange(
        id=bulk_id, **{name: found[name] for name in ("user", "kind", "queue", "label", "error")},
        total=_int(found, "total") if found["total"] else None,
        done=_int(found, "done"), problems=_int(found, "problems"),
        examples=tuple(json.loads(found["examples"] or "[]")), state=cast("BulkState", state),
        began_at=_int(found, "began"), updated_at=_int(found, "updated"),
        now=await server_time(transport),
    )  # fmt: skip


async def list_bulks(operator: Operator, count: int = 10) -> list[BulkChange]:
    """Return the last bulk changes of the queues that may be read, newest first."""
    found: list[BulkChange] = []
    for each in await _stored(operator, "ZRANGE", "", "0", str(_LISTED - 1), "REV") or ():
        bulk = await read_bulk(operator, _text(each))
        if bulk is not None:
            found.append(bulk)
        if len(found) == count:
            break
    return found


async def cancel_bulk(operator: Operator, bulk_id: str) -> bool:
    """Let a bulk change end after its current step. Return False if it does not exist or has ended.

    Raises:
        AccessDeniedError: The operator's access does not allow changes of its kind.
    """
    found = await _read(operator, bulk_id)
    if not found or found["state"] not in ("running", "rejected"):
        return False
    operator.access.check_action(found["kind"], found["queue"])
    await _stored(operator, "HSET", bulk_id, "cancelled", "1")
    if not await _is_performed(operator, bulk_id):
        await _end(operator, bulk_id, found, "cancelled")
    return True


async def perform_bulk(operator: Operator, bulk_id: str) -> None:
    """Perform a bulk change from where it stopped, until its end or `cancel_bulk`.

    No effect while another process performs it.

    If this coroutine is cancelled, the change is interrupted and can be continued.

    Raises:
        AccessDeniedError: The operator's access does not allow it; nothing is changed.
    """
    found = await _read(operator, bulk_id)
    if not found or found["state"] not in ("running", "rejected"):
        return
    action = _action_of(found)
    operator.access.check_action(action.kind, action.queue)
    transport, token = await operator.transport(), secrets.token_hex(8)
    if not await transport.call(lock(_lock_key(operator, bulk_id), token, _LOCK_MS)):
        return
    try:
        await _stored(operator, "HSET", bulk_id, "state", "running", "error", "")
        state, error = "finished", ""
        try:
            if not await _run(operator, bulk_id, found, action, token):
                state = "cancelled"
        except GlideMQError as problem:
            state, error = "rejected", str(problem)
        await _end(operator, bulk_id, found, state, error)
    finally:
        await transport.call(unlock(_lock_key(operator, bulk_id), token))


async def _run(operator: Operator, bulk_id: str, found: Mapping[str, str], action: ManyAction, token: str) -> bool:
    """Perform the steps; return False if the change was cancelled."""
    transport = await operator.transport()
    done, problems = _int(found, "done"), _int(found, "problems")
    examples: list[str] = json.loads(found["examples"] or "[]")
    queue = await operator.queue(action.queue)
    written = time.monotonic()
    async with aclosing(action.steps(operator, queue, found["position"])) as steps:
        async for step in steps:
            done, problems = done + step.done, problems + len(step.problems)
            examples = (examples + [f"{each.id}: {each.error}" for each in step.problems[:_EXAMPLES]])[:_EXAMPLES]
            if step.position and time.monotonic() - written < _WRITTEN_EVERY_S:
                continue
            await _stored(
                operator, "HSET", bulk_id, "done", str(done), "problems", str(problems), "examples",
                json.dumps(examples), "position", step.position, "updated", str(await server_time(transport)),
            )  # fmt: skip
            written = time.monotonic()
            if not await transport.call(renew(_lock_key(operator, bulk_id), token, _LOCK_MS)):
                raise GlideMQError("another process continues the change, or it was deleted")
            if step.position and await _stored(operator, "HGET", bulk_id, "cancelled"):
                return False
    return True


async def _end(operator: Operator, bulk_id: str, begun: Mapping[str, str], state: str, error: str = "") -> None:
    now = str(await server_time(await operator.transport()))
    await _stored(operator, "HSET", bulk_id, "state", state, "error", error, "updated", now)
    done = _int(await _read(operator, bulk_id), "done")
    texts = {"finished": f"done {done}", "cancelled": f"cancelled after {done}", "rejected": f"rejected: {error}"}
    await write_audit(
        operator, begun["kind"], begun["queue"], begun["user"], begun["detail"], texts[state],
        begun["audit"],
    )  # fmt: skip


def _action_of(found: Mapping[str, str]) -> ManyAction:
    kind: type[ManyAction] = ACTIONS[found["class"]]
    given: dict[str, Any] = json.loads(found["arguments"])
    for name in ("ids", "reason"):
        if name in given:
            given[name] = tuple(given[name])
    if "wanted" in given:
        criteria: dict[str, Any] = given["wanted"]
        criteria["tags"] = tuple(criteria["tags"])
        given["wanted"] = JobFilter(**criteria)
    return kind(queue=found["queue"], **given)


async def _read(operator: Operator, bulk_id: str) -> dict[str, str]:
    found: dict[Any, Any] = await _stored(operator, "HGETALL", bulk_id)
    return defaultdict(str, {_text(name): _text(value) for name, value in found.items()})


def _int(found: Mapping[str, str], name: str) -> int:
    return int(found[name] or 0)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
