"""Searching jobs by state, name and data, in pages of bounded size."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Mapping
from typing import Any, cast

from glidemq_py._core.job_states import JobState
from glidemq_py._core.names import validate_job_name
from glidemq_py._core.payload import JSON_SERIALIZER, decode_data, encode_data
from glidemq_py._core.queue_options import Serializer
from glidemq_py._job.job import Job
from glidemq_py._job.reading import iterate, listed_states
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQValidationError, JobDataError, SerializationError

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

    async def run(self, link: QueueLink) -> AsyncIterator[Job[Any, Any]]:
        """Yield the jobs found, page by page. A job that changes its state meanwhile is returned at most once."""
        found: set[str] = set()
        async for job in self._candidates(link):
            if job.id not in found and self._matches(job):
                if self._bare:
                    job._forget_data()
                found.add(job.id)
                yield job

    async def _candidates(self, link: QueueLink) -> AsyncIterator[Job[Any, Any]]:
        for state in self._states:
            async for job in iterate(
                link, state, _PAGE_SIZE, self._name, self._bare and self._data is None, tags=self._tags
            ):
                yield job

    def _matches(self, job: Job[Any, Any]) -> bool:
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
