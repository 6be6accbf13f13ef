"""Looking for jobs by state, name and data: pages of bounded size, filtered before they are counted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

from glidemq_py.errors import GlideMQValidationError, JobDataError
from glidemq_py.job import Job, QueueLink
from glidemq_py.model.states import JobState
from glidemq_py.options.checks import check_int
from glidemq_py.options.names import validate_job_name
from glidemq_py.queue.reading import iterate, listed_states

__all__ = ["Search"]

_PAGE = 250


class Search:
    """One search: checked when made, run once.

    Args:
        state: None = every state that can be listed.
        name: of the job; looked at on the server.
        data: pairs that the job's data must hold; looked at here, since only we can decode them.
        limit: most jobs found.
        bare: they come without their data.
    """

    def __init__(
        self, state: JobState | None, name: str | None, data: Mapping[str, Any] | None, limit: int, bare: bool
    ) -> None:
        self._states = listed_states() if state is None else (state,)
        self._name = "" if name is None else validate_job_name(name)
        if data is not None and not isinstance(data, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise GlideMQValidationError("data", data, f"must be a mapping, not {type(data).__name__}")
        self._data = data
        self._limit = check_int("limit", limit, 1, 2**31)
        self._bare = bare

    async def run(self, link: QueueLink) -> list[Job[Any, Any]]:
        """The jobs found. One that changes its state meanwhile comes once at most."""
        found: dict[str, Job[Any, Any]] = {}
        async for job in self._candidates(link):
            if self._matches(job):
                if self._bare:
                    job._forget_data()
                found.setdefault(job.id, job)
                if len(found) == self._limit:
                    break
        return list(found.values())

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


def _same(one: Any, other: Any) -> bool:
    # True == 1 in Python, and not in JSON.
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
