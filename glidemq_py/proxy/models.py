"""The JSON of requests and responses as types, from which the OpenAPI document is generated.

By those of requests the proxy also validates (see `schemas.checked`). After validation their members have Python's
names, so that options are arguments of the library's methods. Responses are not validated. The model of one stands
beside its endpoint; here is what they share.
"""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Final, Literal, Required, TypedDict

from glidemq_py._core.checks import check_bool, check_text
from glidemq_py._core.job_options import MAX_PRIORITY, JobOptions, unsupported_in
from glidemq_py._core.limits import MAX_COUNT, MAX_TOKENS, Ordering, RateLimit, TokenBucket
from glidemq_py._core.option_values import Backoff, Deduplication
from glidemq_py._core.times import MAX_DURATION_MS, MAX_EPOCH_MS
from glidemq_py._features.budgets import MAX_AMOUNT, Budget
from glidemq_py._features.schedulers.options import Schedule
from glidemq_py.proxy.schemas import Keywords, typed_dict

MAX_REPLAYED: Final = 1_000


# -- values ----------------------------------------------------------------------------------------------------


_Key = Annotated[str, Keywords(minLength=1, maxLength=256)]
QueueName = Annotated[_Key, Keywords(pattern=r"^[^{}:*?\[\]\\/\x00-\x1f\x7f]+$")]
JobId = Annotated[_Key, Keywords(pattern=r"^[^{}:/\x00-\x1f\x7f]+$")]
SchedulerName = Annotated[_Key, Keywords(pattern=r"^[^/\x00-\x1f\x7f]+$")]
FlowId = Annotated[_Key, Keywords(pattern=r"^[^{}/\x00-\x1f\x7f]+$")]

_JobName = Annotated[str, Keywords(minLength=1, maxLength=1024)]
_Text = Annotated[str, Keywords(minLength=1)]
_Ms = Annotated[int, Keywords(minimum=0, maximum=MAX_DURATION_MS)]
_Moment = Annotated[int, Keywords(minimum=0, maximum=MAX_EPOCH_MS)]
_Limit = Annotated[float, Keywords(exclusiveMinimum=0, maximum=MAX_AMOUNT)]
_Count = Annotated[int, Keywords(minimum=0, maximum=MAX_COUNT)]
Payload = Annotated[Any, Keywords(description="Any JSON value.")]


# -- options ---------------------------------------------------------------------------------------------------


