"""The commands of the protocol, in one file per group, and the names of those that do not exist yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from glidemq_py.gateway.commands import (
    adding,
    connection,
    control,
    cron,
    dead_letters,
    deduplication,
    fetching,
    flows,
    groups,
    jobs,
    limits,
    locks,
    logs,
    monitoring,
    reporting,
    webhooks,
    workers,
)
from glidemq_py.gateway.session import Command

__all__ = ["COMMANDS", "PROTOCOL"]

_GROUPS: Final = (
    connection, adding, fetching, reporting, flows, jobs, control, dead_letters, cron, locks, limits, groups,
    deduplication, logs, workers, webhooks, monitoring,
)  # fmt: skip

COMMANDS: Final[Mapping[str, Command]] = {command.name: command for group in _GROUPS for command in group.COMMANDS}
"""The commands that a gateway executes, by name."""

PROTOCOL: Final[Mapping[str, tuple[str, ...]]] = {
    "connection": ("Hello", "Auth", "Ping"),
    "core": ("PUSH", "PUSHB", "PUSHF", "PULL", "PULLB", "ACK", "ACKB", "FAIL"),
    "query": (
        "GetJob", "GetJobByCustomId", "GetState", "GetResult", "GetJobs", "GetJobCounts", "GetCountsPerPriority",
        "Count", "GetProgress", "WaitJob", "GetChildrenValues", "GetFailedChildrenValues",
        "GetIgnoredChildrenFailures",
    ),
    "control": (
        "Cancel", "Progress", "Update", "UpdateParent", "ChangePriority", "ChangeDelay", "Promote", "PromoteJobs",
        "MoveToDelayed", "MoveToWait", "MoveToWaitingChildren", "RemoveChildDependency", "RemoveUnprocessedChildren",
        "Discard", "Pause", "Resume", "IsPaused", "Drain", "Obliterate", "Clean", "ListQueues", "TrimEvents",
    ),
    "dead letters": (
        "Dlq", "RetryDlq", "RetryCompleted", "PurgeDlq", "RemoveDlqJob", "GetDlqConfig", "SetDlqConfig", "GetDlqStats",
        "GetStallConfig", "SetStallConfig",
    ),
    "cron": ("Cron", "CronDelete", "CronList", "CronGet"),
    "workers": ("RegisterWorker", "UnregisterWorker", "ListWorkers", "Heartbeat"),
    "locks": ("JobHeartbeat", "JobHeartbeatB", "ExtendLock", "ExtendLocks"),
    "webhooks": ("AddWebhook", "RemoveWebhook", "ListWebhooks", "SetWebhookEnabled"),
    "limits": ("RateLimit", "RateLimitClear", "SetConcurrency", "ClearConcurrency", "GetQueueLimits"),
    "groups": (
        "GetGroupJobsCount", "GetGroupsJobsCount", "GetGroupActiveCount", "SetGroupRateLimit", "GetGroupRateLimit",
        "RemoveGroupRateLimit", "GetGroupRateLimitTtl", "SetGroupConcurrency", "GetGroupConcurrency",
        "RemoveGroupConcurrency", "PauseGroup", "ResumeGroup", "IsGroupPaused", "RateLimitGroup",
    ),
    "deduplication": ("GetDeduplicationJobId", "RemoveDeduplicationKey", "RemoveJobDeduplicationKey"),
    "logs": ("AddLog", "GetLogs", "ClearLogs"),
    "events": ("SubscribeEvents", "UnsubscribeEvents"),
    "monitoring": (
        "Stats", "Metrics", "Prometheus", "StorageStatus", "CompactMemory", "DashboardOverview", "DashboardQueues",
        "DashboardQueue",
    ),
}  # fmt: skip
"""All commands of protocol 3 by group; those that are not in `COMMANDS` are answered with an error."""
