"""Levels of log lines, and messages of progress."""

import asyncio
from typing import Any, Literal

import pytest

from glidemq_py import (
    Broadcast,
    BroadcastWorker,
    GlideMQValidationError,
    Job,
    JobLogLine,
    JobNotLoadedError,
    PayloadTooLargeError,
)
from tests.contract.api import Queue, QueueEvents
from tests.contract.observe import Raw
from tests.server.worker_support import PATIENCE, WorkerFor, with_timeout

# -- levels ------------------------------------------------------------------------------------------------


async def test_lines_have_levels(queue: Queue, raw: Raw):
    job = await queue.add("a")
    await job.log("plain")
    for level in ("debug", "info", "warning", "error", "critical"):
        await job.log(f"at {level}", level=level)
    raw.run("RPUSH", f"log:{job.id}", "of a peer", "[ERROR] of a peer", "[NOTICE] unknown")
    stored = ["plain", "[DEBUG] at debug", "[INFO] at info", "[WARNING] at warning", "[ERROR] at error",
              "[CRITICAL] at critical", "of a peer", "[ERROR] of a peer", "[NOTICE] unknown"]  # fmt: skip
    assert await job.logs() == stored
    logs = await queue.get_job_logs(job.id)
    assert (logs.logs, logs.count) == (stored, 9)
    assert logs.lines[3] == JobLogLine(level="warning", message="at warning")
    assert [line.level for line in logs.lines] == ["info", "debug", "info", "warning", "error", "critical", "info",
                                                   "error", "info"]  # fmt: skip
    counts: dict[Literal["debug", "info", "warning", "error", "critical"], int] = {
        "debug": 9, "info": 8, "warning": 4, "error": 3, "critical": 1,
    }  # fmt: skip
    for level, count in counts.items():
        assert (await queue.get_job_logs(job.id, level=level)).count == count
    errors = await queue.get_job_logs(job.id, 1, level="error")
    assert ([line.message for line in errors.lines], errors.count) == (["at critical", "of a peer"], 3)
    assert (await queue.get_job_logs(job.id, -1, level="error")).logs == ["[ERROR] of a peer"]
    assert (await queue.get_job_logs(job.id, 0, 0, level="warning")).logs == ["[WARNING] at warning"]


async def test_many_lines_are_filtered_and_trimmed(queue: Queue):
    job = await queue.add("a")
    await asyncio.gather(*(job.log(str(n), level="error" if n % 100 == 0 else "info", keep=450) for n in range(500)))
    logs = await queue.get_job_logs(job.id, level="error")
    assert logs.count == len(logs.logs) == 4 + (logs.lines[0].message == "0")


async def test_invalid_levels_are_rejected(queue: Queue):
    job = await queue.add("a")
    for level in ("warn", "WARNING", "", 30):
        with pytest.raises(GlideMQValidationError, match="level"):
            await job.log("x", level=level)  # type: ignore[arg-type]
        with pytest.raises(GlideMQValidationError, match="level"):
            await queue.get_job_logs(job.id, level=level)  # type: ignore[arg-type]
    with pytest.raises(GlideMQValidationError, match="log line"):
        await job.log(5, level="info")  # type: ignore[arg-type]
    with pytest.raises(PayloadTooLargeError):
        await job.log("x" * 1_048_576, level="info")
    assert await job.logs() == []


# -- progress ----------------------------------------------------------------------------------------------


async def test_progress_has_a_message(queue: Queue, raw: Raw):
    job = await queue.add("a")
    with pytest.raises(JobNotLoadedError, match="progress_message"):
        _ = job.progress_message
    await job.update_progress(40, "12 of 30 pages")
    assert (job.progress, job.progress_message) == (40, "12 of 30 pages")
    read = await queue.get_job(job.id)
    assert read is not None
    assert (read.progress, read.progress_message) == (40, "12 of 30 pages")
    stored = raw.job(job.id)
    assert (stored["progress"], stored["progressMessage"]) == ("40", "12 of 30 pages")  # a peer reads the number
    await job.update_progress({"pages": 13})
    assert (job.progress, job.progress_message) == ({"pages": 13}, None)
    await read.reload()
    assert (read.progress, read.progress_message) == ({"pages": 13}, None)
    for wrong in (5, b"x"):
        with pytest.raises(GlideMQValidationError, match="progress message"):
            await job.update_progress(50, wrong)  # type: ignore[arg-type]
    with pytest.raises(PayloadTooLargeError, match="progress message"):
        await job.update_progress(50, "x" * 1_048_577)
    assert raw.job(job.id)["progress"] == '{"pages":13}'


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
