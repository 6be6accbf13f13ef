"""The commands of the protocol on a partitioned queue."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from glidemq_py import Job, Queue
from glidemq_py.gateway import Gateway, restore_ids
from glidemq_py.testing import RespClient
from tests.inside import read_jobs
from tests.server.gateway.test_events import next_event
from tests.server.gateway.test_http import Client, Events
from tests.server.gateway.test_webhooks import LOCAL, Received, Receiver, add, run_one
from tests.server.gateway.wire import Wire, good, state_of

PARTITIONS = 4


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        yield queue


async def push(wire: Wire, queue: Queue, count: int, **fields: Any) -> list[str]:
    return [
        (await good(wire, "PUSH", queue=queue.name, **{"name": "n", "data": number, **fields}))["id"]
        for number in range(count)
    ]


# -- control ---------------------------------------------------------------------------------------------------


async def test_a_page_of_jobs_reads_the_data_of_no_others(
    wire: Wire, other: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    ids = [await push(wire, queue, 1, **({"delay": 60_000} if at % 3 else {})) for at in range(30)]
    added = [one for (one,) in ids]
    read: list[str] = []
    create = Job.__init__

    def counted(job: Any, link: Any, job_id: str, *args: Any):
        read.append(job_id)
        create(job, link, job_id, *args)

    monkeypatch.setattr(Job, "__init__", counted)
    for oldest, order in ((True, added), (False, added[::-1])):
        for offset in (0, 13, 27, 30):
            read.clear()
            jobs = (await good(other, "GetJobs", queue=queue.name, offset=offset, limit=5, asc=oldest))["jobs"]
            assert [job["id"] for job in jobs] == order[offset : offset + 5]
            assert len(read) == len(jobs)


async def test_a_job_that_changes_while_jobs_are_listed(
    wire: Wire, other: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    """It is left out if it is deleted or in no wanted state any more; others are listed."""
    late = await push(wire, queue, 3, delay=60_000)
    change: Callable[[], Awaitable[Any]] | None = None

    async def changing(*args: Any, **options: Any) -> Any:
        nonlocal change
        if change is not None:
            now, change = change, None
            await now()
        return await read_jobs(*args, **options)

    async def listed(**fields: Any) -> list[tuple[str, str]]:
        jobs = (await good(wire, "GetJobs", queue=queue.name, **fields))["jobs"]
        return [(job["id"], job["state"]) for job in jobs]

    monkeypatch.setattr("glidemq_py.gateway.listing.read_jobs", changing)
    change = partial(good, other, "Promote", id=late[0])
    assert await listed(state="delayed") == [(late[1], "delayed"), (late[2], "delayed")]
    change = partial(good, other, "Promote", id=late[1])
    assert await listed(state=["waiting", "delayed"]) == [
        (late[0], "waiting"), (late[1], "waiting"), (late[2], "delayed"),
    ]  # fmt: skip
    change = partial(good, other, "Cancel", id=late[2])
    assert await listed() == [(late[0], "waiting"), (late[1], "waiting")]


# -- cron, flows -----------------------------------------------------------------------------------------------


async def test_http_events_are_resumed_by_another_gateway(url: str, queue: Queue):
    path = f"/events/queues/{queue.name}"
    ids: list[str] = []
    seen: set[str] = set()
    last: str | None = None
    for _ in range(3):
        async with Gateway(url, port=0, http_port=0) as gateway, Wire(gateway) as wire:
            async with Events(Client(gateway), path, last) as events:
                ids += await push(wire, queue, PARTITIONS)
                while not seen >= set(ids):
                    last, event = await events.next("job:pushed")
                    seen.add(event["jobId"])
            ids += await push(wire, queue, PARTITIONS)  # read after resuming
    async with Gateway(url, port=0, http_port=0) as gateway, Events(Client(gateway), path, last) as events:
        while not seen >= set(ids):
            seen.add((await events.next("job:pushed"))[1]["jobId"])


def of_failed(received: list[Received]) -> list[Received]:
    return [each for each in received if each.content["event"] == "job.failed"]


def has_failed(count: int, received: list[Received]) -> bool:
    return len(of_failed(received)) == count


async def test_webhooks_and_events_continue_after_the_queue_was_deleted(
    url: str, queue_name: str, caplog: pytest.LogCaptureFixture
):
    prefix = f"{queue_name}-deleted"
    options: dict[str, Any] = {"prefix": prefix, "webhook_networks": LOCAL, "webhook_backoff": 1}
    async with (
        Queue(queue_name, url, prefix=prefix, partitions=PARTITIONS) as queue, Receiver() as receiver,
        Gateway(url, port=0, http_port=0, **options) as gateway, Wire(gateway) as wire, Wire(gateway) as subscribed,
    ):  # fmt: skip
        await add(wire, receiver, events=["job.failed"], queue=queue_name)
        await good(subscribed, "SubscribeEvents", queue=queue_name)
        async with Events(Client(gateway), f"/events/queues/{queue_name}") as events:
            for deliveries in (1, 2):
                await push(wire, queue, 1, maxAttempts=1)
                job_id = await run_one(wire, queue_name, "on purpose")
                while (event := await next_event(subscribed))["eventType"] != "failed":
                    pass
                assert (event["jobId"], event["data"]) == (job_id, 0)
                assert (await events.next("job:failed"))[1]["jobId"] == job_id
                received = await receiver.wait_for(partial(has_failed, deliveries))
                found = of_failed(received)[-1].content
                assert (found["jobId"], found["data"], found["error"]) == (job_id, 0, "on purpose")
                await good(wire, "Obliterate", queue=queue_name)
                # Another webhook of the queue lets its reader prepare the queue again.
                await add(wire, receiver, events=["job.pushed"], queue=queue_name, url=receiver.url("/late"))
                await wire.call("RemoveWebhook", webhookId=await add(wire, receiver, events=["job.progress"]))
    said = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert [each for each in said if each.startswith("gateway:")] == []


async def test_restored_jobs_are_found_by_their_ids(url: str, queue_name: str, resp: RespClient):
    prefix = f"{queue_name}-ids"
    async with Queue(queue_name, url, prefix=prefix, partitions=PARTITIONS) as queue:
        async with Gateway(url, port=0, prefix=prefix) as gateway, Wire(gateway) as wire:
            ids = await push(wire, queue, 8)
            ids += [(await good(wire, "PUSH", queue=queue_name, data=1, jobId=f"c:{n}"))["id"] for n in range(8)]
            ids += [
                (await good(wire, "PUSH", queue=queue_name, data=1, jobId=f"g:{n}", groupId="g"))["id"] for n in "ab"
            ]
        for key in resp.keys(f"{prefix}:gateway:*"):
            resp.execute("DEL", key)
        (restored,) = await restore_ids(url, prefix=prefix)
        assert (restored.queue, restored.made, restored.chosen, restored.taken) == (queue_name, 8, 10, 0)
        async with Gateway(url, port=0, prefix=prefix) as gateway, Wire(gateway) as wire:
            assert {await state_of(wire, each) for each in ids} == {"waiting"}
            assert {job["id"] for job in (await good(wire, "GetJobs", queue=queue_name))["jobs"]} == set(ids)


@pytest.mark.slow
async def test_webhooks_and_http_events_include_new_partitions(url: str, queue_name: str):
    prefix = f"{queue_name}-new"
    options: dict[str, Any] = {"prefix": prefix, "webhook_networks": LOCAL, "webhook_backoff": 1}
    async with (
        Receiver() as receiver,
        Gateway(url, port=0, http_port=0, **options) as first, Gateway(url, port=0, **options) as second,
        Wire(first) as wire, Wire(second) as other,
    ):  # fmt: skip
        await add(wire, receiver, events=["job.pushed"], queue=queue_name)
        async with Events(Client(first), f"/events/queues/{queue_name}") as events:
            async with Queue(queue_name, url, prefix=prefix, partitions=PARTITIONS) as queue:
                ids = set(await push(other, queue, 2 * PARTITIONS))
            added = set(ids)
            while added:
                added.discard((await events.next("job:pushed"))[1]["jobId"])
        received = await receiver.wait_for_count(len(ids))
        assert {each.content["jobId"] for each in received} == ids
