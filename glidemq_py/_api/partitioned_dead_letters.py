"""The dead-letter entries of a partitioned queue: those of its partitions, with the name and the ids of the queue."""

from __future__ import annotations

from typing import Any

from glidemq_py._api import dead_letters
from glidemq_py._api.partitions_protocol import Partitions
from glidemq_py._job.job import Job
from glidemq_py._job.reading import between
from glidemq_py._partitions.layout import Partition


async def get_dead_letter_jobs(self: Partitions, start: int = 0, end: int = -1) -> list[Job[Any, Any]]:
    """See `Queue.get_dead_letter_jobs`; the entries of one partition after the other."""
    return await between(self.home.iter_dead_letter_jobs(), start, end)


async def get_newest_dead_letter_jobs(self: Partitions, count: int) -> tuple[list[Job[Any, Any]], bool]:
    """See `glidemq_py._api.dead_letters.get_newest_dead_letter_jobs`; the partitions share one queue."""
    numbers = {queue._keys.name: number for number, queue in enumerate(self.queues)}
    found, is_cut = await dead_letters.get_newest_dead_letter_jobs(self.queues[0], count, numbers)
    parts = [Partition(numbers[str(entry.data["originalQueue"])], self.home.name) for entry in found]
    return [shown_entry(part, entry) for part, entry in zip(parts, found, strict=True)], is_cut


async def get_dead_letter_job(self: Partitions, job_id: str) -> Job[Any, Any] | None:
    """See `Queue.get_dead_letter_job`."""
    for number, queue in enumerate(self.queues):
        found: Job[Any, Any] | None = await queue.get_dead_letter_job(job_id)
        if found is not None:
            return shown_entry(Partition(number, self.home.name), found)
    return None


async def remove_dead_letter_job(self: Partitions, job_id: str) -> bool:
    """See `Queue.remove_dead_letter_job`."""
    for queue in self.queues:
        if await queue.remove_dead_letter_job(job_id):
            return True
    return False


async def replay_dead_letter_job(self: Partitions, job_id: str) -> Job[Any, Any] | None:
    """See `Queue.replay_dead_letter_job`; the job returns to the partition in which it failed."""
    for queue in self.queues:
        found: Job[Any, Any] | None = await queue.replay_dead_letter_job(job_id)
        if found is not None:
            return found
    return None


def shown_entry(part: Partition, entry: Job[Any, Any]) -> Job[Any, Any]:
    """Let an entry of a partition name the whole queue and the id in it."""
    entry._data = entry.data | {
        "originalQueue": part.queue_name, "originalJobId": part.id_of(str(entry.data["originalJobId"])),
    }  # fmt: skip
    return entry
