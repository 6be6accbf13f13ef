"""Commands that renew the locks of fetched jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import repeat
from typing import Any, Final

from glidemq_py._api.job_queue import Queue
from glidemq_py._api.lease import MAX_LOCK_MS
from glidemq_py.gateway.commands.reporting import LeasedJob, leased_job
from glidemq_py.gateway.session import Command, Session
from glidemq_py.gateway.table import DONE, Answer, CommandError, Field, Given, Kind
from glidemq_py.gateway.values import PortableMap

__all__ = ["COMMANDS"]

_ID: Final = Field("id", required=True)
_TOKEN: Final = Field("token")
_DURATION: Final = Field("duration", Kind.INTEGER, minimum=1_000, maximum=MAX_LOCK_MS)
_IDS: Final = Field("ids", Kind.TEXTS, required=True)
_MOST_AT_ONCE: Final = 1_000
"""Locks that are renewed from memory before the command gets a task."""


_Renewal = tuple[str, str | None, int | None]
"""Id of a job on the wire, token or None, and duration of the lock or None."""


async def _renew(session: Session, renewals: Sequence[_Renewal]) -> int:
    """Extend the locks of jobs; return how many were extended."""
    held, count = session.state.held, 0
    calls: dict[tuple[Queue[Any, Any], int], list[LeasedJob]] = {}
    for job_id, given, duration in renewals:
        fresh = held.fresh(job_id, given, duration, time.monotonic())
        if fresh is not None:
            fresh.is_kept = True
            count += 1
            continue
        if held.has_ended(job_id, given):
            continue
        known = held.find(job_id)
        try:
            job = await leased_job(session, job_id, given or (None if known is None else known.token))
        except CommandError:
            continue
        calls.setdefault((job.queue, duration or job.lock_ms), []).append(job)
    for (queue, ms), jobs in calls.items():
        outcomes = await queue.leases.extend([job.lease for job in jobs], ms)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if outcome.applied:
                held.renewed(job.id, job.token, ms)
                count += 1
        session.state.extended(queue.name, ms)
    return count


def _heartbeat_fresh(session: Session, given: Given) -> Answer | None:
    held = session.state.held.fresh(given["id"], given["token"], given["duration"], time.monotonic())
    if held is None:
        return None
    held.is_kept = True
    return {"data": {"ok": True}}


def _heartbeats_fresh(session: Session, given: Given) -> Answer | None:
    ids, tokens = given["ids"], given["tokens"]
    if len(ids) > _MOST_AT_ONCE or (tokens is not None and len(tokens) != len(ids)):
        return None  # the handler renews them, or answers with the error
    count = session.state.held.renew_fresh(ids, repeat(None, len(ids)) if tokens is None else tokens)
    return None if count is None else PortableMap(data={"ok": True, "count": count})


def _renewals(given: Given) -> list[_Renewal]:
    ids, tokens = given["ids"], given["tokens"]
    if tokens is not None and len(tokens) != len(ids):
        raise CommandError("tokens must have as many items as ids")
    nothing: list[Any] = [None] * len(ids)
    pairs = zip(ids, tokens or nothing, strict=True)
    return [(job_id, token if isinstance(token, str) else None, None) for job_id, token in pairs]


async def _heartbeat(session: Session, given: Given) -> Answer:
    if not await _renew(session, [(given["id"], given["token"], given["duration"])]):
        raise CommandError("Job not found or not active (or invalid token)")
    return {"data": {"ok": True}}


async def _heartbeats(session: Session, given: Given) -> Answer:
    return {"data": {"ok": True, "count": await _renew(session, _renewals(given))}}


async def _extend(session: Session, given: Given) -> Answer:
    if not given["token"] or not await _renew(session, [(given["id"], given["token"], given["duration"])]):
        raise CommandError("Lock not found or invalid token")
    return DONE


async def _extend_many(session: Session, given: Given) -> Answer:
    ids, tokens, durations = given["ids"], given["tokens"], given["durations"]
    for field in ("tokens", "durations"):
        if len(given[field]) != len(ids):
            raise CommandError(f"{field} must have as many items as ids")
    for number, duration in enumerate(durations):
        is_number = isinstance(duration, int | float) and not isinstance(duration, bool)
        if not is_number or not 1_000 <= duration <= MAX_LOCK_MS:
            raise CommandError(f"durations[{number}] must be a number from 1000 to {MAX_LOCK_MS}")
    given_rows = zip(ids, tokens, durations, strict=True)
    renewals = [(job_id, token, round(duration)) for job_id, token, duration in given_rows if token]
    return {"count": await _renew(session, renewals)}


COMMANDS: Final = (
    Command(
        "JobHeartbeat", "locks", _heartbeat, "Renew the lock of a job.", (_ID, _TOKEN, _DURATION),
        quick=_heartbeat_fresh,
    ),
    Command(
        "JobHeartbeatB", "locks", _heartbeats, "Renew the locks of many jobs; return how many were renewed.",
        (_IDS, Field("tokens", Kind.LIST)), quick=_heartbeats_fresh,
    ),
    Command(
        "ExtendLock", "locks", _extend, "Extend the lock of a job.",
        (_ID, _TOKEN, Field("duration", Kind.INTEGER, required=True, minimum=1_000, maximum=MAX_LOCK_MS)),
    ),
    Command(
        "ExtendLocks", "locks", _extend_many, "Extend the locks of many jobs; return how many were extended.",
        (_IDS, Field("tokens", Kind.TEXTS, required=True), Field("durations", Kind.LIST, required=True)),
    ),
)  # fmt: skip
