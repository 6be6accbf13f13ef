"""glidemq_py: a job queue for Python on Valkey.

``Queue`` adds jobs, ``Worker`` runs them, ``QueueEvents`` reports their events, and ``Job`` represents one job.
"""

from typing import TYPE_CHECKING

from glidemq_py._core import __version__
from glidemq_py._core import import_on_first_use as _import_on_first_use
from glidemq_py.errors import (
    AmbiguousResultError,
    BulkAddError,
    ClosedError,
    DelayedError,
    DuplicateJobError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    JobTimeoutError,
    RateLimitError,
    SerializationError,
    UnrecoverableError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from glidemq_py._api.backup_schedule import BackupSchedule
    from glidemq_py._api.broadcast import Broadcast
    from glidemq_py._api.common_flows import chain, chord, dag, group
    from glidemq_py._api.flow_producer import FlowProducer
    from glidemq_py._api.job_batch import JobBatch
    from glidemq_py._api.job_queue import Queue
    from glidemq_py._api.lease import Lease
    from glidemq_py._api.lease_exchange import LeaseOutcome
    from glidemq_py._api.producer import Producer, ServerlessPool, serverless_pool
    from glidemq_py._api.queue_events import QueueEvents
    from glidemq_py._api.queue_names import get_usage_summary, list_queues
    from glidemq_py._client.connection_options import Address, ConnectionOptions, IamCredentials
    from glidemq_py._client.event_reader import QueueEvent
    from glidemq_py._core.job_options import JobOptions
    from glidemq_py._core.limits import (
        FairKeyDefaults,
        GroupLimits,
        NameLimits,
        Ordering,
        RateLimit,
        TokenBucket,
        TokenLimiter,
    )
    from glidemq_py._core.option_values import Backoff, Deduplication, Fallback, JobRef, KeepJobs
    from glidemq_py._core.payload import JSON_SERIALIZER, MSGPACK_SERIALIZER
    from glidemq_py._core.queue_options import DeadLetterOptions, Durability, JobSpec, Serializer
    from glidemq_py._core.record import JobOutcome, JobState
    from glidemq_py._features.broadcast import compile_subject_matcher, match_subject
    from glidemq_py._features.budgets import Budget
    from glidemq_py._features.dependencies import Dependency
    from glidemq_py._features.failed_attempts import FailureReason
    from glidemq_py._features.failure_policy import FailurePolicy
    from glidemq_py._features.flows.definition import DagNode, FlowJob, topo_sort, validate_dag
    from glidemq_py._features.schedulers.options import Schedule
    from glidemq_py._features.stalled_jobs import StalledPolicy
    from glidemq_py._features.usage import FlowBudget
    from glidemq_py._features.vectors import VectorField
    from glidemq_py._job.job import Job, current_job
    from glidemq_py._job.job_twin import BlockingJob
    from glidemq_py._job.message import Message
    from glidemq_py._job.middleware import ContextHeaders, Middleware, NewJob
    from glidemq_py._worker.broadcasts import BroadcastWorker
    from glidemq_py._worker.maintenance.queues import Maintenance, Scheduler
    from glidemq_py._worker.options import BatchOptions, FailureLogOptions, SandboxOptions
    from glidemq_py._worker.shutdown import graceful_shutdown
    from glidemq_py._worker.tasks import Task
    from glidemq_py._worker.worker import Worker
else:
    __getattr__, __dir__ = _import_on_first_use(
        __name__,
        {
            "glidemq_py._api.backup_schedule": "BackupSchedule",
            "glidemq_py._api.common_flows": "chain, chord, dag, group",
            "glidemq_py._api.flow_producer": "FlowProducer",
            "glidemq_py._api.job_queue": "Queue",
            "glidemq_py._api.producer": "Producer, ServerlessPool, serverless_pool",
            "glidemq_py._api.queue_events": "QueueEvents",
            "glidemq_py._client.connection_options": "Address, ConnectionOptions, IamCredentials",
            "glidemq_py._client.event_reader": "QueueEvent",
            "glidemq_py._core.job_options": "JobOptions",
            "glidemq_py._core.record": "JobOutcome, JobState",
            "glidemq_py._core.payload": "JSON_SERIALIZER, MSGPACK_SERIALIZER",
            "glidemq_py._core.queue_options": "DeadLetterOptions, Durability, JobSpec, Serializer",
            "glidemq_py._api.broadcast": "Broadcast",
            "glidemq_py._job.job_twin": "BlockingJob",
            "glidemq_py._job.message": "Message",
            "glidemq_py._features.broadcast": "compile_subject_matcher, match_subject",
            "glidemq_py._worker.broadcasts": "BroadcastWorker",
            "glidemq_py._features.budgets": "Budget",
            "glidemq_py._core.option_values": "Backoff, Deduplication, Fallback, JobRef, KeepJobs",
            "glidemq_py._features.failure_policy": "FailurePolicy",
            "glidemq_py._features.failed_attempts": "FailureReason",
            "glidemq_py._features.flows.definition": "DagNode, FlowJob, topo_sort, validate_dag",
            "glidemq_py._features.dependencies": "Dependency",
            "glidemq_py._api.job_batch": "JobBatch",
            "glidemq_py._api.lease_exchange": "LeaseOutcome",
            "glidemq_py._api.lease": "Lease",
            "glidemq_py._core.limits": (
                "FairKeyDefaults, GroupLimits, NameLimits, Ordering, RateLimit, TokenBucket, TokenLimiter"
            ),
            "glidemq_py._job.middleware": "ContextHeaders, Middleware, NewJob",
            "glidemq_py._features.schedulers.options": "Schedule",
            "glidemq_py._features.stalled_jobs": "StalledPolicy",
            "glidemq_py._features.usage": "FlowBudget",
            "glidemq_py._api.queue_names": "get_usage_summary, list_queues",
            "glidemq_py._features.vectors": "VectorField",
            "glidemq_py._job.job": "Job, current_job",
            "glidemq_py._worker.maintenance.queues": "Maintenance, Scheduler",
            "glidemq_py._worker.options": "BatchOptions, FailureLogOptions, SandboxOptions",
            "glidemq_py._worker.shutdown": "graceful_shutdown",
            "glidemq_py._worker.tasks": "Task",
            "glidemq_py._worker.worker": "Worker",
        },
        ("errors", "records", "telemetry"),
    )

__all__ = [
    "JSON_SERIALIZER",
    "MSGPACK_SERIALIZER",
    "Address",
    "AmbiguousResultError",
    "Backoff",
    "BackupSchedule",
    "BatchOptions",
    "BlockingJob",
    "Broadcast",
    "BroadcastWorker",
    "Budget",
    "BulkAddError",
    "ClosedError",
    "ConnectionOptions",
    "ContextHeaders",
    "DagNode",
    "DeadLetterOptions",
    "Deduplication",
    "DelayedError",
    "Dependency",
    "DuplicateJobError",
    "Durability",
    "FailureLogOptions",
    "FailurePolicy",
    "FailureReason",
    "FairKeyDefaults",
    "Fallback",
    "FlowBudget",
    "FlowJob",
    "FlowProducer",
    "GlideMQConnectionError",
    "GlideMQError",
    "GlideMQValidationError",
    "GroupLimits",
    "IamCredentials",
    "Job",
    "JobBatch",
    "JobFailedError",
    "JobNotFoundError",
    "JobOptions",
    "JobOutcome",
    "JobRef",
    "JobSpec",
    "JobState",
    "JobStateError",
    "JobTimeoutError",
    "KeepJobs",
    "Lease",
    "LeaseOutcome",
    "Maintenance",
    "Message",
    "Middleware",
    "NameLimits",
    "NewJob",
    "Ordering",
    "Producer",
    "Queue",
    "QueueEvent",
    "QueueEvents",
    "RateLimit",
    "RateLimitError",
    "SandboxOptions",
    "Schedule",
    "Scheduler",
    "SerializationError",
    "Serializer",
    "ServerlessPool",
    "StalledPolicy",
    "Task",
    "TokenBucket",
    "TokenLimiter",
    "UnrecoverableError",
    "VectorField",
    "WaitTimeoutError",
    "Worker",
    "__version__",
    "chain",
    "chord",
    "compile_subject_matcher",
    "current_job",
    "dag",
    "get_usage_summary",
    "graceful_shutdown",
    "group",
    "list_queues",
    "match_subject",
    "serverless_pool",
    "topo_sort",
    "validate_dag",
]
