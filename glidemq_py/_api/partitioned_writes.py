"""Calls that change settings, limits or schedulers: they run again if the partitions are other ones afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from glidemq_py.errors import GlideMQError

if TYPE_CHECKING:
    from glidemq_py._api.job_queue import Queue

WRITES: Final = frozenset((
    "pause", "pause_fair_key", "pause_job_scheduler", "remove_failure_policy", "remove_global_rate_limit",
    "remove_job_scheduler", "remove_stalled_policy", "resume", "resume_fair_key", "resume_job_scheduler",
    "set_attempt_history", "set_event_retention", "set_failure_policy", "set_fair_key_defaults", "set_fair_key_limits",
    "set_global_concurrency", "set_global_rate_limit", "set_group_limits", "set_metrics_by_name", "set_name_limits",
    "set_result_retention", "set_stalled_policy", "set_timeline", "upsert_job_scheduler",
))  # fmt: skip
"""Methods of `Queue` that `write` calls."""
OF_ALL: Final = frozenset((
    "clean", "create_job_index", "drain", "drop_job_index", "obliterate", "promote_jobs", "purge_failures",
    "rate_limit_group", "release_owner", "remove_deduplication", "requeue_completed", "reset_failure_stats",
    "retry_failures", "retry_jobs",
))  # fmt: skip
"""Methods that read the layout first: they would leave out the partitions that another client has just created."""

_ATTEMPTS: Final = 20


def layout_number(queue: Queue[Any, Any]) -> int:
    """Return the number of the layout that the client knows; 0 = the queue has no partitions."""
    return 0 if queue._partitions is None else queue._partitions.layout.number


async def write(queue: Queue[Any, Any], run: Callable[[], Awaitable[Any]]) -> Any:
    """Call a method of `WRITES` until no other client has changed the partitions meanwhile; return its result."""
    result: Any = None
    await queue._check_layout(always=True)
    for _ in range(_ATTEMPTS):
        found = await run()
        result = found or result if result is not None else found
        number = layout_number(queue)
        await queue._check_layout(always=True)
        if layout_number(queue) == number:
            return result
    raise GlideMQError(f"queue {queue.name!r}: other clients keep changing its partitions; call the method again")
