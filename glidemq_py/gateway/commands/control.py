"""Commands about a whole queue: pausing, draining and counting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from glidemq_py.gateway.names import wire_name
from glidemq_py.gateway.table import Answer, Command, Field, Kind
from glidemq_py.gateway.values import UNDEFINED

if TYPE_CHECKING:
    from glidemq_py.gateway.session import Session

__all__ = ["COMMANDS"]

_QUEUE: Final = (Field("queue", Kind.QUEUE, required=True),)
_COUNT: Final = Field("count", Kind.INTEGER, minimum=0, maximum=2**53, default=0)


async def _pause(session: Session, given: Mapping[str, Any]) -> Answer:
    await (await session.state.queue(given["queue"])).pause()
    return {"id": UNDEFINED}


async def _resume(session: Session, given: Mapping[str, Any]) -> Answer:
    await (await session.state.queue(given["queue"])).resume()
    return {"id": UNDEFINED}


async def _is_paused(session: Session, given: Mapping[str, Any]) -> Answer:
    return {"paused": await (await session.state.queue(given["queue"])).is_paused()}


async def _drain(session: Session, given: Mapping[str, Any]) -> Answer:
    return {"count": await (await session.state.queue(given["queue"])).drain(delayed=True)}


async def _promote(session: Session, given: Mapping[str, Any]) -> Answer:
    return {"count": await (await session.state.queue(given["queue"])).promote_jobs(given["count"])}


async def _priorities(session: Session, given: Mapping[str, Any]) -> Answer:
    queue = await session.state.queue(given["queue"])
    counts = await queue.get_rank_counts()
    return {"queue": wire_name(queue.name), "counts": {str(rank): number for rank, number in counts.items()}}


async def _counts(session: Session, given: Mapping[str, Any]) -> Answer:
    found = await (await session.state.queue(given["queue"])).get_job_counts()
    waiting, prioritized = found.waiting + found.group_waiting, found.prioritized
    paused = waiting + prioritized if found.paused else 0
    return {
        "counts": {
            "waiting": 0 if found.paused else waiting,
            "prioritized": 0 if found.paused else prioritized,
            "delayed": found.delayed + found.suspended,
            "active": found.active,
            "completed": found.completed,
            "failed": found.failed,
            "waiting-children": found.waiting_children,
            "paused": paused,
        }
    }


async def _count(session: Session, given: Mapping[str, Any]) -> Answer:
    found = await (await session.state.queue(given["queue"])).get_job_counts()
    unfinished = (
        found.waiting, found.group_waiting, found.prioritized, found.delayed, found.suspended, found.active,
        found.waiting_children,
    )  # fmt: skip
    return {"count": sum(unfinished)}


COMMANDS: Final = (
    Command("Pause", "control", _pause, "Pause the queue for all workers.", _QUEUE),
    Command("Resume", "control", _resume, "Resume the queue.", _QUEUE),
    Command("IsPaused", "control", _is_paused, "Return whether the queue is paused.", _QUEUE),
    Command("Drain", "control", _drain, "Delete the waiting, prioritized and delayed jobs.", _QUEUE),
    Command("PromoteJobs", "control", _promote, "Make delayed jobs ready; all without `count`.", (*_QUEUE, _COUNT)),
    Command("GetCountsPerPriority", "query", _priorities, "Count the ready jobs by priority.", _QUEUE),
    Command("GetJobCounts", "query", _counts, "Count the jobs by state.", _QUEUE),
    Command("Count", "query", _count, "Count the jobs that are not finished.", _QUEUE),
)
