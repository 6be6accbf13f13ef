"""The parents and children of a job: which they are, and the results of children."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, TypeVar

from glidemq_py._client.transport import JobTransport
from glidemq_py._core import json_text as json
from glidemq_py._core.calls import pieces
from glidemq_py._core.keys import QueueKeys, split_member
from glidemq_py._core.option_values import JobRef
from glidemq_py._core.payload import decode_result
from glidemq_py._core.queue_options import AnyTask
from glidemq_py._features.flows import calls as flows
from glidemq_py._features.flows.references import references_of
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import ChildFailedError, JobNotFoundError, SerializationError

T = TypeVar("T")

_PAGE: Final = 200
_SMALL_PAGE: Final = 100


def ref_of_member(member: str) -> JobRef:
    """Return the job named by a member of a set of parents or children, such as ``glide:{emails}:7``.

    Raises:
        ValueError: the text is not such a member.
    """
    base, job_id = split_member(member)
    return JobRef(base[base.index(":{") + 2 : -1], job_id)


async def parents_of(link: QueueLink[JobTransport], job_id: str) -> list[JobRef]:
    """Return the jobs that wait for a job."""
    keys, transport = link.keys, link.transport
    names = ("parentId", "parentQueue", "parentIds", "parentQueues")
    single, queue, ids, queues = await transport.command("HMGET", keys.job(job_id), *names)
    found = [JobRef(queue.decode(), single.decode())] if single and queue else []
    for member in await transport.command("SMEMBERS", keys.parents(job_id)) if ids else ():
        with contextlib.suppress(ValueError):
            found.append(ref_of_member(member.decode()))
    # Node clients write these fields before the set.
    found += [JobRef(name, job_id) for name, job_id in zip(_names(queues), _names(ids), strict=False)]
    return list(dict.fromkeys(await references_of(link).shown(found)))


async def children_values(link: QueueLink[JobTransport], job_id: str) -> dict[str, Any]:
    """Return the results of the completed children; see `Job.get_children_values`."""
    ended = await ended_children(link, job_id)
    return {member: decode_result(text[1:], link.serializer) for member, text in ended.items() if text[:1] == "v"}


async def children_failures(link: QueueLink[JobTransport], job_id: str) -> dict[str, str]:
    """Return the failure reasons of children that failed without failing the parent, by full name."""
    return {member: text[1:] for member, text in (await ended_children(link, job_id)).items() if text[:1] == "f"}


async def children_results(link: QueueLink[JobTransport], job_id: str, task: AnyTask[T]) -> list[T]:
    """Return the results of the completed children that are jobs of a task; see `Job.get_children_results`."""
    by_base: dict[str, dict[str, str]] = {}
    references = references_of(link)
    for member, text in (await _ended(link, job_id)).items():
        base, child = split_member(member)
        if text[:1] == "v":
            by_base.setdefault(base, {})[child] = text[1:]
    found: list[tuple[int, str, str, str]] = []
    for base, texts in by_base.items():
        queue = base[base.index(":{") + 2 : -1]
        partition = await references.partition(queue)
        shown = queue if partition is None else partition.queue_name
        if shown not in task.queue_names:
            continue
        for ids in pieces(list(texts), _SMALL_PAGE):
            rows = await link.transport.call(flows.flow_nodes(f"{base}:meta", ids, ("name",)))
            for child, row in zip(ids, rows, strict=True):
                if isinstance(row, bool):
                    place = f"child {child!r} of queue {shown!r}"
                    raise JobNotFoundError(f"{place} was deleted, so its task is unknown: keep it until its parent ran")
                _, (name,) = row
                if name == task.name:
                    shown_id = child if partition is None else partition.id_of(child)
                    found.append((len(shown_id), shown_id, shown, texts[child]))
    return [task.read_result(decode_result(text, link.serializer)) for *_, text in sorted(found)]


async def ended_children(link: QueueLink[JobTransport], job_id: str) -> dict[str, str]:
    """Return ``v`` and the result, or ``f`` and the failure reason, of the children that have ended, by full name."""
    return await _shown_members(link, await _ended(link, job_id))


async def _ended(link: QueueLink[JobTransport], job_id: str) -> dict[str, str]:
    ended: dict[str, str] = {}
    unknown: list[str] = []
    async for member, outcome in children_of(link, job_id):
        if outcome == "d":
            unknown.append(member)
        elif outcome:
            ended[member] = outcome
    for member, text in await _results_of(link, unknown):
        ended[member] = f"v{text}"
    return ended


async def open_children(link: QueueLink[JobTransport], job_id: str) -> list[JobRef]:
    """Return the unfinished children."""
    found = [ref_of_member(member) async for member, outcome in children_of(link, job_id) if not outcome]
    return await references_of(link).shown(found)


async def _shown_members(link: QueueLink[JobTransport], by_member: dict[str, T]) -> dict[str, T]:
    """Return a mapping of members with the names of partitioned queues in place of those of their partitions."""
    shown: dict[str, T] = {}
    references = references_of(link)
    for member, value in by_member.items():
        base, job_id = split_member(member)
        partition = await references.partition(base[base.index(":{") + 2 : -1])
        if partition is None:
            shown[member] = value
        else:
            keys = QueueKeys(link.keys.prefix, partition.queue_name)
            shown[keys.member(partition.id_of(job_id))] = value
    return shown


async def children_of(link: QueueLink[JobTransport], job_id: str) -> AsyncIterator[tuple[str, str]]:
    """Iterate over the children of a job: member, and outcome as in `Children`, with large ones read."""
    cursor, seen = "", set[str]()
    while True:
        page = await link.call(flows.children, job_id, cursor, _PAGE)
        for member, outcome in page.rows:
            if member not in seen:
                seen.add(member)
                yield member, await _large(link, job_id, member) if outcome == "m" else outcome
        cursor = page.cursor
        if not cursor:
            return


async def _large(link: QueueLink[JobTransport], job_id: str, member: str) -> str:
    """Return the result or failure of a child that was too large for its page."""
    keys, transport = link.keys, link.transport
    outcome = await transport.command("HGET", f"{keys.stem}depvals:{job_id}", member)
    return "" if outcome is None else str(outcome.decode())


async def _results_of(link: QueueLink[JobTransport], members: Iterable[str]) -> list[tuple[str, str]]:
    """Return results that are stored only with the children: a Node worker does not copy them to the parent."""
    by_base: dict[str, list[str]] = {}
    for member in members:
        base, job_id = split_member(member)
        by_base.setdefault(base, []).append(job_id)
    found: list[tuple[str, str]] = []
    for base, ids in by_base.items():
        for chunk in pieces(ids, _SMALL_PAGE):
            rows = await link.transport.call(flows.flow_nodes(f"{base}:meta", chunk, ("state", "returnvalue")))
            for job_id, row in zip(chunk, rows, strict=True):
                if isinstance(row, bool):
                    continue
                _, (state, result) = row
                if state == "completed" and isinstance(result, str):
                    found.append((f"{base}:{job_id}", result))
    return found


async def must_wait(link: QueueLink[JobTransport], job_id: str) -> bool:
    """Return True if a job has open children.

    Raises:
        ChildFailedError: A child failed, and its policy fails the parent.
    """
    found = await link.call(flows.open_children, job_id)
    if found.failure:
        raise ChildFailedError(str(found.failure))
    return bool(found.number)


def _names(text: bytes | None) -> list[str]:
    try:
        read: Any = json.loads(text.decode()) if text else []
    except (SerializationError, UnicodeDecodeError):
        return []
    if not isinstance(read, list):
        return []
    return [name for name in read if isinstance(name, str)]  # pyright: ignore[reportUnknownVariableType]
