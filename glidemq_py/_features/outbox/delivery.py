"""Delivering what a queue owes to other queues. Workers do it as a duty; a queue does it before it looks.

A dead letter is an add under an id that follows from what is owed, so a repeated one is a duplicate; a parent counts
each child once. What was delivered is crossed off by a later call. A crash between the two repeats the delivery, and
that changes nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection
from typing import Any, Final

from glidemq_py._core import json_text as json
from glidemq_py._core.calls.adding import Row, add, row
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._core.payload import JSON_SERIALIZER, decode_data, encode_data
from glidemq_py._features.budgets.charges import deliver_charge
from glidemq_py._features.flows.calls import ChildEnd, children_ended
from glidemq_py._features.outbox.calls import OutboxEntry, outbox
from glidemq_py._job import QueueLink
from glidemq_py.errors import GlideMQError, PayloadTooLargeError, SerializationError

__all__ = ["STORED", "Outbox", "dead_letter_id"]

_log = get_logger(__name__)

STORED: Final = "stored"
"""Value of an envelope's ``encoding`` where its ``data`` is the text as it was stored, not what it meant."""
_HOLD_MS: Final = 5_000
_LOOK_AGAIN_S: Final = 0.02
_NO_LIMIT: Final = 2**40


class Outbox:
    """The outbox of one queue. One round at a time is made, however many ask.

    Args:
        link: the queue.
        kinds: entries to deliver; None = all.
    """

    def __init__(self, link: QueueLink, kinds: Collection[str] | None = None) -> None:
        self._link = link
        self._kinds = kinds
        self._holder = secrets.token_hex(8)
        self._busy = link.runtime.lock()
        self._elsewhere = False
        self.left = False
        """Whether the last round left entries: of a kind that is not delivered here, or for another holder."""
        self.writes = 0
        """Staged writes of the queue that had not ended at the last look."""

    async def deliver(self, patience: float = 0.0) -> int:
        """Deliver everything that is owed; the number of deliveries. 0 too where somebody else is at it.

        Args:
            patience: seconds for which somebody else is waited for.

        Raises:
            GlideMQError: something could not be delivered; it stays owed, all else was delivered.
        """
        async with self._busy:
            count = await self._round()
            while self._elsewhere and patience > 0:
                await self._link.runtime.sleep(_LOOK_AGAIN_S)
                patience -= _LOOK_AGAIN_S
                count += await self._round()
            return count

    async def _round(self) -> int:
        link, cursor, count = self._link, "", 0
        done: list[str] = []
        failure: GlideMQError | None = None
        left = False
        self.left = True
        while True:
            reply = await link.transport.call(outbox(link.keys.meta, self._holder, _HOLD_MS, cursor, done))
            done = []
            self.writes = reply.writes
            self._elsewhere = not reply.held
            if not reply.entries:
                break
            cursor = reply.entries[-1].id
            for (kind, to), entries in _by_target(reply.entries).items():
                if self._kinds is not None and kind not in self._kinds:
                    continue
                try:
                    await _DELIVERIES[kind](self._link, to, entries)
                except GlideMQError as error:
                    failure = failure or error
                else:
                    done += [entry.id for entry in entries]
            count += len(done)
            left = left or len(done) < len(reply.entries)
        self.left = left or self._elsewhere
        if failure is not None:
            raise failure
        return count


def _by_target(entries: list[OutboxEntry]) -> dict[tuple[str, str], list[OutboxEntry]]:
    """Entries by their kind and where they go; those of kinds that a later version brings are left to it."""
    by_target: dict[tuple[str, str], list[OutboxEntry]] = {}
    for entry in entries:
        if entry.kind in _DELIVERIES:
            # A charge is by itself: one that cannot be made must not keep others.
            to = entry.id if entry.kind == "budget" else entry.fields["to"]
            by_target.setdefault((entry.kind, to), []).append(entry)
        else:
            _log.debug("outbox entry %s is of the unknown kind %r", entry.id, entry.kind)
    return by_target


async def _deliver_dead_letters(link: QueueLink, queue: str, letters: list[OutboxEntry]) -> None:
    keys = QueueKeys(link.keys.prefix, queue)
    rows = [_letter_row(link, entry) for entry in letters]
    await link.transport.call(add(keys.meta, rows, False))


async def _notify_parents(link: QueueLink, stem: str, entries: list[OutboxEntry]) -> None:
    """Children of ours have ended; ``stem`` is that of their parents' queue, which may owe that to others now."""
    names = ("parent", "child", "how", "text", "policy")
    ends = [ChildEnd(*(entry.fields[name] for name in names)) for entry in entries]
    if not await link.transport.call(children_ended(f"{stem}meta", ends)):
        return
    prefix, _, name = stem[:-2].rpartition(":{")
    onward = QueueLink(transport=link.transport, keys=QueueKeys(prefix, name), waiter=link.waiter)
    try:
        await Outbox(onward, kinds=("child",)).deliver()
    except GlideMQError as error:
        _log.debug("queue %r: outbox left to the queue's own workers: %s", name, error)


async def _charge(link: QueueLink, _: str, entries: list[OutboxEntry]) -> None:
    for entry in entries:
        await deliver_charge(link, entry)


_DELIVERIES: Final = {"dead": _deliver_dead_letters, "child": _notify_parents, "budget": _charge}


def dead_letter_id(queue: str, job_id: str, activation: str) -> str:
    """Id of the dead letter of one end of a job."""
    # A name may be as long as an id and hold every separator, so a digest of the parts stands for them.
    digest = hashlib.sha256(json.dumps([queue, job_id, activation]).encode("utf-8", "surrogatepass"))
    return f"dead-{digest.hexdigest()[:32]}"


def _letter_row(link: QueueLink, entry: OutboxEntry) -> Row:
    fields = entry.fields
    queue, job_id = link.keys.name, fields["id"]
    envelope: dict[str, Any] = {
        "originalQueue": queue,
        "originalJobId": job_id,
        "data": None,
        "failedReason": fields["reason"],
        "attemptsMade": int(fields["attempts"]),
    }
    if "subscription" in fields:
        envelope["subscription"] = fields["subscription"]
    try:
        envelope["data"] = decode_data(fields["data"], link.serializer) if fields["data"] else None
        text = _encode(link, envelope)
    except SerializationError:
        # Broken, written by another serializer, or a value that JSON has no words for: nothing of it is lost.
        text = _encode(link, envelope | {"data": fields["data"], "encoding": STORED})
    return row(fields["name"], text, "{}", job_id=dead_letter_id(queue, job_id, fields["activation"]))


def _encode(link: QueueLink, envelope: dict[str, Any]) -> str:
    try:
        return encode_data(envelope, JSON_SERIALIZER, link.compression, option="dead letter")
    except PayloadTooLargeError:
        # The data was within the limit, so the letter must not fail for its envelope. Not compressed: readers unpack
        # no more than the limit.
        return encode_data(envelope, JSON_SERIALIZER, "none", _NO_LIMIT)
