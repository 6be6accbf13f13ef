"""Options of a queue, one job of a bulk add, and what a serializer is. Nothing here sends anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, cast, runtime_checkable

from glidemq_py._core.callables import check_callable
from glidemq_py._core.checks import check_bool, check_choice
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
    """Turns job data and return values into text and back. Both ways are synchronous; None is never given."""

    def serialize(self, value: Any, /) -> str:
        """Text of a value."""
        ...

    def deserialize(self, text: str, /) -> Any:
        """The value of a text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class QueueOptions:
    """Options of a `Queue`.

    Args:
        prefix: first part of every key.
        default_job_options: what a job gets where its own options say nothing; no `job_id` in it.
        compression: "gzip" stores job data compressed.
        serializer: one itself, or "json" or "msgpack"; None is JSON.
        events: False leaves out the `added` events.
        dead_letter_queue: where jobs that have failed for good go too; None leaves what the queue says of it, False
            takes that away.

    Raises:
        GlideMQValidationError: names the option and the value.
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
                "default_job_options.job_id", defaults.job_id, "would give every job of the queue the same id"
            )
        if defaults.parent is not None:
            raise GlideMQValidationError(
                "default_job_options.parent", defaults.parent, "would give every job of the queue the same parent"
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
        name: the job's name.
        data: anything the queue's serializer takes.
        options: `JobOptions` or a mapping of keyword options.

    Raises:
        GlideMQValidationError: names the option and the value.
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
        """A `JobSpec` from one, or from a tuple or list `(name, data, options)` of which the name is needed.

        Args:
            value: what the user gave.
            option: where it stands, such as "jobs[3]"; named in the error.
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
