"""Vector search over a partitioned queue: an index per partition, and results merged by their scores."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from glidemq_py._api.partitions_protocol import Partitions
from glidemq_py._core.checks import check_int, check_text
from glidemq_py._features.vectors import MAX_K, NO_INDEX, VectorMatch, nearest
from glidemq_py._job.job import Job
from glidemq_py.errors import SearchIndexError

if TYPE_CHECKING:
    from glidemq_py._api.job_queue import Queue

_EXISTS: Final = re.compile(r"\bexists\b", re.IGNORECASE)


async def create_job_index(self: Partitions, *, name: str | None = None, **options: Any) -> str:
    """See `Queue.create_job_index`. Partitions that have the index are left alone, unless all have it."""
    refused: SearchIndexError | None = None
    created = 0
    for queue in self.queues:
        try:
            await queue.create_job_index(name=_index_of(self, queue, name), **options)
            created += 1
        except SearchIndexError as error:
            if _EXISTS.search(str(error)) is None:
                raise
            refused = error
    if refused is not None and not created:
        raise refused
    return f"{self.home.name}-idx" if name is None else name


async def drop_job_index(self: Partitions, name: str | None = None) -> bool:
    """See `Queue.drop_job_index`."""
    return any([await queue.drop_job_index(_index_of(self, queue, name)) for queue in self.queues])


async def vector_search(
    self: Partitions, embedding: Iterable[float], *, k: int = 10, filter: str = "*", field: str | None = None,
    name: str | None = None, score_field: str = "__score",
) -> list[VectorMatch[Job[Any, Any]]]:  # fmt: skip
    """See `Queue.vector_search`; the nearest of the nearest jobs of each partition."""
    most, vector = check_int("k", k, 1, MAX_K), list(embedding)

    async def search(queue: Queue[Any, Any]) -> list[tuple[float, str, Queue[Any, Any]]]:
        index = _index_of(self, queue, name)
        try:
            hits = await nearest(queue, vector, k=most, filter=filter, field=field, name=index, score_field=score_field)
        except SearchIndexError as error:
            if NO_INDEX.search(str(error)) is None:
                raise
            problem = f"{error}: partition {queue.name!r} has no index {index!r}"
            raise SearchIndexError(f"{problem}; call create_job_index") from error
        return [(score, job_id, queue) for job_id, score in hits]

    hits = [hit for found in await self.together(map(search, self.queues)) for hit in found]
    hits.sort(key=lambda hit: hit[0])
    jobs = [(await queue.get_job(job_id), score) for score, job_id, queue in hits[:most]]
    return [VectorMatch(job, score) for job, score in jobs if job is not None]


def _index_of(self: Partitions, queue: Queue[Any, Any], name: str | None) -> str:
    """Return the name of a partition's index, which must differ from those of the others on one server."""
    base = f"{self.home.name}-idx" if name is None else check_text("name", name, maximum=256)
    return base + queue.name.removeprefix(self.home.name)
