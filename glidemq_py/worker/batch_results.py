"""What a batch handler's answer means for each job of the batch. Nothing is sent or run here."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, cast

from glidemq_py.errors import BatchError, BatchMismatchError, GlideMQError, JobSignal
from glidemq_py.job.job import Job

__all__ = ["Ending", "endings_of"]

Ending = tuple[Any, BaseException | None]
"""Result, or None; exception, or None."""


def endings_of(jobs: Sequence[Job[Any, Any]], answer: Any, error: BaseException | None) -> list[Ending]:
    """How each job ended, by what the handler returned (``answer``) or raised (``error``)."""
    if isinstance(error, BatchError):
        return _of_batch_error(jobs, error.results)
    if isinstance(error, JobSignal) and error.job_id is not None:
        return _of_stray_signal(jobs, error)
    if error is not None:
        return [(None, error)] * len(jobs)
    if inspect.isawaitable(answer):
        getattr(answer, "close", lambda: None)()
        return _all(jobs, GlideMQError("a plain handler returned an awaitable: make it `async def`"))
    if not isinstance(answer, (list, tuple)):
        text = f"the batch handler returned {type(answer).__name__}, not a list of {len(jobs)} results"
        return _all(jobs, BatchMismatchError(text))
    results = cast("Sequence[Any]", answer)
    if len(results) != len(jobs):
        text = f"the batch handler returned {len(results)} results for {len(jobs)} jobs"
        return _all(jobs, BatchMismatchError(text))
    return [_ending(job, result) for job, result in zip(jobs, results, strict=True)]


def _of_batch_error(jobs: Sequence[Job[Any, Any]], results: Any) -> list[Ending]:
    if not isinstance(results, (list, tuple)):
        text = f"BatchError holds {type(results).__name__}, not a list of results"
        return _all(jobs, BatchMismatchError(text))
    given = cast("Sequence[Any]", results)
    if len(given) > len(jobs):
        text = f"BatchError holds {len(given)} results for {len(jobs)} jobs"
        return _all(jobs, BatchMismatchError(text))
    endings = [_ending(job, result) for job, result in zip(jobs, given, strict=False)]
    for index in range(len(given), len(jobs)):
        missing = f"no result in BatchError: it holds {len(given)}, and this job is number {index + 1} of the batch"
        endings.append((None, BatchMismatchError(missing)))
    return endings


def _of_stray_signal(jobs: Sequence[Job[Any, Any]], signal: JobSignal) -> list[Ending]:
    """One job's signal ended the handler, so nothing is known of the others."""
    text = (
        f"the batch ended when job {signal.job_id!r} raised {type(signal).__name__}: a batch handler returns a job's "
        "signal in the place of its result"
    )
    return [(None, signal if job.id == signal.job_id else BatchMismatchError(text)) for job in jobs]


def _ending(job: Job[Any, Any], result: Any) -> Ending:
    if not isinstance(result, BaseException):
        return result, None
    if isinstance(result, JobSignal) and result.job_id not in (None, job.id):
        text = f"{type(result).__name__} of job {result.job_id!r} stands in the place of job {job.id!r}"
        return None, BatchMismatchError(text)
    return None, result


def _all(jobs: Sequence[Job[Any, Any]], error: GlideMQError) -> list[Ending]:
    return [(None, error)] * len(jobs)
