"""Calls that manage many jobs of a queue in batches, or one unfinished job."""

from __future__ import annotations

from typing import NamedTuple

from glidemq_py._core.calls.packing import Call, pack, unpack

__all__ = ["Cleaned", "Drained", "Retried", "clean", "drain", "promote", "redelay", "reprioritize", "retry_jobs",
           "revoke"]  # fmt: skip


class Drained(NamedTuple):
    """Reply of one batch of a drain."""

    deleted: int
    cursor: str
    """'' = the end."""


class Cleaned(NamedTuple):
    """Reply of one batch of a clean."""

    cutoff: int
    """Jobs that ended at or before this time (epoch ms) are deleted."""
    ids: list[str]
    more: bool


class Retried(NamedTuple):
    """Reply of one batch of requeued failed jobs."""

    retried: int
    left: int
    """Number of ids not yet processed; 0 = the end."""


def drain(meta: str, delayed: bool, cursor: str, batch: int, total: int) -> Call[Drained]:
    """Delete waiting jobs, and delayed ones if ``delayed``; ``total`` = number deleted by the previous calls."""
    return Call("drain", meta, (pack((delayed, cursor, batch, total)),), _drained)


def _drained(reply: bytes) -> Drained:
    return Drained(*unpack(reply))


def clean(meta: str, state: str, grace: int, cutoff: int, batch: int, want: int, total: int) -> Call[Cleaned]:
    """Delete jobs that ended at least ``grace`` ms ago; ``cutoff``: -1, then that of the previous reply."""
    return Call("clean", meta, (pack((state, grace, cutoff, batch, want, total)),), _cleaned)


def _cleaned(reply: bytes) -> Cleaned:
    return Cleaned(*unpack(reply))


def retry_jobs(meta: str, batch: int, want: int, left: int, total: int) -> Call[Retried]:
    """Requeue failed jobs; ``want`` 0 = all, ``left``: -1, then that of the previous reply."""
    return Call("retry_jobs", meta, (pack((batch, want, left, total)),), _retried)


def _retried(reply: bytes) -> Retried:
    return Retried(*unpack(reply))


def revoke(meta: str, job_id: str) -> Call[str]:
    """Revoke a job; return 'revoked', 'flagged' or 'not_found'."""
    return Call("revoke", meta, (job_id,), bytes.decode, repeatable=True)


def reprioritize(meta: str, job_id: str, priority: int) -> Call[str]:
    """Change a job's priority (0 to 2047).

    Returns 'ok', 'no_op', 'gone', 'held', 'lost', or the state that does not allow it.
    """
    return Call("reprioritize", meta, (job_id, str(priority)), bytes.decode, repeatable=True)


def redelay(meta: str, job_id: str, delay: int) -> Call[str]:
    """Make a job due ``delay`` ms from now, 0 = immediately. Returns the same results as `reprioritize`."""
    return Call("redelay", meta, (job_id, str(delay)), bytes.decode, repeatable=True)


def promote(meta: str, job_id: str) -> Call[str]:
    """Make a delayed job due immediately; return 'ok', 'gone', 'lost', or the state that does not allow it."""
    return Call("promote", meta, (job_id,), bytes.decode)
