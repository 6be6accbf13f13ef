"""Commands about single jobs: reading and changing them, and renewing their locks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from glidemq_py._core.job_states import JobState
from glidemq_py._features.leases.lease import MAX_LOCK_MS
from glidemq_py._job.job import Job
from glidemq_py.errors import JobNotFoundError, JobRevokedError, JobStateError, LeaseLostError
from glidemq_py.gateway.commands.core import leased_job
from glidemq_py.gateway.job_objects import full_job_object, wire_state
from glidemq_py.gateway.job_values import json_value
from glidemq_py.gateway.table import Answer, Command, CommandError, Field, Kind
from glidemq_py.gateway.values import UNDEFINED

if TYPE_CHECKING:
    from glidemq_py.gateway.session import Session

__all__ = ["COMMANDS"]

_UNFINISHED: Final = tuple(state for state in JobState if not state.is_finished and state is not JobState.ACTIVE)
_ID: Final = Field("id", required=True)
_TOKEN: Final = Field("token")
_DURATION: Final = Field("duration", Kind.INTEGER, minimum=1_000, maximum=MAX_LOCK_MS)


async def _find(session: Session, job_id: str, *, exclude_data: bool = False) -> Job[Any, Any] | None:
    found = await session.state.ids.find(job_id)
    if found is None:
        return None
    return await (await session.state.queue(found[0])).get_job(found[1], exclude_data=exclude_data)


async def _existing(session: Session, job_id: str, *, exclude_data: bool = True) -> Job[Any, Any]:
    job = await _find(session, job_id, exclude_data=exclude_data)
    if job is None:
        raise CommandError("Job not found")
    return job


async def _active(session: Session, job_id: str) -> Job[Any, Any]:
    job = await _existing(session, job_id)
    if job.state is not JobState.ACTIVE:
        raise CommandError(f"Job is not active (current state: {wire_state(job.state)})")
    return job


# -- reading ---------------------------------------------------------------------------------------------------


async def _get(session: Session, given: Mapping[str, Any]) -> Answer:
    return {"job": full_job_object(await _existing(session, given["id"], exclude_data=False), given["id"])}


async def _get_state(session: Session, given: Mapping[str, Any]) -> Answer:
    job = await _find(session, given["id"], exclude_data=True)
    return {"id": given["id"], "state": wire_state(None if job is None else job.state)}


async def _get_result(session: Session, given: Mapping[str, Any]) -> Answer:
    job = await _find(session, given["id"], exclude_data=True)
    is_completed = job is not None and job.state is JobState.COMPLETED
    return {"id": given["id"], "result": job.returnvalue if job is not None and is_completed else UNDEFINED}


async def _get_progress(session: Session, given: Mapping[str, Any]) -> Answer:
    job = await _active(session, given["id"])
    return {"progress": job.progress, "message": job.progress_message}


# -- changing --------------------------------------------------------------------------------------------------


async def _cancel(session: Session, given: Mapping[str, Any]) -> Answer:
    job = await _find(session, given["id"], exclude_data=True)
    try:
        is_removed = job is not None and await job.remove(states=_UNFINISHED)
    except JobStateError:
        is_removed = False
    if not is_removed:
        raise CommandError("Job not found or cannot be cancelled")
    return {"id": UNDEFINED}


async def _progress(session: Session, given: Mapping[str, Any]) -> Answer:
    job = await _active(session, given["id"])
    await job.update_progress(json_value("progress", given["progress"]), given["message"])
    return {"id": UNDEFINED}


async def _promote(session: Session, given: Mapping[str, Any]) -> Answer:
    job = await _find(session, given["id"], exclude_data=True)
    try:
        if job is None:
            raise JobNotFoundError(given["id"])
        await job.promote()
    except (JobNotFoundError, JobStateError):
        raise CommandError("Job not found or not delayed") from None
    return {"id": UNDEFINED}


async def _discard(session: Session, given: Mapping[str, Any]) -> Answer:
    job = await _existing(session, given["id"])
    if await job.revoke() == "not_found":
        raise CommandError("Job not found")
    return {"id": UNDEFINED}


async def _to_wait(session: Session, given: Mapping[str, Any]) -> Answer:
    job = await _existing(session, given["id"])
    state = job.state
    try:
        if state is JobState.ACTIVE:
            leased = await leased_job(session, given["id"], given["token"])
            await leased.lease.release()
            session.state.held.ended(leased.id, leased.lease.token)
        elif state is JobState.DELAYED:
            await job.promote()
        elif state is JobState.FAILED:
            await job.retry()
        elif state not in (JobState.WAITING, JobState.PRIORITIZED, JobState.GROUP_WAITING):
            raise CommandError(f"Cannot move job from state '{wire_state(state)}' to waiting")
    except LeaseLostError:
        raise CommandError(f"Invalid or expired lock token for job {given['id']}") from None
    except JobStateError as error:
        raise CommandError(f"Cannot move job from state '{error.state}' to waiting") from None
    return {"id": UNDEFINED}


# -- locks -----------------------------------------------------------------------------------------------------


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


COMMANDS: Final = (
    Command("GetJob", "query", _get, "Return a job with its state and result.", (_ID,)),
    Command("GetState", "query", _get_state, "Return the state of a job; `unknown` if there is none.", (_ID,)),
    Command("GetResult", "query", _get_result, "Return the result of a completed job.", (_ID,)),
    Command("GetProgress", "query", _get_progress, "Return the progress of an active job.", (_ID,)),
    Command("Cancel", "control", _cancel, "Delete a job that has not started.", (_ID,)),
    Command(
        "Progress", "control", _progress, "Store the progress of an active job.",
        (_ID, Field("progress", Kind.ANY, default=0), Field("message")),
    ),
    Command("Promote", "control", _promote, "Make a delayed job ready.", (_ID,)),
    Command(
        "Discard", "control", _discard, "Fail a job that has not started; an active one is not retried.", (_ID, _TOKEN)
    ),
    Command(
        "MoveToWait", "control", _to_wait, "Make a job ready: release, promote or retry it.", (_ID, _TOKEN)
    ),
    Command("JobHeartbeat", "locks", _heartbeat, "Renew the lock of a job.", (_ID, _TOKEN, _DURATION)),
    Command(
        "JobHeartbeatB", "locks", _heartbeats, "Renew the locks of many jobs; return how many were renewed.",
        (Field("ids", Kind.TEXTS, required=True), Field("tokens", Kind.LIST)),
    ),
    Command(
        "ExtendLock", "locks", _extend, "Extend the lock of a job.",
        (_ID, _TOKEN, Field("duration", Kind.INTEGER, required=True, minimum=1_000, maximum=MAX_LOCK_MS)),
    ),
)  # fmt: skip
