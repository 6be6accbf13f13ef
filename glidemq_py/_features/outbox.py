"""The outbox of a queue: entries for other queues, stored with the change that causes them, delivered later.

`Outbox` delivers them: in a maintenance task of workers, and in a `Queue` before it reads entries.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from glidemq_py._core import json_text as json
from glidemq_py._core.calls import call, unpack
from glidemq_py._core.calls.adding import Row, add, row
from glidemq_py._core.job_options import read_stored_options
from glidemq_py._core.keys import QueueKeys, split_budget_key
from glidemq_py._core.logs import get_logger
from glidemq_py._core.payload import JSON_SERIALIZER, MSGPACK_SERIALIZER, decode_data, encode_data
from glidemq_py._features.failed_attempts import read_failed_attempts
from glidemq_py._features.flows.calls import ChildOutcome, children_ended, notify_parents
from glidemq_py._features.queue_list import register_keys
from glidemq_py._features.usage import Charge, charge_budget
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQError, PayloadTooLargeError, SerializationError


class OutboxEntry(NamedTuple):
    """An undelivered entry (``lua/features/outbox/outbox.lua``)."""

    id: str
    kind: str
    fields: dict[str, str]


class OutboxReply(NamedTuple):
    """Reply of `outbox`."""

    held: bool
    """False: another client holds the outbox lock; nothing was read."""
    entries: list[OutboxEntry]
    """Empty at the end of the round."""
    writes: int = 0
    """Number of unfinished staged writes of the queue."""


def _read(reply: bytes) -> OutboxReply:
    held, entries, writes = unpack(reply)
    read: list[OutboxEntry] = []
    for entry_id, flat in entries:
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        read.append(OutboxEntry(entry_id, fields.pop("kind", ""), fields))
    return OutboxReply(bool(held), read, writes)


@call("outbox", read=_read, repeatable=True)
def outbox(holder: str, hold: int, cursor: str, delivered: Sequence[str]) -> OutboxReply:
    """Delete the ``delivered`` entries and read those after ``cursor`` ('' = from the first).

    ``holder`` gets the outbox lock for ``hold`` ms.
    """
    ...


@call("dead_letter_queue", repeatable=True)
def dead_letter_queue(name: str | None = None, on: str = "", subscription: str = "") -> str:
    """Set the dead letter queue and the outcomes that use it; returns the name in effect.

    Args:
        name: name of the dead letter queue; '' = none, None = keep the current setting.
        on: the outcomes, comma separated.
        subscription: the subscription of a broadcast that the setting is for; '' = the queue itself.
    """
    ...


async def deliver_charge(link: QueueLink, entry: OutboxEntry) -> None:
    """Charge the usage of an outbox entry to its budget. A malformed entry counts as delivered.

    Raises:
        GlideMQError: the delivery failed; the entry stays in the outbox.
    """
    fields = entry.fields
    try:
        meta, flow_id = split_budget_key(fields["key"])
        usage: Any = json.loads(fields["usage"])
        tokens, costs, total_tokens, total_cost = usage
        charge: Charge = (dict(tokens), dict(costs), float(total_tokens), float(total_cost))
    except (ValueError, KeyError, TypeError, SerializationError):
        return
    mark = f"{link.keys.name}:{fields['id']}:{fields['activation']}"
    await link.transport.call(charge_budget(meta, flow_id, mark, fields["id"], charge))


_log = get_logger(__name__)

STORED_JSON: Final = "json"
"""Value of an envelope's ``encoding`` if its ``data`` is the stored text of another serializer, which is JSON."""
STORED: Final = "stored"
"""Value of an envelope's ``encoding`` if its ``data`` is the stored text instead of the deserialized value."""
_HOLD_MS: Final = 5_000
_POLL_S: Final = 0.02
_NOTIFY_CALLS: Final = 1_000
"""Calls per round, each of which notifies up to 500 parents."""
_NO_LIMIT: Final = 2**40


