"""Looking for jobs by state, name and data: pages of bounded size, filtered before they are counted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Mapping
from typing import Any, cast

from glidemq_py._core.job_states import JobState
from glidemq_py._core.names import validate_job_name
from glidemq_py._core.payload import JSON_SERIALIZER, decode_data, encode_data
from glidemq_py._core.queue_options import Serializer
from glidemq_py._job import Job, QueueLink
from glidemq_py._job.reading import iterate, listed_states
from glidemq_py.errors import GlideMQValidationError, JobDataError, SerializationError

__all__ = ["Search"]

_PAGE = 250


class Search:
    """One search: checked when made, run once.

    Args:
        state: None = every state that can be listed.
        name: of the job; looked at on the server.
        data: pairs that the job's data must hold at its top level; looked at here, since only we can decode them.
        bare: they come without their data.
        serializer: the queue's; values are compared as it stores them.

    Raises:
        GlideMQValidationError: an argument cannot be.
    """

    def __init__(
        self,
        state: JobState | None,
        name: str | None,
        data: Mapping[str, Any] | None,
        bare: bool,
        serializer: Serializer,
    ) -> None:
        self._states = listed_states() if state is None else (state,)
        self._name = "" if name is None else validate_job_name(name)
        # No pairs: every job has them all.
        self._data = (None if data is None else _pairs(data, serializer)) or None
        self._bare = bare

    async def run(self, link: QueueLink) -> AsyncIterator[Job[Any, Any]]:
        """The jobs found, page by page. One that changes its state meanwhile comes once at most."""
        found: set[str] = set()
        async for job in self._candidates(link):
            if job.id not in found and self._matches(job):
                if self._bare:
                    job._forget_data()
                found.add(job.id)
                yield job

    async def _candidates(self, link: QueueLink) -> AsyncIterator[Job[Any, Any]]:
        for state in self._states:
            async for job in iterate(link, state, _PAGE, self._name, self._bare and self._data is None):
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
        held = cast("Mapping[str, Any]", data)
        return all(key in held and _same(held[key], value) for key, value in self._data.items())


def _pairs(data: Any, serializer: Serializer) -> dict[Any, Any]:
    """The pairs as a job's data would bring them back: a tuple as a list, a time as its text."""
    if not isinstance(data, Mapping):
        raise GlideMQValidationError("data", data, f"must be a mapping, not {type(data).__name__}")
    given = cast("Mapping[Hashable, Any]", data)
    pairs: dict[Any, Any] = {}
    for key, value in given.items():
        if not isinstance(key, str) and serializer is JSON_SERIALIZER:
            raise GlideMQValidationError("data", key, f"its keys must be str, not {type(key).__name__}")
        try:
            stored: Any = decode_data(encode_data({key: value}, serializer), serializer)
        except SerializationError as error:
            raise GlideMQValidationError(f"data.{key}", value, f"no job can hold it: {error.problem}") from error
        if not isinstance(stored, Mapping):
            raise GlideMQValidationError("data", given, "the queue's serializer does not bring mappings back")
        pairs.update(cast("Mapping[Hashable, Any]", stored))
    return pairs


def _same(one: Any, other: Any) -> bool:
    """Equal all through. True is not 1, though Python says so."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        mine, theirs = cast("Mapping[Hashable, Any]", one), cast("Mapping[Hashable, Any]", other)
        return mine.keys() == theirs.keys() and all(_same(mine[key], theirs[key]) for key in mine)
    if isinstance(one, list) and isinstance(other, list):
        items, others = cast("list[object]", one), cast("list[object]", other)
        return len(items) == len(others) and all(map(_same, items, others))
    return bool(one == other)
