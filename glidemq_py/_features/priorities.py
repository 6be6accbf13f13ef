"""Priorities: changing the priority of a job that has not started.

The job options `priority` and `lifo` are in `glidemq_py._core.job_options`; the order is docs/learn/order.md.
The server's side is in lua/features/priorities and lua/features/lifo; lua/core/enqueue.lua places new jobs.
"""

from __future__ import annotations

from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls import administration
from glidemq_py._core.checks import check_int
from glidemq_py._core.job_options import MAX_PRIORITY
from glidemq_py._partitions.link import QueueLink, change_job


async def change_job_priority(link: QueueLink[JobTransport], job_id: str, priority: int) -> int:
    """Change the priority of a job that has not started, and return the validated value."""
    value = check_int("priority", priority, 0, MAX_PRIORITY)
    call = administration.change_priority(link.keys.meta, job_id, value)
    await change_job(link, job_id, call, "change the priority of")
    return value
