"""Finding the job that a command names by its id."""

from __future__ import annotations

from typing import Any

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.job_states import JobState
from glidemq_py._job.job import Job
from glidemq_py.gateway.names import queue_of_part
from glidemq_py.gateway.session import Session
from glidemq_py.gateway.table import CommandError
from glidemq_py.gateway.wire_states import wire_state

__all__ = ["active_job", "existing_job", "find_job", "job_at", "located", "own_id", "part_of_key"]


async def find_job(session: Session, job_id: str, *, exclude_data: bool = True) -> Job[Any, Any] | None:
    """Return the job with this id on the wire; None if it does not exist."""
    found = await session.state.ids.find(job_id)
    if found is None:
        return None
    return await (await session.state.queue(found[0])).get_job(found[1], exclude_data=exclude_data)


async def existing_job(session: Session, job_id: str, *, exclude_data: bool = True) -> Job[Any, Any]:
    """Return the job with this id on the wire.

    Raises:
        CommandError: If it does not exist.
    """
    job = await find_job(session, job_id, exclude_data=exclude_data)
    if job is None:
        raise CommandError("Job not found")
    return job


async def active_job(session: Session, job_id: str) -> Job[Any, Any]:
    """Return an active job.

    Raises:
        CommandError: If it does not exist, or is not active.
    """
    job = await existing_job(session, job_id)
    if job.state is not JobState.ACTIVE:
        raise CommandError(f"Job is not active (current state: {wire_state(job)})")
    return job


async def job_at(session: Session, queue: str, job_id: str) -> Job[Any, Any] | None:
    """Return the job of a queue or partition without its data; None if it does not exist."""
    state = session.state
    found = await (state.queue(queue) if queue_of_part(queue) == queue else state.part(queue))
    return await found.get_job(job_id, exclude_data=True)


async def located(session: Session, queue: str, job_id: str) -> tuple[Queue[Any, Any], str]:
    """Return the queue, or the partition, of a job and its id there, from the names of `JobIds.find`."""
    found = await session.state.queue(queue)
    return await found._placed(job_id)


async def part_of_key(queue: Queue[Any, Any], key: str) -> Queue[Any, Any]:
    """Return the partition of the jobs with a routing key; a queue without partitions has them itself."""
    await queue._plain_link()
    partitions = queue._partitions
    return queue if partitions is None else partitions.part_of(key)


async def own_id(session: Session, queue: str, job_id: str) -> str | None:
    """Return the id in the queue of a job of that queue; None if the id names no job of it."""
    found = await session.state.ids.find(job_id)
    return found[1] if found is not None and found[0] == queue else None
