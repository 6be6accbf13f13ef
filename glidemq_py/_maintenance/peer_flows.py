"""A maintenance task in a cluster: flows whose parents and children stand in different slots, beside Node workers.

A Node worker that ends such a child tells no parent (wrinkles.md W44, W45). So the child is remembered in its queue.
Workers of that queue, and of its parents' queues, look for those that have ended and notify the parents.
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
"""Of one queue, per look."""


class RemoteFlows(PeriodicTask):
    """Looks every two seconds, give or take a tenth.

    Args:
        link: the queue.
        owes: called when its outbox has entries after a look.
    """

    def __init__(self, *, link: QueueLink, outbox_pending: Callable[[], None]) -> None:
        super().__init__("remote-flows", queue=link.keys.name, what="flows over several slots", every=_LOOK_S)
        self._link = link
        self._outbox_pending = outbox_pending
        self._cursors: dict[str, str] = {}
        self._empty: list[str] = []

    async def look(self) -> None:
        """Look at this queue's children, and at those of its parents in other queues. Raises GlideMQError."""
        told, _ = await self._tell(self._link)
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
                told, left = await self._tell(link)
                if told:
                    await Outbox(link, kinds=("child",)).deliver()
            except GlideMQError as error:
                failure = failure or error
                continue
            if not left:
                self._empty.append(stem)
        if failure is not None:
            raise failure

    async def _tell(self, link: QueueLink) -> tuple[int, int]:
        """How many ends the queue's outbox has got, and how many children are remembered."""
        meta, told, left = link.keys.meta, 0, 0
        cursor = self._cursors.pop(meta, "")
        for _ in range(_PAGES_MAX):
            reply = await link.transport.call(notify_remote_parents(meta, cursor, _PAUSE_MS))
            told, cursor, left = told + reply.told, reply.cursor, reply.left
            if not cursor:
                return told, left
        self._cursors[meta] = cursor
        return told, left
