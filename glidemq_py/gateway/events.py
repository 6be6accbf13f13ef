"""Events of queues for the connections that have subscribed to them.

A process reads the events of a queue once for all subscribers; the reads of all queues share one
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._api.queue_events import QueueEvent, QueueEvents
from glidemq_py._client.event_reader import EventEntry, News, event_of
from glidemq_py._client.runtime import stop_task
from glidemq_py._client.transport import Connection
from glidemq_py._core import json_text as json
from glidemq_py._core.keys import queue_number
from glidemq_py._core.logs import get_logger, show_id
from glidemq_py._core.payload import JSON_SERIALIZER, decode_result
from glidemq_py._partitions.link import server_time
from glidemq_py.errors import GlideMQError, SerializationError
from glidemq_py.gateway.job_ids import JobIds
from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.values import PortableMap, frame_of, framed, packed_value

_log = get_logger(__name__)

_PAUSE_S: Final = 0.002
"""Pause after a read that has found events, and the longest time by which jobs on their way to a worker go first."""
_LONG_PAUSE_S: Final = 0.016
"""The same while workers of this process are served: to read and send each event alone would cost as much as that."""
_LEAST_STEP_S: Final = 0.001
_STEPS: Final = 4
"""How often it looks, during such a pause, whether workers are still served."""
_PLAIN: Final[Mapping[str, str]] = {
    "added": "pushed", "active": "pulled", "deduplicated": "duplicated", "stalled": "stalled",
    "waiting-children": "waiting-children", "removed": "removed",
}  # fmt: skip
_TELL_MS: Final = 180_000
_TELL_AGAIN_S: Final = 60.0
_WATCH_S: Final = 5.0
"""Interval of the search for new partitions."""
_OF_QUEUE: Final = ("0", "")
"""Ids of jobs in events that are about the queue."""

Event = dict[str, Any]


async def tell_starts(queue: Queue) -> None:
    """Let a queue, or a partition, write an event for each fetched job and for each duplicate, for three minutes.

    Raises:
        GlideMQError: If the server cannot be reached.
    """
    link = await queue._connected()
    await link.command("HSET", link.keys.meta, "tellsStarts", str(await server_time(link) + _TELL_MS))


class WireEvents:
    """Converts the events of a queue, or of a partition, to those of the protocol.

    Args:
        queue: The queue, or the partition.
        ids: Returns the ids of jobs on the wire.
    """

    def __init__(self, queue: Queue, ids: JobIds) -> None:
        self._queue, self._ids = queue, ids

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self._queue.name

    async def of(self, event: QueueEvent) -> list[Event]:
        """Return the events of the protocol for one of a queue."""
        if event.event in ("paused", "resumed") and "signal" not in event.fields:
            part = self._queue._partition  # each has this event
            return [self._event(event, event.event, "")] if part is None or part.number == 0 else []
        if event.job_id in _OF_QUEUE or event.event in ("drained", "cleaned"):
            return []
        if event.event == "active" and "started" not in event.fields:
            return []  # of a Node client, or a parent that becomes ready
        name = self._queue.name
        job_id = await self._ids.on_wire(name, event.job_id)
        if event.event in _PLAIN:
            return [self._event(event, _PLAIN[event.event], job_id)]
        if event.event == "completed":
            return [self._event(event, "completed", job_id, data=await _result_of(self._queue, event))]
        if event.event == "progress":
            value, message = _decoded(event.fields.get("data")), event.fields.get("message")
            data = {"progress": value, "message": message}
            return [self._event(event, "progress", job_id, progress=value, data=data)]
        if event.event == "delay-changed":
            return [self._event(event, "delayed", job_id, delay=_decoded(event.fields.get("delay")))]
        if event.event == "retrying":
            failed = await self._failed(event, job_id, terminal=False)
            return [failed, self._event(event, "retried", job_id, prev="failed")]
        if event.event in ("failed", "expired"):
            return [await self._failed(event, job_id, terminal=True)]
        return []

    def _event(self, event: QueueEvent, kind: str, job_id: str, **fields: Any) -> Event:
        return {
            "eventType": kind, "queue": wire_name(self._queue._shown_name), "jobId": job_id,
            "timestamp": event.timestamp, **fields,
        }  # fmt: skip

    async def _failed(self, event: QueueEvent, job_id: str, *, terminal: bool) -> Event:
        job = await self._queue.get_job(event.job_id)
        data = None
        with contextlib.suppress(GlideMQError):  # data that cannot be decoded
            data = None if job is None else job.data
        error = event.fields.get("failedReason") or event.event
        return self._event(event, "failed", job_id, error=error, data=data, terminal=terminal)


async def _result_of(queue: Queue, event: QueueEvent) -> Any:
    """Return the result in the event of a completed job; the event of a large one does not have it."""
    text = event.fields.get("returnvalue")
    with contextlib.suppress(SerializationError):
        if text is not None:
            return decode_result(text, JSON_SERIALIZER)
        job = await queue.get_job(event.job_id, exclude_data=True)
        return None if job is None else job.returnvalue
    return None


class _UsualFrames:
    """Frames of the most frequent events, made from parts that are packed once.

    Args:
        queue: The queue, or the partition.
        ids: Returns the ids of jobs on the wire.
    """

    def __init__(self, queue: Queue, ids: JobIds) -> None:
        self._queue, self._ids = queue.name, ids
        self._heads = {
            event.encode(): _head_of(_PLAIN.get(event, event), wire_name(queue._shown_name), members)
            for event, members in (("added", 4), ("active", 4), ("completed", 5))
        }
        self._starts = {
            event: _length_of(head, _NO_DATA if event == b"completed" else b"") + head
            for event, head in self._heads.items()
        }
        """The same with the length of the frame, for events without a result."""
        self._time, self._stamp = b"", b""

    def add(self, entries: Sequence[EventEntry], at: int, frames: list[bytes]) -> int:
        """Append the frames of usual events from this position on; return the position of the first that is unusual."""
        number, starts = self._ids.known_number(self._queue), self._starts
        for entry, pairs in entries[at:]:
            fields: dict[bytes, bytes] = dict(pairs)
            name, job = fields.get(b"event", b""), fields.get(b"jobId", b"")
            start = starts.get(name)
            is_known = number is not None and job.isascii() and queue_number(job.decode()) == number
            if start is None or not is_known or (name == b"active" and b"started" not in fields):
                return at
            time_of = entry.partition(b"-")[0]
            if time_of != self._time:  # events follow each other closely
                self._time, self._stamp = time_of, _TIMESTAMP + _FLOAT.pack(int(time_of))
            if name != b"completed":
                frames.append(b"".join((start, job, self._stamp)))
            elif fields.get(b"returnvalue") == b"null":
                frames.append(b"".join((start, job, self._stamp, _NO_DATA)))
            else:
                result = _packed_result(fields.get(b"returnvalue"))
                if result is None:
                    return at
                frames.append(framed(b"".join((self._heads[name], job, self._stamp, result))))
            at += 1
        return at


def _packed_result(text: bytes | None) -> bytes | None:
    """Return the member of an event with the result of a job; None if it needs another look."""
    if text is None:
        return None
    try:
        return _DATA + packed_value(decode_result(text.decode("utf-8", "replace"), JSON_SERIALIZER))
    except (SerializationError, RecursionError, ValueError):
        return None


def _head_of(kind: str, queue: str, members: int) -> bytes:
    """Return the beginning of a frame's value, up to the id of the job: maps of 2 and ``members`` members."""
    words = ("type", "event", "event", "eventType", kind, "queue", queue, "jobId")
    packed = [packed_value(word) for word in words]
    return b"".join((b"\x82", *packed[:3], bytes((0x80 | members,)), *packed[3:], _ID_HEAD))


