"""The option ``parent``, and the policies for a child's failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol, TypedDict, cast, runtime_checkable

from glidemq_py._core.names import validate_queue_name, validate_reference_id
from glidemq_py.errors import GlideMQValidationError

FailurePolicy = Literal["fail_parent", "ignore", "remove", "wait"]
FAILURE_POLICIES: Final = ("fail_parent", "ignore", "remove", "wait")


class JobRef(NamedTuple):
    """A reference to a job: its queue and its id.

    Attributes:
        queue: name of the queue.
        id: id of the job.
    """

    queue: str
    id: str


class ParentDict(TypedDict):
    """A `JobRef` written as a mapping."""

    queue: str
    id: str


@runtime_checkable
class _JobLike(Protocol):
    id: str

    @property
    def queue_name(self) -> str: ...


ParentInput = JobRef | tuple[str, str] | ParentDict | _JobLike
"""A value of ``parent``: a `Job`, a `JobRef`, ``(queue, id)``, or ``{"queue": ..., "id": ...}``."""


def parse_parent(option: str, value: object) -> JobRef:
    """Return the parent as a `JobRef`.

    Raises:
        GlideMQValidationError: the value of ``option`` is invalid.
    """
    if isinstance(value, _JobLike):
        return JobRef(value.queue_name, value.id)
    if isinstance(value, Mapping):
        given = cast("Mapping[str, Any]", value)
        if set(given) != {"queue", "id"}:
            raise GlideMQValidationError(option, given, "must have the keys 'queue' and 'id'")
        queue, job_id = given["queue"], given["id"]
    else:
        parts: Any = value
        if not isinstance(value, tuple) or len(parts) != 2:
            raise GlideMQValidationError(option, parts, "must be a job, a pair (queue, id) or a mapping of the two")
        queue, job_id = parts
    return JobRef(validate_queue_name(queue, f"{option}.queue"), validate_reference_id(job_id, f"{option}.id"))
