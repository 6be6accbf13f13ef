"""Calls that steer a queue or one job of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from glidemq_py._core.calls.packing import Call, pack, unpack
from glidemq_py._core.calls.working import AttemptStatus

__all__ = [
    "append_job_log",
    "keep_events",
    "lock",
    "note_tokens",
    "obliterate",
    "pause",
    "registry_add",
    "registry_set",
    "registry_use",
    "remove",
    "renew",
    "resume",
    "retry",
    "unlock",
    "update_job_data",
    "update_job_progress",
]

NO_TOKEN = (0, 0)
"""In place of (fence, processed_on) where a job is not written by the worker that runs it."""


def pause(meta: str) -> Call[bool]:
    """Stop the taking of jobs; True if it was not paused before."""
    return Call("pause", meta, (), bool, repeatable=True)


def resume(meta: str) -> Call[bool]:
    """Start it again; True if it was paused before."""
    return Call("resume", meta, (), bool, repeatable=True)


def keep_events(meta: str, count: int) -> Call[int]:
    """Say how many events the queue keeps; 0 = about a thousand, as without a word."""
    return Call("keep_events", meta, (pack((count,)),), int, repeatable=True)


def registry_add(key: str, members: Sequence[str]) -> Call[int]:
    """Add members to a set that belongs to no queue; returns how many are new."""
    return Call("registry_add", key, (pack(members),), int, repeatable=True)


def registry_set(key: str, fields: Mapping[str, str]) -> Call[int]:
    """Set fields of a hash that belongs to no queue; returns how many are new."""
    flat = [text for pair in fields.items() for text in pair]
    return Call("registry_set", key, (pack(flat),), int, repeatable=True)


def registry_use(key: str, member: str, score: int, mode: Literal["GT", "NX"], ttl: int = 0) -> Call[int]:
    """Write a time to a sorted set that belongs to no queue, which then lives for ``ttl`` ms (0: unchanged)."""
    return Call("registry_use", key, (pack((member, score, mode, ttl)),), int, repeatable=True)


def remove(meta: str, job_id: str) -> Call[bool]:
    """Delete a job and all its keys; False if there was none."""
    return Call("remove", meta, (job_id,), bool, repeatable=True)


def retry(meta: str, job_id: str) -> Call[str]:
    """Run a failed job again: 'ok', 'gone', or the state that does not allow it."""
    return Call("retry", meta, (job_id,), bytes.decode)


def obliterate(meta: str, force: bool, batch: int) -> Call[tuple[str, int]]:
    """One step of deleting a queue: ('more' | 'done', jobs deleted) or ('active', jobs that are)."""
    return Call("obliterate", meta, (pack((force, batch)),), _pair, repeatable=True)


def _pair(reply: bytes) -> tuple[str, int]:
    status, deleted = unpack(reply)
    return status, deleted


def _note(meta: str, kind: int, job_id: str, text: str, token: tuple[int, int], keep: int) -> Call[AttemptStatus]:
    return Call("update_job", meta, (pack((kind, job_id, text, *token, keep)),), AttemptStatus)


def update_job_progress(meta: str, job_id: str, text: str, token: tuple[int, int] = NO_TOKEN) -> Call[AttemptStatus]:
    """Write a job's progress (number text or JSON) and tell listeners."""
    return _note(meta, 1, job_id, text, token, 0)


def append_job_log(
    meta: str, job_id: str, line: str, keep: int, token: tuple[int, int] = NO_TOKEN
) -> Call[AttemptStatus]:
    """Append a line to a job's log; the newest ``keep`` stay (0 = all)."""
    return _note(meta, 2, job_id, line, token, keep)


def update_job_data(meta: str, job_id: str, data: str, token: tuple[int, int] = NO_TOKEN) -> Call[AttemptStatus]:
    """Replace a job's data (encoded text)."""
    return _note(meta, 3, job_id, data, token, 0)


def note_tokens(meta: str, job_id: str, tokens: int, token: tuple[int, int] = NO_TOKEN) -> Call[AttemptStatus]:
    """Write down how many tokens a job has used."""
    return _note(meta, 4, job_id, str(tokens), token, 0)


def lock(key: str, token: str, ttl: int) -> Call[bool]:
    """Take a lock for ``ttl`` ms."""
    return Call("lock", key, (token, str(ttl)), bool)


def unlock(key: str, token: str) -> Call[bool]:
    """Give a lock back, if it is still ours."""
    return Call("unlock", key, (token,), bool, repeatable=True)


def renew(key: str, token: str, ttl: int) -> Call[bool]:
    """Prolong a lock, if it is still ours."""
    return Call("renew", key, (token, str(ttl)), bool, repeatable=True)
