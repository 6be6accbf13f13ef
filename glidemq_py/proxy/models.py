"""The JSON of requests and responses as types, from which the framework generates the OpenAPI document.

By those of requests it also validates: they are strict, with no unknown members, no conversion of types, no null in
place of an option. After validation their members have Python's names, so that options are arguments of the library's
methods. Responses are not validated. The model of one stands beside its endpoint; here is what they share. A dataclass
of the library that is returned as it is has no model of its own: see `model_of`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Required, get_type_hints

from pydantic import AfterValidator, ConfigDict, Field, GetPydanticSchema, WithJsonSchema, with_config
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from glidemq_py._core.checks import check_bool, check_text
from glidemq_py._core.job_options import MAX_PRIORITY, JobOptions, unsupported_in
from glidemq_py._core.keys import validate_queue_name
from glidemq_py._core.limits import MAX_COUNT, MAX_TOKENS, Ordering, RateLimit, TokenBucket
from glidemq_py._core.option_values import Backoff, Deduplication
from glidemq_py._core.times import MAX_DURATION_MS, MAX_EPOCH_MS
from glidemq_py._features.budgets import MAX_AMOUNT, Budget
from glidemq_py._features.schedulers.options import Schedule
from glidemq_py.errors import GlideMQValidationError

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
_Text = Annotated[str, Field(min_length=1)]
_Ms = Annotated[int, Field(ge=0, le=MAX_DURATION_MS)]
_Moment = Annotated[int, Field(ge=0, le=MAX_EPOCH_MS)]
_Limit = Annotated[float, Field(gt=0, le=MAX_AMOUNT)]
_Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
_Object = dict[str, Any]
_Payload = Annotated[Any, Field(description="Any JSON value.")]


# -- options ---------------------------------------------------------------------------------------------------


@with_config(_strict(minProperties=1))
class Retention(TypedDict, total=False):
    """How many finished jobs are kept, and how long, seconds."""

    age: Annotated[int, Field(ge=1, le=MAX_DURATION_MS // 1_000)]
    count: _Count


class MessageDeduplication(_Request, total=False):
    """Which messages are duplicates."""

    id: Required[_Key]
    ttl: Annotated[int, Field(ge=1, le=MAX_DURATION_MS)]
    mode: Required[Literal["throttle"]]


_types: dict[str, Any] = {
    "job_id": JobId, "delay": _Ms, "max_delay": _Ms, "remove_on_complete": bool | _Count | Retention,
    "remove_on_fail": bool | _Count | Retention, "cost": Annotated[float, Field(ge=0.001, le=MAX_TOKENS)],
    "type": Annotated[str, Field(min_length=1, max_length=128)], "jitter": Annotated[float, Field(ge=0, le=1)],
    "key": _Key, "capacity": float, "refill_rate": float, "pattern": _Text, "tz": _Text,
    "start_date": _Moment, "end_date": _Moment, "max_total_tokens": _Limit, "max_tokens": dict[str, _Limit],
    "max_total_cost": _Limit, "max_costs": dict[str, _Limit],
    "token_weights": dict[str, Annotated[float, Field(ge=0, le=MAX_AMOUNT)]],
}  # fmt: skip
"""The types of options that do not follow from how they are checked."""


def _request_of(kind: type[Any], name: str, doc: str, *places: str, **types: Any) -> Any:
    """Return the type of the request that has the options of a class as members.

    Args:
        kind: the class of the options.
        name: name of the request in the OpenAPI document.
        doc: its description there.
        places: where options of jobs are used (`unsupported_in`), besides in the proxy.
        types: types of members, if they are not those of the options, and of further members.
    """
    excluded = {option for place in ("proxy", *places) for option in unsupported_in(place)}
    for option, parameter in inspect.signature(kind).parameters.items():
        if option not in types.keys() | excluded:
            found = _types.get(option) or _type_of(kind.__dataclass_fields__[option].metadata["check"])
            types[option] = Required[found] if parameter.default is parameter.empty else found
    create: Any = TypedDict  # type checkers accept only literals
    model = create(name, types, total=False)
    model.__doc__ = doc
    return with_config(_strict())(model)


def _type_of(check: Any) -> Any:
    """Return the JSON type of an option that is checked in this way."""
    limits: Any = getattr(check, "keywords", {})
    if "minimum" in limits:
        return Annotated[int, Field(ge=limits["minimum"], le=limits.get("maximum", MAX_DURATION_MS))]
    if getattr(check, "func", check) is check_text:
        return Annotated[str, Field(min_length=1, max_length=limits["maximum"])]
    return Literal[limits["choices"]] if "choices" in limits else {check_bool: bool}[check]


NewRateLimit = _types["rate_limit"] = _request_of(RateLimit, "RateLimit", "At most `max` jobs per `duration` ms.")
_types["token_bucket"] = _request_of(TokenBucket, "TokenBucket", "A token bucket of an ordering group.")
_types["ordering"] = _request_of(Ordering, "Ordering", "The ordering group of a job.")
_types["deduplication"] = _request_of(Deduplication, "Deduplication", "Which jobs are duplicates.")
_types["backoff"] = _Ms | _request_of(Backoff, "Backoff", "The delays between attempts.")
_OPTIONS = _request_of(JobOptions, "JobOptions", "Options of a job.")
_FLOW_OPTIONS = _request_of(JobOptions, "FlowOptions", "Options of a job of a flow.", "flow")
_WAIT_OPTIONS = _request_of(
    JobOptions, "WaitOptions", "Options of a job whose result is awaited.", "wait",
    wait_timeout=Annotated[int, Field(ge=1, le=600_000, description="Milliseconds; 30,000 by default.")],
)  # fmt: skip
_PUBLISH_OPTIONS = _request_of(
    JobOptions, "PublishOptions", "Options of a message.", "message", deduplication=MessageDeduplication
)
_SCHEDULE = _request_of(
    Schedule, "Schedule",
    "Exactly one of every, pattern and repeatAfterComplete; milliseconds, and epoch milliseconds.",
)  # fmt: skip
_BUDGET = _request_of(Budget, "Budget", "The budget of a flow.")


# -- requests --------------------------------------------------------------------------------------------------


class _Job(_Request, total=False):
    name: Required[_JobName]
    data: _Payload


class AddJob(_Job, total=False):
    """A job to add."""

    opts: Annotated[_Object, like(_OPTIONS)]


class AddJobAndWait(_Job, total=False):
    """A job to add and to wait for."""

    opts: Annotated[_Object, like(_WAIT_OPTIONS)]


class AddBulk(_Request):
    """Jobs to add together."""

    jobs: Annotated[list[AddJob], Field(max_length=1_000)]


class NewPriority(_Request):
    """A new priority of a job."""

    priority: Annotated[int, Field(ge=0, le=MAX_PRIORITY)]


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


class Template(_Request, total=False):
    """The jobs of a scheduler."""

    name: _JobName
    data: _Payload
    opts: Annotated[_Object, like(_OPTIONS)]


class PutScheduler(_Request, total=False):
    """A scheduler: when it adds jobs, and which."""

    schedule: Required[Annotated[_Object, like(_SCHEDULE)]]
    template: Template


class Publish(_Request, total=False):
    """A message for every subscription."""

    subject: Required[_JobName]
    data: _Payload
    opts: Annotated[_Object, like(_PUBLISH_OPTIONS)]


class _FlowJob(_Job, total=False):
    queue_name: Required[QueueName]
    opts: Annotated[_Object, like(_FLOW_OPTIONS)]


class FlowJobBody(_FlowJob, total=False):
    """A job of a tree."""

    children: list[FlowJobBody]


class DagNodeBody(_FlowJob, total=False):
    """A job of a graph; `deps` are the names of the jobs that it waits for."""

    deps: list[str]


class Dag(_Request):
    """A graph of jobs."""

    nodes: Annotated[list[DagNodeBody], Field(min_length=1)]


@with_config(_strict(oneOf=[{"required": ["flow"]}, {"required": ["dag"]}]))
class AddFlow(TypedDict, total=False):
    """Exactly one of flow and dag; budget requires flow."""

    flow: FlowJobBody
    dag: Dag
    budget: Annotated[_Object, like(_BUDGET)]


Payload = Annotated[Any, Field(description="Any JSON value.")]
Count = Annotated[int, Field(ge=0)]
AsText = Annotated[list[str], Field(description="Members that are given as text: too deeply nested or not decodable.")]
NextCursor = Annotated[str | None, Field(description="Where to continue; null = the end.")]
Amounts = dict[str, float]

_EXACT = ConfigDict(extra="forbid")


@with_config(_EXACT)
class ResponseModel(TypedDict):
    """A response has no other members than those documented."""


def model_of(kind: type[Any], renamed: Mapping[str, str] | None = None, **members: Any) -> Any:
    """Return the type of the JSON that `responses.camel` returns for a dataclass.

    Args:
        kind: the dataclass.
        renamed: names of members that are not the camelCase of the field's name.
        members: types of members that differ from the field's, or that the dataclass lacks.
    """
    hints, names = get_type_hints(kind), renamed or {}
    fields = {to_camel(field.name): hints[field.name] for field in dataclasses.fields(kind)}
    content = {names.get(name, name): hint for name, hint in fields.items()}
    create: Any = TypedDict  # type checkers accept only literals
    model = create(kind.__name__, {**content, **members})
    model.__doc__ = (inspect.getdoc(kind) or "").partition("\n")[0].partition(". ")[0]
    return with_config(_EXACT)(model)


def like(model: Any) -> GetPydanticSchema:
    """Return metadata for a member whose type is a result of `model_of`.

    Type checkers do not accept such a result in an annotation: ``usage: Annotated[Any, like(_Usage)]``.
    """
    return GetPydanticSchema(lambda _, handler: handler(model))


class Error(ResponseModel):
    """An error: a message, and a code that does not change."""

    error: str
    code: str


class Removed(ResponseModel):
    """Whether something was deleted."""

    removed: bool
