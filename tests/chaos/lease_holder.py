"""A holder of leases of a chaos run: `python -m tests.chaos.lease_holder`.

It fetches jobs without a worker and reports them, as a careful program does: a report is repeated until the server has
replied. Some leases are released unstarted, some are extended. SIGTERM ends it after its current leases.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from glidemq_py import Lease, Queue
from glidemq_py.errors import GlideMQConnectionError, LeaseLostError
from tests.chaos.worker_target import RANDOM, SCRIBE, SETTINGS, handle

LEASE_MS = 2_000
AT_ONCE = 5


async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Queue(SETTINGS.queue, SETTINGS.connection()) as queue:
        SCRIBE.write("ready")
        while not stop.is_set():
            try:
                leases = await queue.fetch(AT_ONCE, lock_duration=LEASE_MS, wait=200)
            except GlideMQConnectionError:
                await asyncio.sleep(0.05)
                continue
            await asyncio.gather(*(work(lease) for lease in leases))


async def work(lease: Lease):
    chance = RANDOM.random()
    if chance < 0.1:
        await report(lease, lease.release)
        return
    if chance < 0.3:
        await report(lease, lambda: lease.extend(2 * LEASE_MS))
    try:
        result = await handle(lease.job)
    except Exception as error:
        failure = error
        await report(lease, lambda: lease.fail(failure))
        return
    if await report(lease, lambda: lease.complete(result)):
        SCRIBE.write("completed", lease.job.id)


async def report(lease: Lease, send: Callable[[], Awaitable[Any]]) -> bool:
    """Repeat a report until the server has replied. Return False if the lease was lost."""
    while True:
        try:
            await send()
            return True
        except GlideMQConnectionError:
            await asyncio.sleep(0.05 * (1 + random.random()))
        except LeaseLostError:
            SCRIBE.write("stale", lease.job.id)
            return False


if __name__ == "__main__":
    asyncio.run(main())
