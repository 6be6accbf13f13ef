"""Children whose parent is in another queue: check the parent first, add the child, then attach it to the parent.

A parent in the same queue gets its child in the call that adds it. For a parent in another queue this takes two calls,
since one call may touch only one queue: the first adds the child with its parent in its record, the second attaches it
to the parent before `add` returns. A child that finishes between the two is still reported to its parent.
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

_CHUNK: Final = 500


def remote_parents(link: QueueLink, options: Iterable[JobOptions]) -> dict[JobRef, list[int]]:
    """Return the parents in other queues, each with the positions of its children in ``options``."""
    found: dict[JobRef, list[int]] = {}
    for i, each in enumerate(options):
        if each.parent is not None and each.parent.queue != link.keys.name:
            found.setdefault(each.parent, []).append(i)
    return found


def invalid_parent(parent: JobRef, answer: str) -> Exception:
    """Return the error for a deleted or finished parent."""
    return JobNotFoundError(parent.id) if answer == "gone" else JobStateError(parent.id, answer, "add a child to")


async def check_remote_parents(link: QueueLink, parents: Iterable[JobRef]) -> None:
    """Check that the parents accept more children.

    Raises:
        JobNotFoundError: a parent does not exist.
        JobStateError: a parent has finished.
    """
    for parent in parents:
        await _attach(link, parent, [])


async def attach_children(link: QueueLink, parent: JobRef, results: Iterable[Any]) -> None:
    """Attach the children named by the ``results`` of an add to ``parent``."""
    ids = [result if isinstance(result, str) else await _existing_child(link, parent, result) for result in results]
    members = [link.keys.member(job_id) for job_id in ids if job_id]
    for i in range(0, len(members), _CHUNK):
        await _attach(link, parent, members[i : i + _CHUNK])


async def _existing_child(link: QueueLink, parent: JobRef, result: Any) -> str:
    """Return the id of the existing job of a duplicate if it has the same parent (the add was repeated), else ''."""
    if result[0] != "duplicate":
        return ""
    transport, job_id = link.transport, result[1]
    values = await transport.command("HMGET", link.keys.job(job_id), "parentQueue", "parentId")
    if values == [parent.queue.encode(), parent.id.encode()]:
        return str(job_id)
    # A parent in another slot of a cluster is stored as one of several parents.
    member = f"{QueueKeys(link.keys.prefix, parent.queue).stem}{parent.id}"
    return str(job_id) if await transport.command("SISMEMBER", link.keys.parents(job_id), member) else ""


async def _attach(link: QueueLink, parent: JobRef, members: list[str]) -> None:
    meta = QueueKeys(link.keys.prefix, parent.queue).meta
    answer = await link.transport.call(adopt(meta, parent.id, members))
    if answer != "ok":
        raise invalid_parent(parent, answer)
