"""Reads a queue: single jobs, pages, iteration, counts, workers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import chain
from typing import Any, Final, TypeVar, cast

from glidemq_py._client.counting import BELOW_NORMAL, FIGURES, complete_counts
from glidemq_py._core import json_text as json
from glidemq_py._core.calls import administration
from glidemq_py._core.checks import check_int
from glidemq_py._core.keys import validate_job_name
from glidemq_py._core.option_values import encoded_tags
from glidemq_py._core.payload import JSON_SERIALIZER, decode_data, encode_data
from glidemq_py._core.queue_options import Serializer
from glidemq_py._core.record import JobCounts, JobRecord, JobState, WorkerInfo
from glidemq_py._features.usage import JobUsage
from glidemq_py._features.usage_summaries import usages_of
from glidemq_py._job.contents import HAS_USAGE, LISTED_FIELDS, RECORD_FIELDS, read_record
from glidemq_py._job.job import Job
from glidemq_py._partitions.link import QueueLink, server_time
from glidemq_py.errors import GlideMQValidationError, JobDataError, SerializationError

_RowT = TypeVar("_RowT")

MAX_PAGE = 1_000
ROWS_A_CALL = 200
"""Maximum jobs per call. Reading a job takes the server about ten microseconds, and a call must not block it."""

_LISTABLE = (
    JobState.WAITING,
    JobState.ACTIVE,
    JobState.DELAYED,
    JobState.PRIORITIZED,
    JobState.COMPLETED,
    JobState.FAILED,
    JobState.GROUP_WAITING,
    JobState.SUSPENDED,
    JobState.WAITING_CHILDREN,
)

_IN_ANY_ORDER = (JobState.ACTIVE, JobState.GROUP_WAITING)
"""States in which a page may repeat a row of any earlier page.

