"""Events for subscribed connections, and the workers of clients, with raw frames."""

import asyncio
import json
import time
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py._job.client_workers import STALE_MS
from glidemq_py.gateway import Gateway
from glidemq_py.gateway.commands.workers import FORGOTTEN_MS
from glidemq_py.testing import RespClient
from tests.server.gateway.wire import Wire, failure, good

Event = dict[str, Any]


async def next_event(wire: Wire) -> Event:
    frame = await wire.receive()
    assert frame["type"] == "event"
    assert "reqId" not in frame
    event: Event = frame["event"]
    return event


async def kinds(wire: Wire, count: int) -> list[tuple[str, str]]:
    return [(event["eventType"], event["jobId"]) for event in [await next_event(wire) for _ in range(count)]]


async def test_life_of_jobs(wire: Wire, other: Wire, queue_name: str) -> None:
    await good(wire, "SubscribeEvents", queue=queue_name)
    job_id = (await good(other, "PUSH", queue=queue_name, data={"n": 1}, maxAttempts=2, backoff=0))["id"]
    event = await next_event(wire)
    assert (event["eventType"], event["jobId"], event["queue"]) == ("pushed", job_id, queue_name)
    assert isinstance(event["timestamp"], float)  # clients take an event with a BigInt for a broken frame
    token = (await good(other, "PULL", queue=queue_name, owner="w"))["token"]
    event = await next_event(wire)
    assert (event["eventType"], event["jobId"], event["queue"]) == ("pulled", job_id, queue_name)
    await good(other, "Progress", id=job_id, progress=50, message="half")
    event = await next_event(wire)
    assert (event["eventType"], event["progress"]) == ("progress", 50)
    assert event["data"] == {"progress": 50, "message": "half"}
    await good(other, "FAIL", id=job_id, token=token, error="bad")
    event = await next_event(wire)
    assert (event["eventType"], event["error"], event["terminal"]) == ("failed", "bad", False)
    assert event["data"] == {"n": 1}
    event = await next_event(wire)
    assert (event["eventType"], event["prev"]) == ("retried", "failed")
    token = (await good(other, "PULL", queue=queue_name, owner="w", timeout=60_000))["token"]
    assert await kinds(wire, 1) == [("pulled", job_id)]
    await good(other, "MoveToDelayed", id=job_id, token=token, delay=1)
    event = await next_event(wire)
    assert (event["eventType"], event["delay"]) == ("delayed", 1)
    token = (await good(other, "PULL", queue=queue_name, owner="w", timeout=60_000))["token"]
    assert await kinds(wire, 1) == [("pulled", job_id)]
    await good(other, "ACK", id=job_id, token=token, result={"done": True})
    event = await next_event(wire)
    assert (event["eventType"], event["data"]) == ("completed", {"done": True})
    second = (await good(other, "PUSH", queue=queue_name, data=1))["id"]
    await good(other, "Cancel", id=second)
    await good(other, "Pause", queue=queue_name)
    await good(other, "Resume", queue=queue_name)
    expected = [("pushed", second), ("removed", second), ("paused", ""), ("resumed", "")]
    assert await kinds(wire, 4) == expected


@pytest.mark.slow
async def test_expired_locks(wire: Wire, other: Wire, queue_name: str) -> None:
    await good(wire, "SubscribeEvents", queue=queue_name)
    job_id = (await good(other, "PUSH", queue=queue_name, data=1, maxAttempts=2, backoff=3_600_000))["id"]
    pulled = await good(other, "PULL", queue=queue_name, owner="w", lockTtl=1_000)
    assert await kinds(wire, 3) == [("pushed", job_id), ("pulled", job_id), ("stalled", job_id)]
    again = await good(other, "PULL", queue=queue_name, owner="w", lockTtl=1_000, timeout=60_000)
    assert (again["job"]["attempts"], again["job"]["stallCount"]) == (1, 1)
    error = f"Invalid or expired lock token for job {job_id}"
    assert await failure(other, "ACK", id=job_id, token=pulled["token"]) == error
    assert await kinds(wire, 2) == [("pulled", job_id), ("stalled", job_id)]
    event = await next_event(wire)
    assert (event["eventType"], event["error"]) == ("failed", "Lock expired (max attempts reached)")
    (entry,) = (await good(other, "Dlq", queue=queue_name))["entries"]
    assert (entry["reason"], entry["error"]) == ("max_attempts_exceeded", event["error"])
    assert [(each["attempt"], each["reason"]) for each in entry["attempts"]] == [(1, "stalled"), (2, "stalled")]
    assert (entry["job"]["attempts"], entry["job"]["stallCount"]) == (2, 2)


