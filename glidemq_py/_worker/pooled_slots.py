"""The slots of batches whose jobs come from several queues, which share a pool of slots."""

from __future__ import annotations

import asyncio
import contextlib

from glidemq_py._worker.slot_pool import SlotPool


class PooledSlots:
    """The slots of a pool, as those of a `BatchCollector`; see `BatchSlots`.

    Args:
        pool: The slots.
    """

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()

    def withhold(self, slots: int) -> None:
        """See `BatchSlots`."""
        self._pool.free -= slots
        if slots < 0:
            self._loop.call_soon(self._pool.pump)

    async def caught_up(self, patient: bool) -> None:
        """See `BatchSlots`. A queue whose server is slow, or does not reply, is not waited for."""
        pool, changed = self._pool, asyncio.Event()
        pool.changed = changed.set
        try:
            while self._is_behind(patient):
                changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pool.late_s):
                        await changed.wait()
        finally:
            pool.changed = None

    def _is_behind(self, patient: bool) -> bool:
        earliest = self._loop.time() - self._pool.late_s
        for each in self._pool.ready:
            since = each.unanswered_since
            if (since is None or since >= earliest) and (each.requested_slots or (patient and each.will_request)):
                return True
        return False
