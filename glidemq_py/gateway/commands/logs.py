"""Commands about the logs of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from glidemq_py._core.logs import LogLevel
from glidemq_py.errors import JobNotFoundError
from glidemq_py.gateway.lookup import existing_job, located
from glidemq_py.gateway.session import Command, Session
from glidemq_py.gateway.table import Answer, CommandError, Field, Kind
from glidemq_py.gateway.values import UNDEFINED

__all__ = ["COMMANDS"]

_LEVELS: Final[Mapping[str, LogLevel]] = {
    "debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "error": "error", "critical": "critical",
}  # fmt: skip
_WIRE_LEVELS: Final = {"warning": "warn"}
_MOST: Final = 2**53
_ID: Final = Field("id", required=True)


async def _add(session: Session, given: Mapping[str, Any]) -> Answer:
    level = _LEVELS.get(given["level"])
    if level is None:
        raise CommandError(f"level must be one of {', '.join(_LEVELS)}")
    job = await existing_job(session, given["id"])
    try:
        await job.log(given["message"], level=level)
    except JobNotFoundError:
        raise CommandError("Job not found") from None
    return {"data": {"added": True}}


async def _get(session: Session, given: Mapping[str, Any]) -> Answer:
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


async def _clear(session: Session, given: Mapping[str, Any]) -> Answer:
    found = await session.state.ids.find(given["id"])
    if found is not None:
        part, own = await located(session, *found)
        link = await part._connected()
        kept = given["keepLogs"]
        first, last = (-kept, -1) if kept else (1, 0)
        await link.command("LTRIM", link.keys.log(own), str(first), str(last))
    return {"id": UNDEFINED}


COMMANDS: Final = (
    Command(
        "AddLog", "logs", _add, "Append a line to the log of a job.",
        (_ID, Field("message", required=True), Field("level", default="info")),
    ),
    Command(
        "GetLogs", "logs", _get, "Return lines of the log, oldest first, from `start` to `end` inclusive.",
        (
            _ID, Field("start", Kind.INTEGER, minimum=-_MOST, maximum=_MOST, default=0),
            Field("end", Kind.INTEGER, minimum=-_MOST, maximum=_MOST, default=-1),
        ),
    ),
    Command(
        "ClearLogs", "logs", _clear, "Delete the log, except the newest `keepLogs` lines.",
        (_ID, Field("keepLogs", Kind.INTEGER, minimum=0, maximum=_MOST, default=0)),
    ),
)  # fmt: skip