async def test_duplicates(wire: Wire, other: Wire, queue: Queue) -> None:
    """Also those of other programs; the event names the job that exists."""
    await good(wire, "SubscribeEvents", queue=queue.name)
    job_id = (await good(other, "PUSH", queue=queue.name, data=1, uniqueKey="k"))["id"]
    assert (await good(other, "PUSH", queue=queue.name, data=2, uniqueKey="k"))["id"] == job_id
    assert await kinds(wire, 2) == [("pushed", job_id), ("duplicated", job_id)]
    assert (await queue.add("n", 3, deduplication={"id": "k"})).id == job_id
    assert await kinds(wire, 1) == [("duplicated", job_id)]


@pytest.mark.parametrize(
    "options", [{"priority": 5}, {"lifo": True}, {"groupId": "g"}], ids=lambda each: next(iter(each))
)
async def test_each_start_is_one_event(wire: Wire, other: Wire, queue: Queue, options: dict[str, Any]) -> None:
    """Jobs of some kinds have an event of their own for the peer library."""
    await good(wire, "SubscribeEvents", queue=queue.name)
    job_id = (await good(other, "PUSH", queue=queue.name, data=1, **options))["id"]
    token = (await good(other, "PULL", queue=queue.name, owner="w"))["token"]
    await good(other, "ACK", id=job_id, token=token)
    assert await kinds(wire, 3) == [("pushed", job_id), ("pulled", job_id), ("completed", job_id)]


async def test_queue_without_a_subscriber_has_no_such_events(other: Wire, queue: Queue) -> None:
    for _ in range(2):
        await good(other, "PUSH", queue=queue.name, data=1, uniqueKey="k")
    await good(other, "PULL", queue=queue.name, owner="w")
    link = await queue._connected()
    assert await link.transport.command("XLEN", link.keys.events) == 1  # added


async def test_long_delays_are_portable(wire: Wire, other: Wire, queue_name: str) -> None:
    job_id = (await good(other, "PUSH", queue=queue_name, delay=60_000))["id"]
    await good(wire, "SubscribeEvents", queue=queue_name)
    for delay in (10_000_000_000, 31_536_000_000):
        await good(other, "ChangeDelay", id=job_id, delay=delay)
        event = await next_event(wire)
        assert (event["eventType"], event["delay"]) == ("delayed", delay)
        assert isinstance(event["delay"], float)  # clients read 64-bit integers as BigInt
        assert isinstance(event["timestamp"], float)


async def test_all_subscribers_get_events_of_every_program(
    gateways: tuple[Gateway, Gateway], wire: Wire, other: Wire, queue: Queue
) -> None:
    async with Wire(gateways[0]) as third:
        for each in (wire, other, third):
            await good(each, "SubscribeEvents", queue=queue.name)
        job = await queue.add("x", 1)
        for each in (wire, other, third):
            assert await kinds(each, 1) == [("pushed", f"{queue.name}:{job.id}")]


