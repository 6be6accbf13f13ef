"""Records that the library returns, for annotations: counts, metrics, reports, entries of lists.

Programs that only read them import nothing from here.
"""

from glidemq_py._api.flow_reading import JobNode
from glidemq_py._api.job_batch import BatchJob, BatchStatus
from glidemq_py._api.leasing import LeaseReport
from glidemq_py._core.limits import FairKeyInfo, GlobalLimits, GroupInfo
from glidemq_py._core.logs import JobLogLine
from glidemq_py._core.record import JobCounts, WorkerInfo
from glidemq_py._features.backup.manifest import BackupInfo
from glidemq_py._features.backup.restoring import RestoreReport
from glidemq_py._features.broadcast import Delivery, Subscription
from glidemq_py._features.consistency.checking import CheckReport, Finding, FindingKind
from glidemq_py._features.failed_attempts import FailedAttempt
from glidemq_py._features.failure_policy import AttemptHistory
from glidemq_py._features.failures import Failure, FailureStats
from glidemq_py._features.job_batches import BatchRef
from glidemq_py._features.metrics import JobLogs, Metrics, MetricsPoint
from glidemq_py._features.metrics_by_name import DurationStats, MetricsByName, MetricsByNameSetting
from glidemq_py._features.remote_control import RunningJob, WorkerActivity
from glidemq_py._features.schedulers.entry import JobScheduler
from glidemq_py._features.streams import StreamChunk
from glidemq_py._features.suspend import Signal, SuspendInfo
from glidemq_py._features.timeline import TimelineEntry, TimelineSetting
from glidemq_py._features.usage import FlowUsage, JobUsage, QueueUsage, UsageSummary
from glidemq_py._features.vectors import VectorMatch
from glidemq_py._partitions.layout import QueuePartitions
from glidemq_py._worker.shutdown import GracefulShutdown

__all__ = [
    "AttemptHistory",
    "BackupInfo",
    "BatchJob",
    "BatchRef",
    "BatchStatus",
    "CheckReport",
    "Delivery",
    "DurationStats",
    "FailedAttempt",
    "Failure",
    "FailureStats",
    "FairKeyInfo",
    "Finding",
    "FindingKind",
    "FlowUsage",
    "GlobalLimits",
    "GracefulShutdown",
    "GroupInfo",
    "JobCounts",
    "JobLogLine",
    "JobLogs",
    "JobNode",
    "JobScheduler",
    "JobUsage",
    "LeaseReport",
    "Metrics",
    "MetricsByName",
    "MetricsByNameSetting",
    "MetricsPoint",
    "QueuePartitions",
    "QueueUsage",
    "RestoreReport",
    "RunningJob",
    "Signal",
    "StreamChunk",
    "Subscription",
    "SuspendInfo",
    "TimelineEntry",
    "TimelineSetting",
    "UsageSummary",
    "VectorMatch",
    "WorkerActivity",
    "WorkerInfo",
]
