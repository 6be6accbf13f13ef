"""Tests of PUSHB above 250 jobs: staged, and added all or none."""

import asyncio
from typing import Any

import pytest

from glidemq_py import Job, JobOptions, Queue, Worker
from glidemq_py._features.fair_keys import FairKeys
from glidemq_py.errors import GlideMQConnectionError
from glidemq_py.gateway import push_bulk
from glidemq_py.gateway.job_ids import IdMaker
from glidemq_py.gateway.push_rows import new_row
from tests.inside import AsyncTransport, connected, encode_row, staged_writes, without_direct_connections
from tests.server.gateway.wire import Wire, failure, good, packed


def many(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": "n", "data": number, **fields} for number in range(count)]


async def keys_of_writes(queue: Queue) -> list[bytes]:
    link = await connected(queue)
    found: list[bytes] = await link.transport.command("KEYS", f"{link.keys.stem}write:*:*")
    return found


async def test_small_bulks_in_flight_leave_together_in_their_order(
    wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    calls: list[int] = []
    send: Any = AsyncTransport.call

    def counted(self: Any, call: Any) -> Any:
        if call.function == "add":
            calls.append(1)
        return send(self, call)

    without_direct_connections(monkeypatch)
    monkeypatch.setattr(AsyncTransport, "call", counted)
    await good(wire, "PUSHB", queue=queue.name, jobs=many(2))
    calls.clear()
    pushes = [{"cmd": "PUSH", "queue": queue.name, **many(1)[0]}, {"cmd": "PUSHB", "queue": queue.name}]
    for number in range(20):
        jobs = [{**job, "data": [number, job["data"]]} for job in many(3)]
        wire.send(packed({**pushes[number % 2], **(jobs[0] if number % 2 == 0 else {"jobs": jobs})}))
    answers = [await wire.receive() for _ in range(20)]
    assert all(answer["ok"] for answer in answers), answers
    assert len(calls) <= 2  # the first one, which may have been alone, and all others
    await good(wire, "PULLB", queue=queue.name, count=2)
    fetched = (await good(wire, "PULLB", queue=queue.name, count=100))["jobs"]
    assert [job["data"] for job in fetched] == [
        [number, job] for number in range(20) for job in range(3 if number % 2 else 1)
    ]


async def test_python_workers_get_the_jobs(wire: Wire, queue: Queue, url: str):
    done: list[int] = []
    is_done = asyncio.Event()

    async def handler(job: Job):
        done.append(job.data)
        if len(done) == 600:
            is_done.set()

    async with Worker(queue.name, handler, url, concurrency=50):
        await good(wire, "PUSHB", queue=queue.name, jobs=many(600))
        async with asyncio.timeout(60):
            await is_done.wait()
    assert sorted(done) == list(range(600))


async def test_nothing_is_left_if_a_piece_is_not_staged(wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch):
    stage: Any = staged_writes.stage

    def fail_last(write: Any, keys: Any, attempt: str, *others: Any, **named: Any) -> Any:
        call = stage(write, keys, attempt, *others, **named)
        if attempt == "p1":
            call.decode = lambda _: staged_writes.StageReply("aborted", "")
        return call

    monkeypatch.setattr(push_bulk, "stage", fail_last)
    assert "aborted" in await failure(wire, "PUSHB", queue=queue.name, jobs=many(300))
    assert await queue.count() == 0
    assert await keys_of_writes(queue) == []


async def test_commit_whose_reply_is_lost_adds_the_jobs_once(wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch):
    run_async: Any = staged_writes.run_async
    calls = 0

    async def lose_first_reply(transport: Any, steps: Any) -> Any:
        nonlocal calls
        calls += 1
        found = await run_async(transport, steps)
        if calls == 1:
            raise GlideMQConnectionError("lost")
        return found

    monkeypatch.setattr(push_bulk, "run_async", lose_first_reply)
    assert len((await good(wire, "PUSHB", queue=queue.name, jobs=many(300)))["ids"]) == 300
    assert await queue.count() == 300


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
async def test_rows_of_known_options_are_those_of_new_ones(queue: Queue, options: dict[str, Any]):
    link, ids = await connected(queue), IdMaker()
    for number in range(3):
        given = {"job_id": ids.make(1), **options}
        row, _ = new_row(queue, link, {"own": repr(options)}, (f"n{number}", {"n": number}, given))
        assert row == encode_row(link, f"n{number}", {"n": number}, JobOptions(**given))


async def test_maximum_size_is_set_once_for_many_jobs(wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch):
    found: list[tuple[str, int]] = []
    set_limits = FairKeys.set_limits

    async def count(area: FairKeys, key: str, *, max_backlog: int):
        found.append((key, max_backlog))
        await set_limits(area, key, max_backlog=max_backlog)

    monkeypatch.setattr(FairKeys, "set_limits", count)
    sizes = [("g", 90), ("h", 50), ("g", 80)]
    jobs = [{"groupId": group, "groupMaxSize": size} for group, size in sizes for _ in range(10)]
    await good(wire, "PUSHB", queue=queue.name, jobs=jobs)
    assert found == [("g", 80), ("h", 50)]
    for _ in range(3):
        await good(wire, "PUSH", queue=queue.name, groupId="g", groupMaxSize=80)
    assert found == [("g", 80), ("h", 50)]
    await good(wire, "PUSH", queue=queue.name, groupId="g", groupMaxSize=81)
    assert (await queue.fair_keys.get("g")).max_backlog == 81
    await good(wire, "Obliterate", queue=queue.name)
    await good(wire, "PUSH", queue=queue.name, groupId="g", groupMaxSize=81)
    assert (await queue.fair_keys.get("g")).max_backlog == 81