class Outbox:
    """The outbox of one queue, for one event loop. Concurrent deliveries run one after the other.

    Args:
        link: the queue.
        kinds: kinds of entries to deliver; None = all.
    """

    def __init__(self, link: QueueLink, kinds: Collection[str] | None = None) -> None:
        self._link = link
        self._kinds = kinds
        self._holder = secrets.token_hex(8)
        self._busy = asyncio.Lock()
        self._elsewhere = False
        self.left = False
        """Whether the last round left entries: of another kind, or because another client held the lock."""
        self.writes = 0
        """Number of unfinished staged writes of the queue in the last round."""

    async def deliver(self, wait_s: float = 0.0) -> int:
        """Deliver all entries and return their number; 0 if another client holds the outbox lock.

        Args:
            wait_s: seconds to wait for another client that holds the lock.

        Raises:
            GlideMQError: an entry could not be delivered and remains in the outbox; all others were delivered.
        """
        async with self._busy:
            count = await self._round()
            deadline = time.monotonic() + wait_s
            while self._elsewhere and time.monotonic() < deadline:
                await asyncio.sleep(_POLL_S)
                count += await self._round()
            return count

    async def _round(self) -> int:
        link, cursor, count = self._link, "", 0
        done: list[str] = []
        unlisted: set[str] = set()
        failure: GlideMQError | None = None
        left = False
        self.left = True
        while True:
            reply = await link.call(outbox, self._holder, _HOLD_MS, cursor, done)
            done = []
            self.writes = reply.writes
            self._elsewhere = not reply.held
            if not reply.entries:
                break
            cursor = reply.entries[-1].id
            malformed = self._malformed(reply.entries)
            done = list(malformed)
            valid = [entry for entry in reply.entries if entry.id not in malformed]
            for (kind, to), entries in _by_target(valid).items():
                if self._kinds is not None and kind not in self._kinds:
                    continue
                try:
                    delivered = await _DELIVERIES[kind](self._link, to, entries)
                except GlideMQError as error:
                    failure = failure or error
                else:
                    done += [entry.id for entry in entries] if delivered else []
                    if kind == "dead":
                        unlisted.add(to)
            count += len(done) - len(malformed)
            left = left or len(done) < len(reply.entries)
        self.left = left or self._elsewhere
        for queue in unlisted:
            await register_keys(link.transport, QueueKeys(link.keys.prefix, queue))
        if failure is not None:
            raise failure
        return count

    def _malformed(self, entries: list[OutboxEntry]) -> set[str]:
        """Return the ids of the entries that can never be delivered. They are logged and deleted."""
        ids: set[str] = set()
        for entry in entries:
            if problem := _problem_of(entry):
                _log.warning("queue %s: deleted malformed outbox entry %s: %s", self._link.label, entry.id, problem)
                ids.add(entry.id)
        return ids


def _problem_of(entry: OutboxEntry) -> str:
    """Return why the entry is malformed, '' if it is not."""
    missing = [name for name in _REQUIRED.get(entry.kind, ()) if name not in entry.fields]
    if missing:
        return f"a {entry.kind!r} entry without {', '.join(missing)}"
    attempts = entry.fields.get("attempts", "0")
    if entry.kind == "dead" and not _COUNT.fullmatch(attempts):
        return f"attempts {attempts[:40]!r}: not a number"
    return ""


def _by_target(entries: list[OutboxEntry]) -> dict[tuple[str, str], list[OutboxEntry]]:
    """Return the entries grouped by kind and target; kinds of later versions are left to those versions."""
    by_target: dict[tuple[str, str], list[OutboxEntry]] = {}
    for entry in entries:
        if entry.kind in _DELIVERIES:
            # Each charge is delivered alone: one that fails must not block the others.
            to = entry.id if entry.kind == "budget" else entry.fields["to"]
            by_target.setdefault((entry.kind, to), []).append(entry)
        else:
            _log.debug("outbox entry %s has unknown kind %r", entry.id, entry.kind)
    return by_target


async def _deliver_dead_letters(link: QueueLink, queue: str, entries: list[OutboxEntry]) -> bool:
    keys = QueueKeys(link.keys.prefix, queue)
    rows = [_dead_letter_row(link, entry) for entry in entries]
    await link.transport.call(add(keys.meta, rows, False))
    return True


