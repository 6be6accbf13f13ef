"""A job's parents and children: what the children brought, and waiting for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, Final

from glidemq_py._core import json_text as json
from glidemq_py._core.keys import split_member
from glidemq_py._core.payload import decode_result
from glidemq_py._features.flows import calls as flows
from glidemq_py._features.flows.parent_option import JobRef
from glidemq_py._job.steps import SAME
from glidemq_py.errors import ChildFailedError, SerializationError, WaitingChildrenError

if TYPE_CHECKING:
    from glidemq_py._job.attempt import Attempt
    from glidemq_py._job.link import QueueLink
    from glidemq_py.errors import JobSignal

__all__ = ["JobFamily", "ref_of_member"]

_PAGE: Final = 200
_FEW: Final = 100


def ref_of_member(member: str) -> JobRef:
    """The job that a member of a set of parents or children names: ``glide:{emails}:7``. Raises ValueError."""
    base, job_id = split_member(member)
    return JobRef(base[base.index(":{") + 2 : -1], job_id)


class JobFamily:
    """The part of `Job` that knows its parents and children."""

    id: str
    _link: QueueLink

    if TYPE_CHECKING:

        @property
        def data(self) -> Any:
            """See `Job`."""

        def _in_handler(self, what: str) -> Attempt: ...

        def _own(self, signal: JobSignal) -> JobSignal: ...

        def _next_data(self, next_step: str | None, data: Any) -> tuple[Any, bool]: ...

    async def get_parents(self) -> list[JobRef]:
        """The jobs that wait for this one; several for a node of a `FlowProducer.add_dag`."""
        keys, transport = self._link.keys, self._link.transport
        names = ("parentId", "parentQueue", "parentIds", "parentQueues")
        single, queue, ids, queues = await transport.command("HMGET", keys.job(self.id), *names)
        found = [JobRef(queue.decode(), single.decode())] if single and queue else []
        if not ids:
            return found
        for member in await transport.command("SMEMBERS", keys.parents(self.id)):
            try:
                found.append(ref_of_member(member.decode()))
            except ValueError:
                continue
        # A peer writes these before the set.
        found += [JobRef(name, job_id) for name, job_id in zip(_names(queues), _names(ids), strict=False)]
        return list(dict.fromkeys(found))

    async def get_children_values(self) -> dict[str, Any]:
        """What the children that have completed returned, by their full names (``glide:{queue}:id``).

        The parent keeps it, so it is there when the children are not any more. In the same form as this queue's own
        results: children of another queue must have the same serializer.

        Raises SerializationError for a result that it cannot read.
        """
        values: dict[str, Any] = {}
        unknown: list[str] = []
        async for member, brought in self._children():
            if brought[:1] == "v":
                values[member] = decode_result(brought[1:], self._link.serializer)
            elif brought == "d":
                unknown.append(member)
        for member, text in await self._results_of(unknown):
            values[member] = decode_result(text, self._link.serializer)
        return values

    async def get_children_failures(self) -> dict[str, str]:
        """Why children have failed (expired, were removed, ...) that the parent did not fail with, by full name."""
        return {member: brought[1:] async for member, brought in self._children() if brought[:1] == "f"}

    async def get_open_children(self) -> list[JobRef]:
        """The children that have not ended yet."""
        return [ref_of_member(member) async for member, brought in self._children() if not brought]

    async def _children(self) -> AsyncIterator[tuple[str, str]]:
        cursor, seen = "", set[str]()
        while True:
            page = await self._link.transport.call(flows.children(self._link.keys.meta, self.id, cursor, _PAGE))
            for member, brought in page.rows:
                if member not in seen:
                    seen.add(member)
                    yield member, await self._large(member) if brought == "m" else brought
            cursor = page.cursor
            if not cursor:
                return

    async def _large(self, member: str) -> str:
        """What a child brought that did not fit into its page."""
        keys, transport = self._link.keys, self._link.transport
        brought = await transport.command("HGET", f"{keys.stem}depvals:{self.id}", member)
        return "" if brought is None else str(brought.decode())

    async def _results_of(self, members: Iterable[str]) -> list[tuple[str, str]]:
        """Results that a peer's worker did not hand to the parent: the children have them."""
        by_base: dict[str, list[str]] = {}
        for member in members:
            base, job_id = split_member(member)
            by_base.setdefault(base, []).append(job_id)
        found: list[tuple[str, str]] = []
        for base, ids in by_base.items():
            for i in range(0, len(ids), _FEW):
                few = ids[i : i + _FEW]
                rows = await self._link.transport.call(flows.family(f"{base}:meta", few, ("state", "returnvalue")))
                for job_id, row in zip(few, rows, strict=True):
                    if isinstance(row, bool) or row[1][0] != "completed" or not isinstance(row[1][1], str):
                        continue
                    found.append((f"{base}:{job_id}", row[1][1]))
        return found

    async def move_to_waiting_children(self, *, next_step: str | None = None, data: Any = SAME) -> None:
        """Go on when all children have ended: ends this attempt unless they have, without spending it.

        Children are added with ``parent=job``. Once they have ended the handler is called again, from its beginning:
        either it adds the same children again under ``job_id`` of their own (they are there already) and comes past
        this call, or it goes by `step`.

        Args:
            next_step: what `step` returns from now on. It is written into the job's data, which must be a mapping, as
                ``step``.
            data: the job's data from now on; not given, it stays.

        Raises:
            WaitingChildrenError: the signal; let it pass.
            ChildFailedError: a child has failed, and takes its parent along.
            GlideMQValidationError, GlideMQError: it cannot be done.
        """
        self._in_handler("move_to_waiting_children")
        after, replace = self._next_data(next_step, data)
        found = await self._link.transport.call(flows.open_children(self._link.keys.meta, self.id))
        if found.failure:
            raise ChildFailedError(str(found.failure))
        if found.number:
            raise self._own(WaitingChildrenError(after, replace))


def _names(text: bytes | None) -> list[str]:
    try:
        read: Any = json.loads(text.decode()) if text else []
    except (SerializationError, UnicodeDecodeError):
        return []
    if not isinstance(read, list):
        return []
    return [name for name in read if isinstance(name, str)]  # pyright: ignore[reportUnknownVariableType]
