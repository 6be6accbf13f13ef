"""Records that the library returns, for annotations: counts, metrics, reports, entries of lists.

Programs that only read them import nothing from here.
"""

from typing import TYPE_CHECKING

from glidemq_py._core import import_on_first_use as _import_on_first_use

if TYPE_CHECKING:
    from glidemq_py.records_twin import *  # noqa: F403
    from glidemq_py.records_twin import __all__ as __all__
else:
    __getattr__, __dir__, __all__ = _import_on_first_use(
        __name__,
        {
            "glidemq_py._api.flow_reading": "JobNode",
            "glidemq_py._api.job_batch": "BatchJob, BatchStatus",
            "glidemq_py._api.leasing": "LeaseReport",
            "glidemq_py._core.limits": "FairKeyInfo, GlobalLimits, GroupInfo",
            "glidemq_py._core.logs": "JobLogLine",
            "glidemq_py._core.queue_options": "TaskCall",
            "glidemq_py._core.record": "JobCounts, WorkerInfo",
            "glidemq_py._features.backup.manifest": "BackupInfo",
            "glidemq_py._features.backup.restoring": "RestoreReport",
            "glidemq_py._features.broadcast": "Delivery, Subscription",
            "glidemq_py._features.consistency.checking": "CheckReport, Finding, FindingKind",
            "glidemq_py._features.failed_attempts": "FailedAttempt",
            "glidemq_py._features.failure_policy": "AttemptHistory",
            "glidemq_py._features.failures": "Failure, FailureStats",
            "glidemq_py._features.job_batches": "BatchRef",
            "glidemq_py._features.metrics": "JobLogs, Metrics, MetricsPoint",
            "glidemq_py._features.metrics_by_name": "DurationStats, MetricsByName, MetricsByNameSetting",
            "glidemq_py._features.remote_control": "RunningJob, WorkerActivity",
            "glidemq_py._features.schedulers.entry": "JobScheduler",
            "glidemq_py._features.streams": "StreamChunk",
            "glidemq_py._features.steps": "Step, StepState",
            "glidemq_py._features.suspend": "Signal, SuspendInfo",
            "glidemq_py._features.timeline": "TimelineEntry, TimelineSetting",
            "glidemq_py._features.usage": "FlowUsage, JobUsage, QueueUsage, UsageSummary",
            "glidemq_py._features.vectors": "VectorMatch",
            "glidemq_py._partitions.layout": "QueuePartitions",
            "glidemq_py._worker.shutdown": "GracefulShutdown",
        },
    )