async def _notify_parents(link: QueueLink, stem: str, entries: list[OutboxEntry]) -> bool:
    """Report finished children to their parents' queue (key prefix ``stem``), then deliver that queue's outbox."""
    names = ("parent", "child", "how", "text", "policy", "generation")
    ends = [ChildOutcome(*(entry.fields.get(name, "") for name in names)) for entry in entries]
    if not await link.transport.call(children_ended(f"{stem}meta", ends)):
        return True
    prefix, _, name = stem[:-2].rpartition(":{")
    onward = QueueLink(transport=link.transport, keys=QueueKeys(prefix, name), waiter=link.waiter)
    try:
        await Outbox(onward, kinds=("child", "parents")).deliver()
    except GlideMQError as error:
        _log.debug("queue %r: outbox left to the queue's own workers: %s", name, error)
    return True


async def _charge(link: QueueLink, _: str, entries: list[OutboxEntry]) -> bool:
    for entry in entries:
        await deliver_charge(link, entry)
    return True


async def _notify_many_parents(link: QueueLink, stem: str, _: list[OutboxEntry]) -> bool:
    """Notify the parents of children with very many, all of which are in this queue's own keys.

    Returns:
        False if there are more: the entry is kept, and the next round continues.
    """
    for _call in range(_NOTIFY_CALLS):
        if not await link.transport.call(notify_parents(f"{stem}meta")):
            return True
    return False


_REQUIRED: Final = {
    "dead": ("to", "id", "name", "data", "reason", "attempts", "activation"),
    "child": ("to", "parent", "child", "how", "text", "policy"),
    "parents": ("to",),
}
"""Fields of each kind of entry; `deliver_charge` checks those of a budget."""
_COUNT: Final = re.compile(r"[0-9]{1,16}")

_DELIVERIES: Final = {
    "dead": _deliver_dead_letters,
    "child": _notify_parents,
    "parents": _notify_many_parents,
    "budget": _charge,
}


def dead_letter_id(queue: str, job_id: str, activation: str) -> str:
    """Return the id of the dead-letter entry of a failed job."""
    # Names may be as long as ids and contain any separator, so the id is a digest of the parts.
    digest = hashlib.sha256(json.dumps([queue, job_id, activation]).encode("utf-8", "surrogatepass"))
    return f"dead-{digest.hexdigest()[:32]}"


def _dead_letter_row(link: QueueLink, entry: OutboxEntry) -> Row:
    fields = entry.fields
    queue, job_id = link.keys.name, fields["id"]
    envelope: dict[str, Any] = {
        "originalQueue": queue,
        "originalJobId": job_id,
        "data": None,
        "failedReason": fields["reason"],
        "attemptsMade": int(fields["attempts"]),
    }
    envelope |= {name: fields[name] for name in ("subscription", "ownKeys") if fields.get(name)}
    if attempts := read_failed_attempts(fields.get("failedAttempts", "")):
        envelope["failedAttempts"] = [attempt.to_dict() for attempt in attempts]
    try:
        text = _encode(link, envelope | _readable(link, fields["data"]))
    except SerializationError:
        # Broken, written by another serializer, or not representable in JSON: keep the stored text.
        text = _encode(link, envelope | {"data": fields["data"], "encoding": STORED})
    tags = read_stored_options(fields.get("opts", "{}")).tags
    opts = json.dumps({"tags": list(tags)}) if tags else "{}"
    return row(fields["name"], text, opts, job_id=dead_letter_id(queue, job_id, fields["activation"]))


def _readable(link: QueueLink, stored: str) -> dict[str, Any]:
    """Return the members of an envelope for data that can be written as JSON.

    A serializer of the application may encrypt, so its texts are never deserialized here: those that are JSON are
    embedded as they are.

    Raises:
        SerializationError: The text is not JSON.
    """
    if not stored:
        return {}
    if link.serializer in (JSON_SERIALIZER, MSGPACK_SERIALIZER):
        return {"data": decode_data(stored, link.serializer)}
    return {"data": decode_data(stored), "encoding": STORED_JSON}


def _encode(link: QueueLink, envelope: dict[str, Any]) -> str:
    try:
        return encode_data(envelope, JSON_SERIALIZER, link.compression, option="dead letter")
    except PayloadTooLargeError:
        # The data was within the limit, so the entry must not fail because of its envelope. Not compressed: readers
        # decompress at most the limit.
        return encode_data(envelope, JSON_SERIALIZER, "none", _NO_LIMIT)
