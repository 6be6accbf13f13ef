"""What ``mode("overwrite")`` means with ``overwrite=drain``: the jobs that wait make room for those of the frame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from glidemq_py._core.calls import steering
from glidemq_py._core.keys import QueueKeys
from glidemq_py._features.staged_writes import calls as staging
from glidemq_py._features.staged_writes.calls import WriteId
from glidemq_py._features.staged_writes.resolve import Steps

__all__ = ["drain_first"]

_PIECE: Final = 100


def drain_first(write: WriteId, queues: Iterable[str]) -> Steps[int]:
    """Delete the jobs that are ready to run, of the write's home and of the queues that it touches; their number.

    A write that has been decided before drains nothing: what waits may be its own jobs.
    """
    deleted = 0
    if (yield staging.open_write(write, create=False)) != "open":
        return deleted
    for queue in sorted({write.home.name, *queues}):
        meta, here, cursor = QueueKeys(write.home.prefix, queue).meta, 0, ""
        while True:
            piece = yield steering.drain(meta, False, cursor, _PIECE, here)
            here, cursor = here + piece.deleted, piece.cursor
            if not cursor:
                break
        deleted += here
    return deleted
