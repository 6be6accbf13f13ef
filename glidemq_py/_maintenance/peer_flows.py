"""A maintenance task in a cluster: flows with parents and children in different slots, beside Node workers.

A Node worker that ends such a child does not notify its parents. So the child is remembered in its queue. Workers of
that queue, and of its parents' queues, look for remembered children that have ended and notify the parents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from glidemq_py._client.background import PeriodicTask
from glidemq_py._core.keys import QueueKeys
from glidemq_py._features.flows.calls import notify_remote_parents, remote_children
from glidemq_py._features.outbox.delivery import Outbox
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import GlideMQError

__all__ = ["RemoteFlows"]

_LOOK_S: Final = 2.0
_PAUSE_MS: Final = 1_500
_PAGES_MAX: Final = 20
"""Maximum number of pages per queue and run."""


class RemoteFlows(PeriodicTask):
    """Runs every two seconds (±10%).

    Args:
        link: The queue.
        outbox_pending: Called when the queue's outbox has entries after a run.
    """

    def __init__(self, *, link: QueueLink, outbox_pending: Callable[[], None]) -> None:
        super().__init__("remote-flows", queue=link.keys.name, what="flows over several slots", every=_LOOK_S)
        self._link = link
        self._outbox_pending = outbox_pending
        self._cursors: dict[str, str] = {}
        self._empty: list[str] = []

    async def look(self) -> None:
        """Notify the parents of this queue's ended children, and this queue's parents of children in other queues.

        Raises:
            GlideMQError: If a call fails.
        """
        told, _ = await self._notify(self._link)
        if told:
            self._outbox_pending()
        call = remote_children(self._link.keys.meta, self._empty)
        self._empty = []
        failure: GlideMQError | None = None
        for stem in await self._link.transport.call(call):
            prefix, _, name = stem[:-2].rpartition(":{")
            link = QueueLink(
                transport=self._link.transport, keys=QueueKeys(prefix, name), waiter=self._link.waiter,
                serializer=self._link.serializer,
            )  # fmt: skip
            try:
                told, left = await self._notify(link)
                if told:
                    await Outbox(link, kinds=("child",)).deliver()
            except GlideMQError as error:
                failure = failure or error
                continue
            if not left:
                self._empty.append(stem)
        if failure is not None:
            raise failure

    async def _notify(self, link: QueueLink) -> tuple[int, int]:
        """Put ended children into the queue's outbox; return their number and the number of remembered children."""
        meta, told, left = link.keys.meta, 0, 0
        cursor = self._cursors.pop(meta, "")
        for _ in range(_PAGES_MAX):
            reply = await link.transport.call(notify_remote_parents(meta, cursor, _PAUSE_MS))
            told, cursor, left = told + reply.told, reply.cursor, reply.left
            if not cursor:
                return told, left
        self._cursors[meta] = cursor
        return told, left
