"""A duty that one worker does for all: delivering what the queue owes to other queues, its dead letters above all.
The same look tells of staged writes that were decided and not finished; they are published then.

Every exchange reports whether the outbox has entries, and they are delivered at once. A call that is no exchange (an
operator's remove, revoke or drain) wakes an idle worker, whose exchange then reports them. The periodic look finds what
was not reported: no worker was idle, or the one that was woken died.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from glidemq_py._client.background import BackgroundTask
from glidemq_py._core.logs import get_logger
from glidemq_py._features.outbox.delivery import Outbox
from glidemq_py._features.staged_writes.resolve import LEFT_ALONE_MS, finish_writes, run_async
from glidemq_py._job.link import QueueLink
from glidemq_py.errors import GlideMQError

__all__ = ["OutboxTask"]

_log = get_logger(__name__)

_LOOK_S: Final = 1.0
_SELDOM_S: Final = 10.0
"""For queues that are not known to owe anything to anybody."""
_LAST_PAUSE_S: Final = 30.0
_GOODBYE_S: Final = 2.0
_AGAIN_S: Final = 0.1
_AGAIN_MAX_S: Final = 5.0
"""The shortest pause after a round that left entries, doubled with each such round: every exchange reports them."""


class OutboxTask(BackgroundTask):
    """Delivers at the start, when it is woken, and every second.

    Args:
        link: the queue.
        expected: the queue has a dead letter queue.
    """

    def __init__(self, *, link: QueueLink, expected: bool) -> None:
        super().__init__(f"outbox-{link.keys.name}")
        self._link = link
        self._outbox = Outbox(link)
        self._expected = expected
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """The outbox has entries."""
        self._expected = True
        self._woken.set()

    async def _repeat(self) -> None:
        failures = rounds_in_vain = 0
        while True:
            self._woken.clear()
            try:
                await self.look()
                failures = 0
            except GlideMQError as error:
                failures += 1
                level = logging.WARNING if failures == 1 else logging.DEBUG
                _log.log(level, "queue %r: outbox delivery failed: %s", self._link.keys.name, error)
            rounds_in_vain = rounds_in_vain + 1 if self._outbox.left else 0
            if rounds_in_vain:
                await asyncio.sleep(min(_AGAIN_MAX_S, _AGAIN_S * 2 ** min(rounds_in_vain - 1, 10)))
            pause = min(_LAST_PAUSE_S, (_LOOK_S if self._expected else _SELDOM_S) * 2 ** min(failures, 10))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._woken.wait()

    async def look(self) -> None:
        """Deliver what is there. Raises GlideMQError."""
        await self._outbox.deliver()
        if self._outbox.writes:
            await run_async(self._link.transport, finish_writes(self._link.keys, LEFT_ALONE_MS))

    async def close(self) -> None:
        """Stop, after a last delivery of what is there: there may be no other worker that would make it."""
        if self._task is None:
            return
        await super().close()
        if self._expected:
            with contextlib.suppress(GlideMQError, TimeoutError):
                async with asyncio.timeout(_GOODBYE_S):
                    await self._outbox.deliver()
