"""Streams of jobs: a handler appends chunks, readers follow them (``lua/features/streams``).

One blocking connection wakes up all readers of a queue. It only signals that there is something to read: readers read
the chunks themselves, and also poll. If it is lost, readers are slower, but no chunk is lost.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from glidemq_py._client.runtime import stop_task, wait_for_event
from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls import Argument, Call, call
from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py._core.checks import check_int
from glidemq_py._core.keys import entry_order, parse_job_id
from glidemq_py._core.logs import get_logger
from glidemq_py._core.payload import PAYLOAD_LIMIT
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import ConnectedQueue
from glidemq_py.errors import GlideMQError, GlideMQValidationError, PayloadTooLargeError

if TYPE_CHECKING:
    from glidemq_py._client.shared_reads import ReadConnection


class Appended(NamedTuple):
    """Reply of `append`."""

    status: AttemptStatus
    entry: str
    """Id of the stream entry."""


@call("stream_chunk", repeatable=True)
def append(id: str, fence: int, processed_on: int, keep: int, fields: Sequence[str], number: Argument[str]) -> Appended:
    """Append a chunk of flat ``fields``, and keep the newest ``keep`` chunks (0 = all)."""
    ...


CHUNKS_KEPT = 10_000
"""Chunks kept per job by default."""
MAX_FIELDS: Final = 1_000


def chunk_call(
    link: QueueLink[JobTransport], job_id: str, token: tuple[int, int], chunk: Mapping[str, str | float], keep: int
) -> Callable[[str], Call[Appended]]:
    """Return the call that appends a chunk, given its number; see `Job.stream`."""
    return partial(append, link.keys.meta, job_id, *token, check_int("keep", keep, 0, 2**31), _flat(chunk))


def _flat(chunk: Any) -> list[str]:
    if not isinstance(chunk, Mapping):
        raise GlideMQValidationError("chunk", chunk, f"must be a mapping, not {type(chunk).__name__}")
    given = cast("Mapping[object, object]", chunk)
    if not given or len(given) > MAX_FIELDS:
        raise GlideMQValidationError("chunk", given, f"must have 1 to {MAX_FIELDS} fields")
    flat: list[str] = []
    for name, value in given.items():
        if not isinstance(name, str) or not name:
            raise GlideMQValidationError("chunk", given, "field names must be str and not empty")
        flat += [name, _text(name, value)]
    try:
        size = sum(len(text.encode()) for text in flat)
    except UnicodeEncodeError:
        raise GlideMQValidationError("chunk", given, "must not contain lone surrogates") from None
    if size > PAYLOAD_LIMIT:
        raise PayloadTooLargeError("chunk", size, PAYLOAD_LIMIT)
    return flat


def _text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return repr(value)
    raise GlideMQValidationError(
        f"chunk[{name!r}]", value, "must be a str or a finite number; encode other values as JSON"
    )


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """One entry of a job's stream.

    Attributes:
        id: stream entry id, ``<epoch ms>-<number>``; later chunks have greater ids.
        fields: the fields of the chunk, as text.
    """

    id: str
    fields: dict[str, str]

    @property
    def timestamp(self) -> int:
        """Time of writing, epoch ms by the server's clock."""
        return int(self.id.partition("-")[0])

    @property
    def type(self) -> str | None:
        """The field ``type``, by convention the kind of the chunk; or None."""
        return self.fields.get("type")

    @property
    def content(self) -> str | None:
        """The field ``content``, by convention its text; or None."""
        return self.fields.get("content")


_log = get_logger(__name__)

_SLICE_MS: Final = 100
"""How long one read blocks, which is the longest delay until a new reader is included."""
_EVENTS: Final = 200
_MAX_KEYS: Final = 500
_IDLE_S: Final = 5.0
_ENDS: Final = frozenset((b"completed", b"failed", b"expired", b"revoked", b"removed"))


