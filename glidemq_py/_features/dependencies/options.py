"""The options ``depends_on`` and ``on_dependency_failure``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, cast

from glidemq_py._core.names import validate_reference_id
from glidemq_py._features.flows.parent_option import JobRef, ParentInput, parse_parent
from glidemq_py.errors import GlideMQValidationError

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
