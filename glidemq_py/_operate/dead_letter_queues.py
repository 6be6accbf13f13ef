"""Find the queue whose dead letter queue a queue is."""

from __future__ import annotations

from glidemq_py._core.job_states import JobState
from glidemq_py._features.dead_letters.queue_api import envelope_of
from glidemq_py._features.partitions.layout import partition_home
from glidemq_py._operate.operating import JobFilter, Operator

__all__ = ["source_of"]


async def source_of(operator: Operator, name: str) -> str | None:
    """Return the queue or broadcast whose dead letter queue this one is, by its oldest entry; None if it has none.

    If several queues share the dead letter queue, it is the queue of the oldest entry. An empty dead letter queue is
    not recognized: only the other queue stores the setting.
    """
    jobs, _ = await operator.read_jobs(name, JobFilter(state=JobState.WAITING), "", 1, 1, with_data=True)
    envelope = envelope_of(jobs[0]) if jobs else None
    if envelope is None:
        return None
    queue, subscription = str(envelope["originalQueue"]), envelope.get("subscription")
    whole = partition_home(queue)
    if whole is not None and queue in await _partitions(operator, whole):
        queue = whole
    if not operator.access.may_see(queue):
        return None
    of = subscription if isinstance(subscription, str) else ""
    return queue if await operator.get_dead_letter_queue(queue, of) == name else None


async def _partitions(operator: Operator, name: str) -> list[str]:
    return [link.keys.name for link in await operator.links(name)]
