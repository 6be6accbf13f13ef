"""Trades the shares of a queue's partitions while one of them lacks some (docs/design/partitions.md, "Shares").

Every client that fetches jobs does this, for the queues where a call was limited by a share. The server opens a round
only some time after the last one, so the number of rounds does not depend on the number of clients. While no call is
limited by a share, there are no rounds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Iterable
from typing import Any, Final

from glidemq_py._client.runtime import stop_task
from glidemq_py._client.transport import Transport
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.layout_errors import LayoutChangedError
from glidemq_py._core.logs import get_logger
from glidemq_py._features.partitions.layout import Layout
from glidemq_py._features.partitions.repairing import renewed_layout
from glidemq_py._features.partitions.share_round import RoundEnd, RoundResult, ShareRound, pause_between_rounds
from glidemq_py.errors import ClosedError, GlideMQError

__all__ = ["ShareTrading"]

_log = get_logger(__name__)

_FAILED_S: Final = 1.0
"""Pause after a failed call, and after a round that another one has overtaken, at most."""
_NO_LIMIT_S: Final = 10.0
"""Pause if partitions have shares, but the limit is not stored: a failover has lost it."""
_OTHERS_TRADE_S: Final = 1.0
"""How much longer a client waits each time that another one was faster, at most four times in a row."""


class ShareTrading:
    """Trades the shares of the partitions of one queue.

    Args:
        transport: The connection.
        keys: Keys of the queue, which are those of its partition 0.
    """

    def __init__(self, transport: Transport, keys: QueueKeys) -> None:
        self._transport = transport
        self._keys = keys
        self._layout: Layout | None = None
        self._is_wanted = self._is_closed = False
        self._is_stable = False
        """True if the last round has changed nothing: the next one may be later."""
        self._early = self._above = 0
        self._task: asyncio.Task[None] | None = None

    def request(self) -> None:
        """Trade: a partition has ready jobs that its share does not allow."""
        self._is_wanted = True
        if not self._is_closed and (self._task is None or self._task.done()):
            self._is_stable = False
            self._task = asyncio.create_task(self._trade(), name=f"glidemq-shares-{self._keys.name}")

    async def close(self) -> None:
        """Stop trading. A round that has begun is left as it is."""
        self.stop()
        if self._task is not None:
            await stop_task(self._task)

    def stop(self) -> None:
        """Stop trading, without waiting for the end of its task."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    async def _trade(self) -> None:
        while self._is_wanted:
            self._is_wanted = False
            try:
                pause = await self._run_round()
            except ClosedError:
                return
            except GlideMQError as error:
                _log.debug("queue %r: trading shares of partitions failed: %s", self._keys.name, error)
                self._is_wanted, pause = True, _FAILED_S
            await asyncio.sleep(pause)

    async def _run_round(self) -> float:
        """Trade once, and return the pause until the next time, seconds."""
        layout = self._layout
        if layout is None:
            layout = self._layout = await renewed_layout(self._transport, self._keys, None)
            if layout is None:
                return _NO_LIMIT_S
        metas = [QueueKeys(self._keys.prefix, name).meta for name in layout.served]
        trading = ShareRound(metas, layout.number, self._transport.call, _together)
        pause = pause_between_rounds(len(metas)) * (2 if self._is_stable else 1)
        try:
            result = await trading.run(pause=pause, above=self._above, sleep=asyncio.sleep)
        except LayoutChangedError as error:
            self._layout = await renewed_layout(self._transport, self._keys, layout, [error])
            self._is_wanted = True
            return 0.0
        self._above = result.above
        return self._pause_after(result, pause_between_rounds(len(metas)) / 1000)

    def _pause_after(self, result: RoundResult, usual: float) -> float:
        if result.end is RoundEnd.NO_LIMIT:
            return _NO_LIMIT_S
        if result.end is RoundEnd.COMPLETE:
            self._early = 0
            self._is_wanted = self._is_wanted or result.is_lacking
            self._is_stable = not result.has_changed
            return 2 * usual if self._is_stable else usual
        self._is_wanted = True
        if result.end is RoundEnd.OVERTAKEN:
            return random.uniform(0, _FAILED_S / 4)
        longer = random.uniform(0, _OTHERS_TRADE_S) * min(self._early, 4)
        self._early += 1
        return result.wait / 1000 + longer


async def _together(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*calls))
