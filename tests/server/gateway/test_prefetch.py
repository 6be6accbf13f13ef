"""Tests of jobs that are fetched together with reports."""

import asyncio
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.gateway import Gateway, prefetch
from tests.server.gateway.wire import Wire, good, packed


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let prefetched jobs wait for a fetch until they are returned."""
    monkeypatch.setattr(prefetch, "_PROMPT_S", 60.0)
    monkeypatch.setattr(prefetch, "_KEPT_S", 60.0)


class Worker:
    """A client that fetches and completes jobs.

    Args:
        wire: Its connection.
        queue: Name of the queue.
        count: Jobs of a fetch.
    """

    def __init__(self, wire: Wire, queue: str, count: int = 1) -> None:
        self.wire, self.queue, self.count = wire, queue, count
        self.held: list[dict[str, Any]] = []

    async def fetch(self, **fields: Any) -> list[int]:
        """Fetch jobs, and return their data."""
        answer = await good(
            self.wire, "PULLB", queue=self.queue, count=self.count, owner="w", **{"timeout": 0, **fields}
        )  # fmt: skip
        self.held = [{**job, "token": token} for job, token in zip(answer["jobs"], answer["tokens"], strict=True)]
        return [job["data"] for job in self.held]

    async def complete(self) -> None:
        """Complete the jobs of the last fetch."""
        await good(
            self.wire, "ACKB", ids=[job["id"] for job in self.held], tokens=[job["token"] for job in self.held]
        )  # fmt: skip

    async def warm_up(self) -> list[int]:
        """Fetch and complete jobs at once until the next ones are prefetched; return the data of all."""
        done: list[int] = []
        for _ in range(prefetch._PROMPT_FETCHES + 1):
            done += await self.fetch()
            await self.complete()
        return done


async def filled(wire: Wire, queue: Queue, count: int = 100) -> None:
    await good(wire, "PUSHB", queue=queue.name, jobs=[{"name": "x", "data": number} for number in range(count)])


async def warmed(wire: Wire, queue: Queue, count: int, jobs: int = 100) -> Worker:
    """Return a worker that fetches ``count`` of so many jobs at a time, and has completed four fetches."""
    await filled(wire, queue, jobs)
    worker = Worker(wire, queue.name, count)
    await worker.warm_up()
    return worker


@pytest.mark.parametrize("count", [1, 10])
async def test_a_prompt_client_needs_one_call_per_fetch(
    wire: Wire, queue: Queue, exchanges: list[tuple[int, int]], count: int
) -> None:
    await filled(wire, queue, 20 * count)
    worker = Worker(wire, queue.name, count)
    done = await worker.warm_up()
    exchanges.clear()
    for _ in range(10):
        done += await worker.fetch()
        await worker.complete()
    assert done == list(range(14 * count))
    assert exchanges == [(count, count)] * 10
    assert (await queue.get_job_counts()).active == count  # those of the next fetch


async def test_a_client_that_waits_first_gets_no_job_ahead(
    wire: Wire, queue: Queue, exchanges: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "_PROMPT_S", 0.0)
    await warmed(wire, queue, 1)
    assert (1, 1) not in exchanges


async def test_jobs_that_no_client_fetches_return_in_their_order(
    wire: Wire, other: Wire, queue: Queue, exchanges: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetch, "_KEPT_S", 0.05)
    worker = await warmed(wire, queue, 5)
    exchanges.clear()
    async with asyncio.timeout(60):
        while (5, 0) not in exchanges:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)
    elsewhere = Worker(other, queue.name, 7)
    assert await elsewhere.fetch() == list(range(20, 27))
    assert await worker.fetch() == list(range(27, 32))
    exchanges.clear()
    await worker.complete()
    assert exchanges == [(5, 0)]  # it has to be prompt more often now


async def test_other_commands_see_no_prefetched_jobs(
    wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
) -> None:  # fmt: skip
    worker = await warmed(wire, queue, 4)
    assert (await queue.get_job_counts()).active == 4
    counts = (await good(wire, "GetJobCounts", queue=queue.name))["counts"]
    assert (counts["active"], counts["waiting"]) == (0, 84)
    assert await worker.fetch() == [16, 17, 18, 19]
    await worker.complete()
    await good(wire, "Pause", queue=queue.name)
    assert await worker.fetch() == []
    await good(wire, "Resume", queue=queue.name)
    assert await worker.fetch() == [20, 21, 22, 23]
    await worker.complete()
    assert (await good(wire, "Drain", queue=queue.name))["count"] == 76
    assert await worker.fetch() == []
    counts = await queue.get_job_counts()
    assert (counts.active, counts.waiting, counts.completed) == (0, 0, 24)


async def test_a_job_of_a_call_in_flight_returns_after_a_command(
    gateway: Gateway, wire: Wire, other: Wire, queue: Queue, exchanges: list[tuple[int, int]]
) -> None:
    worker = await warmed(wire, queue, 1)
    await worker.fetch()
    ack = {"cmd": "ACKB", "reqId": "1", "ids": [worker.held[0]["id"]], "tokens": [worker.held[0]["token"]]}
    wire.send(packed(ack) + packed({"cmd": "Pause", "reqId": "2", "queue": queue.name}))
    answers = [await wire.receive(), await wire.receive()]
    assert all(answer["ok"] for answer in answers), answers
    assert await worker.fetch() == []
    await good(wire, "Resume", queue=queue.name)
    assert await worker.fetch() == [5]


async def test_a_fetch_with_another_lock_gets_no_prefetched_job(
    wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
) -> None:  # fmt: skip
    worker = await warmed(wire, queue, 1)
    assert await worker.fetch(lockTtl=5_000) == [5]
    await worker.complete()
    assert await worker.fetch() == [4]


async def test_a_larger_fetch_gets_prefetched_jobs_and_others(
    wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
) -> None:  # fmt: skip
    worker = await warmed(wire, queue, 2)
    exchanges.clear()
    worker.count = 6
    assert await worker.fetch() == list(range(8, 14))
    assert exchanges == [(0, 4)]
    worker.count = 3
    await worker.complete()
    assert await worker.fetch() == [14, 15, 16]
    assert await worker.fetch() == [17, 18, 19]
    assert exchanges == [(0, 4), (6, 6)]


async def test_prefetched_jobs_return_when_the_gateway_closes(
    url: str, queue: Queue, exchanges: list[tuple[int, int]]
) -> None:
    async with Gateway(url, port=0) as gateway, Wire(gateway) as wire:
        await filled(wire, queue)
        worker = Worker(wire, queue.name, 3)
        await worker.warm_up()
        assert (await queue.get_job_counts()).active == 3
    counts = await queue.get_job_counts()
    assert (counts.active, counts.waiting) == (0, 88)
    async with Gateway(url, port=0) as gateway, Wire(gateway) as wire:
        assert await Worker(wire, queue.name, 3).fetch() == [12, 13, 14]


async def test_the_last_jobs_are_prefetched_and_then_none(
    wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
) -> None:  # fmt: skip
    await filled(wire, queue, 10)
    worker = Worker(wire, queue.name, 2)
    done = await worker.warm_up()
    while found := await worker.fetch():
        done += found
        await worker.complete()
    assert done == list(range(10))
    counts = await queue.get_job_counts()
    assert (counts.active, counts.waiting, counts.completed) == (0, 0, 10)
    assert await worker.fetch(timeout=50) == []


async def test_a_report_behind_a_pause_prefetches_nothing(
    wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
) -> None:  # fmt: skip
    worker = await warmed(wire, queue, 2)
    assert await worker.fetch() == [8, 9]
    first, second = worker.held
    await good(wire, "ACKB", ids=[first["id"]], tokens=[first["token"]])
    ack = {"cmd": "ACKB", "reqId": "2", "ids": [second["id"]], "tokens": [second["token"]]}
    wire.send(packed({"cmd": "Pause", "reqId": "1", "queue": queue.name}) + packed(ack))
    answers = [await wire.receive(), await wire.receive()]
    assert all(answer["ok"] for answer in answers), answers
    assert await worker.fetch() == []
    counts = await queue.get_job_counts()
    assert (counts.active, counts.waiting) == (0, 90)


async def test_a_command_waits_for_prefetched_jobs_in_flight(
    wire: Wire, queue: Queue, exchanges: list[tuple[int, int]]
) -> None:  # fmt: skip
    worker = await warmed(wire, queue, 10)
    await worker.fetch()
    ack = {"cmd": "ACKB", "ids": [job["id"] for job in worker.held], "tokens": [job["token"] for job in worker.held]}
    wire.send(packed({**ack, "reqId": "1"}) + packed({"cmd": "GetJobCounts", "reqId": "2", "queue": queue.name}))
    answers = {answer["reqId"]: answer for answer in [await wire.receive(), await wire.receive()]}
    assert (answers["2"]["counts"]["active"], answers["2"]["counts"]["waiting"]) == (0, 50)


async def test_a_client_that_leaves_during_a_return_does_not_stop_it(
    gateway: Gateway, wire: Wire, queue: Queue, exchanges: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await warmed(wire, queue, 3)
    known = gateway._hubs[queue.name]
    begun, go_on = asyncio.Event(), asyncio.Event()
    return_all = known._return_all

    async def late(jobs: Any) -> None:
        begun.set()
        await go_on.wait()
        await return_all(jobs)

    monkeypatch.setattr(known, "_return_all", late)
    async with Wire(gateway) as leaving:
        leaving.send(packed({"cmd": "GetJobCounts", "queue": queue.name, "reqId": "1"}))
        async with asyncio.timeout(60):
            await begun.wait()
    go_on.set()
    assert (await good(wire, "GetJobCounts", queue=queue.name))["counts"]["active"] == 0
    assert await worker.fetch() == [12, 13, 14]


async def test_reading_a_job_returns_only_a_prefetched_one(
    wire: Wire, other: Wire, queue: Queue, exchanges: list[tuple[int, int]]
) -> None:
    worker = await warmed(wire, queue, 2)
    ids = [job["id"] for job in (await good(other, "GetJobs", queue=queue.name, state="active"))["jobs"]]
    assert len(ids) == 2
    exchanges.clear()
    assert (await good(wire, "GetState", id=worker.held[0]["id"]))["state"] == "completed"
    assert exchanges == []
    assert (await good(wire, "GetState", id=ids[0]))["state"] == "waiting"
    assert exchanges == [(2, 0)]


async def test_prefetched_jobs_get_no_older_than_their_time(
    wire: Wire, queue: Queue, exchanges: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await warmed(wire, queue, 40, jobs=200)
    monkeypatch.setattr(prefetch, "_KEPT_S", 0.0)
    worker.count = 1
    assert await worker.fetch() == [160]  # those that were kept have returned, in their order
    assert await worker.fetch() == [161]
    assert (await queue.get_job_counts()).active == 2


@pytest.mark.parametrize("limit", ["rate", "group", "ordering"])
async def test_jobs_with_limits_are_not_prefetched(
    wire: Wire, queue: Queue, exchanges: list[tuple[int, int]], limit: str
) -> None:
    if limit == "rate":
        await queue.set_global_rate_limit(60, 60_000)
        await filled(wire, queue)
    elif limit == "group":
        jobs = [{"name": "x", "data": number, "groupId": f"g{number % 5}"} for number in range(60)]
        await good(wire, "PUSHB", queue=queue.name, jobs=jobs)
    else:
        await queue.add_bulk([("x", number, {"ordering": f"k{number}"}) for number in range(60)])
    worker = Worker(wire, queue.name)
    for _ in range(3):
        await worker.warm_up()
    assert (1, 1) not in exchanges
    assert (await queue.get_job_counts()).completed == 12
