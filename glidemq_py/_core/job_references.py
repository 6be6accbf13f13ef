"""The job options `parent` and `depends_on`: references to other jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


MAX_DEPENDENCIES: Final = 1_000
DependencyPolicy = Literal["wait", "fail", "ignore", "remove"]
DEPENDENCY_POLICIES: Final = {"wait": "wait", "fail": "fail_parent", "ignore": "ignore", "remove": "remove"}
"""The policies, each with its name in records."""

DependenciesInput = Iterable[str | ParentInput]
"""A value of ``depends_on``: ids of jobs in the same queue, and references to jobs in any queue."""


def parse_dependencies(option: str, value: object) -> tuple[JobRef, ...]:
    """Return the dependencies without duplicates; the queue of a plain id is "".

    Raises:
        GlideMQValidationError: the value of ``option`` is invalid.
    """
    if isinstance(value, (str, bytes, Mapping, JobRef)) or not isinstance(value, Iterable):
        raise GlideMQValidationError(option, cast("Any", value), "must be a list of job ids, jobs or pairs (queue, id)")
    given: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
    if len(given) > MAX_DEPENDENCIES:
        raise GlideMQValidationError(option, len(given), f"must have at most {MAX_DEPENDENCIES:,} jobs")
    if not given:
        raise GlideMQValidationError(option, given, "must not be empty")
    return tuple(dict.fromkeys(_reference(f"{option}[{i}]", each) for i, each in enumerate(given)))


def _reference(option: str, value: object) -> JobRef:
    if isinstance(value, str):
        return JobRef("", validate_reference_id(value, option))
    if isinstance(value, JobRef) and not value.queue:
        return JobRef("", validate_reference_id(value.id, option))
    return parse_parent(option, value)


def dependencies_to_wire(dependencies: tuple[JobRef, ...]) -> list[str | dict[str, str]]:
    """Return the stored form: an id, or queue and id."""
    return [{"queue": each.queue, "id": each.id} if each.queue else each.id for each in dependencies]
