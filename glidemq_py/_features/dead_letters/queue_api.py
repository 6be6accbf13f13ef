"""The dead letters of a queue: reading them, giving their jobs another turn, removing them.

They are jobs of another queue; how they come there is `outbox`'s business.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any, Final, cast

from glidemq_py._core import json_text as json
from glidemq_py._core.calls import control
from glidemq_py._core.calls.adding import add
from glidemq_py._core.calls.reading import page as read_page
from glidemq_py._core.checks import check_int
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.job_states import JobOutcome, JobState
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.logs import get_logger
from glidemq_py._core.names import parse_job_id
from glidemq_py._core.payload import encode_data
from glidemq_py._core.queue_options import QueueOptions
from glidemq_py._core.record import JobRecord
from glidemq_py._core.stored_options import read_stored_options
from glidemq_py._features.outbox.calls import dead_letters_to
from glidemq_py._features.outbox.delivery import STORED, Outbox
from glidemq_py._job import Job, QueueLink, reading
from glidemq_py._job.link import Waiter
from glidemq_py._job.rows import stored_row
from glidemq_py.errors import GlideMQError, GlideMQValidationError, JobCostError, JobDataError

__all__ = ["DeadLetters", "declare_dead_letters", "envelope_of", "remove_dead_letter"]

_log = get_logger(__name__)

_PAGE: Final = 200
_PATIENCE_S: Final = 0.5
"""For a worker that is delivering letters while somebody asks for them."""
_NOT_AGAIN: Final = frozenset(("jobId", "delay", "deduplication", "parent", "parents"))
"""Options of the original that its replay does without."""


async def declare_dead_letters(link: QueueLink, options: QueueOptions, subscription: str = "") -> str:
    """Write into the queue's meta where its dead letters go, if the options say so; the name in force, '' = none.

    ``subscription``: whose letters they are, of a broadcast; '' = the queue's.
    """
    given = options.dead_letter_queue
    name, on = (None, "") if given is None else ("", "") if given is False else (given.name, given.kinds_text)
    return await link.transport.call(dead_letters_to(link.keys.meta, name, on, subscription))


class DeadLetters:
    """The part of `Queue` that looks after its dead letters."""

    options: QueueOptions
    _dead_letter_link: QueueLink | None = None
    _dead_letter_waiter: Waiter | None = None
    _outbox: tuple[object, Outbox] | None = None
    """With the event loop that its lock belongs to."""

    async def _connected(self) -> QueueLink:
        raise NotImplementedError

    async def _dead_letters(self, subscription: str = "") -> QueueLink | None:
        """The dead letter queue, with everything in it that this queue owes it; None if there is none.

        ``subscription``: of a broadcast, '' = the queue's own.
        """
        link = await self._connected()
        name = await link.transport.call(dead_letters_to(link.keys.meta, subscription=subscription))
        if not name:
            return None
        loop, held = link.runtime.current_loop(), self._outbox
        outbox = held[1] if held is not None and held[0] is loop else Outbox(link)
        self._outbox = loop, outbox
        try:
            await outbox.deliver(_PATIENCE_S)
        except GlideMQError as error:
            _log.warning("queue %r: delivering dead letters failed, will be retried: %s", link.keys.name, error)
        if self._dead_letter_link is None or self._dead_letter_link.keys.name != name:
            keys = QueueKeys(link.keys.prefix, name)
            await self._close_dead_letters()
            self._dead_letter_waiter = link.waiter.beside(keys)
            # Letters are JSON, however the queue's own jobs are written.
            self._dead_letter_link = QueueLink(
                transport=link.transport, keys=keys, waiter=self._dead_letter_waiter, compression=link.compression,
                runtime=link.runtime,
            )  # fmt: skip
        return self._dead_letter_link

    async def _close_dead_letters(self) -> None:
        if self._dead_letter_waiter is not None:
            await self._dead_letter_waiter.close()

    async def iter_dead_letter_jobs(self, page: int = 500) -> AsyncIterator[Job[Any, Any]]:
        """Iterate over this queue's dead letters (`get_dead_letter_jobs`), a ``page`` (1..1000) a call."""
        check_int("page", page, 1, 1_000)
        letters = await self._dead_letters()
        if letters is None:
            return
        name = (await self._connected()).keys.name
        async for job in reading.iterate(letters, JobState.WAITING, page):
            if envelope_of(job, name) is not None:
                yield job

    async def get_dead_letter_jobs(self, start: int = 0, end: int = -1) -> list[Job[Any, Any]]:
        """This queue's dead letters by position, oldest first; ``end`` inclusive, -1 = the last.

        Each is a job that waits in the dead letter queue. Its ``data`` is the envelope: ``originalQueue``,
        ``originalJobId``, ``data``, ``failedReason`` and ``attemptsMade``. Where the original's data cannot be read
        or has no JSON, ``data`` is its stored text and ``encoding`` is ``"stored"``.

        Returns:
            The jobs; none where the queue has no dead letter queue.
        """
        return await reading.between(self.iter_dead_letter_jobs(), start, end)

    async def get_dead_letter_job(self, job_id: str) -> Job[Any, Any] | None:
        """One of this queue's dead letters by its own id (not the original's); None if there is none."""
        found = await self._find(job_id)
        return None if found is None else found[1]

    async def remove_dead_letter_job(self, job_id: str) -> bool:
        """Delete one of this queue's dead letters; False if there is none of that id."""
        found = await self._find(job_id)
        return False if found is None else await remove_dead_letter(*found)

    async def replay_dead_letter_job(self, job_id: str) -> Job[Any, Any] | None:
        """Add the job of a dead letter to this queue again, and delete the letter.

        The new job has the original's data and options as long as that one exists (but for ``job_id``, ``delay``,
        ``run_at``, ``deduplication`` and parents), else the letter's data and no options. Its id follows from the
        letter's, so that a replay that was cut off and is made again adds nothing twice; the ``outcome`` is
        ``duplicate`` then.

        Returns:
            The new job; None if there is no such letter of this queue.

        Raises:
            JobCostError: it costs more than its group's token bucket holds; the letter stays.
            GlideMQValidationError: it is the letter of a subscription (`Broadcast.replay_dead_letter_job`).
        """
        found = await self._find(job_id)
        if found is None:
            return None
        if "subscription" in found[1].data:
            raise GlideMQValidationError(
                "job_id", job_id, "is of a subscription's message: use Broadcast.replay_dead_letter_job"
            )
        link, (letters, letter) = await self._connected(), found
        name, data, opts, options = await _original(link, letter)
        new_id = f"replay-{hashlib.sha256(json.dumps([letters.keys.name, letter.id]).encode()).hexdigest()[:32]}"
        row = stored_row(name, data, opts, JobOptions.merge(options, JobOptions(job_id=new_id)))
        reply = await link.transport.call(add(link.keys.meta, (row,), not self.options.events))
        result = reply.results[0]
        if not isinstance(result, str) and result[0] == "cost":
            raise JobCostError(options.cost, options.ordering.key if options.ordering else None)
        record = JobRecord(id=new_id, name=name, data=data, opts=opts, timestamp=reply.now)
        job: Job[Any, Any] = Job.from_record(link, record)
        if not isinstance(result, str):
            job.outcome = JobOutcome(result[0])
        await remove_dead_letter(letters, letter)
        return job

    async def _find(self, job_id: str) -> tuple[QueueLink, Job[Any, Any]] | None:
        letter = parse_job_id(job_id)
        letters = await self._dead_letters()
        if letters is None:
            return None
        job = await reading.get_job(letters, letter)
        if job is None or envelope_of(job, (await self._connected()).keys.name) is None:
            return None
        return letters, job


