"""The server's clock jumps ahead while processes that serve several queues wait."""

from glidemq_py import Queue
from tests.server.worker_support import Raw, WorkerFor, until, with_timeout

FORTY_DAYS_S = 40 * 86_400


async def test_channels_of_idle_workers_do_not_expire_at_the_jump(
    worker_for: WorkerFor, url: str, queue_name: str, raw: Raw
):
    """Without them a job that is delayed wakes no idle worker: it is found in the next round, up to 30 s later."""
    async with Queue(queue_name, url, partitions=2) as queue, worker_for(lambda _: None):
        await queue.add("x")
        await with_timeout(until(lambda: raw.run("ZCARD", "wake-channels") == 1))
        assert raw.run("TTL", "wake-channels") > FORTY_DAYS_S
