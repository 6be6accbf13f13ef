"""Reading job streams."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from glidemq_py._client.loop_transport import LoopTransport
from glidemq_py._core.checks import check_int
from glidemq_py._core.names import parse_job_id
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._features.streams.chunk import StreamChunk
from glidemq_py._features.streams.watch import ChunkWatch
from glidemq_py._job import QueueLink
from glidemq_py.errors import GlideMQValidationError, JobNotFoundError

__all__ = ["QueueStreams"]

_MAX_COUNT: Final = 10_000
_FIRST_S, _LAST_S, _GROWTH = 0.2, 2.0, 1.5
_ENTRY: Final = re.compile(r"\d{1,19}(-\d{1,19})?")
_BEGINNING: Final = "0-0"
_WATCH: Final = "chunk watch"


class QueueStreams:
    """The job stream methods of `Queue`."""

    _transport: LoopTransport

    async def _connected(self) -> QueueLink:
        raise NotImplementedError

    async def read_stream(
        self, job_id: str, *, last_id: str | None = None, count: int = 100, block: Milliseconds | None = None
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
        key, position = parse_job_id(job_id), _position(last_id)
        most = check_int("count", count, 1, _MAX_COUNT)
        seconds = 0.0 if block is None else to_ms("block", block) / 1000
        link = await self._connected()
        deadline, interval = time.monotonic() + seconds, _FIRST_S
        while True:
            chunks = await _read(link, key, position, most)
            left = deadline - time.monotonic()
            if chunks or left <= 0:
                return chunks
            await (await self._watching(link)).wait(key, position, min(left, interval))
            interval = min(interval * _GROWTH, _LAST_S)

    def stream(self, job_id: str, *, last_id: str | None = None, page: int = 100) -> AsyncIterator[StreamChunk]:
        """Iterate over a job's chunks as they are written, until the job completes, fails or is removed.

        Args:
            job_id: id of the job.
            last_id: start after this entry id; None = with the oldest chunk kept.
            page: number of chunks per read, 1..10_000.

        Raises:
            GlideMQValidationError: an argument is invalid.
            JobNotFoundError: the job does not exist. If it is removed later, the iteration ends without an error.
        """
        return self._stream(parse_job_id(job_id), _position(last_id), check_int("page", page, 1, _MAX_COUNT))

    async def _stream(self, job_id: str, position: str, page: int) -> AsyncIterator[StreamChunk]:
        link = await self._connected()
        interval, known = _FIRST_S, False
        while True:
            # Read the state first: if the job has ended, all its chunks are in the stream.
            state = await link.transport.command("HGET", link.keys.job(job_id), "state")
            chunks = await _read(link, job_id, position, page)
            if state is None and not chunks and not known:
                raise JobNotFoundError(job_id)
            known = True
            for chunk in chunks:
                position = chunk.id
                yield chunk
            if len(chunks) == page:
                continue
            if state in (None, b"completed", b"failed"):
                return
            interval = _FIRST_S if chunks else min(interval * _GROWTH, _LAST_S)
            await (await self._watching(link)).wait(job_id, position, interval)

    async def _watching(self, link: QueueLink) -> ChunkWatch:
        """Return the `ChunkWatch` of the running event loop."""
        connection = await self._transport.connected()
        return connection.part(_WATCH, lambda transport: ChunkWatch(replace(link, transport=transport)))


def _position(last_id: object) -> str:
    if last_id is None:
        return _BEGINNING
    text = str(last_id)
    if not _ENTRY.fullmatch(text):
        raise GlideMQValidationError("last_id", last_id, "must be a stream entry id such as '1795240398325-0'")
    return text


async def _read(link: QueueLink, job_id: str, position: str, count: int) -> list[StreamChunk]:
    key = link.keys.jstream(job_id)
    found: dict[bytes, list[list[bytes]]] | None = await link.transport.command(
        "XRANGE", key, f"({position}", "+", "COUNT", str(count)
    )
    return [] if not found else [StreamChunk(entry.decode(), _fields(pairs)) for entry, pairs in found.items()]


def _fields(pairs: list[list[bytes]]) -> dict[str, str]:
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in pairs}
