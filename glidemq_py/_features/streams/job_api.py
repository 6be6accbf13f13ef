"""A job that tells what it makes while it makes it: a stream of chunks, for whoever reads along."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from glidemq_py._core.calls.packing import Call, pack, unpack
from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py._core.checks import check_int, check_text
from glidemq_py._core.payload import PAYLOAD_LIMIT
from glidemq_py.errors import GlideMQValidationError, JobNotFoundError, PayloadTooLargeError, StaleAttemptError

if TYPE_CHECKING:
    from glidemq_py._job.link import QueueLink

__all__ = [
    "CHUNKS_KEPT",
    "JobStreams",
    "stream_chunk",
]


def stream_chunk(
    meta: str, job_id: str, token: tuple[int, int], keep: int, fields: Sequence[str]
) -> Call[tuple[AttemptStatus, str]]:
    """Append a chunk of flat ``fields``; the newest ``keep`` stay (0 = all). Answers the new entry's id."""
    return Call("stream_chunk", meta, (pack((job_id, *token, keep, fields)),), _appended)


def _appended(reply: bytes) -> tuple[AttemptStatus, str]:
    status, entry = unpack(reply)
    return AttemptStatus(status), entry


CHUNKS_KEPT = 10_000
"""Chunks kept a job unless `Job.stream` is told otherwise."""
MAX_FIELDS: Final = 1_000
_MAX_TYPE: Final = 256


class JobStreams:
    """The part of `Job` that streams."""

    id: str
    _link: QueueLink

    if TYPE_CHECKING:

        @property
        def _token(self) -> tuple[int, int]: ...

    async def stream(self, chunk: Mapping[str, str | float], *, keep: int = CHUNKS_KEPT) -> str:
        """Append a chunk to the job's stream, which `Queue.stream` and `Queue.read_stream` read.

        Args:
            chunk: field names and texts or numbers, at least one and at most a thousand; 1 MiB in all.
            keep: the newest so many chunks stay; 0 = all.

        Returns:
            The id of the stream entry.

        Raises:
            GlideMQValidationError: the chunk cannot be. PayloadTooLargeError: it exceeds 1 MiB.
            JobNotFoundError: the job is gone. StaleAttemptError: another worker has it now.
            ServerOutOfMemoryError: the server is at maxmemory.
        """
        fields = _flat(chunk)
        most = check_int("keep", keep, 0, 2**31)
        call = stream_chunk(self._link.keys.meta, self.id, self._token, most, fields)
        status, entry = await self._link.transport.call(call)
        if status is AttemptStatus.GONE:
            raise JobNotFoundError(self.id)
        if status is not AttemptStatus.OK:
            raise StaleAttemptError(self.id)
        return entry

    async def stream_chunk(self, type: str, content: str | None = None, *, keep: int = CHUNKS_KEPT) -> str:
        """Append a chunk of the fields ``type`` and, where it is given, ``content``. Returns and raises as `stream`.

        Args:
            type: what kind of piece it is, for those who read; at most 256 characters, not empty.
            content: its text.
            keep: as for `stream`.
        """
        chunk: dict[str, str | float] = {"type": check_text("type", type, maximum=_MAX_TYPE)}
        if content is not None:
            chunk["content"] = content
        return await self.stream(chunk, keep=keep)


def _flat(chunk: Any) -> list[str]:
    if not isinstance(chunk, Mapping):
        raise GlideMQValidationError("chunk", chunk, f"must be a mapping, not {type(chunk).__name__}")
    given = cast("Mapping[object, object]", chunk)
    if not given or len(given) > MAX_FIELDS:
        raise GlideMQValidationError("chunk", given, f"must have 1 to {MAX_FIELDS} fields")
    flat: list[str] = []
    for name, value in given.items():
        if not isinstance(name, str) or not name:
            raise GlideMQValidationError("chunk", given, "field names must be str, and not empty")
        flat += [name, _text(name, value)]
    try:
        size = sum(len(text.encode()) for text in flat)
    except UnicodeEncodeError:
        raise GlideMQValidationError("chunk", given, "holds a lone surrogate, which is not text") from None
    if size > PAYLOAD_LIMIT:
        raise PayloadTooLargeError("chunk", size, PAYLOAD_LIMIT)
    return flat


def _text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return repr(value)
    raise GlideMQValidationError(f"chunk[{name!r}]", value, "must be a str or a number; for more, give its JSON")
