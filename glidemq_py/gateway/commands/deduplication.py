"""Commands about the unique keys of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from glidemq_py.gateway.listing import find_job
from glidemq_py.gateway.session import Command, Session
from glidemq_py.gateway.table import Answer, Field, Given, Kind

__all__ = ["COMMANDS"]

_KEY: Final = (
    Field("queue", Kind.QUEUE, required=True), Field("deduplicationId", required=True, minimum=1, maximum=256),
)  # fmt: skip


async def _get(session: Session, given: Given) -> Answer:
    queue = await session.queue(given)
    job = await queue.jobs.get_deduplicated(given["deduplicationId"])
    if job is None or job.state is None or job.state.is_finished:
        return {"data": {"jobId": None}}
    return {"data": {"jobId": await session.state.ids.on_wire(queue.name, job.id)}}


async def _remove(session: Session, given: Given) -> Answer:
    queue = await session.queue(given)
    return {"data": {"count": int(await queue.jobs.remove_deduplication(given["deduplicationId"]))}}


async def _remove_of_job(session: Session, given: Given) -> Answer:
    job = await find_job(session, given["id"])
    option = None if job is None else job.opts.get("deduplication")
    key = cast("Mapping[str, Any]", option).get("id") if isinstance(option, dict) else None
    if job is None or not isinstance(key, str):
        return {"data": {"removed": False}}
    queue = await session.state.queue(job.queue_name)
    owner = await queue.jobs.get_deduplicated(key)
    # Another job may have the key by now.
    is_owner = owner is not None and owner.id == job.id
    return {"data": {"removed": is_owner and await queue.jobs.remove_deduplication(key)}}


COMMANDS: Final = (
    Command(
        "GetDeduplicationJobId", "deduplication", _get, "Return the unfinished job that has a unique key.", _KEY
    ),
    Command("RemoveDeduplicationKey", "deduplication", _remove, "Remove a unique key; no job is changed.", _KEY),
    Command(
        "RemoveJobDeduplicationKey", "deduplication", _remove_of_job, "Remove the unique key of a job.",
        (Field("id", required=True),),
    ),
)  # fmt: skip
