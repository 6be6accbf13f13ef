"""The shared calls for idle queues of `glidemq_py._worker.idle_queues`."""

import asyncio

from glidemq_py._worker.idle_queues import IdleQueues


class FakeQueue:
    """Count the registrations of a queue."""

    queue_name = "emails"

    def __init__(self, error: Exception | None = None):
        self.error = error
        self.registered = asyncio.Event()

    async def register(self, interval_s: float):
        self.registered.set()
        if self.error is not None:
            raise self.error

    async def examine(self):
        """Nothing to find."""


async def test_queues_of_a_worker_that_closed_at_once_do_not_delay_the_next():
    idle = IdleQueues()
    closed = [FakeQueue() for _ in range(1_000)]
    idle.add(closed)
    await idle.remove(closed)
    later = FakeQueue()
    idle.add([later])
    async with asyncio.timeout(5):  # a thousand turns take twenty seconds
        await later.registered.wait()
    await idle.remove([later])


async def test_an_error_of_one_queue_does_not_end_the_calls_for_others():
    idle = IdleQueues()
    queues = [FakeQueue(RuntimeError("planted")), FakeQueue()]
    idle.add(queues)
    async with asyncio.timeout(5):
        for queue in queues:
            await queue.registered.wait()
    await idle.remove(queues)
