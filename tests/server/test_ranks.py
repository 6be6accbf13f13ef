"""Ranks together with other features, and random changes compared with a model of the order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from glidemq_py import DeadLetterOptions, FlowJob, FlowProducer, Job, JobState, Queue, UnsupportedFeatureError, Worker
from glidemq_py._worker import wake_channel
from glidemq_py.sync import Queue as BlockingQueue
from glidemq_py.testing import RespClient
from tests.server.worker_support import Raw, until, with_timeout

pytestmark = pytest.mark.usefixtures("clean_check")

OWN = (70_000, -70_000)
NEVER_S = 3_600.0


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue[Any, Any]]:
    async with Queue[Any, Any](queue_name, url) as queue:
        yield queue


async def ignore(job: Job[Any, Any]) -> None:
    """Complete the job."""


async def fetched(queue: Queue[Any, Any]) -> list[Any]:
    """Fetch and complete all ready jobs; return their data in the order of the fetch."""
    leases = await queue.fetch(500)
    if leases:
        await queue.complete_leases([(lease, None) for lease in leases])
    return [lease.job.data for lease in leases]


# -- a model -----------------------------------------------------------------------------------------------


@dataclass
class Modeled:
    """A job as the documents describe its order. `lifo`: LIFO within its present rank."""

    id: str
    rank: int
    lifo: bool
    stored_lifo: bool
    ready: bool
    turn: int

    @property
    def key(self) -> tuple[int, bool, int]:
        return -self.rank, not self.lifo, -self.turn if self.lifo else self.turn


RANKS = (1_000_000, 2_048, 2_047, 2_000, 1, 0, -1, -1_000_000)


@pytest.mark.parametrize("seed", range(12))
async def test_order_is_that_of_a_model(queue: Queue[Any, Any], seed: int) -> None:
    chance, jobs, turn = random.Random(seed), dict[str, Modeled](), 0
    for _ in range(120):
        turn += 1
        action = chance.choice(("add", "add", "add", "rank", "rank", "priority", "promote", "delay", "remove"))
        rank = chance.choice(RANKS)
        if action == "add" or not jobs:
            lifo, delay = chance.random() < 0.4, 3_600_000 if chance.random() < 0.3 else 0
            job = await queue.add("n", rank=rank, lifo=lifo or None, delay=delay or None)
            jobs[job.id] = Modeled(job.id, rank, lifo, lifo, not delay, turn)
            continue
        it = jobs[chance.choice(list(jobs))]
        if action == "remove":
            await queue.remove(it.id)
            del jobs[it.id]
        elif action == "promote" and not it.ready:
            await queue.promote(it.id)
            it.ready, it.turn = True, turn
        elif action == "delay":
            await queue.change_delay(it.id, 3_600_000)
            it.ready = False
        elif action == "rank" and rank != it.rank:
            await queue.change_rank(it.id, rank)
            it.turn, it.rank, it.lifo = turn, rank, it.stored_lifo
        elif action == "priority" and 0 <= rank < 2_048 and rank != it.rank:
            await queue.change_priority(it.id, 2_048 - rank if rank else 0)
            it.turn, it.rank, it.lifo = turn, rank, it.stored_lifo and not rank
    ready = sorted((each for each in jobs.values() if each.ready), key=lambda each: each.key)
    counts, per_rank = await queue.get_job_counts(), await queue.get_rank_counts()
    assert (counts.waiting + counts.prioritized, counts.delayed) == (len(ready), len(jobs) - len(ready))
    assert list(per_rank.items()) == [
        (rank, sum(each.rank == rank for each in ready)) for rank in RANKS if any(each.rank == rank for each in ready)
    ]
    assert (await queue.check(recheck_after=20)).findings == ()
    leases = await queue.fetch(500)
    assert [lease.job.id for lease in leases] == [each.id for each in ready]
    await queue.complete_leases([(lease, None) for lease in leases])
    await queue.drain(delayed=True)
    assert (await queue.get_job_counts()).delayed == 0


# -- other features ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", OWN)
async def test_released_lease_returns_to_its_rank(queue: Queue[Any, Any], rank: int) -> None:
    await queue.add_bulk([("n", n, {"rank": rank}) for n in range(3)])
    (first,) = await queue.fetch(1)
    assert first.job.rank == rank
    await first.release()
    assert await fetched(queue) == [1, 2, 0]


async def test_failed_job_is_requeued_to_its_rank(queue: Queue[Any, Any]) -> None:
    jobs = [await queue.add("n", rank, rank=rank) for rank in OWN]
    for lease in await queue.fetch(10):
        await lease.fail("no")
    assert await queue.get_rank_counts() == {}
    plain = await queue.add("n", 0)
    await queue.retry_jobs()
    assert await queue.get_rank_counts() == {OWN[0]: 1, 0: 1, OWN[1]: 1}
    again = await queue.get_job(jobs[0].id)
    assert again is not None
    assert (again.rank, await again.get_state()) == (OWN[0], JobState.PRIORITIZED)
    assert plain.rank == 0
    assert await fetched(queue) == [OWN[0], 0, OWN[1]]


async def test_suspended_job_resumes_in_its_rank(queue: Queue[Any, Any], url: str) -> None:
    ran: list[tuple[int, int]] = []

    async def handle(job: Job[Any, Any]) -> None:
        ran.append((job.rank, len(job.signals)))
        if not job.signals:
            job.suspend(reason="approval")

    jobs = [await queue.add("n", rank=rank) for rank in OWN]
    async with Worker(queue.name, handle, url):
        await with_timeout(until(lambda: len(ran) == len(OWN)))
        await queue.pause()  # not the worker, whose next fetch may be under way
        for job in jobs:

            async def is_suspended(job: Job[Any, Any] = job) -> bool:
                return await job.get_state() is JobState.SUSPENDED

            async with asyncio.timeout(30):
                while not await is_suspended():  # noqa: ASYNC110  the report has no event here
                    await asyncio.sleep(0.01)
        for job in reversed(jobs):
            assert await queue.signal(job.id, "go")
        assert await queue.get_rank_counts() == dict.fromkeys(OWN, 1)
        await queue.resume()
        for job in jobs:
            await job.wait_until_finished()
    assert ran == [(OWN[0], 0), (OWN[1], 0), (OWN[0], 1), (OWN[1], 1)]


async def test_flow_members_have_ranks(queue: Queue[Any, Any], url: str) -> None:
    async with FlowProducer(url) as flows:
        node = await flows.add(
            FlowJob("parent", queue.name, "parent", {"rank": OWN[0]}, [
                FlowJob("child", queue.name, rank, {"rank": rank}) for rank in reversed(OWN)
            ])
        )  # fmt: skip
    assert node.job.rank == OWN[0]
    await queue.add("n", "plain")
    assert await fetched(queue) == [OWN[0], "plain", OWN[1]]
    await queue.add("n", "plain")
    assert await fetched(queue) == ["parent", "plain"]


async def test_members_of_a_flow_in_two_queues_have_ranks(queue: Queue[Any, Any], url: str) -> None:
    name = f"{queue.name}-2"
    async with FlowProducer(url) as flows, Queue[Any, Any](name, url) as other:
        children = [FlowJob("child", name, rank, {"rank": rank}) for rank in reversed(OWN)]
        await flows.add(FlowJob("parent", queue.name, "parent", {"rank": OWN[1]}, children))
        assert await other.get_rank_counts() == dict.fromkeys(OWN, 1)
        assert await queue.get_rank_counts() == {}
        async with Worker(name, ignore, url) as worker:
            await asyncio.wait_for(worker.drain(), 30)

            async def is_released() -> bool:
                return await queue.get_rank_counts() == {OWN[1]: 1}

            async with asyncio.timeout(30):
                while not await is_released():  # noqa: ASYNC110  it is in another queue
                    await asyncio.sleep(0.01)
        await queue.add("n", "plain")
        assert await fetched(queue) == ["plain", "parent"]
        await other.obliterate(force=True)


@pytest.mark.parametrize("rank", OWN)
async def test_template_of_a_scheduler_has_a_rank(queue: Queue[Any, Any], url: str, rank: int) -> None:
    ranks: list[int] = []

    async def handle(job: Job[Any, Any]) -> None:
        ranks.append(job.rank)

    template = {"name": "n", "options": {"rank": rank}}
    await queue.upsert_job_scheduler("tick", every=1_000, limit=1, immediately=True, template=template)
    async with Worker(queue.name, handle, url):
        await with_timeout(until(lambda: ranks))
    assert ranks == [rank]
    await queue.remove_job_scheduler("tick")


async def test_search_finds_ranked_jobs(queue: Queue[Any, Any]) -> None:
    added = [await queue.add("wanted", rank, rank=rank) for rank in OWN]
    added.append(await queue.add("wanted", "late", rank=OWN[0], delay=3_600_000))
    await queue.add("other", rank=OWN[0])
    found = await queue.search_jobs(name="wanted")
    assert sorted(job.id for job in found) == sorted(job.id for job in added)
    assert {job.rank for job in found} == set(OWN)
    await queue.drain(delayed=True)


async def test_limits_hold_for_ranked_jobs(queue: Queue[Any, Any], url: str) -> None:
    await queue.add_bulk([("n", n, {"rank": rank}) for rank in OWN for n in range(10)])
    await queue.set_global_concurrency(2)
    running = peak = ended = 0

    async def handle(job: Job[Any, Any]) -> None:
        nonlocal running, peak, ended
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        ended += 1

    async with Worker(queue.name, handle, url, concurrency=10) as worker:
        await asyncio.wait_for(worker.drain(), 30)
    assert (peak, ended) == (2, 20)
    await queue.set_global_concurrency(0)
    await queue.set_global_rate_limit(3, 3_600_000)
    await queue.add_bulk([("n", n, {"rank": OWN[0]}) for n in range(10)])
    assert len(await queue.fetch(10)) == 3
    await queue.remove_global_rate_limit()


async def test_dead_letter_entry_is_replayed_to_its_rank(queue: Queue[Any, Any], url: str) -> None:
    async def handle(job: Job[Any, Any]) -> None:
        raise ValueError("always")

    name = f"{queue.name}-dead"
    async with Queue[Any, Any](name, url) as dead:
        job = await queue.add("n", "data", rank=OWN[1])
        async with Worker(queue.name, handle, url, dead_letter_queue=DeadLetterOptions(name)) as worker:
            await asyncio.wait_for(worker.drain(), 30)

            async def arrived() -> list[Any]:
                return list(await queue.get_dead_letter_jobs())

            async with asyncio.timeout(30):
                while not (entries := await arrived()):  # noqa: ASYNC110  it is in another queue
                    await asyncio.sleep(0.01)
        await queue.replay_dead_letter_job(entries[0].id)
        assert await queue.get_rank_counts() == {OWN[1]: 1}
        assert job.rank == OWN[1]
        await queue.drain()
        await dead.obliterate(force=True)


@pytest.mark.parametrize("rank", OWN)
async def test_step_and_delay_return_to_the_rank(queue: Queue[Any, Any], url: str, rank: int) -> None:
    ran: list[Any] = []

    async def handle(job: Job[Any, Any]) -> None:
        ran.append((job.data, job.rank))
        if job.data == "first":
            job.move_to_delayed(20, data="second")

    job = await queue.add("n", "first", rank=rank)
    async with Worker(queue.name, handle, url):
        await job.wait_until_finished()
    assert ran == [("first", rank), ("second", rank)]


async def test_ranked_add_wakes_a_worker_of_many_queues(
    url: str, resp: RespClient, queue: Queue[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_channel, "POLL_S", NEVER_S)
    ran: list[Any] = []

    async def handle(job: Job[Any, Any]) -> None:
        ran.append(job.rank)

    other = f"{queue.name}-other"
    async with Worker([queue.name, other], handle, url):
        channels = f"glide:{{{queue.name}}}:wake-channels"
        for rank in OWN:
            await with_timeout(until(lambda: resp.execute("ZCARD", channels) == 1))
            job = await queue.add("n", rank=rank)
            await job.wait_until_finished(timeout=20_000)
        late = await queue.add("n", rank=OWN[1], delay=50)
        await late.wait_until_finished(timeout=20_000)
    assert ran == [*OWN, OWN[1]]


async def test_build_without_ranks_refuses_the_queue(queue: Queue[Any, Any], url: str, raw: Raw) -> None:
    await queue.add("n", rank=5)
    await queue.add("n", priority=5)
    assert await queue.get_features() == {}
    await queue.add("n", rank=5_000)
    features = await queue.get_features()
    assert list(features) == ["ranks"]
    raw.run("HSET", "meta", "features", f"not-{raw.run('HGET', 'meta', 'features')}")
    async with Queue[Any, Any](queue.name, url) as stranger:
        with pytest.raises(UnsupportedFeatureError, match="not-ranks"):
            await stranger.add("n")
    raw.run("HSET", "meta", "features", "ranks:0.2.0")
    assert await fetched(queue) == [None] * 3


def test_blocking_queue_has_ranks(url: str, queue_name: str) -> None:
    with BlockingQueue[Any, Any](queue_name, url) as queue:
        job = queue.add("n", rank=OWN[0])
        job.change_rank(OWN[1])
        assert job.rank == OWN[1]
        queue.change_rank(job.id, OWN[0])
        assert queue.get_rank_counts() == {OWN[0]: 1}
        queue.drain()
