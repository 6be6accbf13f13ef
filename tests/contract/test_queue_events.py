"""Listening to a queue: from a fixed position, without a gap, over lost connections and restarts."""

import asyncio
from typing import Any

import pytest

from glidemq_py import (
    ClosedError,
    GlideMQConnectionError,
    GlideMQError,
    GlideMQValidationError,
    Job,
    QueueEvent,
)
from glidemq_py.testing import RespClient
from tests.contract.api import Queue, QueueEvents
from tests.contract.observe import Raw
from tests.server.worker_support import PATIENCE, WorkerFor, with_timeout


class Heard:
    """A listener that records its events."""

    def __init__(self):
        self.events: list[QueueEvent] = []
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __call__(self, event: QueueEvent):
        self.events.append(event)
        self._loop.call_soon_threadsafe(self._changed.set)  # blocking code calls it in a thread

    @property
    def names(self) -> list[str]:
        return [event.event for event in self.events]

    async def wait(self, count: int) -> list[QueueEvent]:
        async with asyncio.timeout(PATIENCE):
            while len(self.events) < count:
                self._changed.clear()
                await self._changed.wait()
        return self.events


async def first(events: QueueEvents, count: int) -> list[QueueEvent]:
    """The first events of an iteration."""
    found: list[QueueEvent] = []
    async with asyncio.timeout(PATIENCE):
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found


async def test_job_added_after_ready_is_received(queue: Queue, url: Any):
    await queue.add("before")
    for _ in range(10):
        events = QueueEvents(queue.name, url)
        await events.wait_until_ready()
        job = await queue.add("after")
        (event,) = await first(events, 1)
        assert (event.event, event.job_id, event.fields) == ("added", job.id, {"name": "after"})
        assert abs(event.timestamp - job.timestamp) < 1_000


@pytest.mark.exclude("partitioned", reason="the events of partitions are merged")
async def test_ready_on_an_empty_queue(queue: Queue, url: Any):
    events = QueueEvents(queue.name, url)
    await events.wait_until_ready()
    jobs = await queue.add_bulk([("n",)] * 500)
    assert [event.job_id for event in await first(events, 500)] == [job.id for job in jobs]


async def test_events_of_a_job_lifecycle(queue: Queue, worker_for: WorkerFor, url: Any):
    async def handle(job: Job):
        if job.data == "fail":
            raise ValueError("on purpose")
        await job.update_progress(50)
        return {"r": job.data}

    heard = Heard()
    async with QueueEvents(queue.name, url) as events:
        events.on("*", heard)
        good, bad = await queue.add("n", 1), await queue.add("n", "fail", attempts=2, backoff=1)
        async with worker_for(handle):
            await heard.wait(7)
        later = await queue.add("n", delay=60_000)
        await later.remove()
        await queue.pause()
        await heard.wait(10)
    of_good = [event for event in heard.events if event.job_id == good.id]
    assert [event.event for event in of_good] == ["added", "progress", "completed"]
    assert of_good[1].fields == {"data": "50"}
    assert of_good[2].fields["returnvalue"] == '{"r":1}'
    of_bad = [event for event in heard.events if event.job_id == bad.id]
    assert [event.event for event in of_bad][:2] == ["added", "retrying"]
    assert of_bad[-1].event == "failed"
    assert of_bad[-1].fields["failedReason"] == "on purpose"
    assert [event.event for event in heard.events if event.job_id == later.id] == ["added", "removed"]
    assert heard.names[-1] == "paused"
    assert [event.id for event in of_bad] == sorted({event.id for event in of_bad}, key=_order)


def _order(entry: str) -> tuple[int, ...]:
    return tuple(int(part) for part in entry.rpartition("||")[2].split("-"))


@pytest.mark.exclude("blocking", reason="its listeners are plain functions")
async def test_plain_and_async_listeners_by_event_name(queue: Queue, url: Any):
    added, everything, late, gone = Heard(), Heard(), Heard(), Heard()

    async def slow(event: QueueEvent):
        await asyncio.sleep(0)
        everything(event)

    def broken(event: QueueEvent):
        raise RuntimeError("a listener's own fault")

    events = QueueEvents(queue.name, url)
    events.on("added", broken)
    events.on("added", added)
    events.on("*", slow)
    events.on("*", gone)
    events.off("*", gone)
    events.off("never", gone)
    async with events:
        events.on("removed", late)
        job = await queue.add("n")
        await job.remove()
        await late.wait(1)
        await everything.wait(2)
    assert (added.names, everything.names, late.names, gone.names) == (["added"], ["added", "removed"], ["removed"], [])


