"""Levels of log lines, and messages of progress."""

import asyncio
from typing import Any

from glidemq_py import (
    Broadcast,
    BroadcastWorker,
    Job,
)
from tests.contract.api import Queue, QueueEvents
from tests.server.worker_support import PATIENCE, WorkerFor, with_timeout

# -- levels ------------------------------------------------------------------------------------------------


async def test_many_lines_are_filtered_and_trimmed(queue: Queue):
    job = await queue.add("a")
    await asyncio.gather(*(job.log(str(n), level="error" if n % 100 == 0 else "info", keep=450) for n in range(500)))
    logs = await queue.get_job_logs(job.id, level="error")
    assert logs.count == len(logs.logs) == 4 + (logs.lines[0].message == "0")


# -- progress ----------------------------------------------------------------------------------------------


async def test_event_has_the_message(queue: Queue, worker_for: WorkerFor, url: str):
    async def handler(job: Job):
        await job.update_progress(10, "started")
        await job.update_progress(90)

    found: list[dict[str, str]] = []
    async with QueueEvents(queue.name, url) as events, asyncio.timeout(PATIENCE):
        await events.wait_until_ready()
        async with worker_for(handler):
            await queue.add("a")
            async for event in events:
                if event.event == "progress":
                    found.append(dict(event.fields))
                if event.event == "completed":
                    break
    assert found == [{"data": "10", "message": "started"}, {"data": "90"}]


async def test_message_and_level_in_threads_and_sandboxes(
    queue: Queue,
    worker_for: WorkerFor,
):
    def handler(job: Job) -> str | None:
        job.blocking.log("from a thread", level="error")
        job.blocking.update_progress(70, "in a thread")
        return job.blocking.progress_message

    async with worker_for(handler):
        job = await queue.add("a")
        assert await job.wait_until_finished(120_000) == "in a thread"
    assert await job.logs() == ["[ERROR] from a thread"]
    assert (await queue.get_job_logs(job.id, level="error")).count == 1
    read = await queue.get_job(job.id)
    assert read is not None
    assert read.progress_message == "in a thread"


async def test_broadcast_messages_have_them(url: str, queue_name: str):
    seen: asyncio.Future[tuple[Any, Any]] = asyncio.get_running_loop().create_future()

    async def handler(message: Any):
        await message.log("read", level="warning")
        await message.update_progress(5, "read")
        seen.set_result((message.progress_message, await message.logs()))

    async with Broadcast(queue_name, url) as broadcast:
        await broadcast.subscribe("s")
        async with BroadcastWorker(queue_name, handler, url, subscription="s"):
            await broadcast.publish("a")
            assert await with_timeout(seen) == ("read", ["[WARNING] read"])
