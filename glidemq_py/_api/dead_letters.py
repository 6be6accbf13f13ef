"""The dead letters of a queue: reading, replaying and deleting the entries of its dead letter queue."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

from glidemq_py._core import json_text as json
from glidemq_py._core.calls import administration
from glidemq_py._core.calls.adding import NEW_JOB, AddedOther, add, stored_row
from glidemq_py._core.calls.administration import page as read_page
from glidemq_py._core.checks import check_int
from glidemq_py._core.job_options import JobOptions, cost_error, read_stored_options
from glidemq_py._core.keys import parse_job_id
from glidemq_py._core.misuse import known_methods
from glidemq_py._core.payload import JSON_SERIALIZER, MSGPACK_SERIALIZER, decode_data, encode_data
from glidemq_py._core.record import JobOutcome, JobRecord, JobState
from glidemq_py._features.dead_letters import open_dead_letters
from glidemq_py._features.outbox import STORED, STORED_JSON
from glidemq_py._job import reading
from glidemq_py._job.job import Job
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import Area, ConnectedQueue
from glidemq_py.errors import FairKeyFullError, GlideMQValidationError, JobDataError, SerializationError

_PAGE: Final = 200
_NOT_REPLAYED: Final = frozenset(
    ("jobId", "delay", "deduplication", "parent", "parents", "dependsOn", "onDependencyFailure")
)
"""Options of the original job that a replay does not copy."""


async def _entries(link: QueueLink, page: int) -> AsyncIterator[Job]:
    dead_queue = await open_dead_letters(link)
    if dead_queue is None:
        return
    async for job in reading.iterate(dead_queue, JobState.WAITING, page):
        if envelope_of(job, link.keys.name) is not None:
            yield shown_entry(job, link)


async def get_newest_dead_letter_jobs(
    self: ConnectedQueue, count: int, subscription: str = ""
) -> tuple[list[Job], bool]:
    """Return the entries of this queue among the ``count`` newest of its dead letter queue, newest first.

    Args:
        self: the queue.
        count: number of entries that are examined, 1..1000: also those of other queues.
        subscription: the subscription of a broadcast whose dead letter queue is read; '' = that of the queue.

    Returns:
        The entries, and True if there are older ones.
    """
    check_int("count", count, 1, 1_000)
    dead_queue = await open_dead_letters(await self._first(), subscription)  # the parts share it
    if dead_queue is None:
        return [], False
    parts = {link.keys.name: link for link in await self._links()}
    # The cursor of waiting jobs is the id of the last stream entry that was read.
    command = ("XREVRANGE", dead_queue.keys.stream, "+", "-", "COUNT", str(count + 1))
    entries: Any = await dead_queue.command(*command) or ()
    rows: Any = entries.items() if hasattr(entries, "items") else entries
    newest: list[Any] = [entry_id for entry_id, _ in rows]
    last = newest[-1] if len(newest) > count else ""
    cursor = last.decode() if isinstance(last, bytes) else str(last)
    found: list[Job] = []
    examined = 0
    async for job in reading.iterate(dead_queue, JobState.WAITING, _PAGE, cursor=cursor):
        envelope = envelope_of(job)
        if envelope is not None and envelope["originalQueue"] in parts:
            found.append(shown_entry(job, parts[envelope["originalQueue"]]))
        examined += 1
        if examined == count:
            break
    return found[::-1], bool(cursor)


async def replay_entry(self: ConnectedQueue, job_id: str, edit: Callable[[], Any] | None = None) -> Job | None:
    """Add the job of an entry again, as `dead_letters.replay` does.

    Args:
        self: the queue.
        job_id: id of the entry.
        edit: Returns the data of the new job; None = the data of the entry.

    Raises:
        SerializationError: with ``edit``: the data of the entry cannot be read with the serializer of the queue, so new
            data would be stored in another form; the entry is kept.
    """
    found = await _find(self, job_id)
    if found is None:
        return None
    link, dead_queue, entry = found
    if "subscription" in entry.data:
        raise GlideMQValidationError(
            "job_id", job_id, "belongs to a subscription; use Broadcast.replay_dead_letter_job"
        )
    name, data, opts, options, own_keys = await _original(link, entry)
    if edit is not None:
        _check_readable(link, entry, data)
        data, own_keys = encode_data(edit(), link.serializer, link.compression), None
    new_id = f"replay-{hashlib.sha256(json.dumps([dead_queue.keys.name, entry.id]).encode()).hexdigest()[:32]}"
    row = stored_row(name, data, opts, JobOptions.merge(options, JobOptions(job_id=new_id)))
    if isinstance(own_keys, str):
        row += [*[False] * (NEW_JOB.index("own_keys") - len(row)), own_keys]
    reply = await link.call(add, (row,), not self.options.events)
    (result,) = reply.results
    other = None if isinstance(result, str) else AddedOther(*result)
    if other is not None and other.outcome == "cost":
        raise cost_error(options.cost, options.ordering)
    if other is not None and other.outcome == "backlog":
        raise FairKeyFullError(options.fair_key, int(other.id))
    record = JobRecord(id=new_id, name=name, data=data, opts=opts, timestamp=reply.now)
    job: Job = Job._from_record(link, record)
    if other is not None:
        job.outcome = JobOutcome(other.outcome)
    await remove_dead_letter(dead_queue, entry)
    return job


async def _find(self: ConnectedQueue, job_id: str) -> tuple[QueueLink, QueueLink, Job] | None:
    """Return the part in which the job of an entry failed, the dead letter queue, and the entry."""
    entry = parse_job_id(job_id)
    for link in await self._links():
        dead_queue = await open_dead_letters(link)
        job = None if dead_queue is None else await reading.get_job(dead_queue, entry)
        if dead_queue is not None and job is not None and envelope_of(job, link.keys.name) is not None:
            return link, dead_queue, job
    return None


def envelope_of(job: Job, queue: str | None = None) -> dict[str, Any] | None:
    """Return the envelope of a dead-letter entry of the queue (None = of any queue), or None for any other job."""
    try:
        data: Any = job.data
    except JobDataError:
        return None
    if not isinstance(data, dict):
        return None
    envelope = cast("dict[str, Any]", data)
    origin = envelope.get("originalQueue")
    is_entry = "originalJobId" in envelope and (origin == queue if queue is not None else isinstance(origin, str))
    return envelope if is_entry else None


def shown_entry(entry: Job, link: QueueLink) -> Job:
    """Return a dead-letter entry with the names of the whole queue, and with the value of its data if it can be read.

    The entry contains the stored text of a serializer of the application, such as one that encrypts.
    """
    envelope = cast("dict[str, Any]", entry.data)
    if link.partition is not None:
        job_id = link.shown_id(str(envelope["originalJobId"]))
        envelope = entry._data = envelope | {"originalQueue": link.queue_name, "originalJobId": job_id}
    text = envelope.get("data")
    if envelope.get("encoding") != STORED or not isinstance(text, str) or not _is_custom(link):
        return entry
    with contextlib.suppress(SerializationError):
        value: object = decode_data(text, link.serializer)
        entry._data = {key: part for key, part in envelope.items() if key != "encoding"} | {"data": value}
    return entry


def _is_custom(link: QueueLink) -> bool:
    return link.serializer not in (JSON_SERIALIZER, MSGPACK_SERIALIZER)


async def _original(link: QueueLink, entry: Job) -> tuple[str, str, str, JobOptions, Any]:
    """Return the name, stored data, stored options, parsed options and `ownKeys` for the replay of an entry."""
    envelope = cast("dict[str, Any]", entry.data)
    original_id = str(envelope["originalJobId"])
    original = await reading.get_job(link, original_id)
    if original is not None and original._data_text is not None:
        opts = json.dumps({key: value for key, value in original.opts.items() if key not in _NOT_REPLAYED})
        found: Any = await link.command("HGET", link.keys.job(original_id), "ownKeys")
        own_keys = found.decode() if isinstance(found, bytes) else found
        return original.name or entry.name, original._data_text, opts, read_stored_options(opts), own_keys
    data, own_keys = envelope.get("data"), envelope.get("ownKeys")
    options = JobOptions(tags=entry.tags) if entry.tags else JobOptions()
    opts = json.dumps(options.to_wire())
    if envelope.get("encoding") == STORED and isinstance(data, str):
        return entry.name, data, opts, options, own_keys
    if envelope.get("encoding") == STORED_JSON:
        return entry.name, encode_data(data, JSON_SERIALIZER, link.compression), opts, options, own_keys
    return entry.name, encode_data(data, link.serializer, link.compression), opts, options, own_keys


def _check_readable(link: QueueLink, entry: Job, stored: str) -> None:
    """Raise SerializationError if the serializer of this queue cannot read the data of an entry.

    A serializer of the application may store JSON, too, which a queue without that serializer must not take for values.
    """
    if entry.data.get("encoding") is None or _is_custom(link):
        with contextlib.suppress(SerializationError):
            decode_data(stored, link.serializer)
            return
    raise SerializationError("job_id", entry.id, "its data cannot be read here, so it is not replaced")


async def remove_dead_letter(dead_queue: QueueLink, entry: Job) -> bool:
    """Delete a dead-letter entry and its stream entry, whose id Node clients do not store: it is searched then."""
    stream_id = await dead_queue.command("HGET", dead_queue.keys.job(entry.id), "eid")
    position = await _entry_of(dead_queue, entry.id) if stream_id is None and entry.state is JobState.WAITING else ""
    removed = await dead_queue.call(administration.remove, entry.id)
    if position:
        await dead_queue.command("XDEL", dead_queue.keys.stream, position)
    return removed


async def _entry_of(dead_queue: QueueLink, job_id: str) -> str:
    cursor = ""
    while True:
        found = await dead_queue.call(read_page, JobState.WAITING, cursor, _PAGE, ("state",))
        for each, position, _ in found.rows:
            if each == job_id:
                return position
        cursor = found.cursor
        if not cursor:
            return ""


@known_methods
class DeadLetters(Area):
    """``queue.dead_letters``: the entries of this queue in its dead letter queue."""

    __slots__ = ()

    def iter(self, page: int = 500) -> AsyncIterator[Job]:
        """Iterate over the dead-letter entries of this queue, oldest first; see `dead_letters.get_all`.

        Args:
            page: number of jobs read per call, 1..1000.
        """
        check_int("page", page, 1, 1_000)
        return self._queue._in_turn(lambda link: _entries(link, page))

    async def get_all(self, start: int = 0, end: int = -1) -> list[Job]:
        """Return the dead-letter entries of this queue by position, oldest first.

        Each entry is a waiting job in the dead letter queue. Its ``data`` is the envelope: ``originalQueue``,
        ``originalJobId``, ``data``, ``failedReason`` and ``attemptsMade``. If the data of the original job cannot be
        read or is not JSON, ``data`` is its stored text and ``encoding`` is ``"stored"``.

        Args:
            start: position of the first entry.
            end: position of the last entry, inclusive; -1 = the last one.

        Returns:
            The entries; an empty list if the queue has no dead letter queue.
        """
        return await reading.between(self.iter(), start, end)

    async def get(self, job_id: str) -> Job | None:
        """Return the dead-letter entry with this id (not the id of the original job), or None."""
        found = await _find(self._queue, job_id)
        return None if found is None else shown_entry(found[2], found[0])

    async def remove(self, job_id: str) -> bool:
        """Delete the dead-letter entry with this id; return False if it does not exist."""
        found = await _find(self._queue, job_id)
        return False if found is None else await remove_dead_letter(*found[1:])

    async def replay(self, job_id: str) -> Job | None:
        """Add the job of a dead-letter entry to this queue again, and delete the entry.

        If the original job still exists, the new job has its data and options (except ``job_id``, ``delay``,
        ``run_at``, ``deduplication`` and parents), otherwise the data and tags of the entry. Its id is derived
        from that of the entry, so repeating an interrupted replay does not add the job twice; `Job.outcome` is then
        ``duplicate``.

        Args:
            job_id: id of the entry (not of the original job).

        Returns:
            The new job, or None if the entry does not exist.

        Raises:
            GlideMQValidationError: the job costs more than its group's token bucket holds; the entry is kept.
            FairKeyFullError: the fair key of the job has its maximum backlog; the entry is kept.
            GlideMQValidationError: the entry belongs to a subscription; use `Broadcast.replay_dead_letter_job`.
        """
        return await replay_entry(self._queue, job_id)
