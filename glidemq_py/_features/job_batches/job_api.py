"""The batch of a job, as a method of `Job`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from glidemq_py._core.keys import split_member
from glidemq_py._features.flows.references import shown_ref

if TYPE_CHECKING:
    from glidemq_py._job.job import Job


class BatchRef(NamedTuple):
    """A reference to a batch: its queue and its id.

    Attributes:
        queue: name of the queue in which the batch was created.
        id: id of the batch.
    """

    queue: str
    id: str


async def get_batch_ref(self: Job[Any, Any, Any]) -> BatchRef | None:
    """Return queue and id of the batch that the job belongs to, or whose callback it is; None if there is none."""
    value: bytes | None = await self._link.command("HGET", self._link.keys.job(self._stored_id), "jobBatch")
    if value is None:
        return None
    try:
        base, batch = split_member(value.decode("utf-8", "surrogateescape"))
    except ValueError:
        return None
    return BatchRef(*await shown_ref(self._link, base[:-1].rpartition(":{")[2], batch))