class _Watch:
    __slots__ = ("job_id", "position", "signal")

    def __init__(self, job_id: str, position: str, signal: asyncio.Event) -> None:
        self.job_id = job_id
        self.position = position
        self.signal = signal


class ChunkWatch:
    """Wakes up a reader if there is a chunk after its position or its job has ended.

    Args:
        link: the queue.
    """

    def __init__(self, link: QueueLink) -> None:
        self._link = link
        self._watches: set[_Watch] = set()
        self._wanted = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._dedicated: ReadConnection | None = None
        self._closed = False

    async def wait(self, job_id: str, position: str, seconds: float) -> None:
        """Wait for a chunk after ``position`` or the end of the job, for at most ``seconds``."""
        watch = _Watch(job_id, position, asyncio.Event())
        self._watches.add(watch)
        if not self._closed and (self._reader is None or self._reader.done()):
            self._reader = asyncio.create_task(self._read(), name=f"glidemq-chunks-{self._link.keys.name}")
        self._wanted.set()
        try:
            await wait_for_event(watch.signal, seconds)
        finally:
            self._watches.discard(watch)

    async def _read(self) -> None:
        from glidemq_py._client.shared_reads import open_reader  # not for workers

        try:
            self._dedicated = await open_reader(self._link.transport)
            await self._follow(self._dedicated)
        except GlideMQError as error:
            if not self._closed:
                _log.debug("queue %s: reading job streams by polling: %s", self._link.label, error)
        finally:
            if self._dedicated is not None:
                await self._dedicated.close()
                self._dedicated = None

    async def _follow(self, transport: ReadConnection) -> None:
        keys = self._link.keys
        found = await transport.command("XREVRANGE", keys.events, "+", "-", "COUNT", "1")
        events = next(iter(found)).decode() if found else "0-0"
        last_wanted = time.monotonic()
        while not self._closed:
            watches = list(self._watches)[:_MAX_KEYS]
            if not watches:
                if time.monotonic() - last_wanted > _IDLE_S:
                    return
                self._wanted.clear()
                await wait_for_event(self._wanted, _IDLE_S)
                continue
            last_wanted = time.monotonic()
            streams = {keys.events: events}
            for watch in watches:
                # Readers of one job may have different positions: wait for chunks after the lowest one.
                key = keys.jstream(watch.job_id)
                streams[key] = min(streams.get(key, watch.position), watch.position, key=entry_order)
            reply: dict[bytes, Any] | None = await transport.command(
                "XREAD", "COUNT", str(_EVENTS), "BLOCK", str(_SLICE_MS), "STREAMS", *streams, *streams.values()
            )
            if reply:
                events = self._wake(watches, reply, events)

    def _wake(self, watches: list[_Watch], reply: dict[bytes, Any], events: str) -> str:
        """Wake up the readers that the reply concerns; return the new position in the events stream."""
        keys = self._link.keys
        happened = reply.get(keys.events.encode(), {})
        ended: set[str] = set()
        for entry, pairs in happened.items():
            events = entry.decode()
            fields = dict(pairs)
            if fields.get(b"event") in _ENDS:
                ended.add(fields.get(b"jobId", b"").decode("utf-8", "replace"))
        woken = [w for w in watches if w.job_id in ended or keys.jstream(w.job_id).encode() in reply]
        self._watches.difference_update(woken)
        for watch in woken:
            watch.signal.set()
        return events

    async def close(self) -> None:
        """Stop. Waiting readers continue by polling."""
        self._closed = True
        self._wanted.set()
        reader, dedicated = self._reader, self._dedicated
        if reader is not None:
            if dedicated is not None:
                await dedicated.close()
            await stop_task(reader)


_MAX_COUNT: Final = 10_000
_FIRST_S, _LAST_S, _GROWTH = 0.2, 2.0, 1.5
_ENTRY: Final = re.compile(r"\d{1,19}(-\d{1,19})?")
_BEGINNING: Final = "0-0"
_WATCH: Final = "chunk watch"


