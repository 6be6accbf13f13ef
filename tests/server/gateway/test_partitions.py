"""Partitioned queues: clients of two gateways, and Python programs beside them."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.errors import AmbiguousResultError
from glidemq_py.gateway import Gateway, push_bulk, push_options
from glidemq_py.gateway.fetched import Fetched
from glidemq_py.gateway.partition_hubs import PartitionHubs
from glidemq_py.gateway.push_bulk import Bulk
from glidemq_py.testing import ServerProcess
from tests.inside import connected, feeds_of, hubs_of, keys_of, parts_of, staged_writes
from tests.server.gateway.wire import Wire, failure, good, packed, state_of

PARTITIONS = 4
READERS = ("gateway-events", "gateway-starts")


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        yield queue


async def create(url: str, name: str):
    async with Queue(name, url, partitions=PARTITIONS) as queue:
        await queue.connect()


async def push(wire: Wire, queue: Queue, **fields: Any) -> str:
    made: str = (await good(wire, "PUSH", queue=queue.name, **{"name": "n", **fields}))["id"]
    return made


async def place_of(gateway: Gateway, job_id: str) -> int:
    """Return the partition of a job."""
    found = await gateway.ids.find(job_id)
    assert found is not None
    part, _ = await (await gateway.queue(found[0]))._placed(found[1])
    partition = part._partition
    assert partition is not None
    return partition.number


async def unfinished(queue: Queue) -> int:
    return (await queue.get_job_counts()).unfinished


async def drain(wire: Wire, queue: Queue, *, most: int = 1_000) -> list[dict[str, Any]]:
    """Complete the ready jobs; return them."""
    found: list[dict[str, Any]] = []
    while len(found) < most:
        answer = await good(wire, "PULLB", queue=queue.name, count=7, owner="w")
        if not answer["jobs"]:
            return found
        found += answer["jobs"]
        await good(wire, "ACKB", ids=[job["id"] for job in answer["jobs"]], tokens=answer["tokens"])
    return found


# -- adding ----------------------------------------------------------------------------------------------------


async def test_durable_jobs_are_confirmed(private_server: Callable[..., ServerProcess], queue_name: str):
    url = private_server(appendonly="yes").url
    async with Queue(queue_name, url, partitions=3) as queue, Gateway(url, port=0) as gateway, Wire(gateway) as wire:
        job_id = await push(wire, queue, durable=True, data=1)
        assert await state_of(wire, job_id) == "waiting"
        ids = (await good(wire, "PUSHB", queue=queue_name, jobs=[{"data": 1, "durable": True}] * 2))["ids"]
        assert [await state_of(wire, each) for each in ids] == ["waiting"] * 2


GROUPS: list[dict[str, Any]] = [{"name": "n", "data": number, "groupId": f"g{number}"} for number in range(20)]
"""Jobs in all partitions."""
FULL: list[dict[str, Any]] = [
    *GROUPS,
    *({"data": 0, "groupId": "full", "groupMaxSize": 1} for _ in range(2)),
]
"""Jobs in all partitions, of which the last one is rejected after the others were added."""


async def test_a_client_that_leaves_does_not_stop_a_bulk_halfway(
    gateways: tuple[Gateway, Gateway], queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    began, left, go_on, ended = (asyncio.Event() for _ in range(4))
    closed = gateways[0].release_of

    def note_closed(*args: Any):
        closed(*args)
        left.set()

    async def take_back(name: str, added: Any) -> str:
        began.set()
        await go_on.wait()
        try:
            return await push_options.take_back(name, added)
        finally:
            ended.set()

    monkeypatch.setattr(push_bulk, "take_back", take_back)
    monkeypatch.setattr(gateways[0], "release_of", note_closed)
    async with asyncio.timeout(60):
        async with Wire(gateways[0]) as wire:
            wire.send(packed({"cmd": "PUSHB", "reqId": "1", "queue": queue.name, "jobs": FULL}))
            await began.wait()
        assert await unfinished(queue) == 21
        await left.wait()
        go_on.set()
        await ended.wait()
    assert await unfinished(queue) == 0


async def test_jobs_that_cannot_be_taken_back_are_reported(
    wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    remove: Any = Queue.remove
    calls = 0

    async def lose(self: Any, *args: Any, **options: Any) -> Any:
        nonlocal calls
        if self._partition is not None and self._partition.number == 1:
            calls += 1
            raise AmbiguousResultError("no reply")
        return await remove(self, *args, **options)

    monkeypatch.setattr(Queue, "remove", lose)
    error = await failure(wire, "PUSHB", queue=queue.name, jobs=FULL)
    left = await unfinished(queue)
    assert left == (await parts_of(queue)[1].get_job_counts()).unfinished > 0
    assert error == (
        "jobs[21]: job was not added: fair key 'full' has its maximum backlog of 1 ready job; "
        f"{left} jobs of the command may exist, because deleting them failed"
    )
    (logged,) = [text for text in caplog.messages if "PUSHB" in text]
    assert f"queue '{queue.name}': {left} jobs of a rejected PUSHB were not deleted" in logged
    assert "1||" in logged
    assert logged.endswith("(no reply)")
    assert calls == 2  # a partition that does not reply is not called for each job


async def test_nothing_is_added_if_a_partition_fails(wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch):
    stage: Any = staged_writes.stage

    def fail(write: Any, keys: Any, *others: Any, **named: Any) -> Any:
        if keys.name == parts_of(queue)[2].name:
            raise AmbiguousResultError("no reply")
        return stage(write, keys, *others, **named)

    monkeypatch.setattr(push_bulk, "stage", fail)
    assert "no reply" in await failure(wire, "PUSHB", queue=queue.name, jobs=GROUPS)
    assert await unfinished(queue) == 0
    monkeypatch.undo()
    assert len((await good(wire, "PUSHB", queue=queue.name, jobs=GROUPS))["ids"]) == 20
    assert await unfinished(queue) == 20


async def test_a_committed_bulk_is_added_although_a_partition_fails(
    wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(write: Any) -> Any:
        yield staged_writes.publish(write, write.home, False)
        raise AmbiguousResultError("no reply")

    monkeypatch.setattr(push_bulk, "publish_write", fail)
    ids = (await good(wire, "PUSHB", queue=queue.name, jobs=GROUPS))["ids"]
    assert 0 < await unfinished(queue) < 20
    assert "the maintenance of the queue adds them: no reply" in caplog.text
    await staged_writes.run_async(
        (await connected(parts_of(queue)[0])).transport, staged_writes.finish_writes(keys_of(queue), 0)
    )
    assert {await state_of(wire, each) for each in ids} == {"waiting"}
    assert await unfinished(queue) == 20


async def test_jobs_of_one_partition_are_added_by_one_call(wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(push_bulk, "open_write")
    jobs = [{"data": number, "groupId": "g", "uniqueKey": "g"} for number in range(3)]
    assert len(set((await good(wire, "PUSHB", queue=queue.name, jobs=jobs))["ids"])) == 1
    ids = (await good(wire, "PUSHB", queue=queue.name, jobs=[{"data": number} for number in range(250)]))["ids"]
    assert len(set(ids)) == 250
    assert "maximum backlog" in await failure(
        wire, "PUSHB", queue=queue.name, jobs=[{"data": 1, "groupId": "h", "groupMaxSize": 2}] * 3
    )
    assert await unfinished(queue) == 251


async def test_unique_keys_of_staged_jobs_answer_with_the_existing_job(wire: Wire, queue: Queue):
    holders = [await push(wire, queue, uniqueKey=f"u{number}", data=0) for number in range(5)]
    jobs = [{"data": 1, "uniqueKey": f"u{number}"} for number in range(10)]
    ids = (await good(wire, "PUSHB", queue=queue.name, jobs=[*jobs, jobs[9]]))["ids"]
    assert ids[:5] == holders
    assert len(set(ids[5:])) == 5
    assert ids[9] == ids[10]
    assert await unfinished(queue) == 10


async def test_a_large_bulk_lets_other_tasks_run(gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue):
    await good(wire, "PUSHB", queue=queue.name, jobs=GROUPS)  # the numbers of the partitions are known afterwards
    jobs = [{"data": number, "groupId": f"g{number % 100}"} for number in range(2_000)]
    opened = await gateways[0].queue(queue.name)
    assert await turns_during(Bulk(gateways[0], opened, jobs).check()) >= 2_000 // 250


async def turns_during(work: Coroutine[Any, Any, Any]) -> int:
    """Return how often other tasks could run meanwhile."""
    turns, task = 0, asyncio.create_task(work)
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    await task
    return turns


async def test_large_bulks_are_staged_in_all_partitions(
    gateways: tuple[Gateway, Gateway], wire: Wire, other: Wire, queue: Queue
):
    await push(wire, queue, uniqueKey="u", data="holder")
    jobs: list[dict[str, Any]] = [{"data": number} for number in range(700)]
    jobs += [{"data": number, "jobId": f"{queue.name}-{number}"} for number in range(100)]
    jobs += [{"data": 0, "uniqueKey": "u"}]
    ids = (await good(wire, "PUSHB", queue=queue.name, jobs=jobs))["ids"]
    assert len(set(ids)) == 801
    assert (await queue.get_job_counts()).waiting == 801
    assert (await good(other, "GetJob", id=ids[800]))["job"]["data"] == "holder"
    places = Counter([await place_of(gateways[1], each) for each in ids[:700]])
    assert len(places) >= 3
    refused = [*jobs, {"data": 1, "durable": True}]
    assert "durable is not supported" in await failure(wire, "PUSHB", queue=queue.name, jobs=refused)
    assert len(await drain(other, queue)) == 801


# -- fetching --------------------------------------------------------------------------------------------------


# -- beside Python programs ------------------------------------------------------------------------------------


# -- partitions that are created while gateways know of none -------------------------------------------------------


@pytest.mark.slow
async def test_clients_push_and_pull_when_the_partitions_have_been_created(
    gateways: tuple[Gateway, Gateway], wire: Wire, other: Wire, url: str, queue_name: str
):
    """Nothing is lost, nothing is run twice, groups keep their order, and chosen ids name one job."""
    pushed: list[str] = []
    ran: list[tuple[str, Any]] = []
    stop = asyncio.Event()

    async def client(number: int):
        async with Wire(gateways[number % 2]) as mine:
            turn = 0
            while turn < 120:
                kind: dict[str, Any] = [
                    {}, {"groupId": f"g{number}"}, {"jobId": f"{queue_name}:{number}:{turn}"},
                    {"groupId": f"g{number}", "jobId": f"{queue_name}:g:{number}:{turn}"},
                ][turn % 4]  # fmt: skip
                job = {"name": "n", "data": [number, turn], **kind}
                if turn % 10 == 9:
                    pushed.extend((await good(mine, "PUSHB", queue=queue_name, jobs=[job] + [{"data": 0}] * 2))["ids"])
                else:
                    pushed.append((await good(mine, "PUSH", queue=queue_name, **job))["id"])
                turn += 1

    async def worker(number: int):
        async with Wire(gateways[number % 2]) as mine:
            while not (stop.is_set() and len(ran) >= len(pushed)):
                answer = await good(mine, "PULLB", queue=queue_name, count=5, owner="w", timeout=500)
                if answer["jobs"]:
                    ran.extend((job["id"], job["data"]) for job in answer["jobs"])
                    await good(mine, "ACKB", ids=[job["id"] for job in answer["jobs"]], tokens=answer["tokens"])

    for each in (wire, other):
        assert (await good(each, "PULL", queue=queue_name, owner="w"))["job"] is None
    async with Queue(queue_name, url, partitions=PARTITIONS) as queue:
        async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
            clients = [tasks.create_task(client(number)) for number in range(4)]
            for number in range(3):
                tasks.create_task(worker(number))
            await asyncio.wait(clients)
            stop.set()
        assert len(set(pushed)) == len(pushed)
        assert sorted(job_id for job_id, _ in ran) == sorted(pushed)
        assert (await queue.get_job_counts()).completed == len(pushed)
        for job_id in pushed[:: max(1, len(pushed) // 30)]:
            assert await state_of(wire, job_id) == "completed"
        assert len({await place_of(gateways[0], job_id) for job_id in pushed[-40:]}) > 1


@pytest.mark.slow
async def test_a_long_poll_notices_new_partitions(wire: Wire, other: Wire, url: str, queue_name: str):
    assert (await good(wire, "PULL", queue=queue_name, owner="w"))["job"] is None
    waiting = asyncio.create_task(good(wire, "PULL", queue=queue_name, owner="w", timeout=60_000))
    async with Queue(queue_name, url, partitions=4) as fresh:
        for number in range(8):
            await fresh.add("n", number)
    found = [(await waiting)["job"]]
    while len(found) < 8:
        found.append((await good(wire, "PULL", queue=queue_name, owner="w", timeout=60_000))["job"])
    assert sorted(job["data"] for job in found) == list(range(8))


@pytest.mark.slow
async def test_subscribers_notice_new_partitions(wire: Wire, other: Wire, url: str, queue_name: str):
    await good(wire, "SubscribeEvents", queue=queue_name)
    await create(url, queue_name)
    ids = {(await good(other, "PUSH", queue=queue_name, name="n", data=1))["id"] for _ in range(8)}
    while ids:
        event = (await wire.receive())["event"]
        if event["eventType"] == "pushed":
            ids.discard(event["jobId"])


# -- what does not answer ----------------------------------------------------------------------------------------


async def test_a_small_bulk_is_added_although_the_queue_has_got_partitions(wire: Wire, url: str, queue_name: str):
    assert (await good(wire, "PULL", queue=queue_name, owner="w"))["job"] is None
    await create(url, queue_name)
    jobs = [{"name": "n", "data": number} for number in range(20)]
    ids = (await good(wire, "PUSHB", queue=queue_name, jobs=jobs))["ids"]
    assert [await state_of(wire, each) for each in ids] == ["waiting"] * 20
    assert len(set(ids)) == 20


async def test_a_partition_that_does_not_answer_holds_up_no_jobs_of_the_others(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    """The jobs of its call are released, as another partition has answered meanwhile; then it is asked again."""
    for number in range(8):
        await push(wire, queue, data=number)
    fetching = await gateways[0].fetching(await gateways[0].queue(queue.name))
    assert isinstance(fetching, PartitionHubs)
    answers, silent = asyncio.Event(), hubs_of(fetching)[1]
    fetch = silent.fetch

    async def late(count: int, lock_ms: int, wait: float) -> list[Fetched]:
        await answers.wait()
        return await fetch(count, lock_ms, wait)

    monkeypatch.setattr(silent, "fetch", late)
    first = await good(wire, "PULLB", queue=queue.name, count=8, owner="w")
    assert len(first["jobs"]) == 6
    assert (await good(wire, "PULLB", queue=queue.name, count=8, owner="w"))["jobs"] == []
    waiting = asyncio.create_task(good(wire, "PULLB", queue=queue.name, count=8, owner="w", timeout=20_000))
    answers.set()
    found = (await waiting)["jobs"]
    while len(found) < 2:
        found += (await good(wire, "PULLB", queue=queue.name, count=8, owner="w", timeout=20_000))["jobs"]
    assert len({job["id"] for job in first["jobs"] + found}) == 8


async def test_feeds_that_end_while_they_start_leave_no_reader(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue
):
    await push(wire, queue)
    for turn in range(20):
        wire.send(packed({"cmd": "SubscribeEvents", "reqId": "1", "queue": queue.name}))
        await asyncio.sleep(0.001 * (turn % 10))
        wire.send(packed({"cmd": "UnsubscribeEvents", "reqId": "2"}))
        answers = {(await wire.receive()).get("reqId") for _ in range(2)}
        assert answers == {"1", "2"}
    assert feeds_of(gateways[0]) == {}
    async with asyncio.timeout(30):  # a reader that is left does not end
        while left := [task for task in asyncio.all_tasks() if task.get_name().startswith(READERS)]:
            await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)


@pytest.mark.parametrize("count", [1, 3])
async def test_jobs_pushed_while_the_queue_is_deleted_are_in_the_next_one(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue, count: int, monkeypatch: pytest.MonkeyPatch
):
    await push(wire, queue)
    deleted: list[Any] = []

    def deleting(add: Callable[..., Any]) -> Callable[..., Any]:
        async def add_later(self: Any, *args: Any, **options: Any) -> Any:
            if not deleted:
                deleted.append(await good(deleter, "Obliterate", queue=queue.name))
            return await add(self, *args, **options)

        return add_later

    async with Wire(gateways[0]) as deleter:
        monkeypatch.setattr(Bulk, "add", deleting(Bulk.add))
        ids = (await good(wire, "PUSHB", queue=queue.name, jobs=[{"name": "n", "data": 1}] * count))["ids"]
        assert deleted
        assert [await state_of(wire, each) for each in ids] == ["waiting"] * count
        jobs = (await good(wire, "PULLB", queue=queue.name, count=9, owner="w"))["jobs"]
        assert {job["id"] for job in jobs} == set(ids)