async def test_listener_registered_after_start_is_called(queue: Queue, url: Any):
    heard = Heard()
    async with QueueEvents(queue.name, url) as events:
        events.on("added", heard)
        await queue.add("n")
        await heard.wait(1)


async def test_dollar_is_now(queue: Queue, url: Any):
    await queue.add("before")
    heard = Heard()
    async with QueueEvents(queue.name, url, last_event_id="$") as events:
        events.on("*", heard)
        job = await queue.add("after")
        assert [event.job_id for event in await heard.wait(1)] == [job.id]


async def test_close_ends_an_iteration(queue: Queue, url: Any):
    events = QueueEvents(queue.name, url)
    await events.wait_until_ready()
    reading = asyncio.create_task(first(events, 2))
    await queue.add("n")
    await asyncio.sleep(0)
    await events.close()
    assert len(await with_timeout(reading)) <= 1
    await events.close()
    with pytest.raises(ClosedError):
        await events.wait_until_ready()


@pytest.mark.exclude("memory", reason="it has no requests")
async def test_a_short_request_timeout_does_not_end_the_blocking_read(queue: Queue, url: Any, caplog: Any):
    heard = Heard()
    async with QueueEvents(queue.name, url + "?request_timeout=150") as events:
        events.on("*", heard)
        await asyncio.sleep(1.2)  # longer than one read blocks, so that a read times out
        await queue.add("n")
        await heard.wait(1)
    assert "reading on" not in caplog.text


async def test_no_server(queue_name: str):
    events = QueueEvents(queue_name, "valkey://127.0.0.1:1")
    with pytest.raises(GlideMQConnectionError, match=r"127\.0\.0\.1:1"):
        await events.wait_until_ready()


async def test_iteration_with_listeners_is_rejected(queue: Queue, url: Any):
    """They would share one position, and each would miss the events that the other has read."""
    events = QueueEvents(queue.name, url)
    heard = Heard()
    events.on("added", heard)
    async with events:
        with pytest.raises(GlideMQError, match=r"already read by listeners; make another QueueEvents"):
            await anext(aiter(events))
        jobs = await queue.add_bulk([("n",)] * 3)
        assert [event.job_id for event in await heard.wait(3)] == [job.id for job in jobs]


async def test_listeners_and_second_iteration_are_rejected(queue: Queue, url: Any):
    events = QueueEvents(queue.name, url)
    events.on("added", Heard())
    await events.wait_until_ready()
    loop = aiter(events)
    job = await queue.add("n")
    assert (await anext(loop)).job_id == job.id
    with pytest.raises(GlideMQError, match="already read by an iteration"):
        await anext(aiter(events))
    with pytest.raises(GlideMQError, match="already read by an iteration"):
        events.on("*", Heard())
    with pytest.raises(GlideMQError, match="already read by an iteration"):
        await events.__aenter__()
    job = await queue.add("n")
    assert (await anext(loop)).job_id == job.id
    await events.close()
    with pytest.raises(ClosedError):
        await anext(aiter(events))


@pytest.mark.parametrize(
    ("event", "listener", "option"), [("", print, "event"), (None, print, "event"), ("completed", 5, "listener")]
)
def test_invalid_listeners_are_rejected(event: Any, listener: Any, option: str):
    with pytest.raises(GlideMQValidationError) as refused:
        QueueEvents("q").on(event, listener)
    assert refused.value.option == option


@pytest.mark.exclude("partitioned", reason="an event has the position of its part")
async def test_reading_starts_after_last_event_id(queue: Queue, url: Any, resp: RespClient):
    jobs = await queue.add_bulk([("n",)] * 5)
    ids = [entry for entry, _ in Raw(resp, queue.name).run("XRANGE", "events", "-", "+")]
    found = await first(QueueEvents(queue.name, url, last_event_id=ids[1]), 3)
    assert [event.id for event in found] == ids[2:]
    found = await first(QueueEvents(queue.name, url, last_event_id="0"), 5)
    assert [event.job_id for event in found] == [job.id for job in jobs]


async def test_foreign_entries_are_returned_unchanged(queue: Queue, url: Any, resp: RespClient):
    heard = Heard()
    async with QueueEvents(queue.name, url) as events:
        events.on("*", heard)
        raw = Raw(resp, queue.name)
        raw.run("XADD", "events", "*", "something", b"\xff")
        raw.run("XADD", "events", "*", "event", "renamed", "jobId", "7", "to", "x")
        foreign, known = await heard.wait(2)
        assert (foreign.event, foreign.job_id, foreign.fields) == ("", "", {"something": "\ufffd"})
        assert (known.event, known.job_id, known.fields) == ("renamed", "7", {"to": "x"})
