"""Vector search over jobs; requires a search module (valkey-search, or the query engine of Redis)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from glidemq_py._core.checks import check_int, check_text
from glidemq_py._features.vectors.options import (
    MAX_FILTER,
    MAX_K,
    IndexFieldType,
    VectorField,
    VectorFieldDict,
    VectorMatch,
    check_field,
    create_arguments,
    encode_vector,
    hits_of,
    search_arguments,
    vector_fields_of,
)
from glidemq_py._job import reading
from glidemq_py._job.job import Job
from glidemq_py._job.link import ConnectedQueue, QueueLink
from glidemq_py.errors import GlideMQError, GlideMQValidationError, SearchIndexError

_MISSING: Final = re.compile(r"unknown command", re.IGNORECASE)
_HASH_TAG: Final = re.compile(r"hash[\s_-]?tag", re.IGNORECASE)
NO_INDEX: Final = re.compile(r"unknown index|no such index|index.*not found|not found.*index", re.IGNORECASE)
"""The error of a search module if an index does not exist."""


async def create_job_index(
    self: ConnectedQueue,
    *,
    name: str | None = None,
    vector: VectorField | VectorFieldDict | None = None,
    fields: Mapping[str, IndexFieldType] | None = None,
) -> str:
    """Create a search index over the jobs of this queue.

    It covers ``name``, ``state``, ``timestamp`` and ``priority``, an embedding, and the given fields of the job
    hash. Existing jobs are indexed too.

    Args:
        name: name of the index; ``<queue>-idx`` by default.
        vector: the field of the embeddings: a `VectorField` or a mapping of its fields; None = no embeddings.
        fields: more fields to index: their type "tag", "numeric" or "text" by name.

    Returns:
        The name of the index.

    Raises:
        SearchIndexError: the server has no search module.
        SearchIndexError: the server rejects the index, for example because its name is already used.
        GlideMQValidationError: an argument is invalid.
    """
    link = await self._connected()
    index, keys = _index(link, name), link.keys
    words = create_arguments(index, keys.job_prefix, fields, vector)
    try:
        await _command(link, words)
    except SearchIndexError as error:
        if not _HASH_TAG.search(str(error)):
            raise
        # valkey-search rejects braces in a prefix. This prefix covers other keys, too; results are filtered.
        words[words.index(keys.job_prefix)] = keys.base.removesuffix("}")
        await _command(link, words)
    return index


async def drop_job_index(self: ConnectedQueue, name: str | None = None) -> bool:
    """Delete an index, but not its jobs. Raises the errors of `create_job_index`.

    Args:
        name: name of the index; ``<queue>-idx`` by default.

    Returns:
        True if the index was deleted; False if it did not exist.
    """
    link = await self._connected()
    try:
        await _command(link, ["FT.DROPINDEX", _index(link, name)])
    except SearchIndexError as error:
        if NO_INDEX.search(str(error)):
            return False
        raise
    return True


async def vector_search(
    self: ConnectedQueue,
    embedding: Iterable[float],
    *,
    k: int = 10,
    filter: str = "*",
    field: str | None = None,
    name: str | None = None,
    score_field: str = "__score",
) -> list[VectorMatch[Job[Any, Any]]]:
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
    hits = await nearest(self, embedding, k=k, filter=filter, field=field, name=name, score_field=score_field)
    link = await self._connected()
    jobs = [(await reading.get_job(link, job_id), score) for job_id, score in hits]
    return [VectorMatch(job, score) for job, score in jobs if job is not None]


async def nearest(
    self: ConnectedQueue, embedding: Iterable[float], *, k: int, filter: str, field: str | None, name: str | None,
    score_field: str,
) -> list[tuple[str, float]]:  # fmt: skip
    """Return the ids and scores of the jobs that `vector_search` finds."""
    blob, most = encode_vector("embedding", embedding), check_int("k", k, 1, MAX_K)
    check_text("filter", filter, maximum=MAX_FILTER)
    check_field("score_field", score_field)
    link = await self._connected()
    index = _index(link, name)
    if field is None:
        field = await _vector_field(link, index)
    words = search_arguments(index, check_field("field", field), blob, most, filter, score_field)
    found: list[tuple[str, float]] = []
    for key, score in hits_of(await _command(link, words), score_field):
        job_id = key.removeprefix(link.keys.job_prefix)
        # The index may contain keys of other queues, and other keys of jobs.
        if job_id != key and ":" not in job_id:
            found.append((job_id, score))
    return found


def _index(link: QueueLink, name: str | None) -> str:
    return f"{link.keys.name}-idx" if name is None else check_text("name", name, maximum=256)


async def _vector_field(link: QueueLink, index: str) -> str:
    names = vector_fields_of(await _command(link, ["FT.INFO", index]))
    if not names or names == ["_vec"]:
        raise SearchIndexError(f"index {index!r} has no vector field")
    if len(names) > 1:
        problem = f"is required: index {index!r} has the vector fields {', '.join(sorted(names))}"
        raise GlideMQValidationError("field", None, problem)
    return names[0]


async def _command(link: QueueLink, words: list[Any]) -> Any:
    try:
        return await link.command(*words)
    except GlideMQError as error:
        if type(error) is not GlideMQError:
            raise
        if _MISSING.search(str(error)):
            raise SearchIndexError(
                "the server has no search module; vector search requires valkey-search, or Redis with its query engine"
            ) from error
        raise SearchIndexError(str(error)) from error
