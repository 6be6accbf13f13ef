"""Which role of docs/operate/permissions.md may call which public method or program.

`python -m tools.generate_permissions` writes the page's table from these declarations.
tests/server/test_permissions_by_role.py derives the methods from the public API, so that a new one needs an entry here,
and calls each as each role on a real server: allowed calls succeed, others raise `PermissionDeniedError`.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LOCAL", "METHODS", "NEEDS_SEARCH_MODULE", "ROLES"]

ROLES: Final = ("observer", "producer", "worker", "operator", "app")
"""Users of the page, in the order in which the least is chosen."""

METHODS: Final[dict[str, dict[str, list[str]]]] = {
    "observer producer worker operator app": {
        "Queue": [
            "close",
            "connect",
            "count",
            "get_event_retention",
            "get_result_retention",
            "get_attempt_history",
            "get_failure_policy",
            "get_failures",
            "iter_failures",
            "get_job_attempts",
            "get_features",
            "get_global_concurrency",
            "get_global_rate_limit",
            "get_deduplication_job",
            "get_stalled_policy",
            "get_group",
            "get_job",
            "get_job_count_by_types",
            "get_job_counts",
            "get_job_logs",
            "get_job_scheduler",
            "get_jobs",
            "iter_jobs",
            "iter_search_jobs",
            "read_stream",
            "search_jobs",
            "stream",
            "get_suspend_info",
            "get_suspended_jobs",
            "is_paused",
            "get_workers",
        ],
        "Job": [
            "get_parents",
            "get_failed_attempts",
            "get_state",
            "is_active",
            "is_completed",
            "is_delayed",
            "is_failed",
            "is_revoked",
            "is_waiting",
            "logs",
            "reload",
            "wait_until_finished",
        ],
        "FlowProducer": ["close", "connect"],
        "QueueEvents": ["close", "wait_until_ready"],
        "Broadcast": ["close", "get_delivery", "get_subscription", "get_subscriptions", "is_paused"],
        "": ["telemetry.prometheus.QueueCollector"],
    },
    "observer worker operator app": {
        "Queue": [
            "get_failure_stats",
            "get_flow_budget",
            "get_flow_usage",
            "get_job_schedulers",
            "get_metrics",
            "get_repeatable_jobs",
            "get_usage_summary",
        ],
        "Job": ["get_children_failures", "get_children_values", "get_open_children"],
        "FlowProducer": ["get_flow"],
        "": ["get_usage_summary", "Spark: read", "python -m glidemq_py.worker --check"],
    },
    "producer worker operator app": {
        "Queue": [
            "add",
            "add_and_wait",
            "add_bulk",
            "get_dead_letter_job",
            "get_dead_letter_jobs",
            "pause",
            "rate_limit_group",
            "remove_global_rate_limit",
            "remove_job_scheduler",
            "remove_failure_policy",
            "remove_deduplication",
            "remove_stalled_policy",
            "reset_failure_stats",
            "resume",
            "set_attempt_history",
            "set_event_retention",
            "set_failure_policy",
            "set_result_retention",
            "set_global_concurrency",
            "set_global_rate_limit",
            "set_group_limits",
            "set_stalled_policy",
            "signal",
            "upsert_job_scheduler",
            "iter_dead_letter_jobs",
        ],
        "Job": ["log", "store_vector", "stream", "stream_chunk", "update_data", "update_progress"],
        "FlowProducer": ["add", "add_bulk", "add_dag"],
        "Broadcast": [
            "get_dead_letter_jobs",
            "pause",
            "publish",
            "publish_bulk",
            "redeliver",
            "remove_global_rate_limit",
            "resume",
            "set_global_rate_limit",
            "subscribe",
        ],
        "Producer": ["add", "add_bulk", "close"],
        "ServerlessPool": ["close_all", "get_producer"],
        "Task": ["add", "add_and_wait", "add_bulk"],
        "": ["chain", "chord", "dag", "group"],
    },
    "worker operator app": {
        "Job": ["report_usage"],
        "Broadcast": ["publish(max_messages=...)"],
        "Maintenance": ["close", "run", "start"],
        "Scheduler": ["close", "run", "start"],
        "": ["Spark: write"],
    },
    "worker app": {
        "Queue": [
            "complete_leases",
            "extend_leases",
            "fail_leases",
            "fetch",
            "lease",
            "release_leases",
            "release_owner",
        ],
        "Lease": ["complete", "extend", "fail", "release"],
        "Job": [
            "discard",
            "move_to_delayed",
            "move_to_failed",
            "move_to_waiting_children",
            "rate_limit_group",
            "report_tokens",
            "suspend",
            "wait_for_signal",
        ],
        "Worker": ["close", "drain", "run", "start", "wait_until_closed", "wait_until_ready"],
        "BroadcastWorker": ["close", "drain", "run", "start", "wait_until_closed", "wait_until_ready"],
        "Message": [
            "discard",
            "log",
            "logs",
            "move_to_delayed",
            "move_to_failed",
            "reload",
            "report_tokens",
            "report_usage",
            "store_vector",
            "stream",
            "stream_chunk",
            "update_progress",
        ],
    },
    "operator app": {
        "BackupSchedule": ["run_due"],
        "Queue": [
            "backup",
            "change_delay",
            "change_priority",
            "check",
            "add(deduplication={'replace': True})",
            "check(repair=True)",
            "clean",
            "drain",
            "obliterate",
            "purge_failures",
            "retry_failures",
            "promote",
            "remove",
            "remove_dead_letter_job",
            "replay_dead_letter_job",
            "restore",
            "retry_jobs",
            "revoke",
        ],
        "Job": ["change_delay", "change_priority", "promote", "remove", "retry", "revoke"],
        "Broadcast": ["remove_dead_letter_job", "remove_subscription", "replay_dead_letter_job"],
        "": ["Spark: write, `overwrite` = `drain`"],
    },
}
"""Roles that may call a method: roles, class ("" if none), methods."""

NEEDS_SEARCH_MODULE: Final = frozenset({"Queue.create_job_index", "Queue.drop_job_index", "Queue.vector_search"})
"""Methods that need `+ft.*` as well, and a server with a search module."""

LOCAL: Final = frozenset(
    [
        *(f"{kind}.{method}" for kind in ("Worker", "BroadcastWorker")
          for method in ("cancel_job", "off", "on", "override", "pause", "rate_limit", "resume")),
        "BackupSchedule.close", "BackupSchedule.run", "BackupSchedule.start", "Queue.get_backups",
        "Queue.verify_backup", "GracefulShutdown.dispose", "GracefulShutdown.shutdown", "GracefulShutdown.wait",
        "QueueEvents.off",
        "QueueEvents.on", "Task.options", "Task.route", "Task.spec",
    ]
)  # fmt: skip
"""Methods that send nothing, or only what a running worker sends anyway."""