def _length_of(head: bytes, tail: bytes) -> bytes:
    """Return the 4 bytes of length that precede a frame with this beginning and end."""
    return (len(head) + _ID_CHARS + len(_TIMESTAMP) + _FLOAT.size + len(tail)).to_bytes(4, "big")


_ID_CHARS: Final = 36
"""Length of the ids that gateways make."""
_ID_HEAD: Final = bytes((0xD9, _ID_CHARS))


_TIMESTAMP: Final = packed_value("timestamp") + b"\xcb"
_DATA: Final = packed_value("data")
_NO_DATA: Final = _DATA + packed_value(None)
_FLOAT: Final = struct.Struct(">d")


class EventFeed:
    """Reads the events of a queue, of all its partitions, from its start until it is closed.

    Args:
        queue: The queue.
        connection: As for `QueueEvents`; readers of one URL share a connection.
        ids: Returns the ids of jobs on the wire.
        is_serving: Returns whether a client is being served from the queue or partition of this name.
    """

    def __init__(self, queue: Queue, connection: Connection, ids: JobIds, is_serving: Callable[[str], bool]) -> None:
        self._queue, self._connection, self._ids, self.is_serving = queue, connection, ids, is_serving
        self._parts: dict[str, _PartFeed] = {}
        self._partitions: object = None
        self._watching: asyncio.Task[None] | None = None
        self._is_closed = False
        self._starting = asyncio.Lock()
        self.subscribers: set[Callable[[bytes], None]] = set()
        """Each sends frames to a client."""
        self.followers: set[News] = set()

    async def start(self) -> None:
        """Connect, unless it is started: all later events will be sent. A feed that ended with an error starts again.

        A feed that is closed meanwhile stays closed.

        Raises:
            GlideMQConnectionError: If the server of the queues cannot be reached.
        """
        async with self._starting:
            await self._queue._plain_link()
            await self._read_parts()
            if self._watching is None and not self._is_closed:
                self._watching = asyncio.create_task(self._watch(), name=f"gateway-starts-{self._queue.name}")

    async def _read_parts(self) -> None:
        """Read the events of all partitions; of those that are new, from the first one on."""
        partitions, since = self._queue._partitions, "0-0" if self._parts else None
        for part in self._queue._parts:
            if self._is_closed:
                return
            feed = self._parts.get(part.name)
            if feed is None:
                feed = self._parts[part.name] = _PartFeed(self, part, self._connection, self._ids, since)
            await feed.start()
        self._partitions = partitions

    async def _watch(self) -> None:
        """Let the queue report the starts of its jobs, and notice new partitions."""
        loop = asyncio.get_running_loop()
        told = loop.time()
        while True:
            await asyncio.sleep(_WATCH_S * random.uniform(0.9, 1.1))
            try:
                await self._queue._check_layout()
                if self._queue._partitions is not self._partitions:
                    async with self._starting:
                        await self._read_parts()
                if loop.time() - told >= _TELL_AGAIN_S:
                    for part in self._queue._parts:
                        await tell_starts(part)
                    told = loop.time()
            except GlideMQError as error:
                _log.debug("gateway: queue %r: its partitions were not read: %s", self._queue.name, error)
            except Exception:
                _log.exception("gateway: queue %r: its partitions were not read", self._queue.name)

    async def close(self) -> None:
        """Stop. Idempotent."""
        self._is_closed = True
        self.subscribers.clear()
        self.followers.clear()
        if self._watching is not None:
            await stop_task(self._watching)
        async with self._starting:  # a partition that is being opened is closed, too
            for feed in tuple(self._parts.values()):
                await feed.close()

    def notify(self, frames: bytes) -> None:
        """Send frames to the subscribers."""
        for send in tuple(self.subscribers):
            send(frames)

    def has_news(self) -> None:
        """Notify the followers that there are events."""
        for news in self.followers:
            news.add(self._queue.name)