A heartbeat moves active jobs that came from a list, and the scan over ordering groups may return a group twice.
"""


def listable(state: str) -> JobState:
    """Return the state as a `JobState`.

    Raises:
        GlideMQValidationError: If the state is unknown or cannot be listed.
    """
    for known in _LISTABLE:
        if state == known:
            return known
    raise GlideMQValidationError("state", state, f"must be one of {', '.join(_LISTABLE)}")


def listed_states() -> tuple[JobState, ...]:
    """Return the states that can be listed."""
    return _LISTABLE


def _wanted(fields: tuple[str, ...], bare: bool) -> tuple[str, ...]:
    return tuple(name for name in fields if name != "data") if bare else fields


async def get_job(link: QueueLink, job_id: str, bare: bool = False) -> Job | None:
    """Return the job with this id, or None; ``bare`` omits its data."""
    record = await read_record(link, job_id, _wanted(RECORD_FIELDS, bare))
    return None if record is None else Job._from_record(link, record)


async def between(rows: AsyncIterator[_RowT], start: int, end: int) -> list[_RowT]:
    """Return the rows from ``start`` to ``end`` (inclusive; -1 is the last).

    Raises:
        GlideMQValidationError: If a position is invalid.
    """
    first, last = check_int("start", start, 0, 2**53), check_int("end", end, -1, 2**53)
    found: list[_RowT] = []
    position = 0
    async for row in rows:
        if last != -1 and position > last:
            break
        if position >= first:
            found.append(row)
        position += 1
    return found


async def iterate(
    link: QueueLink, state: JobState, page: int, name: str = "", bare: bool = False, also: tuple[str, ...] = (),
    cursor: str = "", tags: tuple[str, ...] = (),
) -> AsyncIterator[Job]:  # fmt: skip
    """Iterate over the jobs in a state; a job that stays in the state is returned exactly once.

    Args:
        link: The queue's link.
        state: State of the jobs.
        page: Jobs per call, 1 to 1000; limited to `ROWS_A_CALL`.
        name: If not empty, only jobs with this name.
        bare: If True, omit the jobs' data.
        also: Further fields of `RECORD_FIELDS` to read.
        cursor: Where to start; '' is the beginning.
        tags: If not empty, only jobs with all of these.
    """
    size = min(check_int("page", page, 1, MAX_PAGE), ROWS_A_CALL)
    seen_at = ""
    seen: set[str] = set()
    while True:
        rows, cursor = await _rows(link, state, cursor, size, name, bare, also, tags=tags)
        for job, position in rows:
            if position != seen_at and state not in _IN_ANY_ORDER:
                # Only neighbors with the same score (or in a list, which has no scores) can be repeated.
                seen_at, seen = position, set[str]()
            if job.id in seen:
                continue
            seen.add(job.id)
            yield job
        if not cursor:
            return


async def read_page(
    link: QueueLink, state: JobState, cursor: str, count: int, *, bare: bool = False, also: tuple[str, ...] = (),
    name: str = "", where: Sequence[administration.Condition] = (), newest: bool = False,
) -> tuple[list[Job], str]:  # fmt: skip
    """Return at most ``count`` jobs and the cursor after them ('' = the end); see `iterate` for the other arguments.

    A page may repeat jobs of earlier pages, and may be empty before the end. ``where``: conditions that jobs of the
    page meet; ``newest``: the order; see `glidemq_py._core.calls.administration.page`.
    """
    rows, following = await _rows(link, state, cursor, count, name, bare, also, where, newest=newest)
    return [job for job, _ in rows], following


async def read_places(link: QueueLink, state: str, cursor: str, count: int) -> tuple[list[JobRecord], str]:
    """Return a page as `read_page`, but of each job only its id, its stored state and when it was added.

    ``state`` is one of those of ``lua/core/functions/page.lua``.
    """
    found = await link.call(administration.page, state, cursor, count, ("state", "timestamp"))
    records: list[JobRecord] = []
    for job_id, _, (stored, added) in found.rows:
        fields = {"state": stored or None, "timestamp": added or None}
        records.append(JobRecord.parse(job_id, cast("dict[str, str | None]", fields)))
    return records, found.cursor


async def read_jobs(link: QueueLink, ids: Sequence[str], *, also: tuple[str, ...] = ()) -> list[Job]:
    """Return the existing jobs among these ids, at most `ROWS_A_CALL`; see `iterate` for ``also``."""
    wanted = (*also, *LISTED_FIELDS)
    rows = await link.call(administration.records, ids, wanted)
    usage_at = wanted.index(HAS_USAGE)
    usages = await _usages(link, [job_id for job_id, values in rows if values[usage_at]])
    return [_listed(link, job_id, wanted, values, usages.get(job_id)) for job_id, values in rows]


async def _rows(
    link: QueueLink, state: JobState, cursor: str, count: int, name: str, bare: bool, also: tuple[str, ...],
    where: Sequence[administration.Condition] = (), tags: tuple[str, ...] = (), newest: bool = False,
) -> tuple[list[tuple[Job, str]], str]:  # fmt: skip
    """Return the jobs of a page with their positions, and the cursor of the next page."""
    wanted = (*also, *_wanted(LISTED_FIELDS, bare))
    if tags:
        where = [*where, administration.Condition("opts", False, False, False, encoded_tags(tags))]
    found = await link.call(administration.page, state, cursor, count, wanted, name or None, where or None, newest)
    usage_at = wanted.index(HAS_USAGE)
    usages = await _usages(link, [job_id for job_id, _, values in found.rows if values[usage_at]])
    rows: list[tuple[Job, str]] = []
    for job_id, position, values in found.rows:
        job = _listed(link, job_id, wanted, values, usages.get(job_id))
        if state is JobState.PRIORITIZED and job.state is JobState.DELAYED:
            job._state = state  # it is due; its record changes when a worker fetches it
        if tags and not set(tags) <= set(job.tags):
            continue
        rows.append((job, position))
    return rows, found.cursor


async def _usages(link: QueueLink, ids: list[str]) -> dict[str, JobUsage | None]:
    """Return the usage of those jobs of a page that have reported any.

    Few jobs have usage, so the page itself does not contain it.
    """
    if not ids:
        return {}
    return dict(zip(ids, await usages_of(link.transport, link.keys.meta, ids), strict=True))


def _listed(
    link: QueueLink, job_id: str, wanted: tuple[str, ...], values: Sequence[str | bool], usage: JobUsage | None
) -> Job:
    fields = {name: value if isinstance(value, str) else None for name, value in zip(wanted, values, strict=True)}
    job: Job = Job._from_record(link, JobRecord.parse(job_id, fields))
    job._usage = usage
    return job


async def get_counts(link: QueueLink) -> JobCounts:
    """Return the number of jobs per state."""
    return (await counts_by_rank(link))[0]


async def counts_by_rank(link: QueueLink) -> tuple[JobCounts, int]:
    """Return the number of jobs per state, and how many of the prioritized ones have a rank below 0."""
    found = await link.call(administration.counts)
    numbers = await complete_counts(link.transport, link.keys.meta, found)
    return counts_of(numbers), found[BELOW_NORMAL]


def counts_of(numbers: Sequence[int]) -> JobCounts:
    """Return the counts of the numbers of `FIGURES`."""
    found: Any = {name.replace("-", "_"): number for name, number in zip(FIGURES, numbers, strict=True)}
    return JobCounts(paused=bool(found.pop("paused")), **found)


def added_counts(counts: Sequence[JobCounts]) -> JobCounts:
    """Return the sums of the parts' numbers of jobs."""
    first, *_ = counts
    return replace(first, **{
        each.name: sum(getattr(count, each.name) for count in counts) for each in fields(first) if each.name != "paused"
    })  # fmt: skip


