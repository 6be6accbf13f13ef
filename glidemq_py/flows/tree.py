"""`FlowJob`: a job of a tree and its children, as users write it. Nothing is sent here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from glidemq_py.errors import GlideMQValidationError, UnsupportedOptionError
from glidemq_py.options.checks import check_mapping
from glidemq_py.options.job import NO_OPTIONS, JobOptions, check_effect
from glidemq_py.options.names import validate_job_name, validate_queue_name

__all__ = ["MAX_DEPTH", "FlowJob", "check_flow_options"]

MAX_DEPTH: Final = 500
_KEYS: Final = ("name", "queue", "data", "options", "children")


def check_flow_options(options: JobOptions | Mapping[str, Any] | None) -> JobOptions:
    """Options of a job of a flow. Raises GlideMQValidationError for those that cannot be there."""
    parsed = NO_OPTIONS if options is None else JobOptions.parse(options)
    for option in ("parent", "deduplication"):
        if getattr(parsed, option) is not None:
            raise UnsupportedOptionError(option, getattr(parsed, option), "cannot be given to a job of a flow")
    check_effect(parsed, parsed, of_flow=True)
    return parsed


@dataclass(frozen=True, slots=True, init=False)
class FlowJob:
    """A job of a tree: it runs when its children have ended.

    Args:
        name: the job's name.
        queue: name of its queue.
        data: anything the serializer takes.
        options: `JobOptions` or a mapping of keyword options; no `parent` and no `deduplication`.
        children: `FlowJob` objects, or mappings of their fields.

    Raises:
        GlideMQValidationError: names the option and the value.
    """

    name: str
    queue: str
    data: Any
    options: JobOptions
    children: tuple[FlowJob, ...]

    def __init__(
        self,
        name: str,
        queue: str,
        data: Any = None,
        options: JobOptions | Mapping[str, Any] | None = None,
        children: Sequence[FlowJob | Mapping[str, Any]] = (),
    ) -> None:
        keep = object.__setattr__
        keep(self, "name", validate_job_name(name))
        keep(self, "queue", validate_queue_name(queue, "queue"))
        keep(self, "data", data)
        keep(self, "options", check_flow_options(options))
        if isinstance(children, (str, Mapping)) or not isinstance(children, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError("children", cast("object", children), "must be a sequence of jobs")
        keep(self, "children", tuple(FlowJob.parse(child) for child in children))

    @classmethod
    def parse(cls, value: object, option: str = "children") -> FlowJob:
        """A `FlowJob` from one, or from a mapping of its fields."""
        if isinstance(value, FlowJob):
            return value
        given = check_mapping(option, value, _KEYS)
        for needed in ("name", "queue"):
            if needed not in given:
                raise GlideMQValidationError(f"{option}.{needed}", None, "is needed")
        return cls(**given)
