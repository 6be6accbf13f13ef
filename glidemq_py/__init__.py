"""glidemq_py: a job queue for Python on Valkey.

``Queue`` adds jobs, ``Worker`` runs them, ``QueueEvents`` reports their events, and ``Job`` represents one job.
"""

from glidemq_py._api.flow_producer import FlowProducer, chain, chord, dag, group
from glidemq_py._api.job_queue import Queue
from glidemq_py._api.producer import Producer, ServerlessPool, serverless_pool
from glidemq_py._api.queue_events import QueueEvents
from glidemq_py._api.scheduler import Scheduler
from glidemq_py._client.connect import is_cluster_client
from glidemq_py._client.connection_options import ConnectionOptions, IamCredentials
from glidemq_py._client.connection_url import Address
from glidemq_py._client.event_reader import QueueEvent
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.job_states import JobCounts, JobOutcome, JobState, WorkerInfo
from glidemq_py._core.payload import JSON_SERIALIZER, MSGPACK_SERIALIZER
from glidemq_py._core.queue_options import JobSpec, Serializer
from glidemq_py._features.broadcast.broadcast import Broadcast, Delivery, Subscription
from glidemq_py._features.broadcast.message import Message
from glidemq_py._features.broadcast.options import compile_subject_matcher, match_subject
from glidemq_py._features.broadcast.worker import BroadcastWorker
from glidemq_py._features.budgets.options import Budget
from glidemq_py._features.consistency.checking import CheckReport, Finding, FindingKind
from glidemq_py._features.dead_letters.options import DeadLetterOptions
from glidemq_py._features.deduplication import Deduplication
from glidemq_py._features.fallbacks import Fallback
from glidemq_py._features.flows.definition import DagNode, FlowJob, topo_sort, validate_dag
from glidemq_py._features.flows.parent_option import JobRef
from glidemq_py._features.flows.reading import JobNode
from glidemq_py._features.limits.options import RateLimit, TokenBucket, TokenLimiter
from glidemq_py._features.metrics import JobLogs, Metrics, MetricsPoint
from glidemq_py._features.ordering_groups import GroupInfo, GroupLimits, Ordering
from glidemq_py._features.retention import KeepJobs
from glidemq_py._features.retries import Backoff
from glidemq_py._features.schedulers.entry import JobScheduler
from glidemq_py._features.schedulers.options import Schedule
from glidemq_py._features.streams.queue_api import StreamChunk
from glidemq_py._features.suspend.job_api import Signal, SuspendInfo
from glidemq_py._features.usage.calls import FlowBudget, FlowUsage, JobUsage, QueueUsage, UsageSummary
from glidemq_py._features.usage.summaries import get_usage_summary
from glidemq_py._features.vectors.options import VectorField, VectorMatch
from glidemq_py._job import BlockingJob, Job, current_job, current_job_id
from glidemq_py._worker.options import BatchOptions, FailureLogOptions, SandboxOptions
from glidemq_py._worker.shutdown import GracefulShutdown, graceful_shutdown
from glidemq_py._worker.tasks import Task
from glidemq_py._worker.worker import Worker
from glidemq_py.errors import (
    AmbiguousResultError,
    AuthenticationError,
    BatchError,
    BatchMismatchError,
    BudgetExceededError,
    BulkAddError,
    ChildFailedError,
    ClosedError,
    ColumnError,
    ConnectionRejectedError,
    ContextManagerError,
    CycleError,
    DelayedError,
    DuplicateJobError,
    EmbeddedServerError,
    EventLoopError,
    EventsLostError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    GroupRateLimitError,
    JobCostError,
    JobDataError,
    JobFailedError,
    JobNotFoundError,
    JobNotLoadedError,
    JobRevokedError,
    JobSignal,
    JobStateError,
    JobTimeoutError,
    LibraryError,
    MissingAwaitError,
    NoHandlerError,
    PayloadTooLargeError,
    PermissionDeniedError,
    RateLimitError,
    ResultsLostError,
    SandboxCrashError,
    SandboxStartError,
    SchedulerBusyError,
    ScriptError,
    SearchIndexError,
    SearchUnavailableError,
    SerializationError,
    ServerConfigurationError,
    ServerModeError,
    ServerNotReadyError,
    ServerOutOfMemoryError,
    SlotMigratingError,
    StagedWriteError,
    StaleAttemptError,
    SuspendError,
    TlsError,
    UnknownOptionError,
    UnrecoverableError,
    UnsupportedFeatureError,
    UnsupportedOptionError,
    WaitingChildrenError,
    WaitTimeoutError,
    WorkerTargetError,
)
from glidemq_py.telemetry import is_tracing_enabled, set_tracer

