"""glidemq_py: a job queue for Python on Valkey.

``Queue`` adds jobs, ``Worker`` runs them, ``QueueEvents`` reports their events, and ``Job`` represents one job.
"""

from typing import TYPE_CHECKING

from glidemq_py._core.lazy_names import import_on_first_use as _import_on_first_use
from glidemq_py._core.version import __version__
from glidemq_py.errors import (
    AmbiguousResultError,
    BackupError,
    BatchError,
    BudgetExceededError,
    BulkAddError,
    ChildFailedError,
    ClosedError,
    ColumnError,
    ConnectionRejectedError,
    DataLostError,
    DelayedError,
    DuplicateJobError,
    DurabilityError,
    EmbeddedServerError,
    EventLoopError,
    FairKeyFullError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    GroupRateLimitError,
    HandlerError,
    JobBatchNotFoundError,
    JobDataError,
    JobFailedError,
    JobInterruptedError,
    JobNotFoundError,
    JobNotLoadedError,
    JobRevokedError,
    JobSignal,
    JobStateError,
    JobTimeoutError,
    LeaseLostError,
    LibraryError,
    MissingOptionError,
    PartitionedQueueError,
    PayloadTooLargeError,
    PermissionDeniedError,
    QueueNotEmptyError,
    QueuePartitionsError,
    RateLimitError,
    SandboxCrashError,
    ScriptError,
    SearchIndexError,
    SerializationError,
    ServerNotReadyError,
    ServerOutOfMemoryError,
    StagedWriteError,
    StaleAttemptError,
    SuspendError,
    UnknownOptionError,
    UnrecoverableError,
    UnsupportedFeatureError,
    WaitingChildrenError,
    WaitTimeoutError,
    WorkerCommandError,
    WorkerNotFoundError,
    WorkerTimeoutError,
)

if TYPE_CHECKING:
    from glidemq_py._api.backup_schedule import BackupSchedule
    from glidemq_py._api.broadcast import Broadcast
    from glidemq_py._api.common_flows import chain, chord, dag, group
    from glidemq_py._api.flow_producer import FlowProducer
    from glidemq_py._api.flow_reading import JobNode
    from glidemq_py._api.job_batch import BatchJob, BatchStatus, JobBatch
    from glidemq_py._api.job_queue import Queue
    from glidemq_py._api.lease import Lease
    from glidemq_py._api.lease_exchange import LeaseOutcome
    from glidemq_py._api.leasing import LeaseReport
    from glidemq_py._api.producer import Producer, ServerlessPool, serverless_pool
    from glidemq_py._api.queue_events import QueueEvents
    from glidemq_py._api.queue_names import get_usage_summary, list_queues
    from glidemq_py._client.connection_options import ConnectionOptions, IamCredentials
    from glidemq_py._client.connection_url import Address
    from glidemq_py._client.event_reader import QueueEvent
    from glidemq_py._core.deduplication import Deduplication
    from glidemq_py._core.fallbacks import Fallback
    from glidemq_py._core.job_options import JobOptions
    from glidemq_py._core.job_references import JobRef
    from glidemq_py._core.job_states import JobCounts, JobOutcome, JobState, WorkerInfo
    from glidemq_py._core.limits import (
        FairKeyDefaults,
        FairKeyInfo,
        GlobalLimits,
        GroupInfo,
        GroupLimits,
        NameLimits,
        Ordering,
        RateLimit,
        TokenBucket,
        TokenLimiter,
    )
    from glidemq_py._core.logs import JobLogLine
    from glidemq_py._core.payload import JSON_SERIALIZER, MSGPACK_SERIALIZER
    from glidemq_py._core.queue_options import DeadLetterOptions, Durability, JobSpec, Serializer
    from glidemq_py._core.retention import KeepJobs
    from glidemq_py._core.retries import Backoff
    from glidemq_py._features.backup.manifest import BackupInfo
    from glidemq_py._features.backup.restoring import RestoreReport
    from glidemq_py._features.broadcast import Delivery, Subscription, compile_subject_matcher, match_subject
    from glidemq_py._features.budgets import Budget
    from glidemq_py._features.consistency.checking import CheckReport, Finding, FindingKind
    from glidemq_py._features.dependencies import Dependency
    from glidemq_py._features.failed_attempts import FailedAttempt, FailureReason
    from glidemq_py._features.failure_policy import AttemptHistory, FailurePolicy
    from glidemq_py._features.failures import Failure, FailureStats
    from glidemq_py._features.flows.definition import DagNode, FlowJob, topo_sort, validate_dag
    from glidemq_py._features.job_batches import BatchRef
    from glidemq_py._features.metrics import JobLogs, Metrics, MetricsPoint
    from glidemq_py._features.metrics_by_name import DurationStats, MetricsByName, MetricsByNameSetting
    from glidemq_py._features.remote_control import RunningJob, WorkerActivity
    from glidemq_py._features.schedulers.entry import JobScheduler
    from glidemq_py._features.schedulers.options import Schedule
    from glidemq_py._features.stalled_jobs import StalledPolicy
    from glidemq_py._features.streams import StreamChunk
    from glidemq_py._features.suspend import Signal, SuspendInfo
    from glidemq_py._features.timeline import TimelineEntry, TimelineSetting
    from glidemq_py._features.usage import FlowBudget, FlowUsage, JobUsage, QueueUsage, UsageSummary
    from glidemq_py._features.vectors import VectorField, VectorMatch
    from glidemq_py._job.job import Job, current_job
    from glidemq_py._job.job_twin import BlockingJob
    from glidemq_py._job.message import Message
    from glidemq_py._job.middleware import ContextHeaders, Middleware, NewJob
    from glidemq_py._partitions.layout import QueuePartitions
    from glidemq_py._worker.broadcasts import BroadcastWorker
    from glidemq_py._worker.maintenance.queues import Maintenance, Scheduler
    from glidemq_py._worker.options import BatchOptions, FailureLogOptions, SandboxOptions
    from glidemq_py._worker.shutdown import GracefulShutdown, graceful_shutdown
    from glidemq_py._worker.tasks import Task
    from glidemq_py._worker.worker import Worker
    from glidemq_py.telemetry import is_tracing_enabled, set_tracer
