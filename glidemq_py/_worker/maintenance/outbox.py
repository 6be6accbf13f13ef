"""A maintenance task: delivers the queue's outbox (dead-letter entries, child results) to other queues.

The same call reports staged writes that were decided but not finished; they are published then.

Every exchange reports whether the outbox has entries, and they are delivered at once. Other calls that add entries
(`remove`, `revoke`, `drain`) wake up an idle worker, whose exchange reports them. The periodic run finds entries that
were not reported because no worker was idle or the one that was woken up died.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from glidemq_py._client.reachability import repeated_level
from glidemq_py._client.runtime import BackgroundTask
from glidemq_py._core.logs import get_logger
from glidemq_py._features.outbox import Outbox
from glidemq_py._features.staged_writes import LEFT_ALONE_MS, finish_writes, run_async
from glidemq_py._partitions.link import QueueLink
from glidemq_py.errors import GlideMQError

_log = get_logger(__name__)

_POLL_S: Final = 1.0
_SELDOM_S: Final = 10.0
"""Interval of queues whose outbox has had no entries yet."""
_LAST_PAUSE_S: Final = 30.0
_LAST_DELIVERY_S: Final = 2.0
_AGAIN_S: Final = 0.1
_AGAIN_MAX_S: Final = 5.0
"""Pauses after rounds that left entries: the first, doubled with each such round up to the last."""


class OutboxTask(BackgroundTask):
    """Delivers at the start, when woken up, and every second.

    Args:
        link: The queue.
        expected: True if the queue has a dead letter queue.
    """

    def __init__(self, *, link: QueueLink, expected: bool) -> None:
        super().__init__(f"outbox-{link.keys.name}")
        self._link = link
        self._outbox = Outbox(link)
        self._expected = expected
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Deliver now: the outbox has entries."""
        self._expected = True
        self._woken.set()

    async def _repeat(self) -> None:
        failures = rounds_in_vain = 0
        while True:
            self._woken.clear()
            try:
                await self.run_once()
                failures = 0
            except GlideMQError as error:
                failures += 1
                level = repeated_level(self._link.transport, error) if failures == 1 else logging.DEBUG
                _log.log(level, "queue %s: outbox delivery failed: %s", self._link.label, error)
            except Exception as error:
                # A bug of ours must not end the deliveries.
                failures += 1
                _log.error("queue %s: outbox delivery failed; retrying", self._link.label, exc_info=error)
            rounds_in_vain = rounds_in_vain + 1 if self._outbox.left else 0
            if rounds_in_vain:
                await asyncio.sleep(min(_AGAIN_MAX_S, _AGAIN_S * 2 ** min(rounds_in_vain - 1, 10)))
            pause = min(_LAST_PAUSE_S, (_POLL_S if self._expected else _SELDOM_S) * 2 ** min(failures, 10))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._woken.wait()

    async def run_once(self) -> None:
        """Deliver the entries of the outbox and finish staged writes.

        Raises:
            GlideMQError: If a call fails.
        """
        await self._outbox.deliver()
        if self._outbox.writes:
            await run_async(self._link.transport, finish_writes(self._link.keys, LEFT_ALONE_MS))

    async def close(self) -> None:
        """Stop after a last delivery, because no other worker may be running."""
        if self._task is None:
            return
        await super().close()
        if self._expected:
            with contextlib.suppress(GlideMQError, TimeoutError):
                async with asyncio.timeout(_LAST_DELIVERY_S):
                    await self._outbox.deliver()
