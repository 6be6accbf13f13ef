"""Searching jobs by likeness, where the server has a search module (valkey-search, or Redis' query engine)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from glidemq_py._core.checks import check_int, check_text
from glidemq_py._features.vectors.info import VectorMatch, hits_of, vector_fields_of
from glidemq_py._features.vectors.options import (
    MAX_FILTER,
    MAX_K,
    IndexFieldType,
    VectorField,
    VectorFieldDict,
    check_field,
    create_arguments,
    encode_vector,
    search_arguments,
)
from glidemq_py._job import Job, QueueLink, reading
from glidemq_py.errors import GlideMQError, GlideMQValidationError, SearchIndexError, SearchUnavailableError

__all__ = ["QueueVectors"]

_MISSING: Final = re.compile(r"unknown command", re.IGNORECASE)
_HASH_TAG: Final = re.compile(r"hash[\s_-]?tag", re.IGNORECASE)
_NO_INDEX: Final = re.compile(r"unknown index|no such index|index.*not found|not found.*index", re.IGNORECASE)


class QueueVectors:
    """The part of `Queue` that searches by vectors."""

    async def _connected(self) -> QueueLink:
        raise NotImplementedError

    async def create_job_index(
        self,
        *,
        name: str | None = None,
        vector: VectorField | VectorFieldDict | None = None,
        fields: Mapping[str, IndexFieldType] | None = None,
    ) -> str:
        """Make a search index over this queue's jobs: their ``name``, ``state``, ``timestamp`` and ``priority``, an
        embedding, and further fields of their records. Jobs that are there already are indexed too.

        Args:
            name: of the index; ``<queue>-idx`` by default.
            vector: the field of the embeddings: a `VectorField` or a mapping of its fields; None = none.
            fields: further fields: "tag", "numeric" or "text" by name.

        Returns:
            The index's name.

        Raises:
            SearchUnavailableError: the server has no search module.
            SearchIndexError: it refuses the index; there is one of that name already, say.
            GlideMQValidationError: an argument cannot be.
        """
        link = await self._connected()
        index, keys = _index(link, name), link.keys
        words = create_arguments(index, keys.job_prefix, fields, vector)
        try:
            await _ask(link, words)
        except SearchIndexError as error:
            if not _HASH_TAG.search(str(error)):
                raise
            # valkey-search takes no braces in a prefix. What else this one covers is left out of what is found.
            words[words.index(keys.job_prefix)] = keys.base.removesuffix("}")
            await _ask(link, words)
        return index

    async def drop_job_index(self, name: str | None = None) -> bool:
        """Delete an index; the jobs stay. False if there was none of that name. Raises as `create_job_index`."""
        link = await self._connected()
        try:
            await _ask(link, ["FT.DROPINDEX", _index(link, name)])
        except SearchIndexError as error:
            if _NO_INDEX.search(str(error)):
                return False
            raise
        return True

    async def vector_search(
        self,
        embedding: Iterable[float],
        *,
        k: int = 10,
        filter: str = "*",
        field: str | None = None,
        name: str | None = None,
        score_field: str = "__score",
    ) -> list[VectorMatch[Job[Any, Any]]]:
        """The jobs whose embeddings are nearest, nearest first.

        Args:
            embedding: as many numbers as the index has dimensions.
            k: how many at most, 1..1_000.
            filter: which jobs to look among, in the search module's language: ``@state:{completed}``.
            field: of the embeddings; None asks the index.
            name: of the index; ``<queue>-idx`` by default.
            score_field: what the distance is called in the query; must not be a field of the index.

        Raises:
            SearchUnavailableError: the server has no search module.
            SearchIndexError: there is no such index, or it refuses the query.
            GlideMQValidationError: an argument cannot be.
        """
        blob, most = encode_vector("embedding", embedding), check_int("k", k, 1, MAX_K)
        check_text("filter", filter, maximum=MAX_FILTER)
        check_field("score_field", score_field)
        link = await self._connected()
        index = _index(link, name)
        if field is None:
            field = await _vector_field(link, index)
        words = search_arguments(index, check_field("field", field), blob, most, filter, score_field)
        found: list[VectorMatch[Job[Any, Any]]] = []
        for key, score in hits_of(await _ask(link, words), score_field):
            job_id = key.removeprefix(link.keys.job_prefix)
            # Other queues' keys may be in the index, and other keys of jobs.
            job = await reading.get_job(link, job_id) if job_id != key and ":" not in job_id else None
            if job is not None:
                found.append(VectorMatch(job, score))
        return found


def _index(link: QueueLink, name: str | None) -> str:
    return f"{link.keys.name}-idx" if name is None else check_text("name", name, maximum=256)


async def _vector_field(link: QueueLink, index: str) -> str:
    names = vector_fields_of(await _ask(link, ["FT.INFO", index]))
    if not names or names == ["_vec"]:
        raise SearchIndexError(f"index {index!r} has no field for vectors")
    if len(names) > 1:
        raise GlideMQValidationError("field", None, f"index {index!r} has several: {', '.join(sorted(names))}")
    return names[0]


async def _ask(link: QueueLink, words: list[Any]) -> Any:
    try:
        return await link.transport.command(*words)
    except GlideMQError as error:
        if type(error) is not GlideMQError:
            raise
        if _MISSING.search(str(error)):
            raise SearchUnavailableError from error
        raise SearchIndexError(str(error)) from error
