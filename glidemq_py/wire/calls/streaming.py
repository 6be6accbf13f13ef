"""The call that appends to a job's stream of chunks."""

from __future__ import annotations

from collections.abc import Sequence

from glidemq_py.wire.calls.packing import Call, pack, unpack
from glidemq_py.wire.calls.working import AttemptStatus

__all__ = ["stream_chunk"]


def stream_chunk(
    meta: str, job_id: str, token: tuple[int, int], keep: int, fields: Sequence[str]
) -> Call[tuple[AttemptStatus, str]]:
    """Append a chunk of flat ``fields``; the newest ``keep`` stay (0 = all). Answers the new entry's id."""
    return Call("stream_chunk", meta, (pack((job_id, *token, keep, fields)),), _appended)


def _appended(reply: bytes) -> tuple[AttemptStatus, str]:
    status, entry = unpack(reply)
    return AttemptStatus(status), entry
