"""Tests of PUSHB above 250 jobs: staged, and added all or none."""

import asyncio
from typing import Any

import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py._client.async_transport import AsyncTransport
from glidemq_py._core.calls.adding import encode_row
from glidemq_py._core.job_options import JobOptions
from glidemq_py._features import staged_writes
from glidemq_py.errors import GlideMQConnectionError
from glidemq_py.gateway import bulk
from glidemq_py.gateway.ids import IdMaker
from glidemq_py.gateway.rows import row_of
from tests.server.gateway.wire import Wire, failure, good, packed


def many(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": "n", "data": number, **fields} for number in range(count)]


async def keys_of_writes(queue: Queue) -> list[bytes]:
    link = await queue._connected()
    found: list[bytes] = await link.transport.command("KEYS", f"{link.keys.stem}write:*:*")
    return found


async def test_jobs_are_added_in_their_order(wire: Wire, queue: Queue) -> None:
    ids = (await good(wire, "PUSHB", queue=queue.name, jobs=many(1_100)))["ids"]
    assert len(set(ids)) == 1_100
    assert ids == sorted(ids)
    assert await queue.count() == 1_100
    first = await good(wire, "PULLB", queue=queue.name, count=400, owner="w")
    assert [(job["id"], job["data"]) for job in first["jobs"]] == [(ids[number], number) for number in range(400)]
    assert (await good(wire, "GetJob", id=ids[1_099]))["job"]["data"] == 1_099
    assert await keys_of_writes(queue) == []


async def test_small_bulks_in_flight_leave_together_in_their_order(
    wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    begin: Any = AsyncTransport.begin
    send: Any = AsyncTransport.call

    def counted(way: Any) -> Any:
        def counting(self: Any, call: Any, *others: Any) -> Any:
            if call.function == "add":
                calls.append(1)
            return way(self, call, *others)

        return counting

    monkeypatch.setattr(AsyncTransport, "begin", counted(begin))
    monkeypatch.setattr(AsyncTransport, "call", counted(send))
    await good(wire, "PUSHB", queue=queue.name, jobs=many(2))
    calls.clear()
    pushes = [{"cmd": "PUSH", "queue": queue.name, **many(1)[0]}, {"cmd": "PUSHB", "queue": queue.name}]
    for number in range(20):
        jobs = [{**job, "data": [number, job["data"]]} for job in many(3)]
        wire.send(packed({**pushes[number % 2], **(jobs[0] if number % 2 == 0 else {"jobs": jobs})}))
    answers = [await wire.receive() for _ in range(20)]
    assert all(answer["ok"] for answer in answers), answers
    assert len(calls) == 2  # the first one, and all others
    await good(wire, "PULLB", queue=queue.name, count=2)
    fetched = (await good(wire, "PULLB", queue=queue.name, count=100))["jobs"]
    assert [job["data"] for job in fetched] == [
        [number, job] for number in range(20) for job in range(3 if number % 2 else 1)
    ]


async def test_few_large_jobs_are_staged_too(wire: Wire, queue: Queue) -> None:
    jobs: list[dict[str, Any]] = [{"data": "x" * 400_000, "delay": 60_000}] * 4
    assert len((await good(wire, "PUSHB", queue=queue.name, jobs=jobs))["ids"]) == 4
    assert (await queue.get_job_counts()).delayed == 4


async def test_python_workers_get_the_jobs(wire: Wire, queue: Queue, url: str) -> None:
    done: list[int] = []
    is_done = asyncio.Event()

    async def handler(job: Job) -> None:
        done.append(job.data)
        if len(done) == 600:
            is_done.set()

    async with Worker(queue.name, handler, url, concurrency=50):
        await good(wire, "PUSHB", queue=queue.name, jobs=many(600))
        async with asyncio.timeout(60):
            await is_done.wait()
    assert sorted(done) == list(range(600))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"delay": "soon"}, "jobs[299]: delay must be a number"),
        ({"data": "x" * 11_000_000}, "jobs[299]: Job data too large (max 10MB)"),
        ({"dependsOn": ["q:1"]}, "jobs[299]: dependsOn is not supported in a PUSHB of more than 250 jobs"),
        ({"durable": True}, "durable is not supported in a PUSHB of more than 250 jobs"),
    ],
)
async def test_invalid_job_rejects_all(wire: Wire, queue: Queue, fields: dict[str, Any], error: str) -> None:
    jobs = many(300)
    jobs[299].update(fields)
    assert error in await failure(wire, "PUSHB", queue=queue.name, jobs=jobs)
    assert await queue.count() == 0


