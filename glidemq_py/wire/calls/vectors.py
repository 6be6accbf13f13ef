"""The call that stores a job's embedding."""

from __future__ import annotations

from glidemq_py.wire.calls.packing import Call, pack
from glidemq_py.wire.calls.working import AttemptStatus

__all__ = ["store_vector"]


def store_vector(meta: str, job_id: str, field: str, vector: bytes, token: tuple[int, int]) -> Call[AttemptStatus]:
    """Write the bytes of a vector into a field of a job that exists."""
    return Call("store_vector", meta, (pack((job_id, field, vector, *token)),), AttemptStatus, repeatable=True)
