"""Assertions about the jobs that code under test has added to a queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pprint import pformat
from typing import Any, Final, cast

from glidemq_py._api.job_queue import Queue
from glidemq_py._core.checks import check_int
from glidemq_py._core.record import JobState
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._job.job import Job
from glidemq_py.errors import GlideMQValidationError

__all__ = ["assert_enqueued", "assert_not_enqueued"]

_STATES: Final = (
    JobState.WAITING, JobState.PRIORITIZED, JobState.DELAYED, JobState.GROUP_WAITING,
)  # fmt: skip
_SHOWN: Final = 20
_MISSING: Final = object()


class _Wanted:
    """The expected attributes of jobs."""

    def __init__(
        self, contains: Mapping[str, Any] | None, where: Callable[[Job], bool] | None, data: Any, **exact: Any
    ) -> None:
        given: Any = contains
        if given is not None and not isinstance(given, Mapping):
            raise GlideMQValidationError("contains", given, "must be a mapping")
        if where is not None and not callable(where):
            raise GlideMQValidationError("where", where, "must be a function that takes a job")
        self._exact = {name: value for name, value in exact.items() if value is not None}
        if data is not ...:
            self._exact["data"] = data
        self._contains = contains
        self._where = where

    def differences(self, job: Job) -> list[str]:
        """Return the differences between a job and the expected attributes."""
        found = [
            f"{attribute}: {_short(getattr(job, attribute))} instead of {_short(value)}"
            for attribute, value in self._exact.items()
            if getattr(job, attribute) != value
        ]
        for key, value in (self._contains or {}).items():
            held = _item(job.data, key)
            if held is _MISSING:
                found.append(f"data has no {key!r}")
            elif held != value:
                found.append(f"data[{key!r}]: {_short(held)} instead of {_short(value)}")
        if self._where is not None and not found and not self._where(job):
            found.append("where(job) is false")
        return found

    def __str__(self) -> str:
        parts = [f"{attribute}={_short(value)}" for attribute, value in self._exact.items()]
        if self._contains is not None:
            parts.append(f"contains={_short(dict(self._contains))}")
        if self._where is not None:
            parts.append("where=...")
        return ", ".join(parts) or "any job"


async def assert_enqueued(
    queue: Queue,
    name: str | None = None,
    data: Any = ...,
    *,
    contains: Mapping[str, Any] | None = None,
    count: int | None = None,
    job_id: str | None = None,
    priority: int | None = None,
    delay: Milliseconds | None = None,
    where: Callable[[Job], bool] | None = None,
) -> list[Job]:
    """Assert that a queue contains jobs that no worker has fetched: waiting, prioritized, delayed or group-waiting.

    Args:
        queue: a queue on a real server or in memory.
        name: name of the job.
        data: the job's complete data.
        contains: items that the job's data, a mapping, must contain.
        count: exact number of matching jobs; None requires at least one.
        job_id: id of the job.
        priority: priority of the job, as given to `Queue.add`.
        delay: delay of the job, milliseconds or a timedelta, as given to `Queue.add`.
        where: predicate for any other condition.

    Returns:
        The matching jobs, oldest (or most urgent) first.

    Raises:
        AssertionError: if the jobs do not match; lists the jobs in the queue and how each differs.
        GlideMQValidationError: if ``count`` is not a valid number.
    """
    if count is not None:
        check_int("count", count, 0, 2**53)
    due = None if delay is None else to_ms("delay", delay)
    wanted = _Wanted(contains, where, data, name=name, id=job_id, priority=priority, delay=due)
    jobs = await _pending(queue)
    found = [job for job in jobs if not wanted.differences(job)]
    if (count is None and found) or len(found) == count:
        return found
    expected = "a job" if count is None else f"{count} job(s)"
    raise AssertionError(
        f"expected {expected} in queue {queue.name!r} with {wanted}; {len(found)} of {len(jobs)} match\n"
        + _listed(jobs, wanted)
    )


async def assert_not_enqueued(
    queue: Queue,
    name: str | None = None,
    data: Any = ...,
    *,
    contains: Mapping[str, Any] | None = None,
    where: Callable[[Job], bool] | None = None,
) -> None:
    """Assert that a queue contains no matching job; see `assert_enqueued`. Raises AssertionError."""
    wanted = _Wanted(contains, where, data, name=name)
    found = [job for job in await _pending(queue) if not wanted.differences(job)]
    if found:
        raise AssertionError(
            f"expected no job in queue {queue.name!r} with {wanted}; there are {len(found)}\n" + _listed(found, None)
        )


async def _pending(queue: Queue) -> list[Job]:
    if not isinstance(queue, Queue):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise GlideMQValidationError("queue", queue, "must be a Queue")
    return [job for state in _STATES for job in await queue.get_jobs(state)]


def _listed(jobs: list[Job], wanted: _Wanted | None) -> str:
    if not jobs:
        return "  (nothing is in the queue)"
    differing = [(job, wanted.differences(job) if wanted is not None else []) for job in jobs]
    differing.sort(key=lambda pair: len(pair[1]))  # best match first
    lines: list[str] = []
    for job, differences in differing[:_SHOWN]:
        lines.append(f"  {job.state} {job.name!r} (id {job.id}): {_short(job.data)}")
        lines += [f"      {difference}" for difference in differences]
    if len(jobs) > _SHOWN:
        lines.append(f"  ... and {len(jobs) - _SHOWN} more")
    return "\n".join(lines)


def _item(data: Any, key: str) -> Any:
    return cast("Mapping[str, Any]", data).get(key, _MISSING) if isinstance(data, Mapping) else _MISSING


def _short(value: Any) -> str:
    text = pformat(value, width=100, compact=True)
    return text if len(text) <= 400 else text[:400] + "..."
