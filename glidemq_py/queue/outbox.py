"""Delivering what a queue owes to other queues. Workers do it as a duty; a queue does it before it looks.

A delivery is an add under an id that follows from what is owed, so a repeated one is a duplicate; what was delivered is
crossed off by a later call. A crash between the two repeats the delivery, and that changes nothing.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from typing import Any, Final

from glidemq_py.errors import GlideMQError, PayloadTooLargeError, SerializationError
from glidemq_py.job import QueueLink
from glidemq_py.queue.charges import deliver_charge
from glidemq_py.wire import json
from glidemq_py.wire.calls.adding import Row, add, row
from glidemq_py.wire.calls.outbox import OutboxEntry, outbox
from glidemq_py.wire.keys import QueueKeys
from glidemq_py.wire.payload import JSON_SERIALIZER, decode_data, encode_data

__all__ = ["STORED", "Outbox", "dead_letter_id"]

_log = logging.getLogger(__name__)

STORED: Final = "stored"
"""Value of an envelope's ``encoding`` where its ``data`` is the text as it was stored, not what it meant."""
_HOLD_MS: Final = 5_000
_NO_LIMIT: Final = 2**40


class Outbox:
    """The outbox of one queue. One round at a time is made, however many ask."""

    def __init__(self, link: QueueLink) -> None:
        self._link = link
        self._holder = secrets.token_hex(8)
        self._busy = link.pace.lock()
        self.writes = 0
        """Staged writes of the queue that had not ended at the last look."""

    async def deliver(self) -> int:
        """Deliver everything that is owed; the number of deliveries. 0 too where somebody else is at it.

        Raises:
            GlideMQError: something could not be delivered; it stays owed, all else was delivered.
        """
        async with self._busy:
            return await self._round()

    async def _round(self) -> int:
        link, cursor, count = self._link, "", 0
        done: list[str] = []
        failure: GlideMQError | None = None
        while True:
            reply = await link.transport.call(outbox(link.keys.meta, self._holder, _HOLD_MS, cursor, done))
            done = []
            self.writes = reply.writes
            if not reply.entries:
                break
            cursor = reply.entries[-1].id
            for queue, letters in _by_queue(reply.entries).items():
                try:
                    await self._deliver_letters(queue, letters)
                except GlideMQError as error:
                    failure = failure or error
                else:
                    done += [entry.id for entry in letters]
            for entry in reply.entries:
                if entry.kind == "budget":
                    try:
                        await deliver_charge(link, entry)
                    except GlideMQError as error:
                        failure = failure or error
                    else:
                        done.append(entry.id)
            count += len(done)
        if failure is not None:
            raise failure
        return count

    async def _deliver_letters(self, queue: str, letters: list[OutboxEntry]) -> None:
        keys = QueueKeys(self._link.keys.prefix, queue)
        rows = [_letter_row(self._link, entry) for entry in letters]
        await self._link.transport.call(add(keys.meta, rows, False))


def _by_queue(entries: list[OutboxEntry]) -> dict[str, list[OutboxEntry]]:
    """Dead letters by the queue they go to; entries of kinds that a later version brings are left to it."""
    by_queue: dict[str, list[OutboxEntry]] = {}
    for entry in entries:
        if entry.kind == "dead":
            by_queue.setdefault(entry.fields["to"], []).append(entry)
        elif entry.kind != "budget":
            _log.debug("outbox entry %s is of the unknown kind %r", entry.id, entry.kind)
    return by_queue


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
