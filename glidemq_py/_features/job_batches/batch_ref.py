"""`BatchRef`: a reference to a batch. Jobs return it, so it is apart from `JobBatch`, which uses jobs."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BatchRef"]


class BatchRef(NamedTuple):
    """A reference to a batch: its queue and its id.

    Attributes:
        queue: name of the queue in which the batch was created.
        id: id of the batch.
    """

    queue: str
    id: str
