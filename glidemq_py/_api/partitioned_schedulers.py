"""The schedulers of a partitioned queue: the hash of its name chooses the partition of a new one and of its jobs.

Other clients create theirs in partition 0, so all partitions are looked through for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from glidemq_py._api.partitions_protocol import Partitions
from glidemq_py._core.checks import check_text
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.queue_options import JobSpec
from glidemq_py._features.schedulers.entry import JobScheduler
from glidemq_py._features.schedulers.queue_api import NAME_LENGTH
from glidemq_py._partitions.layout import Partition, partition_of_key
from glidemq_py.errors import GlideMQValidationError


async def upsert_job_scheduler(self: Partitions, name: str, *, template: Any = None, **options: Any) -> JobScheduler:
    """See `Queue.upsert_job_scheduler`; the hash of the name chooses the partition of a new scheduler and its jobs.

    Raises:
        GlideMQValidationError: If an option of the jobs would choose a partition.
    """
    places = _places(self, name)
    given: Any = template
    if isinstance(template, Mapping):
        given = cast("Mapping[str, Any]", template).get("options")
    elif template is not None:
        given = JobSpec.parse(template, "template").options
    chosen = JobOptions.of_job(self.home._defaults, JobOptions() if given is None else JobOptions.parse(given))
    for option in ("ordering", "fair_key", "deduplication", "job_id"):
        if getattr(chosen, option) is not None:
            raise GlideMQValidationError(
                f"template.{option}", getattr(chosen, option),
                "is not supported by the schedulers of partitioned queues: their name chooses the partition",
            )  # fmt: skip
    found = [place for place in places if await self.queues[place].get_job_scheduler(name) is not None]
    number, *others = found or places[:1]  # a scheduler that exists is changed where it is
    made = await self.queues[number].upsert_job_scheduler(name, template=template, **options)
    for other in others:  # another client has created it
        await self.queues[other].remove_job_scheduler(name)
    return shown_scheduler(Partition(number, self.home.name), made)


async def get_job_scheduler(self: Partitions, name: str) -> JobScheduler | None:
    """See `Queue.get_job_scheduler`."""
    return await _found(self, "get_job_scheduler", name)


async def pause_job_scheduler(self: Partitions, name: str) -> JobScheduler | None:
    """See `Queue.pause_job_scheduler`."""
    return await _found(self, "pause_job_scheduler", name)


async def resume_job_scheduler(self: Partitions, name: str, *, catch_up: bool | None = None) -> JobScheduler | None:
    """See `Queue.resume_job_scheduler`."""
    return await _found(self, "resume_job_scheduler", name, catch_up=catch_up)


async def _found(self: Partitions, method: str, name: str, **options: Any) -> JobScheduler | None:
    """Call a method of the partition that has the scheduler."""
    for number in _places(self, name):
        found = await getattr(self.queues[number], method)(name, **options)
        if found is not None:
            return shown_scheduler(Partition(number, self.home.name), found)
    return None


async def remove_job_scheduler(self: Partitions, name: str) -> bool:
    """See `Queue.remove_job_scheduler`; it is removed from every partition."""
    _places(self, name)  # checks the name
    removed: list[bool] = await self.each("remove_job_scheduler", name)
    return any(removed)


async def get_job_schedulers(self: Partitions) -> list[JobScheduler]:
    """See `Queue.get_job_schedulers`."""
    pages: list[list[JobScheduler]] = await self.each("get_job_schedulers")
    found = [
        shown_scheduler(Partition(number, self.home.name), each) for number, page in enumerate(pages) for each in page
    ]
    return sorted(found, key=lambda scheduler: scheduler.name)


def _places(self: Partitions, name: str) -> list[int]:
    """Return the partitions in the order in which to look for the scheduler: that of its name comes first.

    Other clients create theirs in partition 0; versions that could change the number of partitions left them in any.
    """
    home = partition_of_key(check_text("name", name, maximum=NAME_LENGTH), len(self.queues))
    return list(dict.fromkeys([home, *range(len(self.queues))]))


def shown_scheduler(part: Partition, scheduler: JobScheduler) -> JobScheduler:
    """Return the scheduler of a partition as one of the whole queue."""
    last = scheduler.last_job_id
    return replace(
        scheduler,
        last_job_id=None if last is None else part.id_of(last),
        last_runs=tuple((at, part.id_of(job_id)) for at, job_id in scheduler.last_runs),
    )