else:
    __getattr__, __dir__ = _import_on_first_use(
        __name__,
        {
            "glidemq_py._api.backup_schedule": ("BackupSchedule",),
            "glidemq_py._api.common_flows": ("chain", "chord", "dag", "group"),
            "glidemq_py._api.flow_producer": ("FlowProducer",),
            "glidemq_py._api.job_queue": ("Queue",),
            "glidemq_py._api.producer": ("Producer", "ServerlessPool", "serverless_pool"),
            "glidemq_py._api.queue_events": ("QueueEvents",),
            "glidemq_py._client.connection_options": ("ConnectionOptions", "IamCredentials"),
            "glidemq_py._client.connection_url": ("Address",),
            "glidemq_py._client.event_reader": ("QueueEvent",),
            "glidemq_py._core.job_options": ("JobOptions",),
            "glidemq_py._core.job_states": ("JobCounts", "JobOutcome", "JobState", "WorkerInfo"),
            "glidemq_py._core.payload": ("JSON_SERIALIZER", "MSGPACK_SERIALIZER"),
            "glidemq_py._core.queue_options": (
                "DeadLetterOptions",
                "Durability",
                "JobSpec",
                "Serializer",
            ),
            "glidemq_py._features.backup.manifest": ("BackupInfo",),
            "glidemq_py._features.backup.restoring": ("RestoreReport",),
            "glidemq_py._api.broadcast": ("Broadcast",),
            "glidemq_py._job.message": ("Message",),
            "glidemq_py._features.broadcast": ("Delivery", "Subscription", "compile_subject_matcher", "match_subject"),
            "glidemq_py._worker.broadcasts": ("BroadcastWorker",),
            "glidemq_py._features.budgets": ("Budget",),
            "glidemq_py._features.consistency.checking": ("CheckReport", "Finding", "FindingKind"),
            "glidemq_py._core.deduplication": ("Deduplication",),
            "glidemq_py._features.failure_policy": ("AttemptHistory", "FailurePolicy"),
            "glidemq_py._features.failed_attempts": ("FailedAttempt", "FailureReason"),
            "glidemq_py._features.failures": ("Failure", "FailureStats"),
            "glidemq_py._core.fallbacks": ("Fallback",),
            "glidemq_py._features.flows.definition": ("DagNode", "FlowJob", "topo_sort", "validate_dag"),
            "glidemq_py._features.dependencies": ("Dependency",),
            "glidemq_py._core.job_references": ("JobRef",),
            "glidemq_py._api.flow_reading": ("JobNode",),
            "glidemq_py._api.job_batch": ("BatchJob", "BatchStatus", "JobBatch"),
            "glidemq_py._features.job_batches": ("BatchRef",),
            "glidemq_py._api.lease_exchange": ("LeaseOutcome",),
            "glidemq_py._api.lease": ("Lease",),
            "glidemq_py._api.leasing": ("LeaseReport",),
            "glidemq_py._core.limits": (
                "FairKeyDefaults",
                "FairKeyInfo",
                "GlobalLimits",
                "GroupInfo",
                "GroupLimits",
                "NameLimits",
                "Ordering",
                "RateLimit",
                "TokenBucket",
                "TokenLimiter",
            ),
            "glidemq_py._core.logs": ("JobLogLine",),
            "glidemq_py._features.metrics": ("JobLogs", "Metrics", "MetricsPoint"),
            "glidemq_py._partitions.layout": ("QueuePartitions",),
            "glidemq_py._features.remote_control": ("RunningJob", "WorkerActivity"),
            "glidemq_py._core.retention": ("KeepJobs",),
            "glidemq_py._job.middleware": ("ContextHeaders", "Middleware", "NewJob"),
            "glidemq_py._core.retries": ("Backoff",),
            "glidemq_py._features.schedulers.entry": ("JobScheduler",),
            "glidemq_py._features.schedulers.options": ("Schedule",),
            "glidemq_py._features.stalled_jobs": ("StalledPolicy",),
            "glidemq_py._features.streams": ("StreamChunk",),
            "glidemq_py._features.suspend": ("Signal", "SuspendInfo"),
            "glidemq_py._features.metrics_by_name": (
                "DurationStats",
                "MetricsByName",
                "MetricsByNameSetting",
            ),
            "glidemq_py._features.timeline": ("TimelineSetting", "TimelineEntry"),
            "glidemq_py._features.usage": ("FlowBudget", "FlowUsage", "JobUsage", "QueueUsage", "UsageSummary"),
            "glidemq_py._api.queue_names": ("get_usage_summary", "list_queues"),
            "glidemq_py._features.vectors": ("VectorField", "VectorMatch"),
            "glidemq_py._job.job_twin": ("BlockingJob",),
            "glidemq_py._job.job": ("Job", "current_job"),
            "glidemq_py._worker.maintenance.queues": ("Maintenance", "Scheduler"),
            "glidemq_py._worker.options": ("BatchOptions", "FailureLogOptions", "SandboxOptions"),
            "glidemq_py._worker.shutdown": ("GracefulShutdown", "graceful_shutdown"),
            "glidemq_py._worker.tasks": ("Task",),
            "glidemq_py._worker.worker": ("Worker",),
            "glidemq_py.telemetry": ("is_tracing_enabled", "set_tracer"),
        },
        ("errors", "telemetry"),
    )

