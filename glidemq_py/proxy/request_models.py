"""The JSON of requests as types, by which the framework validates them and generates the OpenAPI document.

They are strict: no unknown members, no conversion of types, no null in place of an option. After validation their
members have Python's names, so that options are arguments of the library's methods.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Required

from pydantic import AfterValidator, ConfigDict, Field, WithJsonSchema, with_config
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from glidemq_py._core.names import validate_queue_name
from glidemq_py.errors import GlideMQValidationError

_MAX_MS: Final = 315_360_000_000
_MAX_INT32: Final = 2**31 - 1
MAX_REPLAYED: Final = 1_000


def _strict(**schema: Any) -> ConfigDict:
    """Return the configuration of a request; ``schema`` are further keywords of its JSON schema."""
    return ConfigDict(extra="forbid", strict=True, alias_generator=to_camel, json_schema_extra=schema)


@with_config(_strict())
class _Request(TypedDict):
    """A part of a request."""


# -- values ----------------------------------------------------------------------------------------------------


def _text_schema(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 256, "pattern": pattern})


def _queue_name(name: str) -> str:
    try:
        return validate_queue_name(name)
    except GlideMQValidationError as error:
        raise ValueError(error.problem) from None


QueueName = Annotated[str, AfterValidator(_queue_name), _text_schema(r"^[^{}:*?\[\]\\/\x00-\x1f\x7f]+$")]
JobId = Annotated[str, _text_schema(r"^[^{}:/\x00-\x1f\x7f]+$")]
SchedulerName = Annotated[str, _text_schema(r"^[^/\x00-\x1f\x7f]+$")]
FlowId = Annotated[str, _text_schema(r"^[^{}/\x00-\x1f\x7f]+$")]

_JobName = Annotated[str, Field(min_length=1, max_length=1024)]
_Key = Annotated[str, Field(min_length=1, max_length=256)]
_Ms = Annotated[int, Field(ge=0, le=_MAX_MS)]
_MsPositive = Annotated[int, Field(ge=1, le=_MAX_MS)]
_Payload = Annotated[Any, Field(description="Any JSON value.")]


# -- options of a job ------------------------------------------------------------------------------------------


class Backoff(_Request, total=False):
    """The delays between attempts."""

    type: Required[Annotated[str, Field(min_length=1, max_length=128)]]
    delay: _Ms
    max_delay: _Ms
    jitter: Annotated[float, Field(ge=0, le=1)]


@with_config(_strict(minProperties=1))
class Retention(TypedDict, total=False):
    """How many finished jobs are kept, and how long, seconds."""

    age: Annotated[int, Field(ge=1, le=315_360_000)]
    count: Annotated[int, Field(ge=0, le=_MAX_INT32)]


class Deduplication(_Request, total=False):
    """Which jobs are duplicates."""

    id: Required[_Key]
    ttl: _MsPositive
    mode: Literal["simple", "throttle", "debounce"]
    until: Literal["started", "ended"]
    extend: bool
    replace: bool


class MessageDeduplication(_Request, total=False):
    """Which messages are duplicates."""

    id: Required[_Key]
    ttl: _MsPositive
    mode: Required[Literal["throttle"]]


class RateLimit(_Request):
    """At most `max` jobs per `duration` ms."""

    max: Annotated[int, Field(ge=1, le=_MAX_INT32)]
    duration: _MsPositive


class TokenBucket(_Request):
    """A token bucket of an ordering group."""

    capacity: float
    refill_rate: float


class Ordering(_Request, total=False):
    """The ordering group of a job."""

    key: Required[_Key]
    concurrency: Annotated[int, Field(ge=1, le=1_000_000)]
    rate_limit: RateLimit
    token_bucket: TokenBucket


_Backoff = _Ms | Backoff
_Retention = bool | Annotated[int, Field(ge=0, le=_MAX_INT32)] | Retention
_Attempts = Annotated[int, Field(ge=0, le=1_000_000)]
_Priority = Annotated[int, Field(ge=0, le=2047)]


class PublishOptions(_Request, total=False):
    """Options of a message."""

    job_id: JobId
    delay: _Ms
    attempts: _Attempts
    backoff: _Backoff
    timeout: _MsPositive
    ttl: _MsPositive
    deduplication: MessageDeduplication


class _CommonOptions(_Request, total=False):
    job_id: JobId
    delay: _Ms
    priority: _Priority
    attempts: _Attempts
    backoff: _Backoff
    timeout: _MsPositive
    ttl: _MsPositive
    lock_duration: Annotated[int, Field(ge=1_000, le=86_400_000)]
    ordering: Ordering
    cost: Annotated[float, Field(ge=0.001, le=1e9)]
    lifo: bool


class FlowOptions(_CommonOptions, total=False):
    """Options of a job of a flow."""

    remove_on_complete: _Retention
    remove_on_fail: _Retention


class JobOptions(FlowOptions, total=False):
    """Options of a job."""

    deduplication: Deduplication


class WaitOptions(_CommonOptions, total=False):
    """Options of a job whose result is awaited."""

    deduplication: Deduplication
    wait_timeout: Annotated[int, Field(ge=1, le=600_000, description="Milliseconds; 30,000 by default.")]


# -- requests --------------------------------------------------------------------------------------------------


class AddJob(_Request, total=False):
    """A job to add."""

    name: Required[_JobName]
    data: _Payload
    opts: JobOptions


class AddJobAndWait(_Request, total=False):
    """A job to add and to wait for."""

    name: Required[_JobName]
    data: _Payload
    opts: WaitOptions


class AddBulk(_Request):
    """Jobs to add together."""

    jobs: Annotated[list[AddJob], Field(max_length=1_000)]


class NewPriority(_Request):
    """A new priority of a job."""

    priority: _Priority


class NewDelay(_Request):
    """A new delay of a job, ms."""

    delay: _Ms


class SendSignal(_Request, total=False):
    """A signal for a job."""

    name: Required[_Key]
    data: _Payload


class Drain(_Request, total=False):
    """Whether delayed jobs are deleted, too."""

    delayed: bool


class RetryJobs(_Request):
    """How many failed jobs to requeue, oldest failure first; 0 = all."""

    count: Annotated[int, Field(ge=0, le=2**53)]


class ReplayAll(_Request, total=False):
    """How many dead-letter entries to replay; 100 by default."""

    count: Annotated[int, Field(ge=1, le=MAX_REPLAYED)]


_Moment = Annotated[int, Field(ge=0, le=2**42 - 1)]


class _Times(_Request, total=False):
    every: _MsPositive
    pattern: Annotated[str, Field(min_length=1)]
    repeat_after_complete: _MsPositive
    tz: Annotated[str, Field(min_length=1)]
    start_date: _Moment
    end_date: _Moment
    limit: Annotated[int, Field(ge=1, le=2**53 - 1)]
    misfire: Literal["fire_once", "fire_all", "skip"]
    day_match: Literal["and", "or"]
    overlap: Literal["allow", "skip", "buffer_one"]
    skip_without_worker: bool


class Schedule(_Times, total=False):
    """Exactly one of every, pattern and repeatAfterComplete; milliseconds, and epoch milliseconds."""

    immediately: bool


class Template(_Request, total=False):
    """The jobs of a scheduler."""

    name: _JobName
    data: _Payload
    opts: JobOptions


class PutScheduler(_Request, total=False):
    """A scheduler: when it adds jobs, and which."""

    schedule: Required[Schedule]
    template: Template


class Publish(_Request, total=False):
    """A message for every subscription."""

    subject: Required[_JobName]
    data: _Payload
    opts: PublishOptions


class FlowJobBody(_Request, total=False):
    """A job of a tree."""

    name: Required[_JobName]
    queue_name: Required[QueueName]
    data: _Payload
    opts: FlowOptions
    children: list[FlowJobBody]


class DagNodeBody(_Request, total=False):
    """A job of a graph; `deps` are the names of the jobs that it waits for."""

    name: Required[_JobName]
    queue_name: Required[QueueName]
    data: _Payload
    opts: FlowOptions
    deps: list[str]


class Dag(_Request):
    """A graph of jobs."""

    nodes: Annotated[list[DagNodeBody], Field(min_length=1)]


_Limit = Annotated[float, Field(gt=0, le=2**53)]


class Budget(_Request, total=False):
    """The budget of a flow."""

    max_total_tokens: _Limit
    max_tokens: dict[str, _Limit]
    max_total_cost: _Limit
    max_costs: dict[str, _Limit]
    token_weights: dict[str, Annotated[float, Field(ge=0, le=2**53)]]
    cost_unit: Annotated[str, Field(min_length=1, max_length=32)]
    on_exceeded: Literal["fail", "pause"]


@with_config(_strict(oneOf=[{"required": ["flow"]}, {"required": ["dag"]}]))
class AddFlow(TypedDict, total=False):
    """Exactly one of flow and dag; budget requires flow."""

    flow: FlowJobBody
    dag: Dag
    budget: Budget
