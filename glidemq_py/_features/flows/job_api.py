"""The methods of `Job` for its parents and children: reading results and waiting for children."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from glidemq_py._core import json_text as json
from glidemq_py._core.calls import pieces
from glidemq_py._core.job_references import JobRef
from glidemq_py._core.keys import QueueKeys, split_member
from glidemq_py._core.payload import decode_result
from glidemq_py._features.flows import calls as flows
from glidemq_py._features.flows.references import name_parents, references_of
from glidemq_py._job import details
from glidemq_py._job.steps import SAME, data_of_step
from glidemq_py.errors import ChildFailedError, SerializationError, WaitingChildrenError

if TYPE_CHECKING:
    from glidemq_py._job.job import Job

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


async def show_parents(job: Job[Any, Any, Any]) -> None:
    """Let a job name its parents by the queues and the ids that users know."""
    if job._record is not None:
        await name_parents(job._link, job._record)


async def reload(self: Job[Any, Any, Any]) -> None:
    """Read the job's complete record from the server, like `Queue.get_job`.

    Handlers receive a job without attributes such as `parent_id`, `expire_at` and `delay`, which raise
    `JobNotLoadedError`. After this call they are available. In a handler, `usage` keeps what this attempt has
    reported.

    Raises:
        JobNotFoundError: If the job does not exist.
    """
    await details.reload(self)
    await show_parents(self)


async def get_parents(self: Job[Any, Any, Any]) -> list[JobRef]:
    """Return the jobs that wait for this one; a node of a `FlowProducer.add_dag` may have several."""
    keys, transport = self._link.keys, self._link.transport
    names = ("parentId", "parentQueue", "parentIds", "parentQueues")
    single, queue, ids, queues = await transport.command("HMGET", keys.job(self._stored_id), *names)
    found = [JobRef(queue.decode(), single.decode())] if single and queue else []
    for member in await transport.command("SMEMBERS", keys.parents(self._stored_id)) if ids else ():
        with contextlib.suppress(ValueError):
            found.append(ref_of_member(member.decode()))
    # Node clients write these fields before the set.
    found += [JobRef(name, job_id) for name, job_id in zip(_names(queues), _names(ids), strict=False)]
    return list(dict.fromkeys(await references_of(self._link).shown(found)))


async def get_children_values(self: Job[Any, Any, Any]) -> dict[str, Any]:
    """Return the results of the completed children, by full name (``glide:{queue}:id``).

    The results are stored with the parent, so they remain after the children are deleted. They are read with this
    queue's serializer: children in other queues must use the same one.

    Raises:
        SerializationError: a result cannot be deserialized.
    """
    values: dict[str, Any] = {}
    unknown: list[str] = []
    async for member, outcome in children_of(self):
        if outcome[:1] == "v":
            values[member] = decode_result(outcome[1:], self._link.serializer)
        elif outcome == "d":
            unknown.append(member)
    for member, text in await _results_of(self, unknown):
        values[member] = decode_result(text, self._link.serializer)
    return await _shown_members(self, values)


async def get_children_failures(self: Job[Any, Any, Any]) -> dict[str, str]:
    """Return the failure reasons of children that failed (expired, were removed, ...) without failing the parent.

    The keys are full names, as in `get_children_values`.
    """
    failures = {member: outcome[1:] async for member, outcome in children_of(self) if outcome[:1] == "f"}
    return await _shown_members(self, failures)


async def get_open_children(self: Job[Any, Any, Any]) -> list[JobRef]:
    """Return the unfinished children."""
    found = [ref_of_member(member) async for member, outcome in children_of(self) if not outcome]
    return await references_of(self._link).shown(found)


async def _shown_members(job: Job[Any, Any, Any], by_member: dict[str, T]) -> dict[str, T]:
    """Return a mapping of members with the names of partitioned queues in place of those of their partitions."""
    shown: dict[str, T] = {}
    references = references_of(job._link)
    for member, value in by_member.items():
        base, job_id = split_member(member)
        partition = await references.partition(base[base.index(":{") + 2 : -1])
        if partition is None:
            shown[member] = value
        else:
            keys = QueueKeys(job._link.keys.prefix, partition.queue_name)
            shown[keys.member(partition.id_of(job_id))] = value
    return shown


async def children_of(job: Job[Any, Any, Any]) -> AsyncIterator[tuple[str, str]]:
    """Iterate over the children of a job: member, and outcome as in `Children`, with large ones read."""
    cursor, seen = "", set[str]()
    while True:
        page = await job._link.call(flows.children, job._stored_id, cursor, _PAGE)
        for member, outcome in page.rows:
            if member not in seen:
                seen.add(member)
                yield member, await _large(job, member) if outcome == "m" else outcome
        cursor = page.cursor
        if not cursor:
            return


async def _large(job: Job[Any, Any, Any], member: str) -> str:
    """Return the result or failure of a child that was too large for its page."""
    keys, transport = job._link.keys, job._link.transport
    outcome = await transport.command("HGET", f"{keys.stem}depvals:{job._stored_id}", member)
    return "" if outcome is None else str(outcome.decode())


async def _results_of(job: Job[Any, Any, Any], members: Iterable[str]) -> list[tuple[str, str]]:
    """Return results that are stored only with the children: a Node worker does not copy them to the parent."""
    by_base: dict[str, list[str]] = {}
    for member in members:
        base, job_id = split_member(member)
        by_base.setdefault(base, []).append(job_id)
    found: list[tuple[str, str]] = []
    for base, ids in by_base.items():
        for chunk in pieces(ids, _SMALL_PAGE):
            rows = await job._link.transport.call(flows.flow_nodes(f"{base}:meta", chunk, ("state", "returnvalue")))
            for job_id, row in zip(chunk, rows, strict=True):
                if isinstance(row, bool):
                    continue
                _, (state, result) = row
                if state == "completed" and isinstance(result, str):
                    found.append((f"{base}:{job_id}", result))
    return found


async def move_to_waiting_children(self: Job[Any, Any, Any], *, next_step: str | None = None, data: Any = SAME) -> None:
    """Wait for the children: end this attempt unless all children have finished.

    The attempt does not count. Children are added with ``parent=job``. When they have finished, the handler is
    called again from the start. It must then either add the same children with the same ``job_id`` values (existing
    jobs are not added twice) and pass this call, or branch on `step`.

    If all children have finished already, the method returns. ``next_step`` and ``data`` are stored nevertheless:
    `step` and `data` are the new ones in the rest of the handler and in later attempts.

    Args:
        next_step: the new value of `step`, stored in the job's data as ``step``; the data must be a mapping
            without another use of that key.
        data: the new data of the job; unchanged if omitted.

    Raises:
        WaitingChildrenError: signals the worker; do not catch it.
        ChildFailedError: a child failed, and its policy fails the parent.
        SerializationError: the data cannot be serialized.
        PayloadTooLargeError: the serialized data exceeds 1 MiB.
        GlideMQValidationError: ``next_step`` or ``data`` is invalid.
        GlideMQError: not called in the job's handler, or the call failed.
    """
    self._in_handler("move_to_waiting_children")
    after, replace = data_of_step(self, next_step, data)
    found = await self._link.call(flows.open_children, self._stored_id)
    if found.failure:
        raise ChildFailedError(str(found.failure))
    if found.number:
        raise self._own(WaitingChildrenError(after, replace))
    if replace:
        await self.update_data(after)


def _names(text: bytes | None) -> list[str]:
    try:
        read: Any = json.loads(text.decode()) if text else []
    except (SerializationError, UnicodeDecodeError):
        return []
    if not isinstance(read, list):
        return []
    return [name for name in read if isinstance(name, str)]  # pyright: ignore[reportUnknownVariableType]
