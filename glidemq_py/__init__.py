"""glidemq_py: a job queue for Python over Valkey, fast and hard to break.

``Queue`` adds jobs, ``Worker`` runs them, ``QueueEvents`` tells what happens, ``Job`` is what all of them hand you.
"""

from glidemq_py.broadcast import (
    Broadcast,
    BroadcastWorker,
    Delivery,
    Message,
    Subscription,
    compile_subject_matcher,
    match_subject,
)
from glidemq_py.client.connect import is_cluster_client
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
    JobNotReadError,
    JobRevokedError,
    JobSignal,
    JobStateError,
    JobTimeoutError,
    LibraryError,
    NoHandlerError,
    PayloadTooLargeError,
    RateLimitError,
    SandboxCrashError,
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
    UnsupportedOptionError,
    WaitingChildrenError,
    WaitTimeoutError,
    WorkerTargetError,
)
from glidemq_py.events import QueueEvent, QueueEvents
from glidemq_py.flows import (
    DagNode,
    FlowJob,
    FlowProducer,
    JobNode,
    chain,
    chord,
    dag,
    group,
    topo_sort,
    validate_dag,
)
from glidemq_py.job import BlockingJob, Job, current_job, current_job_id
from glidemq_py.model.chunks import StreamChunk
from glidemq_py.model.findings import CheckReport, Finding, FindingKind
from glidemq_py.model.groups import GroupInfo, GroupLimits
from glidemq_py.model.metrics import JobLogs, Metrics, MetricsPoint
from glidemq_py.model.schedulers import JobScheduler
from glidemq_py.model.states import JobCounts, JobOutcome, JobState, WorkerInfo
from glidemq_py.model.suspension import Signal, SuspendInfo
from glidemq_py.model.usage import FlowBudget, FlowUsage, JobUsage, QueueUsage, UsageSummary
from glidemq_py.model.vectors import VectorMatch
from glidemq_py.options.address import Address
from glidemq_py.options.backoff import Backoff
from glidemq_py.options.batch import BatchOptions
from glidemq_py.options.budget import Budget
from glidemq_py.options.connection import ConnectionOptions, IamCredentials
from glidemq_py.options.dead_letter import DeadLetterOptions
from glidemq_py.options.deduplication import Deduplication
from glidemq_py.options.failure_log import FailureLogOptions
from glidemq_py.options.fallbacks import Fallback
from glidemq_py.options.job import JobOptions
from glidemq_py.options.limits import RateLimit, TokenBucket, TokenLimiter
from glidemq_py.options.ordering import Ordering
from glidemq_py.options.parent import JobRef
from glidemq_py.options.queue import JobSpec, Serializer
from glidemq_py.options.retention import KeepJobs
from glidemq_py.options.sandbox import SandboxOptions
from glidemq_py.options.schedule import Schedule
from glidemq_py.options.vectors import VectorField
from glidemq_py.producer import Producer, ServerlessPool, serverless_pool
from glidemq_py.queue import Queue
from glidemq_py.queue.usage import get_usage_summary
from glidemq_py.schedule import Scheduler
from glidemq_py.telemetry import is_tracing_enabled, set_tracer
from glidemq_py.wire.payload import JSON_SERIALIZER
from glidemq_py.wire.serializers import MSGPACK_SERIALIZER
from glidemq_py.worker import Task, Worker
from glidemq_py.worker.shutdown import GracefulShutdown, graceful_shutdown

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
    "JobNotReadError",
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
    "NoHandlerError",
    "Ordering",
    "PayloadTooLargeError",
    "Producer",
    "Queue",
    "QueueEvent",
    "QueueEvents",
    "QueueUsage",
    "RateLimit",
    "RateLimitError",
    "SandboxCrashError",
    "SandboxOptions",
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
