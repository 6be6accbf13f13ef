"""The names that users import. A name is taken out of this list only with an entry in the changelog."""

import inspect
from types import ModuleType

import glidemq_py

EXPORTED = {
    # types of the objects that users get
    "Queue", "Worker", "QueueEvents", "QueueEvent", "Job", "BlockingJob", "JobSpec", "current_job",
    "Schedule", "JobScheduler", "Scheduler",
    "Producer", "ServerlessPool", "serverless_pool", "Task", "graceful_shutdown", "GracefulShutdown",
    "FlowProducer", "FlowJob", "DagNode", "JobNode", "chain", "group", "chord", "dag", "validate_dag", "topo_sort",
    "Broadcast", "BroadcastWorker", "Message", "Subscription", "Delivery", "match_subject", "compile_subject_matcher",
    "set_tracer", "is_tracing_enabled",
    # options and values
    "ContextHeaders", "Middleware", "NewJob",
    "Address", "Backoff", "Budget", "ConnectionOptions", "IamCredentials", "JobOptions", "KeepJobs", "Serializer",
    "JSON_SERIALIZER", "MSGPACK_SERIALIZER",
    "JobCounts", "JobLogLine", "JobLogs", "JobOutcome", "JobState", "Metrics", "MetricsPoint", "WorkerInfo",
    "FlowBudget", "FlowUsage", "JobUsage", "QueueUsage", "UsageSummary", "get_usage_summary", "list_queues",
    "GlobalLimits", "GroupInfo", "GroupLimits", "NameLimits", "CheckReport", "Finding", "FindingKind",
    "FailureLogOptions", "SandboxOptions", "SandboxCrashError",
    "BatchOptions", "DeadLetterOptions", "Deduplication", "Fallback", "Ordering", "RateLimit", "TokenBucket",
    "TokenLimiter", "JobRef", "Dependency",
    "RunningJob", "WorkerActivity", "WorkerCommandError", "WorkerNotFoundError", "WorkerTimeoutError",
    "BatchJob", "BatchRef", "BatchStatus", "JobBatch",
    "JobBatchNotFoundError", "Durability", "DurabilityError",
    "Maintenance", "BackupError", "BackupInfo", "BackupSchedule", "QueueNotEmptyError", "RestoreReport",
    # errors
    "BatchError", "DataLostError", "HandlerError",
    "AmbiguousResultError", "BudgetExceededError", "BulkAddError", "ClosedError", "ColumnError",
    "EmbeddedServerError", "EventLoopError",
    "ConnectionRejectedError",
    "GlideMQConnectionError", "GlideMQError", "GlideMQValidationError", "JobDataError", "JobFailedError",
    "JobNotFoundError",
    "JobNotLoadedError",
    "JobRevokedError",
    "JobStateError", "JobTimeoutError", "Lease", "LeaseLostError",
    "LeaseOutcome", "LeaseReport", "LibraryError", "PartitionedQueueError", "PayloadTooLargeError",
    "QueuePartitionsError",
    "PermissionDeniedError",
    "ScriptError", "SerializationError", "ServerNotReadyError", "ServerOutOfMemoryError",
    "StagedWriteError", "StaleAttemptError",
    "MissingOptionError",
    "UnknownOptionError", "UnrecoverableError",
    "UnsupportedFeatureError", "WaitTimeoutError",
    "FairKeyDefaults", "FairKeyFullError", "FairKeyInfo", "ChildFailedError",
    "DuplicateJobError",
    "QueuePartitions",
    # signals
    "JobSignal", "JobInterruptedError",
    "RateLimitError", "DelayedError", "GroupRateLimitError", "SuspendError", "Signal", "SuspendInfo",
    "TimelineSetting", "TimelineEntry", "MetricsByName", "MetricsByNameSetting", "DurationStats",
    "AttemptHistory", "FailedAttempt", "Failure", "FailurePolicy", "FailureReason", "FailureStats",
    "StalledPolicy", "StreamChunk", "VectorField", "VectorMatch", "SearchIndexError",
    "WaitingChildrenError",
    # the package
    "__version__",
}  # fmt: skip


def test_exported_names_are_these():
    assert set(glidemq_py.__all__) == EXPORTED
    assert len(glidemq_py.__all__) == len(EXPORTED)


def test_every_exported_name_exists():
    assert [name for name in EXPORTED if not hasattr(glidemq_py, name)] == []


def test_nothing_else_is_public():
    public = {
        name
        for name in dir(glidemq_py)
        if not name.startswith("_") and not isinstance(getattr(glidemq_py, name), ModuleType)
    }
    assert public == EXPORTED - {"__version__"}


def test_every_error_of_the_package_is_exported():
    from glidemq_py import errors

    assert set(errors.__all__) <= EXPORTED


def test_public_classes_and_their_methods_have_docstrings():
    for name in EXPORTED - {"__version__"}:
        value = getattr(glidemq_py, name)
        assert inspect.getdoc(value), name
        for member, function in inspect.getmembers(value, inspect.isfunction):
            if not member.startswith("_"):
                assert inspect.getdoc(function), f"{name}.{member}"
