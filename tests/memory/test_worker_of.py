"""`TestWorker.of`: any number of tests can use a service's worker, sequentially or concurrently."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from glidemq_py import BroadcastWorker, GlideMQError, Job, Worker
from glidemq_py.testing import MemoryServer, TestBroadcast, TestBroadcastWorker, TestQueue, TestWorker
from tests.inside import connection_of

entered: list[str] = []


@asynccontextmanager
async def lifespan(_: Worker) -> AsyncIterator[str]:
    entered.append("in")
    yield "context"
    entered.append("out")


service = Worker("emails", concurrency=3, lifespan=lifespan)


@service.task(attempts=3)
async def send(to: str) -> str:
    return f"sent to {to}"


async def shout(message: Any) -> str:
    return str(message.data).upper()


subscriber = BroadcastWorker("news", shout, subscription="s", start_from="0-0")


@pytest.mark.parametrize("turn", [1, 2, 3])
async def test_module_level_worker_is_used_by_each_test(turn: int):
    entered.clear()
    async with TestQueue("emails") as queue, TestWorker.of(service, queue) as worker:
        await send.add(f"{turn}")
        await queue.assert_enqueued("send", {"to": f"{turn}"}, count=1)
        assert [run.result for run in await worker.run_until_idle()] == [f"sent to {turn}"]
        assert entered == ["in"]
    assert entered == ["in", "out"]


async def test_tasks_added_from_blocking_code_go_to_the_test():
    async with TestQueue("emails") as queue, TestWorker.of(service, queue) as worker:
        await asyncio.to_thread(send.blocking.add, "ann")
        assert [run.result for run in await worker.run_until_idle()] == ["sent to ann"]


def test_each_test_can_have_its_own_event_loop():
    for turn in ("1", "2"):
        asyncio.run(test_module_level_worker_is_used_by_each_test(turn))


@pytest.mark.parametrize("turn", [1, 2])
async def test_module_level_subscriber_is_used_by_each_test(turn: int):
    async with TestBroadcast("news") as news, TestBroadcastWorker.of(subscriber, news) as worker:
        await news.publish("x", f"n{turn}")
        assert [run.result for run in await worker.run_until_idle()] == [f"N{turn}"]


async def test_tasks_use_their_own_queue_again_after_close():
    home = MemoryServer()
    own = Worker("home", connection=home)

    @own.task
    async def work() -> str:
        return "done"

    await work.add()  # its queue is already open
    queue_before = own.queue
    async with TestQueue("elsewhere") as queue, TestWorker.of(own, queue) as worker:
        assert own.queue_name == "elsewhere"
        await work.add()
        await queue.assert_enqueued("work", count=1)
        assert [run.result for run in await worker.run_until_idle()] == ["done"]
    assert own.queue is queue_before
    await work.add()
    assert (await own.queue.get_job_counts()).waiting == 2
    await own.queue.close()


async def test_closed_worker_can_be_borrowed():
    own = Worker("q", lambda job: job.data, MemoryServer())
    async with own:
        pass
    async with TestQueue("q") as queue, TestWorker.of(own, queue) as worker:
        await queue.add("n", 7)
        assert [run.result for run in await worker.run_until_idle()] == [7]


async def test_running_worker_is_rejected():
    async with Worker("q", lambda job: job.data, MemoryServer()) as own, TestQueue("q") as queue:
        with pytest.raises(GlideMQError, match="is running"):
            TestWorker.of(own, queue)


async def test_unclosed_test_worker_does_not_block_the_next():
    left = TestQueue("emails")
    forgotten = TestWorker.of(service, left)
    await send.add("nobody")
    await forgotten.run_one()
    async with TestQueue("emails") as queue, TestWorker.of(service, queue) as worker:
        await send.add("ann")
        assert [run.result for run in await worker.run_until_idle()] == ["sent to ann"]
    await send.add("bob")  # the previous borrowing is in effect again
    assert [run.result for run in await forgotten.run_until_idle()] == ["sent to bob"]
    await forgotten.close()
    await forgotten.close()
    assert connection_of(service) is None


async def test_unreferenced_test_worker_releases_the_worker():
    own = Worker("q", lambda job: job.data)
    TestWorker.of(own, TestQueue("q"))
    gc.collect()
    async with TestQueue("q") as queue, TestWorker.of(own, queue):
        assert connection_of(own) is queue.server
    assert connection_of(own) is None


async def test_two_test_workers_of_one_worker_close_in_any_order():
    def handle(job: Job) -> Any:
        return job.data

    own = Worker("q", handle)
    async with TestQueue("q") as queue:
        first, second = TestWorker.of(own, queue), TestWorker.of(own, queue)
        await queue.add_bulk([("n", 1), ("n", 2)])
        assert [(await each.run_one()).result for each in (first, second)] == [1, 2]  # type: ignore[union-attr]
        await first.close()
        assert connection_of(own) is queue.server
        await second.close()
    assert connection_of(own) is None
