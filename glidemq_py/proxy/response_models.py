"""The JSON of responses as types, for the OpenAPI document. At run time responses are not validated."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, Required

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

_Payload = Annotated[Any, Field(description="Any JSON value.")]
_Count = Annotated[int, Field(ge=0)]
_AsText = Annotated[list[str], Field(description="Members that are given as text: too deeply nested or not decodable.")]
_NextCursor = Annotated[str | None, Field(description="Where to continue; null = the end.")]
_Amounts = dict[str, float]


@with_config(ConfigDict(extra="forbid"))
class _Response(TypedDict):
    """A response has no other members than those documented."""


class Error(_Response):
    """An error: a message, and a code that does not change."""

    error: str
    code: str


class Health(_Response):
    """The proxy's health; uptime in ms."""

    status: str
    uptime: _Count
    queues: _Count


class AddedJob(_Response):
    """A job that was added."""

    id: str
    name: str
    timestamp: int


class Skipped(_Response):
    """A job or message that was not added: it is a duplicate."""

    skipped: bool


class BulkOutcomes(_Response):
    """One outcome per position."""

    jobs: list[AddedJob | Skipped | Error]


class WaitResult(_Response):
    """The result of a job."""

    result: _Payload
    asText: NotRequired[_AsText]


class Usage(_Response):
    """Usage of a job."""

    model: str | None
    provider: str | None
    tokens: _Amounts
    totalTokens: float
    costs: _Amounts
    totalCost: float
    costUnit: str | None
    latencyMs: float | None
    cached: bool | None


class ReceivedSignal(_Response):
    """A signal that a job has received."""

    name: str
    data: _Payload
    receivedAt: int
    asText: NotRequired[_AsText]


class Suspended(_Response):
    """The suspension of a job."""

    reason: str | None
    suspendedAt: int
    timeout: int | None
    signals: list[ReceivedSignal]


class JobView(_Response):
    """A job."""

    id: str
    name: str
    data: NotRequired[_Payload]
    opts: dict[str, Any]
    timestamp: int
    attemptsMade: int
    state: str | None
    progress: _Payload
    returnvalue: NotRequired[_Payload]
    failedReason: str | None
    finishedOn: int | None
    processedOn: int | None
    parentId: str | None
    parentQueue: str | None
    usage: Usage | None
    suspend: NotRequired[Suspended | None]
    asText: NotRequired[_AsText]


class JobPage(_Response):
    """A page of jobs."""

    jobs: list[JobView]
    cursor: _NextCursor


class UpdatedPriority(_Response):
    """The new priority of a job."""

    priority: int
    updated: bool


class UpdatedDelay(_Response):
    """The new delay of a job, ms."""

    delay: int
    updated: bool


class Promoted(_Response):
    """A delayed job is due now."""

    promoted: bool


class RevokeStatus(_Response):
    """Whether a job was revoked, or flagged because it is active."""

    status: Literal["revoked", "flagged"]


class SignalOutcome(_Response):
    """Whether the job was waiting for the signal."""

    resumed: bool


class PauseState(_Response):
    """Whether the queue is paused."""

    paused: bool


class Counts(_Response):
    """The number of jobs in each state."""

    waiting: _Count
    active: _Count
    delayed: _Count
    prioritized: _Count
    groupWaiting: _Count
    completed: _Count
    failed: _Count
    suspended: _Count
    waitingChildren: _Count
    paused: bool


class MetricsPoint(_Response):
    """The jobs that ended in a minute."""

    timestamp: int
    count: _Count
    avgDuration: _Count


class MetricsMeta(_Response):
    """The unit of the metrics."""

    resolution: str


class Metrics(_Response):
    """Completed or failed jobs per minute."""

    count: _Count
    data: list[MetricsPoint]
    meta: MetricsMeta


class WorkerView(_Response):
    """A live worker."""

    id: str
    addr: str
    pid: int
    startedAt: int
    age: int
    activeJobs: int


class Workers(_Response):
    """The live workers."""

    workers: list[WorkerView]


class Drained(_Response):
    """The waiting jobs were deleted."""

    delayed: bool
    drained: bool


class Requeued(_Response):
    """The number of requeued jobs."""

    retried: _Count


class Cleaned(_Response):
    """The ids of the deleted jobs."""

    removed: list[str]


class RateLimitView(_Response):
    """At most `max` jobs per `duration` ms."""

    max: int
    duration: int


class RateLimitState(_Response):
    """The rate limit of a queue."""

    rateLimit: RateLimitView | None


class RateLimitRemoved(_Response):
    """The rate limit was removed."""

    removed: bool
    rateLimit: None