class _PartFeed:
    """Reads the events of a queue without partitions, or of one partition.

    Args:
        feed: The feed of the queue.
        part: The queue, or the partition.
        connection: As for `QueueEvents`.
        ids: Returns the ids of jobs on the wire.
        since: Id of the event after which to read; None = now.
    """

    def __init__(
        self, feed: EventFeed, part: Queue, connection: Connection, ids: JobIds, since: str | None
    ) -> None:  # fmt: skip
        self._feed, self._queue = feed, part
        self._wire, self._usual = WireEvents(part, ids), _UsualFrames(part, ids)
        self._events = QueueEvents(part.name, connection, prefix=part.options.prefix, last_event_id=since)
        self._events._reads_layout = False
        self._task: asyncio.Task[None] | None = None
        self._is_telling = self._has_warned = False

    async def start(self) -> None:
        """Connect, unless it is started; see `EventFeed.start`."""
        await self._events.wait_until_ready()
        if not self._is_telling:
            await tell_starts(self._queue)
            self._is_telling = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"gateway-events-{self._queue.name}")

    async def close(self) -> None:
        """Stop. Idempotent."""
        await self._events.close()
        if self._task is not None:
            await stop_task(self._task)

    async def _run(self) -> None:
        while not self._events._closed:
            entries = await self._events._read_entries()
            if entries:
                await self._pause_while_serving(_PAUSE_S)
                self._feed.has_news()
            frames = await self._frames(entries) if self._feed.subscribers else b""
            if frames:
                self._feed.notify(frames)
            if entries:  # those that follow each other closely are read and sent together
                await asyncio.sleep(_PAUSE_S)
                await self._pause_while_serving(_LONG_PAUSE_S - _PAUSE_S)

    async def _pause_while_serving(self, seconds: float) -> None:
        until, feed, name = time.monotonic() + seconds, self._feed, self._queue.name
        step = max(_LEAST_STEP_S, seconds / _STEPS)
        while feed.is_serving(name) and time.monotonic() < until:  # noqa: ASYNC110 - each call would have to set it
            await asyncio.sleep(step)

    async def _frames(self, entries: Sequence[EventEntry]) -> bytes:
        frames: list[bytes] = []
        at = 0
        while (at := self._usual.add(entries, at, frames)) < len(entries):
            event = event_of(*entries[at])
            at += 1
            try:
                found = await self._wire.of(event)
                frames += [frame_of({"type": "event", "event": _portable(each)}) for each in found]
            except GlideMQError as error:
                _log.warning("gateway: queue %r: an event was not sent: %s", self._queue._shown_name, error)
            except (RecursionError, ValueError):  # data of another program
                self._warn_once(event)
        return b"".join(frames)

    def _warn_once(self, event: QueueEvent) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "gateway: queue %r: events with values nested too deeply are not sent: %s of job %s is the first",
                self._queue._shown_name, event.event, show_id(event.job_id),
            )  # fmt: skip


def _portable(event: Event) -> Event:
    """Return the event in the form that needs no further conversion, if only its time can exceed 32 bits."""
    if event.get("data") is not None or "delay" in event:
        return event
    return PortableMap(event, timestamp=float(event["timestamp"]))


def _decoded(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text, "event")
    except SerializationError:
        return text
