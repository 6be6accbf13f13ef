"""Storing the embedding of a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from glidemq_py._core import requests
from glidemq_py._core.calls import Call
from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py._features.vectors.options import check_field, encode_vector

if TYPE_CHECKING:
    from glidemq_py._job.contents import JobContents


def _store(meta: str, job_id: str, field: str, vector: bytes, token: tuple[int, int]) -> Call[AttemptStatus]:
    """Write the bytes of a vector to a field of the hash of an existing job."""
    fence, processed_on = token
    arguments = requests.store_vector(id=job_id, field=field, bytes=vector, fence=fence, processed_on=processed_on)
    return Call("store_vector", meta, arguments, AttemptStatus)


async def store_vector(self: JobContents[Any, Any, Any], field: str, embedding: Iterable[float]) -> None:
    """Store an embedding with the job, for `Queue.vector_search`. Works without a search module, too.

    Args:
        field: name of the vector field, see `Queue.create_job_index`; not a name that the job hash uses itself.
        embedding: the numbers, as many as the index has dimensions; stored as float32.

    Raises:
        GlideMQValidationError: an argument is invalid.
        JobNotFoundError: the job does not exist any more.
        StaleAttemptError: the job is locked by another worker now.
    """
    vector = encode_vector("embedding", embedding)
    name = check_field("field", field)
    await self._write(_store(self._link.keys.meta, self._stored_id, name, vector, self._token))
