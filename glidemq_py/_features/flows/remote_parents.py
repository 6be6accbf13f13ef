"""Children of parents in other queues: the parent is asked before they are added, and waits for them afterwards.

A parent in the queue itself gets its child in the step that adds it. One elsewhere cannot, since no call may touch two
queues: the child is added with its parent in its record, and the parent told by a second call before `add` answers. If
it ends before that, the parent learns of it all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import QueueKeys
from glidemq_py._features.flows.calls import adopt
from glidemq_py._features.flows.parent_option import JobRef
from glidemq_py._job import QueueLink
from glidemq_py.errors import JobNotFoundError, JobStateError

__all__ = ["attach_children", "check_remote_parents", "invalid_parent", "remote_parents"]

_AT_A_TIME: Final = 500


def remote_parents(link: QueueLink, options: Iterable[JobOptions]) -> dict[JobRef, list[int]]:
    """Parents in other queues, and which positions are their children."""
    found: dict[JobRef, list[int]] = {}
    for i, each in enumerate(options):
        if each.parent is not None and each.parent.queue != link.keys.name:
            found.setdefault(each.parent, []).append(i)
    return found


def invalid_parent(parent: JobRef, answer: str) -> Exception:
    """The error for a parent that is gone or has ended."""
    return JobNotFoundError(parent.id) if answer == "gone" else JobStateError(parent.id, answer, "add a child to")


async def check_remote_parents(link: QueueLink, parents: Iterable[JobRef]) -> None:
    """Raises JobNotFoundError, JobStateError for one that can have no more children."""
    for parent in parents:
        await _tell(link, parent, [])


async def attach_children(link: QueueLink, parent: JobRef, results: Iterable[Any]) -> None:
    """Have ``parent`` wait for the children that ``results`` of an add name."""
    ids = [result if isinstance(result, str) else await _standing(link, parent, result) for result in results]
    members = [link.keys.member(job_id) for job_id in ids if job_id]
    for i in range(0, len(members), _AT_A_TIME):
        await _tell(link, parent, members[i : i + _AT_A_TIME])


async def _standing(link: QueueLink, parent: JobRef, result: Any) -> str:
    """The job that a duplicate met, if it is a child of the same parent: an add that was made again."""
    if result[0] != "duplicate":
        return ""
    transport, job_id = link.transport, result[1]
    values = await transport.command("HMGET", link.keys.job(job_id), "parentQueue", "parentId")
    if values == [parent.queue.encode(), parent.id.encode()]:
        return str(job_id)
    # In another slot of a cluster it is written as one of several parents.
    member = f"{QueueKeys(link.keys.prefix, parent.queue).stem}{parent.id}"
    return str(job_id) if await transport.command("SISMEMBER", link.keys.parents(job_id), member) else ""


async def _tell(link: QueueLink, parent: JobRef, members: list[str]) -> None:
    meta = QueueKeys(link.keys.prefix, parent.queue).meta
    answer = await link.transport.call(adopt(meta, parent.id, members))
    if answer != "ok":
        raise invalid_parent(parent, answer)
