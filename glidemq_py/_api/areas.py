"""The areas of a `Queue` that belong to no single feature: `Jobs`, `Settings` and `Vectors`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final, Generic

from glidemq_py._api.administration import checked_count, promote_up_to, requeue_up_to
from glidemq_py._core.calls import administration
from glidemq_py._core.checks import check_bool, check_int
from glidemq_py._core.keys import validate_job_name
from glidemq_py._core.misuse import known_methods
from glidemq_py._core.option_values import parse_tags_filter
from glidemq_py._core.payload import serializer_of
from glidemq_py._core.times import Milliseconds
from glidemq_py._features import deduplication, delays, priorities, results, streams, suspend
from glidemq_py._features import revoke as revocation
from glidemq_py._features.stalled_jobs import StalledPolicies
from glidemq_py._features.streams import StreamChunk
from glidemq_py._features.suspend import SuspendInfo
from glidemq_py._features.vectors import JobIndexes, VectorMatch, nearest
from glidemq_py._job import reading
from glidemq_py._job.contents import DataT, ResultT
from glidemq_py._job.job import Job
from glidemq_py._job.reading import Search
from glidemq_py._partitions.layout import QueuePartitions
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import Area, added

_EVENTS_KEPT: Final = 1_000
_MOST_EVENTS: Final = 100_000_000
_MOST_RESULTS: Final = 1_000_000_000


@known_methods
class Jobs(Area, Generic[DataT, ResultT]):
    """``queue.jobs``: operations on jobs, given their ids or states, that are rarer than the methods of `Queue`."""

    __slots__ = ()

    async def change_priority(self, job_id: str, priority: int | None = None, *, rank: int | None = None) -> None:
        """Change the priority or the rank of a job that has not started. Give one of the two.

        Args:
            job_id: Id of the job.
            priority: 1 (most urgent) to 2047 (least urgent); 0 removes the priority.
            rank: -1,000,000 to 1,000,000; higher ranks run first. 1 to 2047 equals priority 2048 - rank.

        Raises:
            GlideMQValidationError: If the value is invalid, or not exactly one is given.
            JobStateError: If the job is active, has ended, or waits in its ordering group; or if it has a fair key or
                limited name and no priority has this rank.
            JobNotFoundError: If the job does not exist.
        """
        await self._queue._of(job_id, lambda link, own: priorities.change_job_priority(link, own, priority, rank))

    async def change_delay(self, job_id: str, delay: Milliseconds) -> None:
        """Change when a job that has not started becomes due.

        Args:
            job_id: Id of the job.
            delay: Time from now, in ms or as a timedelta; 0 makes the job ready to run.

        Raises:
            GlideMQValidationError: If ``delay`` is invalid.
            JobStateError: If the job is active, has ended, or waits in its ordering group.
            JobNotFoundError: If the job does not exist.
        """
        await self._queue._of(job_id, lambda link, own: delays.change_job_delay(link, own, delay))

    async def discard(self, job_id: str) -> None:
        """Give up the remaining attempts of an active job.

        The attempt continues. If it fails or stalls, the job fails permanently, without another attempt. A handler
        does the same with `Job.discard`. `Queue.retry_jobs` gives the job all its attempts again. Workers of Node
        peers and of version 0.1.0 retry the job nevertheless.

        Raises:
            JobStateError: If the job is not active. Nothing was changed.
            JobNotFoundError: If the job does not exist.
        """
        await self._queue._of(job_id, revocation.discard_job)

    async def promote_delayed(self, count: int | None = None, *, name: str | None = None) -> int:
        """Make delayed jobs ready to run, including retries that wait for their backoff.

        Jobs without a priority come first, then by priority, each by due time. Order, ordering groups, limits and fair
        shares apply to the jobs as if they had been due. A job that becomes delayed during the call may be promoted or
        not. Messages that wait for a retry of a broadcast subscription are not promoted.

        Args:
            count: Maximum number of jobs, >= 1; None promotes all jobs that are delayed at the time of the call.
            name: Promote only jobs with this name; None = any. The others are read and kept.

        Returns:
            The number of promoted jobs.

        Raises:
            GlideMQValidationError: If an argument is invalid.
        """
        want = checked_count(count)
        only = "" if name is None else validate_job_name(name)
        return sum(await self._queue._up_to(want, lambda link, left: promote_up_to(link, only, left), int))

    async def requeue_completed(self, count: int | None = None) -> int:
        """Requeue completed jobs that are kept, with all their attempts, oldest completion first.

        Their results are deleted. A parent that has counted a job as completed does not wait for it again. A job stays
        completed while another job that has not ended has its deduplication id.

        Args:
            count: Maximum number of jobs, >= 1; None requeues all jobs that are completed at the time of the call.

        Returns:
            The number of requeued jobs.

        Raises:
            GlideMQValidationError: If ``count`` is invalid.
            ServerOutOfMemoryError: If the server has reached ``maxmemory``. The remaining jobs stay completed.
        """
        want = checked_count(count)
        return sum(await self._queue._up_to(want, lambda link, left: requeue_up_to(link, left, completed=True), int))

    async def get_rank_counts(self) -> dict[int, int]:
        """Return the number of ready jobs of each rank that has any, highest rank first.

        Rank 0 has the jobs without a priority or rank, except those parked in their ordering groups. A priority p
        counts as rank 2048 - p. The ranks are counted in pages, so jobs that move meanwhile may be missing or
        counted twice.
        """
        sums = added(await self._queue._each(priorities.count_ranks))
        return dict(sorted(sums.items(), reverse=True))

    def iter_search(
        self,
        state: str | None = None,
        name: str | None = None,
        data: Mapping[str, Any] | None = None,
        *,
        exclude_data: bool = False,
        tags: str | Iterable[str] | None = None,
    ) -> AsyncIterator[Job[DataT, ResultT]]:
        """Iterate over the jobs that match all given criteria.

        Jobs are read page by page, so a search over a large queue does not block the server. It may be stopped at any
        time.

        Args:
            state: A state that `Queue.iter_jobs` accepts; None searches all of them, one after the other.
            name: The complete job name.
            data: Keys and values that the job's data (a dict) must contain at its top level. Keys are literal strings,
                not paths. Values match if they are equal in serialized form.
            exclude_data: If True, `Job.data` of the results is None. Without ``data`` it is not read at all.
            tags: A tag or several: only jobs with all of these. The server selects them.

        Raises:
            GlideMQValidationError: If the state cannot be listed, a key is not a string, or a value cannot be
                serialized.
        """
        bare, only = check_bool("exclude_data", exclude_data), parse_tags_filter(tags)
        listed = None if state is None else reading.listable(state)
        serializer = serializer_of(self._queue.options.serializer)
        return self._queue._in_turn(Search(listed, name, data, bare, serializer, only).run)

    async def get_deduplicated(self, deduplication_id: str) -> Job[DataT, ResultT] | None:
        """Return the job that was added last with this deduplication id, or None.

        Args:
            deduplication_id: The ``id`` of the option ``deduplication``, 1 to 256 characters.

        Returns:
            The job, which may have ended. None if there is no such job, or if it was deleted.

        Raises:
            GlideMQValidationError: If ``deduplication_id`` is invalid.
        """
        checked = deduplication.check_id(deduplication_id)

        async def find(link: QueueLink) -> Job[DataT, ResultT] | None:
            job_id = await deduplication.find_job_id(link, checked)
            return await reading.get_job(link, job_id) if job_id else None

        return await self._queue._at(checked, find)

    async def remove_deduplication(self, deduplication_id: str) -> bool:
        """Remove a deduplication id: the next add with it is not skipped. No job is changed.

        Args:
            deduplication_id: The ``id`` of the option ``deduplication``, 1 to 256 characters.

        Returns:
            True if a job had been added with the id.

        Raises:
            GlideMQValidationError: If ``deduplication_id`` is invalid.
        """
        checked = deduplication.check_id(deduplication_id)
        return await self._queue._at(checked, lambda link: link.call(deduplication.remove_entry, checked), fresh=True)

    async def get_suspend_info(self, job_id: str) -> SuspendInfo | None:
        """Return details of a suspended job; None if the job does not exist or is not suspended."""
        return await self._queue._of(job_id, suspend.read_suspend_info)

    def iter_stream(self, job_id: str, *, last_id: str | None = None, page: int = 100) -> AsyncIterator[StreamChunk]:
        """Iterate over a job's chunks as they are written, until the job completes, fails or is removed.

        Args:
            job_id: id of the job.
            last_id: start after this entry id; None = with the oldest chunk kept.
            page: number of chunks per read, 1..10_000.

        Raises:
            GlideMQValidationError: an argument is invalid.
            JobNotFoundError: the job does not exist. If it is removed later, the iteration ends without an error.
        """
        return streams.follow_stream(self._queue, job_id, last_id, page)


@known_methods
class Settings(StalledPolicies):
    """``queue.settings``: settings that are stored with the queue and apply to all its clients."""

    __slots__ = ()

    async def set_event_retention(self, count: int) -> None:
        """Set how many events the queue keeps, for readers that fall more than 1000 events behind.

        The number is approximate; an event takes about 100 bytes. The setting applies to events that this library
        writes: a Node peer that writes an event trims the stream to 1000.

        Args:
            count: 1 to 100,000,000; 0 restores the default (about 1000).

        Raises:
            GlideMQValidationError: If ``count`` is invalid.
        """
        number = check_int("count", count, 0, _MOST_EVENTS)
        text = str(number) if number else None
        await self._queue._change(lambda link: link.call(administration.set_settings, maxLenEvents=text))

    async def get_event_retention(self) -> int:
        """Return the approximate number of events that the queue keeps; the default is 1000."""
        link = await self._queue._first()
        found = await link.command("HGET", link.keys.meta, "maxLenEvents")
        return int(found) if found and found.isdigit() else _EVENTS_KEPT

    async def set_result_retention(self, count: int) -> None:
        """Set how many finished jobs the result sequence keeps, for readers that fall further behind.

        The sequence numbers finished jobs for readers such as Spark streams. The first reader turns it on, with a
        retention of 1,000,000 jobs. The number is approximate; an entry takes about 30 bytes. The jobs themselves are
        kept or deleted by their own retention.

        Args:
            count: 1 to 1,000,000,000; 0 turns the sequence off and deletes it, so readers must start again.

        Raises:
            GlideMQValidationError: If ``count`` is invalid.
        """
        number = check_int("count", count, 0, _MOST_RESULTS)
        await self._queue._change(lambda link: link.call(results.set_retention, number))

    async def get_result_retention(self) -> int:
        """Return the approximate number of finished jobs that the result sequence keeps; 0 = it is off."""
        link = await self._queue._first()
        found = await link.command("HGET", link.keys.meta, "resultsKept")
        return int(found) if found and found.isdigit() else 0

    async def get_features(self) -> dict[str, str]:
        """Return the features in use that older versions of this package would mishandle.

        The values are the versions that added the features; most queues use none. The result also contains features
        that this version lacks; with one of them, every other call about the queue raises `UnsupportedFeatureError`.
        """
        texts = await self._queue._each(lambda link: link.command("HGET", link.keys.meta, "features"))
        listed = ",".join(text.decode("utf-8", "replace") for text in texts if text)
        return {name: version for name, _, version in (entry.partition(":") for entry in listed.split(",")) if name}

    async def get_partitions(self) -> QueuePartitions:
        """Return the partitions of the queue. A queue without partitions has 1, which is the queue itself."""
        queue: Any = self._queue
        await queue._plain_link()
        await queue._renew_layout()
        names = tuple(part.name for part in queue._parts)
        return QueuePartitions(count=len(names), names=names)


@known_methods
class Vectors(JobIndexes, Generic[DataT, ResultT]):
    """``queue.vectors``: search indexes over the jobs of the queue, and the jobs nearest to a vector."""

    __slots__ = ()

    async def search(
        self,
        embedding: Iterable[float],
        *,
        k: int = 10,
        filter: str = "*",
        field: str | None = None,
        name: str | None = None,
        score_field: str = "__score",
    ) -> list[VectorMatch[Job[DataT, ResultT]]]:
        """Return the jobs whose embeddings are nearest to ``embedding``, nearest first.

        Args:
            embedding: the query vector, with as many numbers as the index has dimensions.
            k: maximum number of results, 1..1_000.
            filter: filter expression in the query language of the search module, such as ``@state:{completed}``; at
                most 10,000 characters.
            field: name of the vector field; None = the only vector field of the index.
            name: name of the index; ``<queue>-idx`` by default.
            score_field: name of the distance in the query; must not be a field of the index.

        Raises:
            SearchIndexError: the server has no search module.
            SearchIndexError: the index does not exist, or the server rejects the query.
            GlideMQValidationError: an argument is invalid.
        """
        hits = await nearest(
            self._queue, embedding, k=k, filter=filter, field=field, name=name, score_field=score_field
        )  # fmt: skip
        jobs = [(await reading.get_job(link, own), score) for score, link, own in hits]
        return [VectorMatch(job, score) for job, score in jobs if job is not None]
