"""Calls that steer many jobs of a queue piece by piece, or the fate of one that has not ended."""

from __future__ import annotations

from typing import NamedTuple

from glidemq_py._core.calls.packing import Call, pack, unpack

__all__ = ["Cleaned", "Drained", "Retried", "clean", "drain", "promote", "redelay", "reprioritize", "retry_jobs",
           "revoke"]  # fmt: skip


class Drained(NamedTuple):
    """One piece of a drain."""

    deleted: int
    cursor: str
    """'' = the end."""


class Cleaned(NamedTuple):
    """One piece of a clean."""

    cutoff: int
    """Epoch ms: jobs that ended up to then are deleted."""
    ids: list[str]
    more: bool


class Retried(NamedTuple):
    """One piece of a retry of failed jobs."""

    retried: int
    left: int
    """Ids still to be looked at; 0 = the end."""


def drain(meta: str, delayed: bool, cursor: str, batch: int, total: int) -> Call[Drained]:
    """Delete waiting jobs, and with ``delayed`` those that are to come; ``total`` = deleted by the calls before."""
    return Call("drain", meta, (pack((delayed, cursor, batch, total)),), _drained)


def _drained(reply: bytes) -> Drained:
    return Drained(*unpack(reply))


def clean(meta: str, state: str, grace: int, cutoff: int, batch: int, want: int, total: int) -> Call[Cleaned]:
    """Delete jobs that ended ``grace`` ms ago or earlier; ``cutoff`` -1 at first, then that of the reply before."""
    return Call("clean", meta, (pack((state, grace, cutoff, batch, want, total)),), _cleaned)


def _cleaned(reply: bytes) -> Cleaned:
    return Cleaned(*unpack(reply))


def retry_jobs(meta: str, batch: int, want: int, left: int, total: int) -> Call[Retried]:
    """Run failed jobs again; ``want`` 0 = all, ``left`` -1 at first, then that of the reply before."""
    return Call("retry_jobs", meta, (pack((batch, want, left, total)),), _retried)


def _retried(reply: bytes) -> Retried:
    return Retried(*unpack(reply))


def revoke(meta: str, job_id: str) -> Call[str]:
    """Have a job not run: 'revoked', 'flagged' or 'not_found'."""
    return Call("revoke", meta, (job_id,), bytes.decode, repeatable=True)


def reprioritize(meta: str, job_id: str, priority: int) -> Call[str]:
    """Another priority, 0..2047: 'ok', 'no_op', 'gone', 'held', 'lost', or the state that does not allow it."""
    return Call("reprioritize", meta, (job_id, str(priority)), bytes.decode, repeatable=True)


def redelay(meta: str, job_id: str, delay: int) -> Call[str]:
    """Due in ``delay`` ms from now, 0 = at once. Answers as `reprioritize`."""
    return Call("redelay", meta, (job_id, str(delay)), bytes.decode, repeatable=True)


def promote(meta: str, job_id: str) -> Call[str]:
    """A delayed job is due at once: 'ok', 'gone', 'lost', or the state that does not allow it."""
    return Call("promote", meta, (job_id,), bytes.decode)
