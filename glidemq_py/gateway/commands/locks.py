"""Commands that renew the locks of fetched jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from glidemq_py._features.leases.lease import MAX_LOCK_MS
from glidemq_py.errors import JobRevokedError, LeaseLostError
from glidemq_py.gateway.commands.core import leased_job
from glidemq_py.gateway.table import Answer, Command, CommandError, Field, Kind
from glidemq_py.gateway.values import UNDEFINED

if TYPE_CHECKING:
    from glidemq_py.gateway.session import Session

__all__ = ["COMMANDS"]

_ID: Final = Field("id", required=True)
_TOKEN: Final = Field("token")
_DURATION: Final = Field("duration", Kind.INTEGER, minimum=1_000, maximum=MAX_LOCK_MS)
_IDS: Final = Field("ids", Kind.TEXTS, required=True)


async def _renew(session: Session, job_id: str, token: str | None, duration: int | None) -> bool:
    """Extend the lock of a job; return False if it is lost."""
    held = session.state.held.find(job_id)
    if not token and held is not None:
        token = held.token
    try:
        job = await leased_job(session, job_id, token)
    except CommandError:
        return False
    ms = duration or job.lock_ms
    try:
        await job.lease.extend(ms)
    except LeaseLostError:
        return False
    except JobRevokedError:
        pass  # the lock was extended
    session.state.held.renewed(job_id, job.lease.token, ms)
    return True


async def _heartbeat(session: Session, given: Mapping[str, Any]) -> Answer:
    if not await _renew(session, given["id"], given["token"], given["duration"]):
        raise CommandError("Job not found or not active (or invalid token)")
    return {"data": {"ok": True}}


async def _heartbeats(session: Session, given: Mapping[str, Any]) -> Answer:
    ids, tokens = given["ids"], given["tokens"]
    if tokens is not None and len(tokens) != len(ids):
        raise CommandError("tokens must have as many items as ids")
    nothing: list[Any] = [None] * len(ids)
    count = 0
    for job_id, token in zip(ids, tokens or nothing, strict=True):
        count += await _renew(session, job_id, token if isinstance(token, str) else None, None)
    return {"data": {"ok": True, "count": count}}


async def _extend(session: Session, given: Mapping[str, Any]) -> Answer:
    if not given["token"] or not await _renew(session, given["id"], given["token"], given["duration"]):
        raise CommandError("Lock not found or invalid token")
    return {"id": UNDEFINED}


async def _extend_many(session: Session, given: Mapping[str, Any]) -> Answer:
    ids, tokens, durations = given["ids"], given["tokens"], given["durations"]
    for field in ("tokens", "durations"):
        if len(given[field]) != len(ids):
            raise CommandError(f"{field} must have as many items as ids")
    for number, duration in enumerate(durations):
        is_number = isinstance(duration, int | float) and not isinstance(duration, bool)
        if not is_number or not 1_000 <= duration <= MAX_LOCK_MS:
            raise CommandError(f"durations[{number}] must be a number from 1000 to {MAX_LOCK_MS}")
    count = 0
    for job_id, token, duration in zip(ids, tokens, durations, strict=True):
        count += bool(token) and await _renew(session, job_id, token, round(duration))
    return {"count": count}


COMMANDS: Final = (
    Command("JobHeartbeat", "locks", _heartbeat, "Renew the lock of a job.", (_ID, _TOKEN, _DURATION)),
    Command(
        "JobHeartbeatB", "locks", _heartbeats, "Renew the locks of many jobs; return how many were renewed.",
        (_IDS, Field("tokens", Kind.LIST)),
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