async def test_unique_keys_answer_with_the_existing_job(wire: Wire, queue: Queue) -> None:
    existing = (await good(wire, "PUSH", queue=queue.name, data=0, uniqueKey="u"))["id"]
    jobs = many(300)
    jobs[7]["uniqueKey"], jobs[8]["uniqueKey"] = "u", "v"
    ids = (await good(wire, "PUSHB", queue=queue.name, jobs=jobs))["ids"]
    assert ids[7] == existing
    assert len(set(ids)) == 300
    assert await queue.count() == 300


async def test_nothing_is_left_if_a_piece_is_not_staged(
    wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage: Any = staged_writes.stage

    def fail_last(write: Any, keys: Any, attempt: str, *others: Any, **named: Any) -> Any:
        call = stage(write, keys, attempt, *others, **named)
        if attempt == "p1":
            call.decode = lambda _: staged_writes.StageReply("aborted", "")
        return call

    monkeypatch.setattr(bulk, "stage", fail_last)
    assert "aborted" in await failure(wire, "PUSHB", queue=queue.name, jobs=many(300))
    assert await queue.count() == 0
    assert await keys_of_writes(queue) == []


async def test_commit_whose_reply_is_lost_adds_the_jobs_once(
    wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_async: Any = staged_writes.run_async
    calls = 0

    async def lose_first_reply(transport: Any, steps: Any) -> Any:
        nonlocal calls
        calls += 1
        found = await run_async(transport, steps)
        if calls == 1:
            raise GlideMQConnectionError("lost")
        return found

    monkeypatch.setattr(bulk, "run_async", lose_first_reply)
    assert len((await good(wire, "PUSHB", queue=queue.name, jobs=many(300)))["ids"]) == 300
    assert await queue.count() == 300


async def test_too_many_jobs_are_rejected(wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MOST_JOBS", 300)
    assert await failure(wire, "PUSHB", queue=queue.name, jobs=many(301)) == "jobs must have at most 300 items"
    assert await queue.count() == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attempts": 3, "backoff": {"type": "exponential", "delay": 1_000, "jitter": 1.0, "max_delay": 3_600_000}},
        {"delay": 5_000, "ttl": 60_000, "rank": 7},
        {"rank": -3, "lifo": True, "remove_on_complete": {"count": 5}},
        {"tags": ["a"], "fair_key": "g", "priority": 2},
        {"deduplication": {"id": "u", "ttl": 5_000}},
    ],
)
async def test_rows_of_known_options_are_those_of_new_ones(queue: Queue, options: dict[str, Any]) -> None:
    link, ids = await queue._connected(), IdMaker()
    for number in range(3):
        given = {"job_id": ids.make(1), **options}
        row, _ = row_of(queue, link, (f"n{number}", {"n": number}, given))
        assert row == encode_row(link, f"n{number}", {"n": number}, JobOptions(**given))


@pytest.mark.parametrize("extra", [{}, {"durable": False, "dependsOn": "first"}])
@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_refused_bulk_keeps_the_jobs_that_existed_before(
    wire: Wire, url: str, queue_name: str, partitions: int, extra: dict[str, Any]
) -> None:
    async with Queue(queue_name, url, partitions=partitions):
        holder = (await good(wire, "PUSH", queue=queue_name, data=1, uniqueKey="u"))["id"]
        if extra:
            extra = {**extra, "dependsOn": [(await good(wire, "PUSH", queue=queue_name, data=1))["id"]]}
        full = [{"data": 1, "groupId": "g", "groupMaxSize": 1, **extra}] * 2
        jobs = [{"data": 2, "uniqueKey": "u"}, {"data": 3}, *full]
        before = (await good(wire, "Count", queue=queue_name))["count"]
        if extra:  # a job that waits for another one is not in the backlog of its group
            jobs.append({"data": 1, "parentId": "gone"})
        assert (await wire.call("PUSHB", queue=queue_name, jobs=jobs))["ok"] is False
        assert (await good(wire, "Count", queue=queue_name))["count"] == before
        assert (await good(wire, "GetJob", id=holder))["job"]["data"] == 1
