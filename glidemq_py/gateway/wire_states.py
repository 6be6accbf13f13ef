"""The states of the protocol: of a job, and where the jobs in each of them are listed and counted.

A ready job with a negative rank is waiting in the protocol and prioritized in this package.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from glidemq_py._core.job_states import JobCounts, JobState
from glidemq_py._job.reading import counts_by_rank

if TYPE_CHECKING:
    from glidemq_py._api.job_queue import Queue
    from glidemq_py._job.job import Job

__all__ = ["READY", "SOURCES", "Source", "read_priority_counts", "read_wire_counts", "sources_of", "wire_state"]

_STATES: Final[Mapping[JobState, str]] = {JobState.GROUP_WAITING: "waiting", JobState.SUSPENDED: "delayed"}
READY: Final = ("waiting", "prioritized")
"""The states of the protocol that are paused in a paused queue."""


class Source(NamedTuple):
    """Jobs in one state of the protocol that are listed together.

    Attributes:
        state: Their state in this package.
        listed: The state by which pages list them (``lua/core/functions/page.lua``).
    """

    state: JobState
    listed: str

    def number(self, counts: JobCounts, below: int) -> int:
        """Return the number of these jobs; ``below`` of the prioritized ones have a negative rank."""
        if self.listed == "below-normal":
            return below
        found: int = getattr(counts, self.state.name.lower())
        return max(0, found - below) if self.listed == "above-normal" else found


def _source(state: JobState) -> Source:
    return Source(state, str(state))


SOURCES: Final[Mapping[str, tuple[Source, ...]]] = {
    "waiting": (
        _source(JobState.WAITING), _source(JobState.GROUP_WAITING), Source(JobState.PRIORITIZED, "below-normal"),
    ),
    "prioritized": (Source(JobState.PRIORITIZED, "above-normal"),),
    "delayed": (_source(JobState.DELAYED), _source(JobState.SUSPENDED)),
    "active": (_source(JobState.ACTIVE),),
    "completed": (_source(JobState.COMPLETED),),
    "failed": (_source(JobState.FAILED),),
    "waiting-children": (_source(JobState.WAITING_CHILDREN),),
}  # fmt: skip
"""Where jobs are listed, by state of the protocol."""


def sources_of(states: Iterable[str]) -> list[Source]:
    """Return where the jobs in these states of the protocol are listed; unknown states have none."""
    return [source for state in states for source in SOURCES.get(state, ())]


def wire_state(job: Job[Any, Any] | None) -> str:
    """Return the state of a job for clients."""
    state = None if job is None else job.state
    if job is None or state is None:
        return "unknown"
    if state is JobState.PRIORITIZED and job.rank < 0:
        return "waiting"
    return _STATES.get(state, str(state))


async def read_wire_counts(queue: Queue[Any, Any]) -> dict[str, int]:
    """Return the number of jobs by state of the protocol; ready jobs of a paused queue are paused.

    Raises:
        GlideMQError: If the server cannot be reached or rejects a call.
    """
    await queue._plain_link()
    parts = await asyncio.gather(*(_counts_of(part) for part in queue._parts))
    return {state: sum(part[state] for part in parts) for state in parts[0]}


async def read_priority_counts(queue: Queue[Any, Any]) -> dict[str, int]:
    """Return the number of ready jobs by priority; those of groups count as 0, as they have no rank.

    Raises:
        GlideMQError: If the server cannot be reached or rejects a call.
    """
    counts, ranks = await asyncio.gather(queue.get_job_counts(), queue.jobs.get_rank_counts())
    unranked = counts.waiting + counts.group_waiting + counts.prioritized - sum(ranks.values())
    if unranked > 0:  # the reads are not one step
        ranks[0] = ranks.get(0, 0) + unranked
    return {str(rank): number for rank, number in ranks.items()}


async def _counts_of(part: Queue[Any, Any]) -> dict[str, int]:
    counts, below = await counts_by_rank(await part._connected())
    found = {state: sum(each.number(counts, below) for each in sources) for state, sources in SOURCES.items()}
    paused = sum(found[state] for state in READY) if counts.paused else 0
    if counts.paused:
        found.update(dict.fromkeys(READY, 0))
    return {**found, "paused": paused}