class DeadLetter(_Response):
    """A dead-letter entry."""

    id: str
    name: str
    data: _Payload
    originalQueue: str
    originalJobId: str
    failedReason: str | None
    attemptsMade: int
    timestamp: int
    asText: NotRequired[_AsText]


class DeadLetterPage(_Response):
    """A page of dead-letter entries."""

    count: _Count
    jobs: list[DeadLetter]
    cursor: _NextCursor


class Removed(_Response):
    """Whether something was deleted."""

    removed: bool


class Replayed(_Response):
    """The job of a replayed entry."""

    name: str
    newJobId: str


class ReplayedJob(_Response):
    """The job of a replayed entry, and the entry."""

    id: str
    name: str
    sourceId: str


class ReplayedAll(_Response):
    """The first 1000 replayed jobs, and the number of all."""

    jobs: list[ReplayedJob]
    replayed: _Count


class _Sums(_Response):
    jobCount: _Count
    tokens: _Amounts
    totalTokens: float
    costs: _Amounts
    totalCost: float
    costUnit: str | None
    models: dict[str, _Count]


class FlowUsage(_Sums):
    """Usage of the jobs of a flow or queue."""


class UsageSummary(_Sums):
    """Usage of the jobs of several queues in a period."""

    startTime: int
    endTime: int
    bucketSizeMs: int
    queues: list[str]
    perQueue: dict[str, FlowUsage]


class FlowBudget(_Response):
    """The budget of a flow, and its usage."""

    maxTotalTokens: float | None
    maxTokens: _Amounts
    tokenWeights: _Amounts
    maxTotalCost: float | None
    maxCosts: _Amounts
    costUnit: str | None
    onExceeded: str
    usedTokens: float
    usedCost: float
    usedTokensByCategory: _Amounts
    usedCostsByCategory: _Amounts
    exceeded: bool


class StoredSchedule(TypedDict, total=False):
    """A scheduler as stored."""

    every: int
    pattern: str
    repeatAfterComplete: int
    tz: str
    startDate: int
    endDate: int
    limit: int
    misfire: str
    dayMatch: str
    template: dict[str, Any]
    nextRun: int
    lastRun: int
    iterationCount: _Count
    lastJobId: str


class SchedulerView(_Response):
    """A scheduler."""

    name: str
    entry: StoredSchedule


class SchedulerPage(_Response):
    """A page of schedulers."""

    schedulers: list[SchedulerView]
    cursor: _NextCursor


class Upserted(_Response):
    """The scheduler was created or updated."""

    upserted: bool


class Published(_Response):
    """A message that was published."""

    id: str
    subject: str


class FlowRef(_Response):
    """A job of a flow."""

    id: str
    queueName: str
    name: NotRequired[str | None]


class AddedFlow(_Response):
    """A flow that was added: the root of a tree, or the jobs of a graph by name."""

    flowId: str
    kind: Literal["tree", "dag"]
    nodeCount: _Count
    roots: list[FlowRef]
    root: NotRequired[FlowRef]
    jobs: NotRequired[dict[str, FlowRef]]


class FlowMember(_Response):
    """A job of a flow and its state, which is null if the job no longer exists."""

    id: str
    queueName: str
    name: str | None
    state: str | None
    timestamp: int
    attemptsMade: int
    progress: _Payload
    failedReason: str | None
    processedOn: int | None
    finishedOn: int | None
    asText: NotRequired[_AsText]


class FlowTree(_Response, total=False):
    """A job of a flow with its children; `more` if they are not shown here."""

    id: Required[str]
    queueName: Required[str]
    name: str | None
    state: str | None
    timestamp: int
    attemptsMade: int
    progress: _Payload
    failedReason: str | None
    processedOn: int | None
    finishedOn: int | None
    asText: _AsText
    children: list[FlowTree]
    more: Literal[True]


class _FlowSummary(_Response):
    flowId: str
    kind: Literal["tree", "dag"]
    createdAt: int
    counts: dict[str, _Count]
    roots: list[FlowRef]
    usage: FlowUsage
    budget: FlowBudget | None


class FlowPage(_FlowSummary):
    """A flow with a page of its jobs."""

    nodes: list[FlowMember]
    cursor: _NextCursor


class FlowTrees(_FlowSummary):
    """A flow with a tree for each root."""

    tree: list[FlowTree]


class RevokedFlowJob(_Response):
    """A job of a revoked flow."""

    id: str
    queueName: str
    status: Literal["revoked", "flagged", "skipped"]


class RevokedFlow(_Response):
    """The outcomes of revoking a flow."""

    flowId: str
    revoked: _Count
    flagged: _Count
    skipped: _Count
    jobs: list[RevokedFlowJob]