__version__ = "0.1.0"

__all__ = [
    "JSON_SERIALIZER",
    "MSGPACK_SERIALIZER",
    "Address",
    "AmbiguousResultError",
    "AuthenticationError",
    "Backoff",
    "BatchError",
    "BatchMismatchError",
    "BatchOptions",
    "BlockingJob",
    "Broadcast",
    "BroadcastWorker",
    "Budget",
    "BudgetExceededError",
    "BulkAddError",
    "CheckReport",
    "ChildFailedError",
    "ClosedError",
    "ColumnError",
    "ConnectionOptions",
    "ConnectionRejectedError",
    "ContextManagerError",
    "CycleError",
    "DagNode",
    "DeadLetterOptions",
    "Deduplication",
    "DelayedError",
    "Delivery",
    "DuplicateJobError",
    "EmbeddedServerError",
    "EventLoopError",
    "EventsLostError",
    "FailureLogOptions",
    "Fallback",
    "Finding",
    "FindingKind",
    "FlowBudget",
    "FlowJob",
    "FlowProducer",
    "FlowUsage",
    "GlideMQConnectionError",
    "GlideMQError",
    "GlideMQValidationError",
    "GracefulShutdown",
    "GroupInfo",
    "GroupLimits",
    "GroupRateLimitError",
    "IamCredentials",
    "Job",
    "JobCostError",
    "JobCounts",
    "JobDataError",
    "JobFailedError",
    "JobLogs",
    "JobNode",
    "JobNotFoundError",
    "JobNotLoadedError",
    "JobOptions",
    "JobOutcome",
    "JobRef",
    "JobRevokedError",
    "JobScheduler",
    "JobSignal",
    "JobSpec",
    "JobState",
    "JobStateError",
    "JobTimeoutError",
    "JobUsage",
    "KeepJobs",
    "LibraryError",
    "Message",
    "Metrics",
    "MetricsPoint",
    "MissingAwaitError",
    "NoHandlerError",
    "Ordering",
    "PayloadTooLargeError",
    "PermissionDeniedError",
    "Producer",
    "Queue",
    "QueueEvent",
    "QueueEvents",
    "QueueUsage",
    "RateLimit",
    "RateLimitError",
    "ResultsLostError",
    "SandboxCrashError",
    "SandboxOptions",
    "SandboxStartError",
    "Schedule",
    "Scheduler",
    "SchedulerBusyError",
    "ScriptError",
    "SearchIndexError",
    "SearchUnavailableError",
    "SerializationError",
    "Serializer",
    "ServerConfigurationError",
    "ServerModeError",
    "ServerNotReadyError",
    "ServerOutOfMemoryError",
    "ServerlessPool",
    "Signal",
    "SlotMigratingError",
    "StagedWriteError",
    "StaleAttemptError",
    "StreamChunk",
    "Subscription",
    "SuspendError",
    "SuspendInfo",
    "Task",
    "TlsError",
    "TokenBucket",
    "TokenLimiter",
    "UnknownOptionError",
    "UnrecoverableError",
    "UnsupportedFeatureError",
    "UnsupportedOptionError",
    "UsageSummary",
    "VectorField",
    "VectorMatch",
    "WaitTimeoutError",
    "WaitingChildrenError",
    "Worker",
    "WorkerInfo",
    "WorkerTargetError",
    "__version__",
    "chain",
    "chord",
    "compile_subject_matcher",
    "current_job",
    "current_job_id",
    "dag",
    "get_usage_summary",
    "graceful_shutdown",
    "group",
    "is_cluster_client",
    "is_tracing_enabled",
    "match_subject",
    "serverless_pool",
    "set_tracer",
    "topo_sort",
    "validate_dag",
]
