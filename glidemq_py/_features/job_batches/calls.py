"""Server calls of batches (``lua/features/job_batches/functions/job_batches.lua``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, declared, reader
from glidemq_py._core.calls.adding import Row

PARENT: Final = "batch:"
"""Beginning of the name of a batch where a call expects the id of a parent."""
REMOVED: Final = "removed"
"""The outcome of a job that does not exist."""


@declared("batch_join_reply")
class Joined(NamedTuple):
    """Reply of `batch_join`."""

    status: str
    """ok, gone, finished or cancelled."""
    ids: list[str]
    """The ids of the jobs, given or issued."""
    known: list[int]
    """1-based positions of ids that were in the batch before."""
    stem: str
    """Stem of the batch: a later batch with its id has another one."""


@declared("batch_jobs_reply")
class BatchJobs(NamedTuple):
    """One page of a batch's jobs."""

    rows: list[tuple[str, str]]
    """Key base and id, and 'p' (pending), 'c' (completed) or 'f' (failed)."""
    cursor: str


@declared("batches_reply")
class BatchIds(NamedTuple):
    """One page of a queue's unfinished batches."""

    ids: list[str]
    cursor: str


@declared("batch_watch_reply")
class BatchWatched(NamedTuple):
    """Pending jobs of a batch that was not checked for long."""

    parent: str
    members: list[str]
    calm: int
    """1 if no job has joined for long: a job that does not exist is not about to be added."""
    more: int


def batch_create(
    meta: str,
    batch: str,
    stem: str,
    *,
    complete: Row | None,
    success: Row | None,
    failure: Row | None,
    keep: int,
    quiet: bool,
    layout: int = 0,
) -> Call[int]:
    """Create a batch with the rows of its callbacks; ids of its jobs begin with ``stem``. Returns 0 if it exists.

    ``layout``: number of the layout of the queue's partitions; 0 = not checked.
    """
    arguments = requests.batch_create(
        id=batch,
        stem=stem,
        complete=complete or False,
        success=success or False,
        failure=failure or False,
        keep=keep,
        quiet=quiet,
        layout=layout or False,
    )
    return Call("batch_create", meta, arguments, int)


def batch_join(meta: str, batch: str, stem: str, ids: Sequence[str]) -> Call[Joined]:
    """Reserve jobs of the queue with the key prefix ``stem``; "" = issue an id. Not repeatable: it issues ids."""
    return Call("batch_join", meta, requests.batch_join(id=batch, stem=stem, ids=ids), reader(Joined))


def batch_change(meta: str, batch: str, action: Literal["close", "cancel"]) -> Call[str]:
    """Close or cancel a batch. Returns 'ok' or 'gone'."""
    return Call("batch_change", meta, requests.batch_change(id=batch, action=action), bytes.decode)


def batch_status(meta: str, batch: str) -> Call[dict[str, int]]:
    """Return counts and times of a batch; empty if it does not exist."""
    return Call("batch_status", meta, requests.batch_status(id=batch), _numbers)


def _numbers(reply: list[bytes]) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}


def batch_jobs(meta: str, batch: str, cursor: str, count: int) -> Call[BatchJobs]:
    """Return a page of a batch's jobs."""
    arguments = requests.batch_jobs(id=batch, cursor=cursor, count=count)
    return Call("batch_jobs", meta, arguments, reader(BatchJobs))


def batches(meta: str, cursor: str, count: int) -> Call[BatchIds]:
    """Return a page of the ids of unfinished batches."""
    return Call("batches", meta, requests.batches(cursor=cursor, count=count), reader(BatchIds))


def batch_watch(meta: str, age: int) -> Call[BatchWatched]:
    """Return pending jobs of a batch that was not checked for ``age`` ms."""
    return Call("batch_watch", meta, requests.batch_watch(age=age), reader(BatchWatched))
