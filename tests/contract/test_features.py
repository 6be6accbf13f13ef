"""A queue that uses a feature of a later version: every object of this version refuses it, and changes nothing."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from glidemq_py import BulkAddError, DeadLetterOptions, Worker
from glidemq_py.errors import UnsupportedFeatureError
from glidemq_py.sync import Queue as BlockingQueue
from glidemq_py.testing import RespClient
from tests.contract.api import FlowProducer, Queue
from tests.contract.observe import Raw
from tests.server.worker_support import EventRecorder, Gate, WorkerFor, until, with_timeout

MATCH = r"queue '.*' uses the feature 'partitions', .*; upgrade to version 9\.9 or later"


def use_feature(raw: Raw, text: str = "partitions:9.9"):
    """List a feature as a later build does before it first uses it."""
    for base in raw.bases:
        raw.resp.execute("HSET", f"{base}:meta", "features", text)


def drop_feature(raw: Raw):
    bases = raw.bases
    for base in bases:
        if len(bases) == 1:
            raw.resp.execute("HDEL", f"{base}:meta", "features")
        else:
            raw.resp.execute("HSET", f"{base}:meta", "features", "partitions:0.2.0")


def content(raw: Raw) -> dict[str, object]:
    return {key: raw.resp.execute("DUMP", key) for key in sorted(raw.resp.keys(raw.key("*")))}


@pytest.fixture
async def queue(url: Any, queue_name: str, raw: Raw) -> AsyncIterator[Queue]:
    """Return a queue with one job, which uses the feature; it does not when it is deleted."""
    async with Queue(queue_name, url) as queue:
        await queue.add("first", job_id="first")
        use_feature(raw)
        yield queue
        drop_feature(raw)
        await queue.obliterate(force=True)


CALLS: dict[str, Callable[[Queue], Awaitable[object]]] = {
    "add": lambda queue: queue.add("n"),
    "add a delayed job": lambda queue: queue.add("n", delay=1_000),
    "add and wait": lambda queue: queue.add_and_wait("n", timeout=1_000),
    "get_job_counts": lambda queue: queue.get_job_counts(),
    "get_jobs": lambda queue: queue.get_jobs("waiting"),
    "pause": lambda queue: queue.pause(),
    "remove": lambda queue: queue.remove("first"),
    "clean": lambda queue: queue.clean(0),
    "drain": lambda queue: queue.drain(),
    "obliterate": lambda queue: queue.obliterate(force=True),
    "upsert a scheduler": lambda queue: queue.schedulers.upsert("s", every=1_000),
    "check": lambda queue: queue.check(),
    "limit": lambda queue: queue.limits.set_concurrency(3),
    "signal": lambda queue: queue.signal("first", "go"),
}


@pytest.mark.parametrize("call", CALLS)
async def test_queue_refuses(queue: Queue, raw: Raw, call: str):
    before = content(raw)
    with pytest.raises(UnsupportedFeatureError, match=MATCH) as caught:
        await CALLS[call](queue)
    assert (caught.value.queue, caught.value.feature, caught.value.version) == (queue.name, "partitions", "9.9")
    assert content(raw) == before


@pytest.mark.exclude("partitioned", reason="it has a feature of its own")
async def test_queue_lists_its_features(queue: Queue, raw: Raw):
    assert await queue.settings.get_features() == {"partitions": "9.9"}
    use_feature(raw, "partitions:9.9,fair_keys:10.0")
    assert await queue.settings.get_features() == {"partitions": "9.9", "fair_keys": "10.0"}
    drop_feature(raw)
    assert await queue.settings.get_features() == {}


async def test_bulk_reports_the_refusal_per_position(queue: Queue, raw: Raw):
    before = content(raw)
    with pytest.raises(BulkAddError) as caught:
        await queue.add_bulk([("n",), ("n", 1, {"priority": 1})])
    assert [type(result) for result in caught.value.results] == [UnsupportedFeatureError] * 2
    assert content(raw) == before


async def test_concurrent_adds_are_all_rejected(queue: Queue, raw: Raw):
    before = content(raw)
    results = await asyncio.gather(*(queue.add("n", i) for i in range(50)), return_exceptions=True)
    assert {type(result) for result in results} == {UnsupportedFeatureError}
    assert content(raw) == before


def test_blocking_queue_refuses(url: Any, queue_name: str, raw: Raw):
    use_feature(raw)
    with BlockingQueue(queue_name, url) as queue, pytest.raises(UnsupportedFeatureError, match=MATCH):
        queue.add("n")
    raw.run("DEL", "meta")


async def test_worker_does_not_start(
    queue: Queue,
    raw: Raw,
    worker_for: WorkerFor,
):
    before = content(raw)
    with pytest.raises(UnsupportedFeatureError, match=MATCH):
        await worker_for(lambda job: None).start()
    with pytest.raises(UnsupportedFeatureError, match=MATCH):
        await worker_for(lambda job: None).run()
    assert content(raw) == before


@pytest.mark.parametrize("paused", [False, True])
async def test_idle_worker_closes_when_the_feature_is_used_first(
    worker_for: WorkerFor, url: Any, queue_name: str, raw: Raw, paused: bool, caplog: pytest.LogCaptureFixture
):
    worker = worker_for(lambda job: None, lock_duration=1_000)
    recorded = EventRecorder(worker)
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(0)  # starts the task
    await worker.wait_until_ready()
    if paused:
        worker.pause()
    with caplog.at_level(logging.WARNING):
        use_feature(raw)
        with pytest.raises(UnsupportedFeatureError, match=MATCH):
            await with_timeout(running)
    assert {type(error) for (error,) in recorded.of("error")} == {UnsupportedFeatureError}
    assert recorded.count["closed"] == 1
    critical = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert 1 <= len(critical) <= len(raw.bases)
    assert {repr(queue_name) in record.getMessage() for record in critical} == {True}
    assert "the worker closes" in critical[0].getMessage()
    assert len(caplog.records) < 20  # no hot loop
    with pytest.raises(UnsupportedFeatureError):
        await worker.wait_until_closed()
    await worker.close()
    drop_feature(raw)
    async with Queue(queue_name, url) as queue:
        await queue.obliterate(force=True)


async def test_result_of_a_running_job_is_not_written(worker_for: WorkerFor, url: Any, queue_name: str, raw: Raw):
    gate = Gate()
    async with Queue(queue_name, url) as queue, worker_for(gate) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n")
        await gate.next()
        use_feature(raw)
        gate.open()
        with pytest.raises(UnsupportedFeatureError):
            await with_timeout(worker.wait_until_closed())
        assert raw.job(job.id)["state"] == "active"  # a newer worker recovers it
        assert not recorded.count["completed"]
        drop_feature(raw)
        await queue.obliterate(force=True)


@pytest.mark.parametrize("gated", ["parent", "child"])
async def test_flow_with_a_job_in_such_a_queue_is_not_added(
    queue: Queue, raw: Raw, resp: RespClient, url: Any, flows: FlowProducer, gated: str
):
    plain = queue.name + "-plain"
    parent, child = (queue.name, plain) if gated == "parent" else (plain, queue.name)
    before = content(raw)
    with pytest.raises(UnsupportedFeatureError, match=MATCH):
        await flows.add({"name": "p", "queue": parent, "children": [{"name": "c", "queue": child}]})
    assert content(raw) == before
    left = [key for key in resp.keys(f"glide:{{{plain}}}:*") if not key.endswith(":id")]
    assert left == []
    async with Queue(plain, url) as other:
        await other.obliterate()


async def test_child_of_a_parent_in_such_a_queue_is_not_added(queue: Queue, raw: Raw, resp: RespClient, url: Any):
    before = content(raw)
    async with Queue(queue.name + "-plain", url) as other:
        with pytest.raises(UnsupportedFeatureError, match=MATCH):
            await other.add("c", parent={"queue": queue.name, "id": "first"})
        assert content(raw) == before
        assert await other.count() == 0
        assert resp.keys(f"glide:{{{other.name}}}:job:*") == []
        await other.obliterate()


async def test_dead_letter_waits_until_its_queue_can_be_used(queue: Queue, raw: Raw, url: Any):
    async def fail(_: object):
        raise ValueError("no")

    options = DeadLetterOptions(name=queue.name)
    before = content(raw)
    async with Queue(queue.name + "-plain", url, dead_letter_queue=options) as other:
        job = await other.add("n")
        async with Worker(other.name, fail, url, dead_letter_queue=options) as worker:
            await EventRecorder(worker).wait("failed")
        assert await job.get_state() == "failed"
        assert content(raw) == before
        drop_feature(raw)
        async with Worker(other.name, fail, url, dead_letter_queue=options):
            await with_timeout(until(lambda: raw.run("XLEN", "stream") == 2))
        await other.obliterate()
