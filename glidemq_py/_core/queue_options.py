"""Options of a queue, the specification of one job of a bulk add, and the serializer protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, cast, runtime_checkable

from glidemq_py._core.checks import check_bool, check_callable, check_choice
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions
from glidemq_py._core.names import validate_job_name, validate_prefix
from glidemq_py._features.dead_letters.options import DeadLetterInput, DeadLetterOptions, parse_dead_letter_queue
from glidemq_py.errors import GlideMQValidationError

DEFAULT_PREFIX: Final = "glide"

Compression = Literal["none", "gzip"]
_COMPRESSIONS: Final = ("none", "gzip")

SerializerName = Literal["json", "msgpack"]
_SERIALIZERS: Final = ("json", "msgpack")


@runtime_checkable
class Serializer(Protocol):
    """Serializes job data and return values. Both methods are synchronous and are never called with None."""

    def serialize(self, value: Any, /) -> str:
        """Return the text of a value."""
        ...

    def deserialize(self, text: str, /) -> Any:
        """Return the value of a text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class QueueOptions:
    """Options of a `Queue`.

    Args:
        prefix: first part of every key.
        default_job_options: options of jobs that do not set them; must not contain `job_id` or `parent`.
        compression: "gzip" compresses job data.
        serializer: a serializer, "json" or "msgpack"; None is JSON.
        events: False omits the `added` events.
        dead_letter_queue: queue that receives an entry for each failed job. None keeps the stored setting of the queue,
            False removes it.

    Raises:
        GlideMQValidationError: an option is invalid.
    """

    prefix: str
    default_job_options: JobOptions
    compression: Compression
    serializer: Serializer | SerializerName | None
    events: bool
    dead_letter_queue: DeadLetterOptions | Literal[False] | None

    def __init__(
        self,
        *,
        prefix: str = DEFAULT_PREFIX,
        default_job_options: JobOptions | Mapping[str, Any] | None = None,
        compression: Compression = "none",
        serializer: Serializer | SerializerName | None = None,
        events: bool = True,
        dead_letter_queue: DeadLetterInput = None,
    ) -> None:
        keep = object.__setattr__
        keep(self, "prefix", validate_prefix(prefix))
        defaults = JobOptions.parse(default_job_options)
        if defaults.job_id is not None:
            raise GlideMQValidationError(
                "default_job_options.job_id", defaults.job_id, "must not be a default (all jobs would have one id)"
            )
        if defaults.parent is not None:
            raise GlideMQValidationError(
                "default_job_options.parent",
                defaults.parent,
                "must not be a default (all jobs would have one parent)",
            )
        keep(self, "default_job_options", defaults)
        keep(self, "compression", check_choice("compression", compression, _COMPRESSIONS))
        if isinstance(serializer, str):
            check_choice("serializer", serializer, _SERIALIZERS)
        elif serializer is not None and not isinstance(serializer, Serializer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError(
                "serializer", serializer, "must have the methods serialize(value) and deserialize(text)"
            )
        elif serializer is not None:
            check_callable("serializer.serialize", serializer.serialize, "value")
            check_callable("serializer.deserialize", serializer.deserialize, "text")
        keep(self, "serializer", serializer)
        keep(self, "events", check_bool("events", events))
        keep(self, "dead_letter_queue", parse_dead_letter_queue(dead_letter_queue))


@dataclass(frozen=True, slots=True, init=False)
class JobSpec:
    """One job of a bulk add.

    Args:
        name: name of the job.
        data: any value that the queue's serializer accepts.
        options: `JobOptions` or a mapping of keyword options.

    Raises:
        GlideMQValidationError: an option is invalid.
    """

    name: str
    data: Any
    options: JobOptions

    def __init__(self, name: str, data: Any = None, options: JobOptions | Mapping[str, Any] | None = None) -> None:
        keep = object.__setattr__
        keep(self, "name", validate_job_name(name))
        keep(self, "data", data)
        keep(self, "options", NO_OPTIONS if options is None else JobOptions.parse(options))

    @classmethod
    def parse(cls, value: object, option: str = "jobs") -> JobSpec:
        """Return a `JobSpec`, given one or a tuple or list `(name, data, options)`; only the name is required.

        Args:
            value: the job specification.
            option: its place, such as "jobs[3]", for the error.

        Raises:
            GlideMQValidationError: it is not a job specification, or an option is invalid.
        """
        if isinstance(value, JobSpec):
            return value
        if not isinstance(value, (tuple, list)):
            raise GlideMQValidationError(
                option,
                value,
                f"must be a JobSpec or a tuple (name, data, options), not {type(value).__name__}",
            )
        parts = cast("Sequence[object]", value)
        if not 1 <= len(parts) <= 3:
            raise GlideMQValidationError(option, parts, "must have one to three parts: (name, data, options)")
        name, data, options = (*parts, None, None)[:3]
        return cls(cast("str", name), data, cast("Mapping[str, Any] | None", options))
