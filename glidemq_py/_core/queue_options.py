"""Options of a queue, the specification of one job of a bulk add, and the serializer protocol."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, Protocol, TypedDict, cast, runtime_checkable

from typing_extensions import TypeIs, TypeVar

from glidemq_py._core.checks import (
    CheckedOptions,
    Converted,
    OptionValue,
    check_bool,
    check_callable,
    check_choice,
    check_int,
    name_within,
    option,
    parse_nested,
)
from glidemq_py._core.job_options import NO_OPTIONS, JobOptions
from glidemq_py._core.keys import DEFAULT_PREFIX, validate_job_name, validate_prefix, validate_queue_name
from glidemq_py._core.misuse import check_job_mapping, reject_field_of_job
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError

T_co = TypeVar("T_co", covariant=True, default=Any)
EndKind = Literal["failed", "stalled", "expired", "cost", "revoked", "malformed"]
_KINDS: Final = ("failed", "stalled", "expired", "cost", "revoked", "malformed")
_DEFAULT: Final = ("failed", "stalled", "expired", "cost")
_DEAD_LETTER_QUEUE: Final = "dead_letter_queue"


class DeadLetterOptionsDict(TypedDict, total=False):
    """`DeadLetterOptions` written as a mapping."""

    name: str
    on: Collection[EndKind]


def _name(option: str, value: str) -> str:
    return validate_queue_name(value, option)


def _kinds(option: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Collection):
        raise GlideMQValidationError(option, value, "must be a collection of kinds such as ('failed',)")
    given = cast("Collection[object]", value)
    kinds = {check_choice(option, kind, _KINDS) for kind in given}
    if not kinds:
        raise GlideMQValidationError(option, given, "must not be empty")
    return tuple(kind for kind in _KINDS if kind in kinds)


class DeadLetterOptions(OptionValue, prefix=_DEAD_LETTER_QUEUE):
    """The dead letter queue of a queue.

    Args:
        name: name of the queue that gets an entry for every failed job.
        on: outcomes that create an entry: ``failed`` (the handler failed and no attempt is left), ``stalled`` (stalled
            too often), ``expired``, ``cost`` (costs more than its group's token bucket holds), ``revoked`` (cancelled),
            ``malformed`` (a record without name, data or options). Default: all but the last two.

    Raises:
        GlideMQValidationError: an option is invalid.
    """

    name: str = option(_name)
    on: Converted[tuple[str, ...], Collection[EndKind]] = option(_kinds, default=_DEFAULT)

    @property
    def kinds_text(self) -> str:
        """The outcomes in the format of the queue's `meta`."""
        return ",".join(self.on)


DeadLetterInput = str | DeadLetterOptions | DeadLetterOptionsDict | Literal[False] | None
"""A value of ``dead_letter_queue``: a name, the options, False (disable), or None (keep the current setting)."""


def parse_dead_letter_queue(value: object, *queues: str) -> DeadLetterOptions | Literal[False] | None:
    """Return the parsed option ``dead_letter_queue`` of these queues.

    Raises:
        GlideMQValidationError: the value is invalid, or names one of the queues.
    """
    if value is None or value is False:
        return value
    if isinstance(value, str):
        parsed = DeadLetterOptions(value)
    else:
        parsed = parse_nested(_DEAD_LETTER_QUEUE, value, DeadLetterOptions, ", a queue's name")
    if parsed.name in queues:
        problem = "must not be the queue itself" if len(queues) == 1 else "must not be one of the worker's queues"
        raise GlideMQValidationError(_DEAD_LETTER_QUEUE, parsed.name, problem)
    return parsed


_DURABLE: Final = "durable"
_MAX_TIMEOUT: Final = 300_000
_MAX_REPLICAS: Final = 1_000

Replicas = int | Literal["all"]


class DurabilityDict(TypedDict, total=False):
    """`Durability` written as a mapping."""

    disk: bool
    replicas: Replicas
    timeout: Milliseconds


def _replicas(option: str, value: object) -> Replicas:
    if value == "all":
        return "all"
    if isinstance(value, str):
        raise GlideMQValidationError(option, value, "must be a number of replicas or 'all'")
    return check_int(option, value, 0, _MAX_REPLICAS)


class Durability(OptionValue, prefix=_DURABLE, kw_only=True):
    """What must have an added job before its add returns.

    Args:
        disk: the append-only file of the primary, written to disk (``WAITAOF 1 0``): the job survives a crash of the
            server, and with ``appendfsync always`` a power loss (docs/operate/durability.md: why not with everysec).
        replicas: this many replicas, in memory (``WAIT``), or "all" that are connected: the job survives a failover.
            With fewer than all, a replica that does not have the job may become primary.
        timeout: how long to wait for the confirmation, in ms or as a timedelta, 1 ms to 5 minutes.

    Raises:
        GlideMQValidationError: an option is invalid, or neither ``disk`` nor ``replicas`` is given.
    """

    disk: bool = option(check_bool, default=True)
    replicas: Replicas = option(_replicas, default=0)
    timeout: Converted[int, Milliseconds] = option(to_ms, default=5_000, minimum=1, maximum=_MAX_TIMEOUT)

    def _check_given(self) -> None:
        if not self.disk and not self.replicas:
            problem = "requires 'replicas': nothing would be confirmed"
            raise GlideMQValidationError(f"{_DURABLE}.disk", self.disk, problem)


DurableInput = bool | Durability | DurabilityDict | None
"""A value of ``durable``: True (on disk), the options, False (do not wait), or None (as the queue)."""

_ON_DISK: Final = Durability()


def parse_durable(value: object) -> Durability | None:
    """Return the parsed option ``durable``; None if adds do not wait.

    Raises:
        GlideMQValidationError: the value is invalid.
    """
    if value is None or value is False:
        return None
    if value is True:
        return _ON_DISK
    return parse_nested(_DURABLE, value, Durability, ", True or False")


Compression = Literal["none", "gzip"]
COMPRESSIONS: Final = ("none", "gzip")

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


def _prefix(_: str, value: str) -> str:
    return validate_prefix(value)


def _default_job_options(option: str, value: JobOptions | Mapping[str, Any]) -> JobOptions:
    problem = "must not be a default (all jobs would have one {})"
    return JobOptions.parse(value).check_place("queue", problem, f"{option}.")


def _serializer(option: str, value: object) -> object:
    if isinstance(value, str):
        return check_choice(option, value, _SERIALIZERS)
    if not isinstance(value, Serializer):
        raise GlideMQValidationError(option, value, "must have the methods serialize(value) and deserialize(text)")
    check_callable(f"{option}.serialize", value.serialize, "value")
    check_callable(f"{option}.deserialize", value.deserialize, "text")
    return value


def _dead_letter_queue(_: str, value: DeadLetterInput) -> DeadLetterOptions | Literal[False] | None:
    return parse_dead_letter_queue(value)


def _durable(_: str, value: DurableInput) -> Durability | None:
    return parse_durable(value)


class AnyMiddleware:
    """Base of `glidemq_py.Middleware`, whose methods take jobs."""


def parse_middleware(option: str, value: Any) -> tuple[Any, ...]:
    """Return the middleware of an option.

    Raises:
        GlideMQValidationError: it is not a sequence of `Middleware` instances.
    """
    if isinstance(value, AnyMiddleware):
        raise GlideMQValidationError(option, value, "must be a list: [...]")
    if not isinstance(value, (list, tuple)):
        raise GlideMQValidationError(option, value, "must be a list of Middleware instances")
    given: list[object] = []
    for i, each in enumerate(cast("Sequence[object]", value)):
        if isinstance(each, AnyMiddleware):
            given.append(each)
            continue
        name = getattr(each, "__name__", "") if AnyMiddleware in getattr(each, "__mro__", ()) else ""
        problem = f"must be an instance: {name}()" if name else "must be an instance of a subclass of Middleware"
        raise GlideMQValidationError(f"{option}[{i}]", each, problem)
    return tuple(given)


@dataclass(frozen=True, init=False)
class QueueOptions(CheckedOptions):
    """Options of a `Queue`.

    Args:
        prefix: first part of every key.
        default_job_options: options of jobs that do not set them; must not contain `job_id` or `parent`.
        compression: "gzip" compresses job data.
        serializer: a serializer, "json" or "msgpack"; None is JSON.
        events: False omits the `added` events.
        dead_letter_queue: queue that receives an entry for each failed job. None keeps the stored setting of the queue,
            False removes it.
        durable: what must have an added job before its add returns; None does not wait.
        middleware: code around every add and every block of `Queue.lease`, the outermost first.

    Raises:
        GlideMQValidationError: an option is invalid.
    """

    prefix: str = option(_prefix, DEFAULT_PREFIX)
    default_job_options: JobOptions = option(_default_job_options, NO_OPTIONS, optional=True)
    compression: Compression = option(check_choice, "none", choices=COMPRESSIONS)
    serializer: Serializer | SerializerName | None = option(_serializer)
    events: bool = option(check_bool, True)
    dead_letter_queue: DeadLetterOptions | Literal[False] | None = option(_dead_letter_queue)
    durable: Durability | None = option(_durable)
    middleware: tuple[Any, ...] = option(parse_middleware, (), optional=True)


def _job_name(_: str, value: str) -> str:
    return validate_job_name(value)


def _job_options(_: str, value: Mapping[str, Any]) -> JobOptions:
    return JobOptions.parse(value)


def unchecked(_: str, value: Any) -> Any:
    """Return any value; for data, which the serializer checks."""
    return value


class JobSpec(OptionValue):
    """One job of a bulk add.

    Args:
        name: name of the job.
        data: any value that the queue's serializer accepts.
        options: `JobOptions` or a mapping of keyword options.

    Raises:
        GlideMQValidationError: an option is invalid.
    """

    name: str = option(_job_name)
    data: Any = option(unchecked, default=None)
    options: Converted[JobOptions, JobOptions | Mapping[str, Any] | None] = option(
        _job_options, default=NO_OPTIONS, optional=True
    )

    @classmethod
    def parse(cls, value: object, option: str = "jobs") -> JobSpec:
        """Return a `JobSpec`, given one, a tuple or list `(name, data, options)`, or a mapping of these.

        Only the name is required. A mapping may have the options under ``opts``, as in BullMQ.

        Args:
            value: the job specification.
            option: its place, such as "jobs[3]", for the error.

        Raises:
            GlideMQValidationError: it is not a job specification, or an option is invalid.
        """
        if isinstance(value, JobSpec):
            return value
        try:
            if not isinstance(value, (tuple, list)):
                return cls._of_mapping(value, option)
            parts = cast("Sequence[object]", value)
            if not 1 <= len(parts) <= 3:
                raise GlideMQValidationError(option, parts, "must have one to three parts: (name, data, options)")
            name, data, options = (*parts, None, None)[:3]
            return cls(cast("str", name), data, cast("Mapping[str, Any] | None", options))
        except GlideMQValidationError as error:
            name_within(error, option)
            raise

    @classmethod
    def _of_mapping(cls, value: object, option: str) -> JobSpec:
        if not isinstance(value, Mapping):
            problem = "must be a JobSpec or a tuple (name, data, options), or a mapping of these"
            raise GlideMQValidationError(option, value, f"{problem}, not {type(value).__name__}")
        given = dict(cast("Mapping[str, Any]", value))
        if "opts" in given:
            if "options" in given:
                raise GlideMQValidationError(f"{option}.opts", given["opts"], "is another name of 'options': give one")
            given["options"] = given.pop("opts")
        return cls(**check_job_mapping(option, given, ("name", "data", "options")))

    def _reject(self, name: str, value: object) -> None:
        reject_field_of_job(name, value, self._checks)
        super()._reject(name, value)


class AnyTask(Protocol[T_co]):
    """A `Task` or `BlockingTask`; ``T_co`` is the type of its result."""

    @property
    def name(self) -> str:
        """Name of its jobs."""
        ...

    @property
    def queue_names(self) -> tuple[str, ...]:
        """Names of the queues of its worker."""
        ...

    def read_result(self, value: Any) -> T_co:
        """Return the result that is stored as this plain value."""
        ...


class TaskCall(JobSpec, Generic[T_co]):
    """A task with arguments, a job that is not added yet; made by `Task.call`."""

    task: Any = option(unchecked, default=None)

    @property
    def queue(self) -> Any:
        """The queue of the task."""
        return self.task.queue

    def read_result(self, value: Any) -> T_co:
        """Return the result of the task that is stored as this plain value."""
        return cast("T_co", self.task.read_result(value))


def is_call(value: object) -> TypeIs[TaskCall]:
    """Return True for a call of a task."""
    return isinstance(value, TaskCall)


def check_call(job: object, queue: str, where: str) -> None:
    """Raise GlideMQValidationError for a call of a task that adds to another queue."""
    if is_call(job) and queue not in job.task.queue_names:
        raise GlideMQValidationError(where, job.task, f"adds to queue {job.task.queue_names[0]!r}, not to {queue!r}")


Entry = tuple[str, Any, JobOptions]
"""Name, data and effective options of a job."""


def entry_of(job: object, defaults: JobOptions, where: str) -> Entry:
    """Return name, data and effective options of a job.

    Args:
        job: a `JobInput`.
        defaults: the default options of its queue.
        where: its place, such as "jobs[3]", for the error.

    Raises:
        GlideMQValidationError: the job is invalid, its options are mutually exclusive, or one has no effect.
    """
    spec = JobSpec.parse(job, where)
    try:
        return spec.name, spec.data, JobOptions.of_job(defaults, spec.options)
    except GlideMQValidationError as error:
        name_within(error, where)
        raise


JobInput = (
    JobSpec | tuple[str] | tuple[str, Any] | tuple[str, Any, JobOptions | Mapping[str, Any] | None] | Mapping[str, Any]
)
"""A job to add: a `JobSpec`, a tuple (name, data, options), of which only the name is needed, or a mapping of these."""
