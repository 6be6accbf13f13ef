"""The embedding of a job."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from glidemq_py._core.calls.packing import Call, pack
from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py._features.vectors.options import check_field, encode_vector

if TYPE_CHECKING:
    from glidemq_py._job.link import QueueLink

__all__ = [
    "JobVectors",
    "store_vector",
]


def store_vector(meta: str, job_id: str, field: str, vector: bytes, token: tuple[int, int]) -> Call[AttemptStatus]:
    """Write the bytes of a vector into a field of a job that exists."""
    return Call("store_vector", meta, (pack((job_id, field, vector, *token)),), AttemptStatus, repeatable=True)


class JobVectors:
    """The part of `Job` that is searched for by likeness."""

    id: str
    _link: QueueLink

    if TYPE_CHECKING:

        @property
        def _token(self) -> tuple[int, int]: ...

        async def _write(self, call: Any) -> None: ...

    async def store_vector(self, field: str, embedding: Iterable[float]) -> None:
        """Store an embedding with the job, for `Queue.vector_search`. Needs no search module by itself.

        Args:
            field: of the index, see `Queue.create_job_index`; not a field of the job's own record.
            embedding: the numbers, as many as the index has dimensions; kept as float32.

        Raises:
            GlideMQValidationError: the field or a number cannot be.
            JobNotFoundError: the job is gone. StaleAttemptError: another worker has it now.
        """
        vector = encode_vector("embedding", embedding)
        name = check_field("field", field)
        await self._write(store_vector(self._link.keys.meta, self.id, name, vector, self._token))