async def test_subscription_is_replaced_and_ended(gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue) -> None:
    second = f"{queue.name}-2"
    await good(wire, "SubscribeEvents", queue=queue.name)
    await good(wire, "SubscribeEvents", queue=second)
    await queue.add("x", 1)
    async with Wire(gateways[0]) as pusher:
        job_id = (await good(pusher, "PUSH", queue=second, data=1))["id"]
        assert await kinds(wire, 1) == [("pushed", job_id)]
        await good(wire, "UnsubscribeEvents")
        await good(pusher, "PUSH", queue=second, data=1)
    assert (await good(wire, "Ping"))["data"]["pong"] is True  # and no event came before
    assert gateways[0]._feeds == {}


async def test_lost_connection_ends_its_subscription(gateways: tuple[Gateway, Gateway], queue_name: str) -> None:
    async with Wire(gateways[0]) as wire:
        await good(wire, "SubscribeEvents", queue=queue_name)
        assert list(gateways[0]._feeds) == [queue_name]
    async with asyncio.timeout(60):
        while gateways[0]._feeds:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)


async def workers(wire: Wire, name: str) -> list[dict[str, Any]]:
    return [each for each in (await good(wire, "ListWorkers"))["data"]["workers"] if each["name"] == name]


async def test_workers(wire: Wire, other: Wire, queue_name: str) -> None:
    register = {"name": queue_name, "queues": [queue_name], "concurrency": 3, "workerId": f"w-{queue_name}"}
    answer = (await good(wire, "RegisterWorker", **register, pid=7))["data"]
    assert (answer["workerId"], answer["status"], answer["hostname"], answer["pid"]) == (
        register["workerId"], "active", "unknown", 7,
    )  # fmt: skip
    beat = {"id": register["workerId"], "activeJobs": 1, "processed": 5, "failed": 2}
    assert (await good(other, "Heartbeat", **beat))["data"] == {"ok": True}
    (worker,) = await workers(other, queue_name)
    assert (worker["activeJobs"], worker["processedJobs"], worker["failedJobs"]) == (1, 5, 2)
    assert worker["uptime"] >= 0
    assert (await good(other, "ListWorkers"))["data"]["stats"]["concurrencySlots"] >= 3
    assert (await good(other, "UnregisterWorker", workerId=register["workerId"]))["data"] == {"removed": True}
    assert await failure(wire, "UnregisterWorker", workerId=register["workerId"]) == "Worker not found"
    assert await failure(wire, "Heartbeat", **beat) == "Worker not found"


async def test_worker_of_a_lost_connection_is_removed(
    gateways: tuple[Gateway, Gateway], other: Wire, queue_name: str
) -> None:
    async with Wire(gateways[0]) as wire:
        await good(wire, "RegisterWorker", name=queue_name)
        assert len(await workers(other, queue_name)) == 1
    async with asyncio.timeout(60):
        while await workers(other, queue_name):  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)


async def test_silent_workers_are_stale_and_then_forgotten(
    wire: Wire, queue_name: str, url: str, resp: RespClient
) -> None:
    now = int(time.time() * 1_000)
    for number, age in enumerate((0, STALE_MS + 1_000, FORGOTTEN_MS + 1_000)):
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
) -> None:
    await good(wire, "SubscribeEvents", queue=queue.name)
    jobs = [await queue.add("x", 1) for _ in range(2)]
    link = await queue._connected()
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
) -> None:
    await good(wire, "SubscribeEvents", queue=queue.name)
    feed = gateways[0]._feeds[queue.name]._parts[queue.name]

    async def broken(_: object) -> bytes:
        raise LookupError

    async def end() -> None:
        assert feed._task is not None
        with monkeypatch.context() as patch:
            patch.setattr(feed, "_frames", broken)
            await queue.add("x", 1)
            with pytest.raises(LookupError):
                await feed._task

    await end()
    await good(wire, "SubscribeEvents", queue=queue.name)
    job = await queue.add("x", 2)
    while await kinds(wire, 1) != [("pushed", f"{queue.name}:{job.id}")]:
        pass
    await end()
    await feed.close()  # it does not raise the error again
