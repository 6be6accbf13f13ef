"""Commands about single jobs: reading, changing and moving them, and their logs."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import Final

from glidemq_py._core.calls import working
from glidemq_py._core.logs import LogLevel
from glidemq_py._core.record import JobState
from glidemq_py._features.priorities import change_job_rank
from glidemq_py._job.job import Job
from glidemq_py.errors import JobFailedError, JobNotFoundError, JobStateError, WaitTimeoutError
from glidemq_py.gateway.commands.attempts import ClientError, end_attempt, end_early, leased_job
from glidemq_py.gateway.commands.flows import family_of
from glidemq_py.gateway.job_objects import (
    UNSTARTED,
    check_readers,
    full_job_object,
    json_value,
    stored_value,
    wire_state,
)
from glidemq_py.gateway.listing import active_job, due_times_of, existing_job, find_job, located, size_of
from glidemq_py.gateway.push_options import group_priority
from glidemq_py.gateway.session import Commands, Session
from glidemq_py.gateway.slices import LARGE_CHARS, Slices
from glidemq_py.gateway.table import JOB, TOKEN, Answer, CommandError, Field, Given, Kind, is_number
from glidemq_py.gateway.values import UNDEFINED, LargeAnswer

COMMANDS: Final = Commands()

_MOST_PROGRESS: Final = 100
_DELAY: Final = Kind.NUMBER("delay", 0, 31_536_000_000, required=True)

_LEVELS: Final[Mapping[str, LogLevel]] = {
    "debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "error", "critical": "critical",
}  # fmt: skip
_WIRE_LEVELS: Final = {"warning": "warn"}
_MOST_LINES: Final = 2**53


# -- reading ---------------------------------------------------------------------------------------------------


@COMMANDS("GetJob", "query", "GET /jobs/{id}", JOB)
async def _get(session: Session, given: Given) -> Answer:
    """Return a job with its state and result."""
    job = await existing_job(session, given["id"], exclude_data=False)
    family = await family_of(session, job)
    due = (await due_times_of([job])).get(job._stored_id, 0)
    if size_of(job) <= LARGE_CHARS:
        return {"job": {**full_job_object(job, given["id"], due), **family}}
    async with session.room(), Slices(session.parts) as slices:
        return LargeAnswer(job=await slices.encoded({**full_job_object(job, given["id"], due), **family}))


@COMMANDS("GetJobByCustomId", "query", "GET /jobs/custom/{customId}", Field("customId", required=True))
async def _get_by_chosen_id(session: Session, given: Given) -> Answer:
    """Return the job whose id a client has chosen."""
    return await _get(session, {"id": given["customId"]})


@COMMANDS("GetState", "query", "GET /jobs/{id}/state", JOB)
async def _get_state(session: Session, given: Given) -> Answer:
    """Return the state of a job; `unknown` if there is none."""
    job = await find_job(session, given["id"])
    return {"id": given["id"], "state": wire_state(job)}


@COMMANDS("GetResult", "query", "GET /jobs/{id}/result", JOB)
async def _get_result(session: Session, given: Given) -> Answer:
    """Return the result of a completed job."""
    job = await find_job(session, given["id"])
    is_completed = job is not None and job.state is JobState.COMPLETED
    if job is None or not is_completed:
        return {"id": given["id"], "result": UNDEFINED}
    if size_of(job) <= LARGE_CHARS:
        return {"id": given["id"], "result": job.returnvalue}
    async with session.room(), Slices(session.parts) as slices:
        return LargeAnswer(id=given["id"], result=await slices.encoded(job.returnvalue))


@COMMANDS("GetProgress", "query", "GET /jobs/{id}/progress", JOB)
async def _get_progress(session: Session, given: Given) -> Answer:
    """Return the progress of an active job."""
    job = await active_job(session, given["id"])
    return {"progress": job.progress, "message": job.progress_message}


# -- changing --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _refused(message: str) -> Generator[None]:
    """Raise CommandError with a message if the job does not exist, or its state does not allow the change."""
    try:
        yield
    except (JobNotFoundError, JobStateError):
        raise CommandError(message) from None


async def _job_of(session: Session, given: Given) -> Job:
    """Return the job that a command names. Raises JobNotFoundError if it does not exist."""
    job = await find_job(session, given["id"])
    if job is None:
        raise JobNotFoundError(given["id"])
    return job


@COMMANDS("Cancel", "control", "DELETE /jobs/{id}", JOB, is_lenient=True)
async def _cancel(session: Session, given: Given) -> None:
    """Delete a job that has not started."""
    with _refused("Job not found or cannot be cancelled"):
        if not await (await _job_of(session, given)).remove(states=UNSTARTED):
            raise JobNotFoundError(given["id"])


@COMMANDS("Progress", "control", "POST /jobs/{id}/progress", JOB, Kind.ANY("progress", default=0), Field("message"))
async def _progress(session: Session, given: Given) -> None:
    """Store the progress of an active job; a number is limited to 0..100."""
    job = await active_job(session, given["id"])
    progress = json_value("progress", given["progress"])
    if is_number(progress):
        progress = min(max(progress, 0), _MOST_PROGRESS)
    await job.update_progress(progress, given["message"])


@COMMANDS("Promote", "control", "POST /jobs/{id}/promote", JOB)
async def _promote(session: Session, given: Given) -> None:
    """Make a delayed job ready."""
    with _refused("Job not found or not delayed"):
        await (await _job_of(session, given)).promote()


@COMMANDS("Discard", "control", "POST /jobs/{id}/discard", JOB, TOKEN)
async def _discard(session: Session, given: Given) -> Answer | None:
    """Fail a job that has not finished, without a retry; an active one needs its token."""
    job = await existing_job(session, given["id"])
    state = job.state
    if state is None or state.is_finished:
        raise CommandError("Job not found")
    if state is JobState.ACTIVE:
        return await end_attempt(session, given, ClientError("Job discarded", ()))
    if await job.revoke() == "not_found":
        raise CommandError("Job not found")
    return None


@COMMANDS("MoveToWait", "control", "POST /jobs/{id}/move-to-wait", JOB, TOKEN)
async def _to_wait(session: Session, given: Given) -> None:
    """Make a job ready: release, promote or retry it."""
    job = await find_job(session, given["id"])
    if job is None:
        raise CommandError(f"Cannot move job from state '{wire_state(job)}' to waiting")
    state = job.state
    try:
        if state is JobState.ACTIVE:
            leased = await leased_job(session, given["id"], given["token"])
            await end_early(session, leased, working.released)
        elif state is JobState.DELAYED:
            await job.promote()
        elif state is JobState.FAILED:
            await job.retry()
        elif state not in (JobState.WAITING, JobState.PRIORITIZED, JobState.GROUP_WAITING):
            raise CommandError(f"Cannot move job from state '{wire_state(job)}' to waiting")
    except JobStateError as error:
        raise CommandError(f"Cannot move job from state '{error.state}' to waiting") from None


@COMMANDS("Update", "control", "PUT /jobs/{id}/data", JOB, Kind.ANY("data"))
async def _update(session: Session, given: Given) -> None:
    """Replace the data of an unfinished job."""
    job = await find_job(session, given["id"])
    if job is None or job.state is None or job.state.is_finished:
        raise CommandError("Job not found or cannot be updated")
    data = stored_value(given["data"])
    await check_readers("data", data, await session.state.queue(job.queue_name))
    try:
        await job.update_data(data)
    except JobNotFoundError:
        raise CommandError("Job not found or cannot be updated") from None


@COMMANDS(
    "ChangePriority",
    "control",
    "PUT /jobs/{id}/priority",
    JOB,
    Kind.INTEGER("priority", -1_000_000, 1_000_000, required=True),
    Kind.FLAG("lifo"),
)
async def _change_priority(session: Session, given: Given) -> None:
    """Change the rank of a job that has not started; with `lifo`, it is the first one of its rank."""
    with _refused("Job not found or not in queue"):
        job = await _job_of(session, given)
        if job.fair_key is None:
            await change_job_rank(job._link, job._stored_id, given["priority"], lifo=bool(given["lifo"]))
        elif given["lifo"]:
            raise CommandError("lifo is not supported for jobs with a groupId")
        else:
            await job.change_priority(group_priority(given["priority"]))


@COMMANDS("ChangeDelay", "control", "PUT /jobs/{id}/delay", JOB, _DELAY)
async def _change_delay(session: Session, given: Given) -> None:
    """Let a job that has not started wait `delay` ms."""
    with _refused("Job not found or cannot change delay"):
        await (await _job_of(session, given)).change_delay(round(given["delay"]))


@COMMANDS("MoveToDelayed", "control", "POST /jobs/{id}/move-to-delayed", JOB, TOKEN, _DELAY)
async def _to_delayed(session: Session, given: Given) -> None:
    """Let a job wait `delay` ms; of an active one no attempt is counted."""
    job, delay = await existing_job(session, given["id"]), round(given["delay"])
    try:
        if job.state is JobState.ACTIVE:
            leased = await leased_job(session, given["id"], given["token"])
            await end_early(session, leased, working.delayed, delay)
        elif job.state in (JobState.WAITING, JobState.PRIORITIZED, JobState.DELAYED):
            await job.change_delay(delay)
        else:
            raise CommandError(f"Job is not active (current state: {wire_state(job)})")
    except JobStateError as error:
        raise CommandError(f"Job is not active (current state: {error.state})") from None


@COMMANDS("MoveToWaitingChildren", "control", "", JOB, TOKEN)
async def _to_waiting_children(session: Session, given: Given) -> Answer:
    """Let an active job wait for its unfinished children; without one it stays active."""
    job = await find_job(session, given["id"])
    if job is None or job.state is not JobState.ACTIVE:
        raise CommandError("Job is not active")
    leased = await leased_job(session, given["id"], given["token"])
    if not await job.get_open_children():
        return {"data": {"moved": False}}
    await end_early(session, leased, working.waiting_children)
    return {"data": {"moved": True}}


@COMMANDS("WaitJob", "query", "POST /jobs/{id}/wait", JOB, Kind.NUMBER("timeout", 0, 600_000, default=30_000))
async def _wait(session: Session, given: Given) -> Answer:
    """Wait until the job is completed, `timeout` ms at most, and return its result."""
    job = await existing_job(session, given["id"])
    answer = await session.polled(_outcome(job, max(1, round(given["timeout"]))))
    return {"completed": False} if answer is None else answer


async def _outcome(job: Job, timeout: int) -> Answer:
    try:
        return {"completed": True, "result": await job.wait_until_finished(timeout)}
    except JobNotFoundError:
        raise CommandError("Job not found") from None
    except (JobFailedError, WaitTimeoutError):
        return {"completed": False}


# -- logs ------------------------------------------------------------------------------------------------------


@COMMANDS(
    "AddLog", "logs", "POST /jobs/{id}/logs", JOB, Field("message", required=True), Field("level", default="info")
)
async def _add_log(session: Session, given: Given) -> Answer:
    """Append a line to the log of a job."""
    level = _LEVELS.get(given["level"])
    if level is None:
        raise CommandError(f"level must be one of {', '.join(_LEVELS)}")
    job = await existing_job(session, given["id"])
    try:
        await job.log(given["message"], level=level)
    except JobNotFoundError:
        raise CommandError("Job not found") from None
    return {"data": {"added": True}}


@COMMANDS(
    "GetLogs",
    "logs",
    "GET /jobs/{id}/logs",
    JOB,
    Kind.INTEGER("start", -_MOST_LINES, _MOST_LINES, default=0),
    Kind.INTEGER("end", -_MOST_LINES, _MOST_LINES, default=-1),
)
async def _get_logs(session: Session, given: Given) -> Answer:
    """Return lines of the log, oldest first, from `start` to `end` inclusive."""
    found = await session.state.ids.find(given["id"])
    if found is None:
        return {"data": {"logs": [], "count": 0}}
    queue = await session.state.queue(found[0])
    logs = await queue.get_job_logs(found[1], given["start"], given["end"])
    lines = [
        {"timestamp": None, "level": _WIRE_LEVELS.get(line.level, line.level), "message": line.message}
        for line in logs.lines
    ]
    return {"data": {"logs": lines, "count": logs.count}}


@COMMANDS("ClearLogs", "logs", "DELETE /jobs/{id}/logs", JOB, Kind.INTEGER("keepLogs", 0, _MOST_LINES, default=0))
async def _clear_logs(session: Session, given: Given) -> None:
    """Delete the log, except the newest `keepLogs` lines."""
    found = await session.state.ids.find(given["id"])
    if found is not None:
        part, own = await located(session, *found)
        link = await part._connected()
        kept = given["keepLogs"]
        first, last = (-kept, -1) if kept else (1, 0)
        await link.command("LTRIM", link.keys.log(own), str(first), str(last))