def merged_workers(lists: Sequence[list[WorkerInfo]]) -> list[WorkerInfo]:
    """Return each worker of the parts once, with its jobs of all parts, oldest first."""
    found: dict[str, WorkerInfo] = {}
    for worker in chain.from_iterable(lists):
        known = found.get(worker.id)
        found[worker.id] = worker if known is None else replace(
            known, started_at=min(known.started_at, worker.started_at), age=max(known.age, worker.age),
            active_jobs=known.active_jobs + worker.active_jobs, stuck=known.stuck + worker.stuck,
        )  # fmt: skip
    return sorted(found.values(), key=lambda worker: worker.started_at)


async def get_workers(link: QueueLink) -> list[WorkerInfo]:
    """Return the workers whose registration has not expired, oldest first, including those of Node peers."""
    now = await server_time(link)
    found: list[WorkerInfo] = []
    for consumer, text in await link.call(administration.workers):
        try:
            info: Any = json.loads(text)
        except SerializationError:
            continue
        if isinstance(info, dict):
            with contextlib.suppress(TypeError, ValueError, OverflowError):  # not written by this library or Node
                found.append(_worker(consumer, cast("dict[str, Any]", info), now))
    return sorted(found, key=lambda worker: worker.started_at)


def _worker(consumer: str, info: dict[str, Any], now: int) -> WorkerInfo:
    started = int(info.get("startedAt") or now)
    return WorkerInfo(
        id=consumer, host=str(info.get("addr", "")), pid=int(info.get("pid") or 0), started_at=started,
        age=max(0, now - started), active_jobs=int(info.get("activeJobs") or 0),
        concurrency=int(info.get("concurrency") or 0) or None, memory=int(info.get("memory") or 0) or None,
        paused=bool(info.get("paused")), stuck=int(info.get("stuck") or 0),
    )  # fmt: skip


_RANKED: Final = (JobState.COMPLETED, JobState.FAILED, JobState.SUSPENDED, JobState.WAITING_CHILDREN)
"""States whose structure gives direct access to a position."""

_SKIPPED_PER_CALL: Final = 500
"""Positions skipped per call, which takes half a millisecond of server time because no record is read."""


async def get_slice(links: Sequence[QueueLink], state: JobState, start: int, end: int, *, bare: bool) -> list[Job]:
    """Return the jobs of all parts from ``start`` to ``end``, one part after the other; see `iterate` for ``bare``.

    Args:
        links: The parts.
        state: State of the jobs.
        start: First position.
        end: Last position, inclusive; -1 is the last.
        bare: If True, omit the jobs' data.

    Raises:
        GlideMQValidationError: If a position is invalid.
    """
    first, last = check_int("start", start, 0, 2**53), check_int("end", end, -1, 2**53)
    found: list[Job] = []
    before = 0
    for link in links:
        if last != -1 and before > last:
            break
        count = getattr(await get_counts(link), state.replace("-", "_")) if len(links) > 1 else first + 1
        if before + count > first:
            found += await _slice(link, state, max(0, first - before), -1 if last == -1 else last - before, bare)
        before += count
    return found


