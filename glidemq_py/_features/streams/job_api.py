"""The methods of `Job` and `Message` that append chunks to the job's stream."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from glidemq_py._core.calls import Argument, call
from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py._core.checks import check_int, check_text
from glidemq_py._core.payload import PAYLOAD_LIMIT
from glidemq_py.errors import GlideMQValidationError, PayloadTooLargeError

if TYPE_CHECKING:
    from glidemq_py._job.contents import JobContents


class _Appended(NamedTuple):
    status: AttemptStatus
    entry: str
    """Id of the stream entry."""


@call("stream_chunk", repeatable=True)
def _append(
    id: str, fence: int, processed_on: int, keep: int, fields: Sequence[str], number: Argument[str]
) -> _Appended:
    """Append a chunk of flat ``fields``, and keep the newest ``keep`` chunks (0 = all)."""
    ...


CHUNKS_KEPT = 10_000
"""Chunks kept per job by default."""
MAX_FIELDS: Final = 1_000
_MAX_TYPE: Final = 256


async def stream(self: JobContents[Any, Any, Any], chunk: Mapping[str, str | float], *, keep: int = CHUNKS_KEPT) -> str:
    """Append a chunk to the job's stream, which `Queue.stream` and `Queue.read_stream` read.

    Args:
        chunk: 1 to 1,000 field names with str or number values; 1 MiB in total.
        keep: number of newest chunks to keep; 0 = all.

    Returns:
        The id of the stream entry. If a reply was lost: that of the newest entry with these fields, or "" if none
        of the newest 64 has them.

    Raises:
        GlideMQValidationError: an argument is invalid.
        PayloadTooLargeError: the chunk exceeds 1 MiB.
        JobNotFoundError: the job does not exist any more.
        StaleAttemptError: the job is locked by another worker now.
        ServerOutOfMemoryError: the server is at maxmemory.
    """
    fields = _flat(chunk)
    most = check_int("keep", keep, 0, 2**31)
    call = partial(_append, self._link.keys.meta, self._stored_id, *self._token, most, fields)
    status, entry = await self._append(call)
    self._check_status(status)
    return entry


async def stream_chunk(
    self: JobContents[Any, Any, Any], type: str, content: str | None = None, *, keep: int = CHUNKS_KEPT
) -> str:
    """Append a chunk with the fields ``type`` and ``content``. Raises the errors of `stream`.

    Args:
        type: kind of the chunk, 1 to 256 characters.
        content: text of the chunk; None = no such field.
        keep: as for `stream`.

    Returns:
        The id of the stream entry.
    """
    chunk: dict[str, str | float] = {"type": check_text("type", type, maximum=_MAX_TYPE)}
    if content is not None:
        chunk["content"] = content
    return await stream(self, chunk, keep=keep)


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
