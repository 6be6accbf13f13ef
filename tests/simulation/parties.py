"""Parties of a simulated fleet besides its producers and workers: holders of leases, and a broadcast's subscribers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from glidemq_py import Broadcast, BroadcastWorker, Job, Lease, Maintenance, Message, Queue
from glidemq_py.errors import GlideMQConnectionError, LeaseLostError
from tests.simulation.network import Network, Source
from tests.simulation.producer import QUEUE

if TYPE_CHECKING:
    from tests.simulation.ledger import Ledger

__all__ = ["BROADCAST", "IDLE_QUEUE", "SUBSCRIPTIONS", "LeaseHolder", "Subscribers", "maintain", "open_queue"]

BROADCAST: Final = "announced"
SUBSCRIPTIONS: Final = ("first", "second")
IDLE_QUEUE: Final = "idle"
"""Served first by workers of several queues; it has no jobs."""
_LEASE_MS: Final = 5_000

Handler = Callable[[Job], Awaitable[str]]


async def open_queue(network: Network, name: str = QUEUE, **options: Any) -> Queue:
    """Return a queue, connected; retry until the server replies, as a careful program does."""
    while True:
        queue: Queue = Queue(name, Source(network), **options)
        try:
            await queue.connect()
        except GlideMQConnectionError:
            await queue.close()
            await asyncio.sleep(0.1)
        else:
            return queue


class LeaseHolder:
    """Fetches jobs without a worker and reports them, as a careful program does.

    It releases some leases unstarted, extends some, forgets some, and hands the tokens of some to the other holders.

    Args:
        network: the network.
        handle: the handler of the fleet's workers.
        chance: decides what happens to each lease.
        handed: tokens and results that any holder reports.
    """

    def __init__(
        self, network: Network, handle: Handler, chance: random.Random, handed: asyncio.Queue[tuple[str, str]],
    ):  # fmt: skip
        self._network = network
        self._handle = handle
        self._chance = chance
        self._handed = handed

    async def run(self):
        """Fetch and report until the party is killed."""
        async with await open_queue(self._network) as queue:
            await asyncio.gather(self._fetch(queue), self._report_handed(queue))

    async def _fetch(self, queue: Queue):
        while True:
            try:
                leases = await queue.fetch(1 + int(4 * self._chance.random()), lock_duration=_LEASE_MS, wait=1_000)
            except GlideMQConnectionError:
                await asyncio.sleep(0.1)
                continue
            await asyncio.gather(*(self._work(lease) for lease in leases))

    async def _work(self, lease: Lease):
        chance = self._chance.random()
        if chance < 0.1:
            await self._report(lease.release)
            return
        if chance < 0.15 or lease.name in ("timeout", "cancelled"):
            return  # forgotten: its lock expires
        if chance < 0.3:
            await self._report(lambda: lease.extend(2 * _LEASE_MS))
        try:
            result = await self._handle(lease.job)
        except Exception as error:
            failure = error
            await self._report(lambda: lease.fail(failure))
            return
        if chance < 0.5:
            self._handed.put_nowait((lease.token, result))
        else:
            await self._report(lambda: lease.complete(result))

    async def _report_handed(self, queue: Queue):
        while True:
            token, result = await self._handed.get()
            lease: Lease = Lease.from_token(queue, token)
            await self._report(lambda: lease.complete(result))  # noqa: B023

    async def _report(self, send: Callable[[], Awaitable[Any]]):
        """Repeat a report until the server has replied."""
        while True:
            try:
                await send()
                return
            except GlideMQConnectionError:
                await asyncio.sleep(0.05 * (1 + self._chance.random()))
            except LeaseLostError:
                return


async def maintain(network: Network, *, lock_ms: int, stalled_ms: int):
    """Run the maintenance tasks without a worker, until the party is killed."""
    async with await open_queue(network) as queue:
        while True:
            maintenance = Maintenance(
                [queue], lock_duration=lock_ms, stalled_interval=stalled_ms, max_stalled_count=1_000_000
            )
            try:
                await maintenance.run()
            except GlideMQConnectionError:
                await asyncio.sleep(0.1)


class Subscribers:
    """The workers of a broadcast's subscriptions, and the record of what they processed.

    Args:
        network: the network.
        ledger: its ``acknowledged`` has the published messages.
        chance: decides how long a message takes.
        lock_ms: lock duration of the workers.
        stalled_ms: their time between checks for stalled messages.
    """

    def __init__(self, network: Network, ledger: Ledger, chance: random.Random, *, lock_ms: int, stalled_ms: int):
        self._network = network
        self._ledger = ledger
        self._chance = chance
        self._lock_ms = lock_ms
        self._stalled_ms = stalled_ms
        self._started = 0
        self.processed: dict[str, set[str]] = {name: set() for name in SUBSCRIPTIONS}
        """Ids of the messages that each subscription has processed."""

    async def subscribe(self):
        """Create the subscriptions, before the first message."""
        async with Broadcast(BROADCAST, Source(self._network)) as broadcast:
            for name in SUBSCRIPTIONS:
                await broadcast.subscribe(name, "0-0")

    def create(self, subscription: str) -> BroadcastWorker:
        """Return a new worker of a subscription; for the code of a party."""
        self._started += 1

        async def handle(message: Message):
            await asyncio.sleep(0.001 + 0.02 * self._chance.random())
            self.processed[subscription].add(message.id)

        worker = BroadcastWorker(
            BROADCAST, handle, Source(self._network), subscription=subscription, start_from="0-0", concurrency=3,
            lock_duration=self._lock_ms, stalled_interval=self._stalled_ms, max_stalled_count=1_000_000,
        )  # fmt: skip
        worker.consumer = f"py-subscriber-{self._started}"
        return worker

    async def are_done(self) -> bool:
        """Return True if no message is waiting, active or delayed."""
        async with Broadcast(BROADCAST, Source(self._network)) as broadcast:
            found = await broadcast.get_subscriptions()
        return all(not each.waiting and not each.active and not each.released for each in found)

    def problems(self) -> list[str]:
        """Return the acknowledged messages that a subscription has not processed."""
        ledger = self._ledger
        return [
            f"message {message} is lost for subscription {name}"
            for message in ledger.published if message not in ledger.excused
            for name in SUBSCRIPTIONS if message not in self.processed[name]
        ]  # fmt: skip