async def read_stream(
    self: ConnectedQueue,
    job_id: str,
    *,
    last_id: str | None = None,
    count: int = 100,
    block: Milliseconds | None = None,
) -> list[StreamChunk]:
    """Return chunks of a job's stream, oldest first.

    Args:
        job_id: id of the job; a job that does not exist has no chunks.
        last_id: return chunks after this entry id; None = from the oldest chunk kept.
        count: maximum number of chunks, 1..10_000.
        block: if there are no chunks, wait this long for one (ms or timedelta). Other calls of this queue are not
            blocked.

    Raises:
        GlideMQValidationError: an argument is invalid.
    """
    parse_job_id(job_id)
    position = _position(last_id)
    most = check_int("count", count, 1, _MAX_COUNT)
    seconds = 0.0 if block is None else to_ms("block", block) / 1000
    return await self._of(job_id, lambda link, key: _wait_for(self, link, key, position, most, seconds))


async def _wait_for(
    self: ConnectedQueue, link: QueueLink, key: str, position: str, most: int, seconds: float
) -> list[StreamChunk]:
    deadline, interval = time.monotonic() + seconds, _FIRST_S
    while True:
        chunks = await _read(link, key, position, most)
        left = deadline - time.monotonic()
        if chunks or left <= 0:
            return chunks
        await link.runtime.there(_watch(self, link, key, position, min(left, interval)))
        interval = min(interval * _GROWTH, _LAST_S)


def follow_stream(
    queue: ConnectedQueue, job_id: str, last_id: str | None = None, page: int = 100
) -> AsyncIterator[StreamChunk]:
    """Iterate over a job's chunks; see `Jobs.iter_stream`."""
    return _stream(queue, parse_job_id(job_id), _position(last_id), check_int("page", page, 1, _MAX_COUNT))


async def _stream(self: ConnectedQueue, name: str, position: str, page: int) -> AsyncIterator[StreamChunk]:
    link, job_id = await self._locate(name)
    interval, known = _FIRST_S, False
    while True:
        # Read the state first: if the job has ended, all its chunks are in the stream.
        state = await link.command("HGET", link.keys.job(job_id), "state")
        chunks = await _read(link, job_id, position, page)
        if state is None and not chunks and not known:
            raise link.not_found(name)
        known = True
        for chunk in chunks:
            position = chunk.id
            yield chunk
        if len(chunks) == page:
            continue
        if state in (None, b"completed", b"failed"):
            return
        interval = _FIRST_S if chunks else min(interval * _GROWTH, _LAST_S)
        await link.runtime.there(_watch(self, link, job_id, position, interval))


async def _watch(self: ConnectedQueue, link: QueueLink, job_id: str, position: str, seconds: float) -> None:
    """Wait by the `ChunkWatch` of the running event loop; see there."""
    connection = await self._transport.connected()
    watch = connection.part(_WATCH, lambda transport: ChunkWatch(replace(link, transport=transport)))
    await watch.wait(job_id, position, seconds)


def _position(last_id: object) -> str:
    if last_id is None:
        return _BEGINNING
    text = str(last_id)
    if not _ENTRY.fullmatch(text):
        raise GlideMQValidationError("last_id", last_id, "must be a stream entry id such as '1795240398325-0'")
    return text


async def _read(link: QueueLink, job_id: str, position: str, count: int) -> list[StreamChunk]:
    key = link.keys.jstream(job_id)
    found: dict[bytes, list[list[bytes]]] | None = await link.command(
        "XRANGE", key, f"({position}", "+", "COUNT", str(count)
    )
    return [] if not found else [StreamChunk(entry.decode(), _fields(pairs)) for entry, pairs in found.items()]


def _fields(pairs: list[list[bytes]]) -> dict[str, str]:
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in pairs}
