"""Events for subscribed connections, and the workers of clients, with raw frames."""

import asyncio
import json
import time
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.gateway import Gateway
from glidemq_py.gateway.commands.connection import FORGOTTEN_MS
from glidemq_py.testing import RespClient
from tests.inside import connected, connection_of, feeds_of, remote_control
from tests.server.gateway.wire import Wire, good

Event = dict[str, Any]


async def next_event(wire: Wire) -> Event:
    frame = await wire.receive()
    assert frame["type"] == "event"
    assert "reqId" not in frame
    event: Event = frame["event"]
    return event


async def kinds(wire: Wire, count: int) -> list[tuple[str, str]]:
    return [(event["eventType"], event["jobId"]) for event in [await next_event(wire) for _ in range(count)]]


async def test_lost_connection_ends_its_subscription(gateways: tuple[Gateway, Gateway], queue_name: str):
    async with Wire(gateways[0]) as wire:
        await good(wire, "SubscribeEvents", queue=queue_name)
        assert list(feeds_of(gateways[0])) == [queue_name]
    async with asyncio.timeout(60):
        while feeds_of(gateways[0]):  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)


async def workers(wire: Wire, name: str) -> list[dict[str, Any]]:
    return [each for each in (await good(wire, "ListWorkers"))["data"]["workers"] if each["name"] == name]


async def test_silent_workers_are_stale_and_then_forgotten(wire: Wire, queue_name: str, url: str, resp: RespClient):
    now = int(time.time() * 1_000)
    for number, age in enumerate((0, remote_control.STALE_MS + 1_000, FORGOTTEN_MS + 1_000)):
        seen = now - age
        worker = {"id": f"{queue_name}-{number}", "name": queue_name, "concurrency": 1, "pid": 0, "registeredAt": seen}
        worker |= {"lastSeen": seen, "activeJobs": 0, "processedJobs": 0, "failedJobs": 0}
        resp.execute("HSET", "glide:gateway:workers", f"{queue_name}-{number}", json.dumps(worker))
    resp.execute("HSET", "glide:gateway:workers", f"{queue_name}-bad", "{")
    statuses = {each["id"][-1]: each["status"] for each in await workers(wire, queue_name)}
    assert statuses == {"0": "active", "1": "stale"}
    left = resp.execute("HKEYS", "glide:gateway:workers")
    assert f"{queue_name}-bad" not in str(left)
    resp.execute("DEL", "glide:gateway:workers")


async def test_event_that_is_nested_too_deeply_does_not_end_the_others(
    wire: Wire, queue: Queue, caplog: pytest.LogCaptureFixture
):
    await good(wire, "SubscribeEvents", queue=queue.name)
    jobs = [await queue.add("x", 1) for _ in range(2)]
    link = await connected(queue)
    for each in jobs:  # as a program that does not check the depth
        await link.transport.command("HSET", link.keys.job(each.id), "data", "[" * 600 + "]" * 600)
    for lease in await queue.fetch(2):
        await lease.fail("bad", retry=False)
    last = await queue.add("x", 1)
    seen: list[tuple[str, str]] = []
    while ("pushed", f"{queue.name}:{last.id}") not in seen:
        seen += await kinds(wire, 1)
    assert "failed" not in {kind for kind, _ in seen}
    warnings = [each.getMessage() for each in caplog.records if "nested too deeply" in each.getMessage()]
    assert len(warnings) == 1
    assert f"failed of job {jobs[0].id}" in warnings[0]


async def test_feed_that_ended_starts_again(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    await good(wire, "SubscribeEvents", queue=queue.name)
    feed = feeds_of(gateways[0])[queue.name]._parts[queue.name]

    async def broken(_: object) -> bytes:
        raise LookupError

    async def end():
        task = feed._task
        assert task is not None
        with monkeypatch.context() as patch:
            patch.setattr(feed, "_frames", broken)
            await queue.add("x", 1)
            with pytest.raises(LookupError):
                await task

    await end()
    await good(wire, "SubscribeEvents", queue=queue.name)
    job = await queue.add("x", 2)
    while await kinds(wire, 1) != [("pushed", f"{queue.name}:{job.id}")]:
        pass
    await end()
    await feed.close()  # it does not raise the error again


async def test_run_without_a_worker_is_skipped(wire: Wire, other: Wire, queue: Queue):
    """A client's worker counts, whichever gateway it uses, and a colon in the queue's name does not matter."""
    of_client, name = f"{queue.name}:x", f"{queue.name}-idle"
    cron = {"name": name, "queue": of_client, "repeatEvery": 200, "skipIfNoWorker": True}
    await good(wire, "Cron", **cron)
    async with Queue(f"{queue.name}%3Ax", connection_of(queue)) as found, asyncio.timeout(60):
        while (await found.schedulers.get_all())[0].skipped_count < 2:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.05)
        assert await found.count() == 0
        await good(other, "RegisterWorker", name="w", queues=[of_client], workerId=name)
        assert (await good(other, "PULL", queue=of_client, owner="w", timeout=60_000))["job"]["name"] == "default"
        (scheduler,) = await found.schedulers.get_all()
        assert (scheduler.schedule.skip_without_worker, scheduler.for_peers) == (True, False)
    await good(wire, "CronDelete", name=name)
