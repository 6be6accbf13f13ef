"""The schedulers of a partitioned queue: the hash of its name chooses the partition of a new one and of its jobs.

It stays there when the number of partitions changes, so all partitions are looked through for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from glidemq_py._api.partitions_protocol import Partitions
from glidemq_py._core.checks import check_text
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.queue_options import JobSpec
from glidemq_py._features.partitions.layout import Partition
from glidemq_py._features.schedulers.entry import JobScheduler
from glidemq_py._features.schedulers.queue_api import NAME_LENGTH
from glidemq_py.errors import UnsupportedOptionError

__all__ = [
    "get_job_scheduler",
    "get_job_schedulers",
    "pause_job_scheduler",
    "remove_job_scheduler",
    "resume_job_scheduler",
    "shown_scheduler",
    "upsert_job_scheduler",
]


async def upsert_job_scheduler(self: Partitions, name: str, *, template: Any = None, **options: Any) -> JobScheduler:
    """See `Queue.upsert_job_scheduler`; the hash of the name chooses the partition of a new scheduler and its jobs.

    Raises:
        UnsupportedOptionError: If an option of the jobs would choose a partition.
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
            raise UnsupportedOptionError(
                f"template.{option}", getattr(chosen, option),
                "is not supported by the schedulers of partitioned queues: their name chooses the partition",
            )  # fmt: skip
    found = [place for place in places if await self.queues[place].get_job_scheduler(name) is not None]
    number, *others = found or places[:1]  # a scheduler that exists is changed where it is
    made = await self.queues[number].upsert_job_scheduler(name, template=template, **options)
    for other in others:  # a client that did not know the present partitions has created it
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
    """Return the partitions in the order in which to look for the scheduler.

    That of its name comes first, then former ones, and that of other clients. A scheduler stays where it was created,
    so after several changes of the number of partitions it may be in any other one.
    """
    homes = self.layout.homes(check_text("name", name, maximum=NAME_LENGTH))
    return list(dict.fromkeys([*reversed(homes), *range(len(self.queues))]))


def shown_scheduler(part: Partition, scheduler: JobScheduler) -> JobScheduler:
    """Return the scheduler of a partition as one of the whole queue."""
    if scheduler.last_job_id is None:
        return scheduler
    return replace(scheduler, last_job_id=part.id_of(scheduler.last_job_id))
