"""The commands of the protocol on a partitioned queue."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from glidemq_py import Job, Queue
from glidemq_py._job.reading import read_jobs
from glidemq_py.gateway import Gateway, restore_ids
from glidemq_py.testing import RespClient
from tests.server.gateway.test_events import next_event
from tests.server.gateway.test_http import Client, Events
from tests.server.gateway.test_webhooks import LOCAL, Received, Receiver, add, run_one
from tests.server.gateway.wire import Wire, failure, good, state_of

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


# -- queries ---------------------------------------------------------------------------------------------------


async def test_counts_and_lists_are_those_of_the_whole_queue(wire: Wire, other: Wire, queue: Queue) -> None:
    name = queue.name
    ids = await push(wire, queue, 10)
    ranked = await push(wire, queue, 4, priority=5)
    late = await push(wire, queue, 3, delay=60_000)
    python = [f"{name}:{(await queue.add('py', number)).id}" for number in range(3)]
    counts = (await good(other, "GetJobCounts", queue=name))["counts"]
    assert (counts["waiting"], counts["prioritized"], counts["delayed"]) == (13, 4, 3)
    assert (await good(other, "Count", queue=name))["count"] == 20
    assert (await good(other, "GetCountsPerPriority", queue=name))["counts"] == {"0": 13, "5": 4}
    jobs = (await good(other, "GetJobs", queue=name))["jobs"]
    listed = [job["id"] for job in jobs]
    assert sorted(listed) == sorted([*ids, *ranked, *late, *python])
    assert [each for each in listed if each not in python] == [*ids, *ranked, *late]
    assert {job["queue"] for job in jobs} == {name}
    newest = (await good(other, "GetJobs", queue=name, asc=False, limit=5, offset=1))["jobs"]
    assert [job["id"] for job in newest] == listed[::-1][1:6]
    delayed = (await good(other, "GetJobs", queue=name, state="delayed", limit=2))["jobs"]
    assert [job["id"] for job in delayed] == late[:2]
    assert name in (await good(other, "ListQueues"))["queues"]
    assert not [each for each in (await good(other, "ListQueues"))["queues"] if each.startswith(f"{name}~")]
    for each in python:
        assert (await good(other, "GetJob", id=each))["job"]["id"] == each
    assert (await good(other, "GetJob", id=python[0]))["job"]["customId"] is None


async def test_logs_and_progress_of_a_job(wire: Wire, other: Wire, queue: Queue) -> None:
    for job_id in await push(wire, queue, PARTITIONS):
        await good(wire, "AddLog", id=job_id, message="one")
        await good(other, "AddLog", id=job_id, message="two", level="warn")
        logs = (await good(other, "GetLogs", id=job_id))["data"]
        assert [(line["level"], line["message"]) for line in logs["logs"]] == [("info", "one"), ("warn", "two")]
        await good(other, "ClearLogs", id=job_id, keepLogs=1)
        assert (await good(wire, "GetLogs", id=job_id))["data"]["count"] == 1
        await good(wire, "PULL", queue=queue.name)
    for job in (await good(wire, "GetJobs", queue=queue.name, state="active"))["jobs"]:
        await good(other, "Progress", id=job["id"], progress=40, message="m")
        assert (await good(wire, "GetProgress", id=job["id"]))["progress"] == 40


async def test_a_result_is_awaited(wire: Wire, other: Wire, queue: Queue) -> None:
    for job_id in await push(wire, queue, PARTITIONS):
        waiting = asyncio.create_task(good(other, "WaitJob", id=job_id, timeout=30_000))
        assert await run_one(wire, queue.name) == job_id
        found = await waiting
        assert (found["completed"], found["result"]) == (True, {"r": 1})


# -- control ---------------------------------------------------------------------------------------------------


async def test_jobs_are_changed_and_moved_by_id(wire: Wire, other: Wire, queue: Queue) -> None:
    name = queue.name
    for job_id in await push(wire, queue, PARTITIONS):
        await good(other, "Update", id=job_id, data={"new": 1})
        assert (await good(wire, "GetJob", id=job_id))["job"]["data"] == {"new": 1}
        await good(other, "ChangePriority", id=job_id, priority=7)
        assert await state_of(wire, job_id) == "prioritized"
        await good(other, "ChangeDelay", id=job_id, delay=60_000)
        assert await state_of(wire, job_id) == "delayed"
        await good(other, "Promote", id=job_id)
        pulled = await good(wire, "PULL", queue=name, owner="w")
        assert pulled["job"]["id"] == job_id
        await good(other, "MoveToDelayed", id=job_id, token=pulled["token"], delay=60_000)
        await good(other, "MoveToWait", id=job_id)
        pulled = await good(wire, "PULL", queue=name, owner="w")
        await good(other, "MoveToWait", id=job_id, token=pulled["token"])
        await good(other, "Discard", id=job_id)
        assert await state_of(wire, job_id) == "failed"
    cancelled = await push(wire, queue, PARTITIONS)
    for job_id in cancelled:
        await good(other, "Cancel", id=job_id)
        assert await state_of(wire, job_id) == "unknown"


async def test_a_page_of_jobs_reads_the_data_of_no_others(
    wire: Wire, other: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await push(wire, queue, 1, **({"delay": 60_000} if at % 3 else {})) for at in range(30)]
    added = [one for (one,) in ids]
    read: list[str] = []
    from_record = Job.from_record.__func__  # type: ignore[attr-defined]

    def counted(cls: Any, link: Any, record: Any, *args: Any) -> Any:
        read.append(record.id)
        return from_record(cls, link, record, *args)

    monkeypatch.setattr(Job, "from_record", classmethod(counted))
    for oldest, order in ((True, added), (False, added[::-1])):
        for offset in (0, 13, 27, 30):
            read.clear()
            jobs = (await good(other, "GetJobs", queue=queue.name, offset=offset, limit=5, asc=oldest))["jobs"]
            assert [job["id"] for job in jobs] == order[offset : offset + 5]
            assert len(read) == len(jobs)


async def test_a_job_that_changes_while_jobs_are_listed(
    wire: Wire, other: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_the_queue_is_paused_drained_cleaned_and_deleted(wire: Wire, other: Wire, queue: Queue) -> None:
    name = queue.name
    await push(wire, queue, 8)
    await good(other, "Pause", queue=name)
    assert (await good(wire, "IsPaused", queue=name))["paused"] is True
    assert (await good(wire, "PULL", queue=name))["job"] is None
    assert (await good(wire, "GetJobCounts", queue=name))["counts"]["paused"] == 8
    waiting = asyncio.create_task(good(wire, "PULL", queue=name, timeout=30_000))
    await good(other, "Resume", queue=name)
    assert (await waiting)["job"] is not None
    late = await push(wire, queue, 6, delay=60_000)
    assert (await good(other, "PromoteJobs", queue=name, count=4))["count"] == 4
    assert [await state_of(wire, each) for each in late].count("delayed") == 2
    cleaned = await good(other, "Clean", queue=name, state="delayed")
    assert (cleaned["count"], set(cleaned["ids"]) < set(late)) == (2, True)
    assert (await good(other, "Drain", queue=name))["count"] == 11
    assert (await good(other, "TrimEvents", queue=name, maxLength=0))["data"]["removed"] > 20
    await good(other, "Obliterate", queue=name)
    assert (await good(wire, "Count", queue=name))["count"] == 0
    again = (await good(other, "PUSH", queue=name, name="n", data=1))["id"]
    assert (await good(other, "PULL", queue=name, timeout=30_000))["job"]["id"] == again


async def test_limits_are_those_of_the_whole_queue(wire: Wire, other: Wire, queue: Queue) -> None:
    name = queue.name
    await push(wire, queue, 12)
    await good(wire, "SetConcurrency", queue=name, limit=PARTITIONS)
    assert len((await good(other, "PULLB", queue=name, count=20, owner="w"))["jobs"]) == PARTITIONS
    limits = (await good(other, "GetQueueLimits", queue=name))["data"]["limits"]
    assert (limits["concurrencyLimit"], limits["maxed"]) == (PARTITIONS, True)
    error = await failure(other, "SetConcurrency", queue=name, limit=2)
    assert error == f"limit must be at least the number of partitions, {PARTITIONS}"
    error = await failure(other, "RateLimit", queue=name, limit=2)
    assert error == f"limit must be at least the number of partitions, {PARTITIONS}"
    await good(wire, "ClearConcurrency", queue=name)
    await good(wire, "RateLimit", queue=name, limit=PARTITIONS, duration=60_000)
    await good(other, "PULLB", queue=name, count=20, owner="w")
    assert (await good(other, "GetQueueLimits", queue=name))["data"]["limits"]["rateLimit"]["max"] == PARTITIONS
    await good(wire, "RateLimitClear", queue=name)


async def test_groups_have_limits_and_pauses(wire: Wire, other: Wire, queue: Queue) -> None:
    name = queue.name
    for group in ("a", "b", "c"):
        await push(wire, queue, 2, groupId=group)
        await good(other, "SetGroupConcurrency", queue=name, groupId=group, concurrency=1)
    assert (await good(other, "GetGroupsJobsCount", queue=name))["data"]["count"] == 6
    jobs = (await good(wire, "PULLB", queue=name, count=9, owner="w"))["jobs"]
    assert sorted(job["groupId"] for job in jobs) == ["a", "b", "c"]
    await good(other, "PauseGroup", queue=name, groupId="a")
    assert (await good(wire, "IsGroupPaused", queue=name, groupId="a"))["data"]["paused"] is True
    await good(other, "RateLimitGroup", queue=name, groupId="b", duration=60_000)
    assert (await good(wire, "GetGroupRateLimitTtl", queue=name, groupId="b"))["data"]["ttl"] > 50_000


# -- failed jobs -----------------------------------------------------------------------------------------------


async def test_failed_jobs_of_all_partitions(wire: Wire, other: Wire, queue: Queue) -> None:
    name = queue.name
    ids = await push(wire, queue, 8, maxAttempts=1)
    for _ in ids:
        await run_one(wire, name, error="boom")
    entries = (await good(other, "Dlq", queue=name))["entries"]
    assert {entry["job"]["id"] for entry in entries} == set(ids)
    assert {entry["error"] for entry in entries} == {"boom"}
    assert (await good(other, "GetDlqStats", queue=name))["data"]["stats"]["total"] == 8
    assert (await good(other, "RetryDlq", queue=name, jobId=ids[3]))["count"] == 1
    assert await state_of(wire, ids[3]) == "waiting"
    assert (await good(other, "RemoveDlqJob", queue=name, jobId=ids[2]))["data"]["removed"] is True
    assert (await good(other, "RetryDlq", queue=name, count=3))["count"] == 3
    assert (await good(other, "PurgeDlq", queue=name))["count"] == 3
    done = [await run_one(wire, name) for _ in range(4)]
    assert (await good(other, "RetryCompleted", queue=name, id=done[0]))["count"] == 1
    await good(other, "SetDlqConfig", queue=name, config={"maxEntries": 100})
    assert (await good(wire, "GetDlqConfig", queue=name))["config"]["maxEntries"] == 100
    await good(other, "SetStallConfig", queue=name, config={"maxStalls": 3})
    assert (await good(wire, "GetStallConfig", queue=name))["config"]["maxStalls"] == 3


async def test_negative_priorities_and_times(wire: Wire, other: Wire, queue: Queue) -> None:
    name = queue.name
    low, late = await push(wire, queue, 4, priority=-2), await push(wire, queue, 4, delay=60_000)
    await push(wire, queue, 3)
    counts = (await good(other, "GetJobCounts", queue=name))["counts"]
    assert (counts["waiting"], counts["prioritized"], counts["delayed"]) == (7, 0, 4)
    assert (await good(other, "GetJobs", queue=name, state="prioritized"))["jobs"] == []
    listed = (await good(other, "GetJobs", queue=name, state="delayed"))["jobs"]
    assert {job["id"]: job["runAt"] - job["createdAt"] for job in listed} == dict.fromkeys(late, 60_000)
    cleaned = await good(other, "Clean", queue=name, state="waiting")
    assert (cleaned["count"], set(low) <= set(cleaned["ids"])) == (7, True)


@pytest.mark.slow
async def test_expired_locks_are_recovered_without_workers(wire: Wire, queue: Queue) -> None:
    """Gateways run the maintenance of every partition."""
    ids = set(await push(wire, queue, PARTITIONS))
    pulled = await good(wire, "PULLB", queue=queue.name, count=9, owner="w", lockTtl=1_000, detach=True)
    assert {job["id"] for job in pulled["jobs"]} == ids
    again: set[str] = set()
    async with asyncio.timeout(120):
        while again != ids:
            found = await good(wire, "PULLB", queue=queue.name, count=9, owner="v", timeout=60_000)
            again |= {job["id"] for job in found["jobs"]}
            await good(wire, "ACKB", ids=[job["id"] for job in found["jobs"]], tokens=found["tokens"])


# -- cron, flows -----------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_cron_jobs_and_repeated_jobs(wire: Wire, other: Wire, queue: Queue) -> None:
    name = queue.name
    for number in range(3):
        cron = f"{name}-{number}"
        await good(wire, "Cron", name=cron, queue=name, repeatEvery=60_000, immediately=True, data={"c": number})
        assert (await good(other, "CronGet", name=cron))["cron"]["queue"] == name
    ran: set[int] = set()
    while len(ran) < 3:
        job = (await good(other, "PULL", queue=name, owner="w", timeout=60_000))["job"]
        assert job["id"].startswith(f"{name}:")
        ran.add(job["data"]["c"])
    listed = [each["name"] for each in (await good(other, "CronList"))["crons"] if each["queue"] == name]
    assert listed == [f"{name}-{number}" for number in range(3)]
    await good(other, "CronDelete", name=f"{name}-1")
    assert await failure(wire, "CronGet", name=f"{name}-1") == "Cron job not found"
    await push(wire, queue, 1, repeat={"every": 60_000, "jobId": name})
    assert (await good(other, "CronGet", name=f"repeat:{name}"))["cron"]["queue"] == name


async def test_flows(wire: Wire, other: Wire, queue: Queue) -> None:
    name = queue.name
    children = [f"{name}-child-{number}" for number in range(6)]
    parent = f"{name}-parent"
    jobs = [
        *({"id": each, "queue": name, "input": {"name": "child", "data": {"n": 1}}} for each in children),
        {
            "id": parent, "queue": name,
            "input": {"name": "parent", "data": {"n": 2}, "dependsOn": children, "childrenIds": children},
        },
    ]  # fmt: skip
    added = (await good(wire, "PUSHF", jobs=jobs))["data"]["jobs"]
    assert [job["id"] for job in added] == [*children, parent]
    assert "already exists" in await failure(other, "PUSHF", jobs=jobs)
    assert await state_of(other, parent) == "waiting-children"
    for _ in children:
        assert await run_one(other, name) in children
    family = (await good(other, "GetJob", id=parent))["job"]
    assert sorted(family["childrenIds"]) == children
    assert (await good(wire, "GetJob", id=children[2]))["job"]["parentId"] == parent
    values = (await good(wire, "GetChildrenValues", id=parent))["data"]["values"]
    assert values == {f"{name}:{each}": {"r": 1} for each in children}
    assert await run_one(wire, name) == parent


async def test_children_are_added_to_running_jobs(wire: Wire, other: Wire, queue: Queue) -> None:
    name = queue.name
    (parent,) = await push(wire, queue, 1)
    pulled = await good(wire, "PULL", queue=name, owner="w")
    children = await push(other, queue, PARTITIONS, parentId=parent)
    moved = await good(other, "MoveToWaitingChildren", id=parent, token=pulled["token"])
    assert moved["data"]["moved"] is True
    assert sorted((await good(wire, "GetJob", id=parent))["job"]["dependsOn"]) == sorted(children)
    assert (await good(wire, "GetJob", id=children[0]))["job"]["parentId"] == parent
    await good(other, "RemoveChildDependency", id=children[0])
    for each in children[1:3]:
        await good(other, "UpdateParent", childId=each, parentId=parent)  # it is already
    await good(other, "RemoveUnprocessedChildren", id=parent)
    assert [await state_of(wire, each) for each in children] == ["waiting", "unknown", "unknown", "unknown"]
    first, second = await run_one(other, name), await run_one(other, name)
    assert {first, second} == {parent, children[0]}


async def test_a_job_gets_a_child_of_another_partition(wire: Wire, other: Wire, queue: Queue) -> None:
    parent, child, third = await push(wire, queue, 3)
    await good(other, "UpdateParent", childId=child, parentId=parent)
    assert await state_of(wire, parent) == "waiting-children"
    error = await failure(wire, "UpdateParent", childId=child, parentId=third)
    assert error == f"Child job {child} already belongs to parent {parent}"
    assert "is a parent of" in await failure(wire, "UpdateParent", childId=parent, parentId=child)


async def test_keys_are_rejected_where_a_name_or_an_id_chooses_the_partition(wire: Wire, queue: Queue) -> None:
    name = queue.name
    flow = [{"id": f"{name}-a", "queue": name, "input": {"name": "n", "data": {}, "groupId": "g"}}]
    in_queue = f"in the partitioned queue '{name}'"
    assert await failure(wire, "PUSHF", jobs=flow) == (
        f"jobs[0]: PUSHF does not support groupId {in_queue}: the id of each job chooses the partition"
    )
    assert await failure(wire, "PUSH", queue=name, name="n", groupId="g", repeat={"every": 1_000}) == (
        f"repeat does not support groupId {in_queue}: the name of the scheduler chooses the partition"
    )
    error = await failure(wire, "Cron", name=name, queue=name, repeatEvery=1_000, uniqueKey="u")
    assert error == f"Cron does not support a unique key {in_queue}: the name of the scheduler chooses the partition"
    assert (await good(wire, "Count", queue=name))["count"] == 0


# -- events ----------------------------------------------------------------------------------------------------


async def test_subscribers_get_the_events_of_all_partitions(wire: Wire, other: Wire, queue: Queue) -> None:
    await good(wire, "SubscribeEvents", queue=queue.name)
    ids = await push(other, queue, PARTITIONS)
    python = f"{queue.name}:{(await queue.add('py', 1)).id}"
    found = [await next_event(wire) for _ in range(PARTITIONS + 1)]
    assert sorted((each["eventType"], each["jobId"]) for each in found) == sorted(
        ("pushed", each) for each in [*ids, python]
    )
    assert {each["queue"] for each in found} == {queue.name}
    await good(other, "Pause", queue=queue.name)
    assert (await next_event(wire))["eventType"] == "paused"
    await good(other, "Resume", queue=queue.name)
    assert (await next_event(wire))["eventType"] == "resumed"
    done = await run_one(other, queue.name)
    assert [(await next_event(wire))["eventType"] for _ in range(2)] == ["pulled", "completed"]
    assert done in [*ids, python]


async def test_http_events_are_resumed_by_another_gateway(url: str, queue: Queue) -> None:
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


async def test_webhooks_of_all_partitions(url: str, queue_name: str) -> None:
    prefix = f"{queue_name}-hooks"
    options: dict[str, Any] = {"prefix": prefix, "webhook_networks": LOCAL, "webhook_backoff": 1}
    async with (
        Queue(queue_name, url, prefix=prefix, partitions=PARTITIONS) as queue, Receiver() as receiver,
        Gateway(url, port=0, **options) as first, Gateway(url, port=0, **options) as second,
        Wire(first) as wire, Wire(second) as other,
    ):  # fmt: skip
        await add(wire, receiver, events=["job.pushed", "job.completed"], queue=queue_name)
        ids = await push(other, queue, 2 * PARTITIONS)
        for _ in ids:
            await run_one(wire, queue_name)
        received = await receiver.wait_for_count(4 * PARTITIONS)
        found = [(each.content["event"], each.content["jobId"]) for each in received]
        assert sorted(found) == sorted((event, each) for event in ("job.pushed", "job.completed") for each in ids)
        assert {each.content["queue"] for each in received} == {queue_name}
        for each in ids:
            assert found.index(("job.pushed", each)) < found.index(("job.completed", each))


def of_failed(received: list[Received]) -> list[Received]:
    return [each for each in received if each.content["event"] == "job.failed"]


def has_failed(count: int, received: list[Received]) -> bool:
    return len(of_failed(received)) == count


async def test_webhooks_and_events_continue_after_the_queue_was_deleted(
    url: str, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
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


async def test_figures_of_the_whole_queue(wire: Wire, other: Wire, queue: Queue) -> None:
    await push(wire, queue, 8)
    await run_one(wire, queue.name)
    found = [each for each in (await good(other, "DashboardQueues"))["data"]["queues"] if queue.name in each["name"]]
    assert [(each["name"], each["waiting"]) for each in found] == [(queue.name, 7)]
    one = (await good(other, "DashboardQueue", queue=queue.name))["data"]
    assert (one["name"], one["counts"]["completed"]) == (queue.name, 1)
    metrics = (await good(other, "Metrics", queue=queue.name, type="completed"))["data"]
    assert metrics["meta"]["count"] == 1
    assert f'queue="{queue.name}"' in (await good(other, "Prometheus"))["data"]["metrics"]


async def test_restored_jobs_are_found_by_their_ids(url: str, queue_name: str, resp: RespClient) -> None:
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
async def test_webhooks_and_http_events_include_new_partitions(url: str, queue_name: str) -> None:
    prefix = f"{queue_name}-new"
    options: dict[str, Any] = {"prefix": prefix, "webhook_networks": LOCAL, "webhook_backoff": 1}
    async with (
        Queue(queue_name, url, prefix=prefix) as queue, Receiver() as receiver,
        Gateway(url, port=0, http_port=0, **options) as first, Gateway(url, port=0, **options) as second,
        Wire(first) as wire, Wire(second) as other,
    ):  # fmt: skip
        await add(wire, receiver, events=["job.pushed"], queue=queue_name)
        ids = set(await push(other, queue, 1))
        async with Events(Client(first), f"/events/queues/{queue_name}") as events:
            await queue.set_partitions(PARTITIONS)
            ids |= (added := set(await push(other, queue, 2 * PARTITIONS)))
            while added:
                added.discard((await events.next("job:pushed"))[1]["jobId"])
        received = await receiver.wait_for_count(len(ids))
        assert {each.content["jobId"] for each in received} == ids