__all__ = [
    "JSON_SERIALIZER",
    "MSGPACK_SERIALIZER",
    "Address",
    "AmbiguousResultError",
    "AttemptHistory",
    "Backoff",
    "BackupError",
    "BackupInfo",
    "BackupSchedule",
    "BatchError",
    "BatchJob",
    "BatchOptions",
    "BatchRef",
    "BatchStatus",
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
    "ContextHeaders",
    "DagNode",
    "DataLostError",
    "DeadLetterOptions",
    "Deduplication",
    "DelayedError",
    "Delivery",
    "Dependency",
    "DuplicateJobError",
    "Durability",
    "DurabilityError",
    "DurationStats",
    "EmbeddedServerError",
    "EventLoopError",
    "FailedAttempt",
    "Failure",
    "FailureLogOptions",
    "FailurePolicy",
    "FailureReason",
    "FailureStats",
    "FairKeyDefaults",
    "FairKeyFullError",
    "FairKeyInfo",
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
    "GlobalLimits",
    "GracefulShutdown",
    "GroupInfo",
    "GroupLimits",
    "GroupRateLimitError",
    "HandlerError",
    "IamCredentials",
    "Job",
    "JobBatch",
    "JobBatchNotFoundError",
    "JobCounts",
    "JobDataError",
    "JobFailedError",
    "JobInterruptedError",
    "JobLogLine",
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
    "Lease",
    "LeaseLostError",
    "LeaseOutcome",
    "LeaseReport",
    "LibraryError",
    "Maintenance",
    "Message",
    "Metrics",
    "MetricsByName",
    "MetricsByNameSetting",
    "MetricsPoint",
    "Middleware",
    "MissingOptionError",
    "NameLimits",
    "NewJob",
    "Ordering",
    "PartitionedQueueError",
    "PayloadTooLargeError",
    "PermissionDeniedError",
    "Producer",
    "Queue",
    "QueueEvent",
    "QueueEvents",
    "QueueNotEmptyError",
    "QueuePartitions",
    "QueuePartitionsError",
    "QueueUsage",
    "RateLimit",
    "RateLimitError",
    "RestoreReport",
    "RunningJob",
    "SandboxCrashError",
    "SandboxOptions",
    "Schedule",
    "Scheduler",
    "ScriptError",
    "SearchIndexError",
    "SerializationError",
    "Serializer",
    "ServerNotReadyError",
    "ServerOutOfMemoryError",
    "ServerlessPool",
    "Signal",
    "StagedWriteError",
    "StaleAttemptError",
    "StalledPolicy",
    "StreamChunk",
    "Subscription",
    "SuspendError",
    "SuspendInfo",
    "Task",
    "TimelineEntry",
    "TimelineSetting",
    "TokenBucket",
    "TokenLimiter",
    "UnknownOptionError",
    "UnrecoverableError",
    "UnsupportedFeatureError",
    "UsageSummary",
    "VectorField",
    "VectorMatch",
    "WaitTimeoutError",
    "WaitingChildrenError",
    "Worker",
    "WorkerActivity",
    "WorkerCommandError",
    "WorkerInfo",
    "WorkerNotFoundError",
    "WorkerTimeoutError",
    "__version__",
    "chain",
    "chord",
    "compile_subject_matcher",
    "current_job",
    "dag",
    "get_usage_summary",
    "graceful_shutdown",
    "group",
    "is_tracing_enabled",
    "list_queues",
    "match_subject",
    "serverless_pool",
    "set_tracer",
    "topo_sort",
    "validate_dag",
]