class Retention(TypedDict, total=False):
    """How many finished jobs are kept, and how long, seconds."""

    age: Annotated[int, Keywords(minimum=1, maximum=MAX_DURATION_MS // 1_000)]
    count: _Count


_Kept = bool | _Count | Annotated[Retention, Keywords(minProperties=1)]


class MessageDeduplication(TypedDict, total=False):
    """Which messages are duplicates."""

    id: Required[_Key]
    ttl: Annotated[int, Keywords(minimum=1, maximum=MAX_DURATION_MS)]
    mode: Required[Literal["throttle"]]


_types: dict[str, Any] = {
    "job_id": JobId, "delay": _Ms, "max_delay": _Ms, "remove_on_complete": _Kept,
    "remove_on_fail": _Kept, "cost": Annotated[float, Keywords(minimum=0.001, maximum=MAX_TOKENS)],
    "type": Annotated[str, Keywords(minLength=1, maxLength=128)],
    "jitter": Annotated[float, Keywords(minimum=0, maximum=1)],
    "key": _Key, "capacity": float, "refill_rate": float, "pattern": _Text, "tz": _Text,
    "start_date": _Moment, "end_date": _Moment, "max_total_tokens": _Limit, "max_tokens": dict[str, _Limit],
    "max_total_cost": _Limit, "max_costs": dict[str, _Limit],
    "token_weights": dict[str, Annotated[float, Keywords(minimum=0, maximum=MAX_AMOUNT)]],
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
    return typed_dict(name, doc, types, total=False)


def _type_of(check: Any) -> Any:
    """Return the JSON type of an option that is checked in this way."""
    limits: Any = getattr(check, "keywords", {})
    if "minimum" in limits:
        return Annotated[int, Keywords(minimum=limits["minimum"], maximum=limits.get("maximum", MAX_DURATION_MS))]
    if getattr(check, "func", check) is check_text:
        return Annotated[str, Keywords(minLength=1, maxLength=limits["maximum"])]
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
    wait_timeout=Annotated[int, Keywords(minimum=1, maximum=600_000, description="Milliseconds; 30,000 by default.")],
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


class _Job(TypedDict, total=False):
    name: Required[_JobName]
    data: Payload


class AddJob(_Job, total=False):
    """A job to add."""

    opts: Annotated[dict[str, Any], _OPTIONS]


class AddJobAndWait(_Job, total=False):
    """A job to add and to wait for."""

    opts: Annotated[dict[str, Any], _WAIT_OPTIONS]


class AddBulk(TypedDict):
    """Jobs to add together."""

    jobs: Annotated[list[AddJob], Keywords(maxItems=1_000)]


class NewPriority(TypedDict):
    """A new priority of a job."""

    priority: Annotated[int, Keywords(minimum=0, maximum=MAX_PRIORITY)]


class NewDelay(TypedDict):
    """A new delay of a job, ms."""

    delay: _Ms


class SendSignal(TypedDict, total=False):
    """A signal for a job."""

    name: Required[_Key]
    data: Payload


class Drain(TypedDict, total=False):
    """Whether delayed jobs are deleted, too."""

    delayed: bool


class RetryJobs(TypedDict):
    """How many failed jobs to requeue, oldest failure first; 0 = all."""

    count: Annotated[int, Keywords(minimum=0, maximum=2**53)]


class ReplayAll(TypedDict, total=False):
    """How many dead-letter entries to replay; 100 by default."""

    count: Annotated[int, Keywords(minimum=1, maximum=MAX_REPLAYED)]


class Template(TypedDict, total=False):
    """The jobs of a scheduler."""

    name: _JobName
    data: Payload
    opts: Annotated[dict[str, Any], _OPTIONS]


class PutScheduler(TypedDict, total=False):
    """A scheduler: when it adds jobs, and which."""

    schedule: Required[Annotated[dict[str, Any], _SCHEDULE]]
    template: Template


class Publish(TypedDict, total=False):
    """A message for every subscription."""

    subject: Required[_JobName]
    data: Payload
    opts: Annotated[dict[str, Any], _PUBLISH_OPTIONS]


class _FlowJob(_Job, total=False):
    queue_name: Required[QueueName]
    opts: Annotated[dict[str, Any], _FLOW_OPTIONS]


class FlowJobBody(_FlowJob, total=False):
    """A job of a tree."""

    children: list[FlowJobBody]


class DagNodeBody(_FlowJob, total=False):
    """A job of a graph; `deps` are the names of the jobs that it waits for."""

    deps: list[str]


class Dag(TypedDict):
    """A graph of jobs."""

    nodes: Annotated[list[DagNodeBody], Keywords(minItems=1)]


class AddFlow(TypedDict, total=False):
    """Exactly one of flow and dag; budget requires flow."""

    flow: FlowJobBody
    dag: Dag
    budget: Annotated[dict[str, Any], _BUDGET]


OneFlow = Annotated[AddFlow, Keywords(oneOf=[{"required": ["flow"]}, {"required": ["dag"]}])]

Count = Annotated[int, Keywords(minimum=0)]
AsText = Annotated[
    list[str], Keywords(description="Members that are given as text: too deeply nested or not decodable.")
]
NextCursor = Annotated[str | None, Keywords(description="Where to continue; null = the end.")]


class Error(TypedDict):
    """An error: a message, and a code that does not change."""

    error: str
    code: str


class Removed(TypedDict):
    """Whether something was deleted."""

    removed: bool
