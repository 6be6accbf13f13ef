"""``mode("overwrite")`` with ``overwrite=drain``: delete the waiting jobs before adding those of the DataFrame."""

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
    """Delete the waiting jobs of the write's home queue and of its other queues; return their number.

    A write that was already decided deletes nothing: the waiting jobs may be its own.
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