def envelope_of(job: Job[Any, Any], queue: str) -> dict[str, Any] | None:
    """The envelope that a job carries, if it is a dead letter of the queue."""
    try:
        data: Any = job.data
    except JobDataError:
        return None
    if not isinstance(data, dict):
        return None
    envelope = cast("dict[str, Any]", data)
    return envelope if envelope.get("originalQueue") == queue and "originalJobId" in envelope else None


async def _original(link: QueueLink, letter: Job[Any, Any]) -> tuple[str, str, str, JobOptions]:
    """Name, stored data, stored options and what they say, for the replay of a letter."""
    envelope = cast("dict[str, Any]", letter.data)
    original = await reading.get_job(link, str(envelope["originalJobId"]))
    if original is not None and original._data_text is not None:
        opts = json.dumps({key: value for key, value in original.opts.items() if key not in _NOT_AGAIN})
        return original.name or letter.name, original._data_text, opts, read_stored_options(opts)
    data = envelope.get("data")
    if envelope.get("encoding") == STORED and isinstance(data, str):
        return letter.name, data, "{}", JobOptions()
    return letter.name, encode_data(data, link.serializer, link.compression), "{}", JobOptions()


async def remove_dead_letter(letters: QueueLink, letter: Job[Any, Any]) -> bool:
    """Delete a letter and its stream entry (W76). Of those that a Node peer wrote nothing says which entry that is."""
    entry = await letters.transport.command("HGET", letters.keys.job(letter.id), "eid")
    position = await _entry_of(letters, letter.id) if entry is None and letter.state is JobState.WAITING else ""
    removed = await letters.transport.call(control.remove(letters.keys.meta, letter.id))
    if position:
        await letters.transport.command("XDEL", letters.keys.stream, position)
    return removed


async def _entry_of(letters: QueueLink, job_id: str) -> str:
    cursor = ""
    while True:
        found = await letters.transport.call(read_page(letters.keys.meta, JobState.WAITING, cursor, _PAGE, ("state",)))
        for each, position, _ in found.rows:
            if each == job_id:
                return position
        cursor = found.cursor
        if not cursor:
            return ""
