"""glidemq_py: a job queue for Python on Valkey.

``Queue`` adds jobs, ``Worker`` runs them, ``QueueEvents`` reports their events, and ``Job`` represents one job.
"""

from typing import TYPE_CHECKING

from glidemq_py._core import import_on_first_use as _import_on_first_use

if TYPE_CHECKING:
    from glidemq_py.names_twin import *  # noqa: F403
    from glidemq_py.names_twin import __all__ as __all__
else:
    __getattr__, __dir__, __all__ = _import_on_first_use(
        __name__,
        {
            "glidemq_py._core": "__version__",
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
            "glidemq_py._worker.task_twin": "BlockingTask",
            "glidemq_py._worker.tasks": "Task",
            "glidemq_py._worker.worker": "Worker",
            "glidemq_py.errors": (
                "AmbiguousResultError, BulkAddError, ClosedError, DelayedError, DuplicateJobError, "
                "GlideMQConnectionError, GlideMQError, GlideMQValidationError, JobFailedError, JobNotFoundError, "
                "JobStateError, JobTimeoutError, RateLimitError, SerializationError, UnrecoverableError, "
                "WaitTimeoutError"
            ),
        },
        ("errors", "records", "telemetry"),
    )
