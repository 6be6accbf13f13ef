"""What a job of any flow is given with, as users write it; who waits for whom is said by those made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glidemq_py.errors import GlideMQValidationError, UnsupportedOptionError
from glidemq_py.options.checks import check_mapping
from glidemq_py.options.job import NO_OPTIONS, JobOptions, check_effect
from glidemq_py.options.names import validate_job_name, validate_queue_name

__all__ = ["FlowMember", "check_flow_options", "member_fields"]


def check_flow_options(options: JobOptions | Mapping[str, Any] | None) -> JobOptions:
    """Options of a job of a flow. Raises GlideMQValidationError for those that cannot be there."""
    parsed = NO_OPTIONS if options is None else JobOptions.parse(options)
    for option in ("parent", "deduplication"):
        if getattr(parsed, option) is not None:
            raise UnsupportedOptionError(option, getattr(parsed, option), "cannot be given to a job of a flow")
    check_effect(parsed, parsed, of_flow=True)
    return parsed


@dataclass(frozen=True, slots=True, init=False)
class FlowMember:
    """A job of a flow: its name, its queue, its data, its options; see `FlowJob` and `DagNode`."""

    name: str
    queue: str
    data: Any
    options: JobOptions

    def __init__(self, name: str, queue: str, data: Any, options: JobOptions | Mapping[str, Any] | None) -> None:
        keep = object.__setattr__
        keep(self, "name", validate_job_name(name))
        keep(self, "queue", validate_queue_name(queue, "queue"))
        keep(self, "data", data)
        keep(self, "options", check_flow_options(options))


def member_fields(value: object, option: str, keys: Sequence[str]) -> Mapping[str, Any]:
    """A mapping of the fields of one, and of no others. Raises GlideMQValidationError."""
    given = check_mapping(option, value, keys)
    for needed in ("name", "queue"):
        if needed not in given:
            raise GlideMQValidationError(f"{option}.{needed}", None, "is needed")
    return given
