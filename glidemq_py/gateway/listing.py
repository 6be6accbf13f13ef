"""The jobs that commands name by their ids; and those of several states, in the order in which they were added.

Ids and times of addition decide which jobs these are; then their records are read, and no others. So data is read and
kept of the jobs of the answer only, however many are before them and in however many partitions.

The position of a job must not depend on the page, or pages would skip jobs and repeat others. States list their jobs in
orders of their own (by priority, due time or end), so all ids of a state are read and sorted. A state with too many
jobs for that stays in its own order: each job counts as added at the latest time up to its position, so the first jobs
of all states together are among the first ones of each.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.calls import pieces
from glidemq_py._core.record import JobState
from glidemq_py._features.delays import due_times
from glidemq_py._job.job import Job
from glidemq_py._job.reading import ROWS_A_CALL, counts_by_rank, cursor_at, read_jobs, read_places
from glidemq_py._partitions.link import QueueLink
from glidemq_py.gateway.job_objects import Source, read_wire_counts, sources_of, wire_state
from glidemq_py.gateway.names import listed_queues, queue_of_part, wire_name
from glidemq_py.gateway.session import Session
from glidemq_py.gateway.state import GatewayState
from glidemq_py.gateway.table import CommandError

_AT_A_TIME: Final = 50
"""Queues that are counted together."""

MOST_LISTED: Final = 10_000
"""Maximum position of a job of a list."""
_MOST_SORTED: Final = 2_000
"""Jobs of a state, in all partitions, above which they stay in the order of the state."""
_KEPT_BEYOND: Final = 1_000
"""Entries kept besides the first ones before they are sorted."""
_ALSO_READ: Final = ("progressMessage",)
_MOST_CHARS: Final = 64 * 1_048_576
ROOM_CHARS: Final = 262_144
"""Data and results above which a connection reads the jobs of one command at a time."""
_FIRST_PAGE: Final = 20
_PAGE_CHARS: Final = 1_048_576


class Listed(NamedTuple):
    """A job of a list."""

    job: Job
    due: int
    """When it is due if it is delayed, epoch ms; else 0."""


class _Place(NamedTuple):
    """A job and its place; sorted as jobs were added."""

    added: int
    digits: int
    id: str
    """Its id in the partition; ids ascend too."""
    part: int
    source: Source
    """Where it was listed."""
    stored: JobState | None
    """State in its record."""


class _Entry(NamedTuple):
    """A place with its sort key."""

    key: tuple[int, int, str, int]
    """Time of addition, id and partition of the job, or of one before it that is later."""
    number: int
    """Position among the jobs with this key."""
    place: _Place


async def jobs_in_order(
    queue: Queue,
    states: Sequence[str],
    offset: int,
    limit: int,
    *,
    oldest: bool,
    take_room: Callable[[], Awaitable[None]],
) -> list[Listed]:
    """Return at most ``limit`` jobs in these states of the protocol from a position on.

    While nothing changes, successive positions have each job once. A job that leaves the states during the call is left
    out.

    Args:
        queue: The queue.
        states: The states.
        offset: Position of the first job.
        limit: Number of jobs.
        oldest: If True, in the order in which they were added, else in its reverse.
        take_room: Called once if they are large, before most of them are read.

    Raises:
        CommandError: If their data and results are too large.
        GlideMQError: If the server cannot be reached or rejects a call.
    """
    links = await queue._links()
    counts = [await counts_by_rank(link) for link in links]
    count = offset + limit
    first = _First(count, oldest)
    for source in sources_of(states):
        numbers = [source.number(*each) for each in counts]
        is_sorted = sum(numbers) <= _MOST_SORTED
        for part, link in enumerate(links):
            if is_sorted:
                async for page in _pages(link, part, source, 0, _MOST_SORTED):
                    first.add([_Entry(place[:4], 0, place) for place in page])
                continue
            skipped = 0 if oldest else max(0, numbers[part] - count)
            found = [place async for page in _pages(link, part, source, skipped, count) for place in page]
            first.add(_in_own_order(found, oldest))
    return await _read(links, [each.place for each in first.get()[offset:]], states, take_room)


class _First:
    """The first entries of those added."""

    def __init__(self, count: int, oldest: bool) -> None:
        self._count, self._oldest = count, oldest
        self._entries: dict[tuple[int, str], _Entry] = {}

    def add(self, entries: Iterable[_Entry]) -> None:
        """Add entries. Of a job that changed its state meanwhile, the later one counts."""
        for each in entries:
            self._entries[each.place.part, each.place.id] = each
        if len(self._entries) > self._count + max(self._count, _KEPT_BEYOND):
            self._entries = {(each.place.part, each.place.id): each for each in self.get()}

    def get(self) -> list[_Entry]:
        """Return the first entries, sorted."""
        return sorted(self._entries.values(), reverse=not self._oldest)[: self._count]


def _in_own_order(places: list[_Place], oldest: bool) -> list[_Entry]:
    """Return entries that sort as the places are listed; in reverse, the last place is the first one."""
    later, step = (max, 1) if oldest else (min, -1)
    found: list[_Entry] = []
    for number, place in enumerate(places[::step]):
        key = later(found[-1].key, place[:4]) if found else place[:4]
        found.append(_Entry(key, step * number, place))
    return found


async def _pages(link: QueueLink, part: int, source: Source, skipped: int, count: int) -> AsyncIterator[list[_Place]]:
    """Iterate over the first ``count`` jobs of a source, in its own order, after the skipped ones; each once."""
    cursor = await cursor_at(link, source.listed, skipped) if skipped else ""
    seen: set[str] = set()
    while cursor is not None and len(seen) < count:
        records, cursor = await read_places(link, source.listed, cursor, min(ROWS_A_CALL, count - len(seen)))
        new = {each.id: each for each in records if each.id not in seen}
        seen.update(new)
        yield [_Place(each.timestamp or 0, len(each.id), each.id, part, source, each.state) for each in new.values()]
        cursor = cursor or None


async def _read(
    links: Sequence[QueueLink],
    places: Sequence[_Place],
    states: Sequence[str],
    take_room: Callable[[], Awaitable[None]],
) -> list[Listed]:
    """Return the jobs at these places, in this order, which are still in one of the states."""
    by_part: defaultdict[int, list[_Place]] = defaultdict(list)
    for place in places:
        by_part[place.part].append(place)
    found: dict[tuple[int, str], Listed] = {}
    size, has_room = 0, False
    for number, mine in by_part.items():
        page, start = _FIRST_PAGE, 0
        while start < len(mine):
            some = {place.id: place for place in mine[start : start + page]}
            start += page
            jobs = await read_jobs(links[number], list(some), also=_ALSO_READ)
            of_page = sum(map(size_of, jobs))
            size += of_page
            check_size(size)
            if size > ROOM_CHARS and not has_room:
                has_room = True
                await take_room()
            # The size of the next reply is limited too.
            if jobs:
                page = max(1, min(ROWS_A_CALL, _PAGE_CHARS * len(jobs) // max(1, of_page)))
            due = await due_times_of(jobs)
            for job in jobs:
                place = some[job._stored_id]
                if job.state is place.stored:
                    if place.source.state is JobState.PRIORITIZED and job.state is JobState.DELAYED:
                        job._state = place.source.state  # it is due; its record changes when a worker fetches it
                elif wire_state(job) not in states:
                    continue
                found[number, place.id] = Listed(job, due.get(place.id, 0))
    return [found[key] for place in places if (key := (place.part, place.id)) in found]


async def due_times_of(jobs: Sequence[Job]) -> dict[str, int]:
    """Return when the delayed ones of a queue's, or a partition's, jobs are due (epoch ms), by their stored ids."""
    delayed = [job._stored_id for job in jobs if job.state is JobState.DELAYED]
    if not delayed:
        return {}
    link = jobs[0]._link
    return dict(zip(delayed, await link.call(due_times, delayed), strict=True))


def check_size(size: int) -> None:
    """Check the length of the data and results of the jobs of an answer.

    Raises:
        CommandError: If it is too large.
    """
    if size > _MOST_CHARS:
        raise CommandError(f"data and results exceed {_MOST_CHARS:,} characters; use a smaller limit")


def size_of(job: Job) -> int:
    """Return the length of the data and the result of a job as stored."""
    return len(job._data_text or "") + len(job._result_text or "")


async def read_counts(state: GatewayState) -> dict[str, dict[str, int]]:
    """Read the jobs of all queues by state, by the name of the queue on the wire; for `GatewayState.shared`."""

    async def counts_of(queue: str) -> dict[str, int]:
        return await read_wire_counts(await state.queue(queue))

    found: dict[str, dict[str, int]] = {}
    for some in pieces(await listed_queues(state.transport, state.options.prefix), _AT_A_TIME):
        found |= zip(map(wire_name, some), await asyncio.gather(*map(counts_of, some)), strict=True)
    return found


async def find_job(session: Session, job_id: str, *, exclude_data: bool = True) -> Job | None:
    """Return the job with this id on the wire; None if it does not exist."""
    found = await session.state.ids.find(job_id)
    if found is None:
        return None
    return await (await session.state.queue(found[0])).get_job(found[1], exclude_data=exclude_data)


async def existing_job(session: Session, job_id: str, *, exclude_data: bool = True) -> Job:
    """Return the job with this id on the wire.

    Raises:
        CommandError: If it does not exist.
    """
    job = await find_job(session, job_id, exclude_data=exclude_data)
    if job is None:
        raise CommandError("Job not found")
    return job


async def active_job(session: Session, job_id: str) -> Job:
    """Return an active job.

    Raises:
        CommandError: If it does not exist, or is not active.
    """
    job = await existing_job(session, job_id)
    if job.state is not JobState.ACTIVE:
        raise CommandError(f"Job is not active (current state: {wire_state(job)})")
    return job


async def job_at(session: Session, queue: str, job_id: str) -> Job | None:
    """Return the job of a queue or partition without its data; None if it does not exist."""
    state = session.state
    found = await (state.queue(queue) if queue_of_part(queue) == queue else state.part(queue))
    return await found.get_job(job_id, exclude_data=True)


async def located(session: Session, queue: str, job_id: str) -> tuple[Queue, str]:
    """Return the queue, or the partition, of a job and its id there, from the names of `JobIds.find`."""
    found = await session.state.queue(queue)
    return await found._placed(job_id)


async def part_of_key(queue: Queue, key: str) -> Queue:
    """Return the partition of the jobs with a routing key; a queue without partitions has them itself."""
    await queue._plain_link()
    partitions = queue._partitions
    return queue if partitions is None else partitions.part_of(key)


async def own_id(session: Session, queue: str, job_id: str) -> str | None:
    """Return the id in the queue of a job of that queue; None if the id names no job of it."""
    found = await session.state.ids.find(job_id)
    return found[1] if found is not None and found[0] == queue else None