async def _slice(link: QueueLink, state: JobState, first: int, last: int, bare: bool) -> list[Job]:
    most = MAX_PAGE if last == -1 else min(last - first + 1, MAX_PAGE)
    found: list[Job] = []
    cursor = await cursor_at(link, state, first) if first and most > 0 else ""
    if most <= 0 or cursor is None:
        return found
    async for job in iterate(link, state, most, bare=bare, cursor=cursor):
        found.append(job)
        if last != -1 and len(found) > last - first:
            break
    return found


async def cursor_at(link: QueueLink, state: str, position: int) -> str | None:
    """Return the cursor of a position; None if there are fewer jobs."""
    if state in _RANKED:
        return f"r:{position}"
    cursor = ""
    while position:
        found = await link.call(administration.page, state, cursor, min(position, _SKIPPED_PER_CALL), ())
        position, cursor = position - len(found.rows), found.cursor
        if not cursor:
            return None
    return cursor


# -- searching ----------------------------------------------------------------------------------------------

_PAGE_SIZE = 250


class Search:
    """One search. The arguments are validated at once; `run` can be called once.

    Args:
        state: state of the jobs; None = every state that can be listed.
        name: name of the jobs; None = any. The server compares it.
        data: keys and values that the top level of the job's data must contain; None = any. Compared here, since the
            server cannot decode data.
        bare: return the jobs without their data.
        serializer: serializer of the queue; values are compared in their stored form.
        tags: tags that the jobs must have. The server selects candidates.

    Raises:
        GlideMQValidationError: an argument is invalid.
    """

    def __init__(
        self,
        state: JobState | None,
        name: str | None,
        data: Mapping[str, Any] | None,
        bare: bool,
        serializer: Serializer,
        tags: tuple[str, ...] = (),
    ) -> None:
        self._states = listed_states() if state is None else (state,)
        self._name = "" if name is None else validate_job_name(name)
        # An empty mapping matches every job.
        self._data = (None if data is None else _pairs(data, serializer)) or None
        self._bare = bare
        self._tags = tags

    async def run(self, link: QueueLink) -> AsyncIterator[Job]:
        """Yield the jobs found, page by page. A job that changes its state meanwhile is returned at most once."""
        found: set[str] = set()
        async for job in self._candidates(link):
            if job.id not in found and self._matches(job):
                if self._bare:
                    job._forget_data()
                found.add(job.id)
                yield job

    async def _candidates(self, link: QueueLink) -> AsyncIterator[Job]:
        for state in self._states:
            async for job in iterate(
                link, state, _PAGE_SIZE, self._name, self._bare and self._data is None, tags=self._tags
            ):
                yield job

    def _matches(self, job: Job) -> bool:
        if self._data is None:
            return True
        try:
            data: Any = job.data
        except JobDataError:
            return False
        if not isinstance(data, Mapping):
            return False
        actual = cast("Mapping[str, Any]", data)
        return all(key in actual and _equal(actual[key], value) for key, value in self._data.items())


def _pairs(data: Any, serializer: Serializer) -> dict[Any, Any]:
    """Return the pairs as they are after storing and reading: a tuple as a list, a datetime as text."""
    if not isinstance(data, Mapping):
        raise GlideMQValidationError("data", data, f"must be a mapping, not {type(data).__name__}")
    given = cast("Mapping[Hashable, Any]", data)
    pairs: dict[Any, Any] = {}
    for key, value in given.items():
        if not isinstance(key, str) and serializer is JSON_SERIALIZER:
            raise GlideMQValidationError("data", key, f"keys must be str, not {type(key).__name__}")
        try:
            stored: Any = decode_data(encode_data({key: value}, serializer), serializer)
        except SerializationError as error:
            raise GlideMQValidationError(f"data.{key}", value, f"cannot be serialized: {error.problem}") from error
        if not isinstance(stored, Mapping):
            raise GlideMQValidationError("data", given, "the serializer of the queue does not round-trip dicts")
        pairs.update(cast("Mapping[Hashable, Any]", stored))
    return pairs


def _equal(one: Any, other: Any) -> bool:
    """Compare two values recursively, treating True and 1 as different."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        mine, theirs = cast("Mapping[Hashable, Any]", one), cast("Mapping[Hashable, Any]", other)
        return mine.keys() == theirs.keys() and all(_equal(mine[key], theirs[key]) for key in mine)
    if isinstance(one, list) and isinstance(other, list):
        items, others = cast("list[object]", one), cast("list[object]", other)
        return len(items) == len(others) and all(map(_equal, items, others))
    return bool(one == other)
