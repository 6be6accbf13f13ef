"""Server calls of batches, and the batch of a job (``lua/features/job_batches``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from glidemq_py._core.calls import Argument, call
from glidemq_py._core.calls.adding import Row
from glidemq_py._core.keys import exact_text, split_member
from glidemq_py._features.flows.references import shown_ref
from glidemq_py._partitions.link import QueueLink

PARENT: Final = "batch:"
"""Beginning of the name of a batch where a call expects the id of a parent."""
REMOVED: Final = "removed"
"""The outcome of a job that does not exist."""


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


class BatchJobs(NamedTuple):
    """One page of a batch's jobs."""

    rows: list[tuple[str, str]]
    """Key base and id, and 'p' (pending), 'c' (completed) or 'f' (failed)."""
    cursor: str


class BatchIds(NamedTuple):
    """One page of a queue's unfinished batches."""

    ids: list[str]
    cursor: str


class BatchWatched(NamedTuple):
    """Pending jobs of a batch that was not checked for long."""

    parent: str
    members: list[str]
    calm: int
    """1 if no job has joined for long: a job that does not exist is not about to be added."""
    more: int


@call("batch_create", repeatable=True)
def batch_create(
    id: str, stem: str, complete: Row | None, success: Row | None, failure: Row | None, keep: int, quiet: bool,
    layout: int | None = None,
) -> int:  # fmt: skip
    """Create a batch with the rows of its callbacks; ids of its jobs begin with ``stem``. Returns 0 if it exists.

    ``layout``: number of the layout of the queue's partitions; None = not checked.
    """
    ...


@call("batch_join")
def batch_join(id: str, stem: str, ids: Sequence[str]) -> Joined:
    """Reserve jobs of the queue with the key prefix ``stem``; "" = issue an id. Not repeatable: it issues ids."""
    ...


@call("batch_change", repeatable=True)
def batch_change(id: str, action: Literal["close", "cancel"]) -> str:
    """Close or cancel a batch. Returns 'ok' or 'gone'."""
    ...


def _numbers(reply: list[bytes]) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in zip(reply[::2], reply[1::2], strict=True)}


@call("batch_status", read=_numbers, repeatable=True)
def batch_status(id: Argument[str]) -> dict[str, int]:
    """Return counts and times of a batch; empty if it does not exist."""
    ...


@call("batch_jobs", repeatable=True)
def batch_jobs(id: str, cursor: str, count: int) -> BatchJobs:
    """Return a page of a batch's jobs."""
    ...


@call("batches", repeatable=True)
def batches(cursor: str, count: int) -> BatchIds:
    """Return a page of the ids of unfinished batches."""
    ...


@call("batch_watch", repeatable=True)
def batch_watch(age: int) -> BatchWatched:
    """Return pending jobs of a batch that was not checked for ``age`` ms."""
    ...


class BatchRef(NamedTuple):
    """A reference to a batch: its queue and its id.

    Attributes:
        queue: name of the queue in which the batch was created.
        id: id of the batch.
    """

    queue: str
    id: str


async def batch_ref_of(link: QueueLink[Any], job_id: str) -> BatchRef | None:
    """Return queue and id of the batch that a job belongs to, or whose callback it is; None if there is none."""
    value: bytes | None = await link.command("HGET", link.keys.job(job_id), "jobBatch")
    if value is None:
        return None
    try:
        base, batch = split_member(exact_text(value))
    except ValueError:
        return None
    return BatchRef(*await shown_ref(link, base[:-1].rpartition(":{")[2], batch))
