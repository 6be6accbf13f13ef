"""A maintenance task: checks parents that have been waiting for children for minutes.

A Node peer's own library does not notify the parents of a child that it fails or removes. So long-waiting parents are
checked page by page (``docs/reference/functions.md``, "watch_children"): the outcomes of their uncounted children are
read from the children's queues and delivered to the parents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from glidemq_py._client.background import PeriodicTask
from glidemq_py._core.keys import QueueKeys, split_member
from glidemq_py._core.logs import get_logger
from glidemq_py._features.flows.calls import ChildEnd, child_outcomes, children_ended, sweep_parents, watch_children
from glidemq_py._features.outbox.delivery import Outbox
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import GlideMQError

__all__ = ["WaitingParentsTask"]

_log = get_logger(__name__)

_LOOK_S: Final = 60.0
_NEXT_PAGE_S: Final = 1.0
_AGE_MS: Final = 300_000
_PAUSE_MS: Final = 50_000
_AT_A_TIME: Final = 100
_SWEEPS_MAX: Final = 100
"""Maximum number of calls per run that remove settled parents from the index, up to 500 parents each."""


class WaitingParentsTask(PeriodicTask):
    """Runs every minute (±10%), and every second while there are more pages.

    Args:
        link: The parents' queue.
        outbox_pending: Called when the queue's outbox has entries after a run.
        age: Minimum waiting time of the checked parents, in ms.
    """

    def __init__(self, *, link: QueueLink, outbox_pending: Callable[[], None], age: int = _AGE_MS) -> None:
        super().__init__("children", queue=link.keys.name, what="looking after parents", every=_LOOK_S, at_once=False)
        self._link = link
        self._outbox_pending = outbox_pending
        self._age = age

    async def look(self) -> bool:
        """Check one page of parents, and return True if there are more.

        Raises:
            GlideMQError: If a call fails.
        """
        keys, transport = self._link.keys, self._link.transport
        for _ in range(_SWEEPS_MAX):
            if not await transport.call(sweep_parents(keys.meta)):
                break
        watched = await transport.call(watch_children(keys.meta, self._age, _PAUSE_MS))
        parents: dict[str, list[str]] = {}
        for parent, members in watched.rows:
            for member in members:
                parents.setdefault(member, []).append(parent)
        ends = [
            ChildEnd(parent, end.member, end.how, end.text, end.policy)
            for end in await self._ended(list(parents))
            for parent in parents[end.member]
        ]
        if ends:
            _log.warning("queue %r: delivered %d pending child results", keys.name, len(ends))
            if await transport.call(children_ended(keys.meta, ends)):
                self._outbox_pending()
        if watched.more:
            self._pause = _NEXT_PAGE_S
        return bool(watched.more)

    async def _ended(self, members: Sequence[str]) -> list[ChildEnd]:
        """Return the outcomes of the children that have ended, without their parents."""
        by_base: dict[str, list[str]] = {}
        for member in members:
            try:
                base, job_id = split_member(member)
            except ValueError:
                continue
            by_base.setdefault(base, []).append(job_id)
        ends: list[ChildEnd] = []
        for base, ids in by_base.items():
            for i in range(0, len(ids), _AT_A_TIME):
                few = ids[i : i + _AT_A_TIME]
                reply = await self._link.transport.call(child_outcomes(f"{base}:meta", few))
                if reply.outbox_pending:  # the entries may be these outcomes; delivering them notifies the parents
                    await self._deliver(base)
                    break
                for job_id, fate in zip(few, reply.rows, strict=True):
                    if not isinstance(fate, bool):
                        ends.append(ChildEnd("", f"{base}:{job_id}", *fate))
        return ends

    async def _deliver(self, base: str) -> None:
        """Deliver the child results in the outbox of the children's queue, which may have no workers."""
        link = self._link
        if base == link.keys.base:
            self._outbox_pending()
            return
        prefix, _, name = base[:-1].rpartition(":{")
        children = QueueLink(
            transport=link.transport, keys=QueueKeys(prefix, name), waiter=link.waiter, serializer=link.serializer
        )
        try:
            await Outbox(children, kinds=("child",)).deliver()
        except GlideMQError as error:
            _log.debug("queue %r: outbox delivery for parents in %r failed: %s", name, link.keys.name, error)
