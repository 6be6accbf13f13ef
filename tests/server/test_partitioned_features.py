"""Features of a partitioned queue: schedulers, limits, leases, dead letters, metrics, checks and remote control."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from glidemq_py import (
    GlideMQValidationError,
    Job,
    Lease,
    LeaseLostError,
    Queue,
    QueueEvent,
    QueueEvents,
    RateLimit,
    UnsupportedOptionError,
    Worker,
    sync,
)
from glidemq_py._operate.operating import Operator
from glidemq_py.testing import RespClient, ServerProcess
from tests.server.lossy_proxy import LossyProxy
from tests.server.test_partitions import id_in, keyed
from tests.server.worker_support import EventRecorder, with_timeout

# -- schedulers -----------------------------------------------------------------------------------------------


async def test_schedulers_are_in_the_partition_of_their_name(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        names = [keyed(at, 3, "scheduler-") for at in range(3)]
        for name in names:
            made = await queue.upsert_job_scheduler(name, every=60_000, template=("tick", {"of": name}))
            assert (made.name, made.job_name) == (name, "tick")
        assert [each.name for each in await queue.get_job_schedulers()] == sorted(names)
        found = await queue.get_job_scheduler(names[2])
        assert found is not None
        assert found.data == {"of": names[2]}
        for paused in (await queue.pause_job_scheduler(names[2]), await queue.get_job_scheduler(names[2])):
            assert paused is not None
            assert paused.paused
        assert await queue.resume_job_scheduler(names[2]) is not None
        assert await queue.pause_job_scheduler("none") is None
        assert await queue.remove_job_scheduler(names[2])
        assert not await queue.remove_job_scheduler(names[2])
        assert await queue.get_job_scheduler(names[2]) is None
        with pytest.raises(UnsupportedOptionError) as raised:
            await queue.upsert_job_scheduler("s", every=1_000, template={"options": {"fair_key": "a"}})
        assert raised.value.option == "template.fair_key"


async def test_schedulers_of_all_partitions_fire(url: str, queue_name: str):
    names = [keyed(at, 3, "scheduler-") for at in range(3)]
    fired: set[str] = set()
    all_fired = asyncio.Event()

    async def handle(job: Job) -> None:
        fired.add(job.name)
        if fired == set(names):
            all_fired.set()

    async with Queue(queue_name, url, partitions=3) as queue, Worker(queue_name, handle, url):
        for name in names:
            await queue.upsert_job_scheduler(name, every=60_000, immediately=True)
        await with_timeout(all_fired.wait())


# -- limits ---------------------------------------------------------------------------------------------------


async def test_limits_are_divided(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        await queue.set_global_concurrency(7)
        await queue.set_global_rate_limit(10, 1_000)
        limits = await queue.get_global_limits()
        assert (limits.concurrency, limits.rate_limit) == (7, RateLimit(10, 1_000))
        assert await queue.get_global_concurrency() == 7
        assert await queue.get_global_rate_limit() == RateLimit(10, 1_000)
        assert queue._partitions is not None
        assert [await part.get_global_concurrency() for part in queue._partitions.queues] == [3, 2, 2]
        await queue.set_global_concurrency(0)
        await queue.remove_global_rate_limit()
        limits = await queue.get_global_limits()
        assert (limits.concurrency, limits.rate_limit) == (None, None)
        await queue.set_name_limits("n", concurrency=4, rate_limit={"max": 6, "duration": 500})
        named = await queue.get_name_limits("n")
        assert (named.concurrency, named.rate_limit) == (4, RateLimit(6, 500))
        await queue.set_name_limits("n", rate_limit=False)
        assert (await queue.get_name_limits("n")).rate_limit is None
        for call in (
            queue.set_global_concurrency(2), queue.set_global_rate_limit(2, 1_000),
            queue.set_name_limits("n", concurrency=1),
        ):  # fmt: skip
            with pytest.raises(GlideMQValidationError, match="number of partitions"):
                await call


async def test_the_limit_of_concurrency_is_never_exceeded(url: str, queue_name: str):
    running = most = 0

    async def handle(_: Job) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1

    async with Queue(queue_name, url, partitions=3) as queue:
        await queue.set_global_concurrency(4)
        await queue.add_bulk([("n", at, {"job_id": f"key-{at}"}) for at in range(40)])
        workers = [Worker(queue_name, handle, url, concurrency=10) for _ in range(2)]
        await asyncio.gather(*(worker.start() for worker in workers))
        await with_timeout(asyncio.gather(*(worker.drain() for worker in workers)))
        assert (await queue.get_job_counts()).completed == 40
    assert 1 <= most <= 4


# -- leases ---------------------------------------------------------------------------------------------------


async def test_leases_are_fetched_from_all_partitions_and_reported(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        jobs = await queue.add_bulk([("n", at, {"job_id": id_in(at, 3)}) for at in range(3)])
        leases = await queue.fetch(10)
        assert sorted(lease.id for lease in leases) == sorted(job.id for job in jobs)
        assert sorted(lease.job.id for lease in leases) == sorted(lease.id for lease in leases)
        assert [str(each) for each in await queue.extend_leases(leases, 20_000)] == ["extended"] * 3
        again = Lease.from_token(queue, leases[0].token)
        assert again.id == leases[0].id
        with pytest.raises(GlideMQValidationError, match=r"'results\[3\]' = .*is the lease of results\[0\]"):
            await queue.complete_leases([*((lease, 1) for lease in leases), (again, 2)])
        with pytest.raises(GlideMQValidationError, match=r"'leases\[3\]' = .*is the lease of leases\[0\]"):
            await queue.release_leases([*leases, again])
        assert (await queue.get_job_counts()).active == 3
        await again.release()
        with pytest.raises(LeaseLostError, match=r"order-"):
            await leases[0].complete()
        report = await queue.complete_leases([(leases[1], 1), (leases[0], 0)])
        assert [outcome.applied for outcome in report.outcomes] == [True, False]
        report = await queue.fail_leases([(leases[2], "no")], fetch_next=1)
        assert len(report.outcomes) == 1
        assert [lease.id for lease in report.leases] == [leases[0].id]
        await report.leases[0].complete()
        counts = await queue.get_job_counts()
        assert (counts.completed, counts.failed) == (2, 1)


async def test_leases_are_released_by_owner(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        await queue.add_bulk([("n", at, {"job_id": id_in(at, 3)}) for at in range(3)])
        assert len(await queue.fetch(3)) == 3
        assert await queue.release_owner() == 3
        async with queue.lease() as lease:
            assert lease is not None
        assert (await queue.get_job_counts()).completed == 1
        held = await queue.fetch(2, owner="me")
        assert len(await queue.release_leases(held)) == 2
        assert (await queue.get_job_counts()).waiting == 2
        plain = Queue(f"{queue_name}-plain", url)
        async with plain:
            await plain.add("n")
            foreign = await plain.fetch()
            with pytest.raises(GlideMQValidationError, match="lease of queue"):
                await queue.complete_leases([(foreign[0], 1)])


async def test_a_fetch_waits_for_a_job_of_any_partition(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        fetching = asyncio.create_task(queue.fetch(wait=60_000))
        await asyncio.sleep(0)
        job = await queue.add("n", job_id=id_in(1, 3))
        (lease,) = await with_timeout(fetching)
        assert lease.id == job.id
        await lease.release()


def test_leases_of_blocking_code(url: str, queue_name: str):
    with sync.Queue[Any, Any](queue_name, url, partitions=2) as queue:
        queue.add_bulk([("n", at, {"job_id": id_in(at, 2)}) for at in range(2)])
        leases = queue.fetch(2)
        assert [outcome.applied for outcome in queue.complete_leases([(each, None) for each in leases]).outcomes] == [
            True, True,
        ]  # fmt: skip


# -- dead letters ---------------------------------------------------------------------------------------------


async def test_dead_letters_name_the_whole_queue_and_are_replayed(url: str, queue_name: str):
    fails = True

    async def handle(job: Job) -> None:
        if fails:
            raise ValueError(job.id)

    dead = f"{queue_name}-dead"
    async with Queue(queue_name, url, partitions=3, dead_letter_queue=dead) as queue:
        jobs = await queue.add_bulk([("n", at, {"job_id": id_in(at, 3), "attempts": 1}) for at in range(3)])
        async with Worker(queue_name, handle, url, log_failures=False) as worker:
            recorded = EventRecorder(worker)
            await recorded.wait("failed", 3)
            entries = await queue.get_dead_letter_jobs()
            assert sorted(entry.data["originalJobId"] for entry in entries) == sorted(job.id for job in jobs)
            assert {entry.data["originalQueue"] for entry in entries} == {queue_name}
            found = await queue.get_dead_letter_job(entries[2].id)
            assert found is not None
            assert found.data == entries[2].data
            fails = False
            replayed = await queue.replay_dead_letter_job(entries[2].id)
            assert replayed is not None
            assert replayed.id.partition("||")[0] == entries[2].data["originalJobId"].partition("||")[0]
            await replayed.wait_until_finished()
        async with Operator(url) as operator, Queue(dead, url) as dead_queue:
            by_age = [job.id for job in reversed(await dead_queue.get_jobs("waiting"))]
            assert set(by_age) == {entries[0].id, entries[1].id}
            newest, is_cut = await operator.get_newest_dead_letters(queue_name, 1)
            assert ([each.id for each in newest], is_cut) == (by_age[:1], True)
            newest, is_cut = await operator.get_newest_dead_letters(queue_name, 100)
            assert ([each.id for each in newest], is_cut) == (by_age, False)
            assert {each.queue for each in newest} == {queue_name}
        assert await queue.remove_dead_letter_job(entries[0].id)
        assert not await queue.remove_dead_letter_job(entries[0].id)
        assert len(await queue.get_dead_letter_jobs()) == 1
        assert await queue.get_dead_letter_job(entries[0].id) is None


# -- metrics, failures, checks --------------------------------------------------------------------------------


async def test_figures_are_sums(url: str, resp: RespClient, queue_name: str):
    async def handle(job: Job) -> None:
        if job.data % 2:
            raise ValueError("odd")

    async with Queue(queue_name, url, partitions=3) as queue:
        await queue.add_bulk([("n", at, {"job_id": f"key-{at}", "attempts": 1}) for at in range(10)])
        worker = Worker(queue_name, handle, url, log_failures=False)
        await worker.start()
        await with_timeout(worker.drain())
        for kind in ("completed", "failed"):
            metrics = await queue.get_metrics(kind)
            assert metrics.count == 5
            assert sum(point.count for point in metrics.data) == 5
        with pytest.raises(GlideMQValidationError):
            await queue.get_metrics("completed", 5, 2)
        stats = await queue.get_failure_stats()
        assert (stats.kept, stats.total, stats.by_name) == (5, 5, {"n": 5})
        assert stats.oldest is not None
        assert stats.newest is not None
        assert stats.oldest <= stats.newest
        report = await queue.check()
        assert (report.ok, report.queue, report.jobs) == (True, queue_name, 10)
        assert await queue.retry_failures(name="n") == 5
        resp.execute("HSET", f"glide:{{{queue_name}}}:job:lost", "state", "waiting", "name", "n")
        broken = await queue.check(recheck_after=0)
        assert [finding.subject for finding in broken.findings] == ["lost"]
        assert queue_name in broken.findings[0].detail
        assert (await queue.check(repair=True, recheck_after=0)).ok


async def test_workers_are_controlled_once(url: str, queue_name: str):
    running = asyncio.Event()

    async def handle(_: Job) -> None:
        running.set()
        await asyncio.Event().wait()

    async with Queue(queue_name, url, partitions=3) as queue, Worker(queue_name, handle, url) as worker:
        recorded = EventRecorder(worker)
        async with asyncio.timeout(60):
            while await queue.ping_workers() != [worker.consumer]:  # noqa: ASYNC110  there is no event for it
                await asyncio.sleep(0.01)  # it registers after its start
        assert await queue.resize_workers(3) == [worker.consumer]
        job = await queue.add("n", job_id=id_in(2, 3))
        await with_timeout(running.wait())
        (activity,) = await queue.inspect_workers()
        assert [each.id for each in activity.jobs] == [job.id]
        assert await queue.cancel_on_worker(id_in(2, 3), worker.consumer)
        await recorded.wait("failed")


# -- events ---------------------------------------------------------------------------------------------------


async def test_events_of_all_partitions(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue, QueueEvents(queue_name, url) as events:
        seen: list[QueueEvent] = []
        complete = asyncio.Event()

        def note(event: QueueEvent) -> None:
            seen.append(event)
            if len(seen) == 6:
                complete.set()

        events.on("added", note)
        jobs = await queue.add_bulk([("n", at, {"job_id": id_in(at % 3, 3) + str(at)}) for at in range(6)])
        await with_timeout(complete.wait())
        assert sorted(event.job_id for event in seen) == sorted(job.id for job in jobs)
        assert len({event.id for event in seen}) == 6
        assert {abs(event.timestamp - jobs[0].timestamp) < 60_000 for event in seen} == {True}


async def test_an_iteration_over_the_events_of_all_partitions(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        events = QueueEvents(queue_name, url)
        await events.wait_until_ready()
        await queue.pause()
        names: list[str] = []
        async for event in events:
            names.append(event.event)
            if len(names) == 3:
                break
        assert names == ["paused"] * 3


async def _first(events: QueueEvents, count: int) -> list[QueueEvent]:
    found: list[QueueEvent] = []
    async for event in events:
        found.append(event)
        if len(found) == count:
            break
    return found


async def test_events_continue_after_those_that_were_returned(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        events = QueueEvents(queue_name, url)
        assert events.last_event_id is None
        await events.wait_until_ready()
        start = events.last_event_id
        assert start is not None
        jobs = await queue.add_bulk([("n", at, {"job_id": id_in(at % 3, 3) + str(at)}) for at in range(12)])
        found = await with_timeout(_first(events, 5))
        assert events.last_event_id not in (None, start)
        rest = await with_timeout(_first(QueueEvents(queue_name, url, last_event_id=events.last_event_id), 7))
        assert sorted(event.job_id for event in (*found, *rest)) == sorted(job.id for job in jobs)
        for after in (start, "0"):
            again = await with_timeout(_first(QueueEvents(queue_name, url, last_event_id=after), 12))
            assert {event.id for event in again} == {event.id for event in (*found, *rest)}
        with pytest.raises(GlideMQValidationError, match=r"'2\|\|.*use `QueueEvents.last_event_id` instead"):
            QueueEvents(queue_name, url, last_event_id=next(each.id for each in again if each.id.startswith("2||")))


async def test_events_continue_after_a_change_of_the_number(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        events = QueueEvents(queue_name, url)
        await events.wait_until_ready()
        job = await queue.add("n")
        assert [event.job_id for event in await with_timeout(_first(events, 1))] == [job.id]
        for partitions in (3, 5, 2):
            await queue.set_partitions(partitions)
            jobs = await queue.add_bulk([("n", None, {"job_id": f"{partitions}-{at}"}) for at in range(12)])
            events = QueueEvents(queue_name, url, last_event_id=events.last_event_id)
            added = [event.job_id for event in await with_timeout(_first(events, 12)) if event.event == "added"]
            assert sorted(added) == sorted(job.id for job in jobs)


def test_blocking_code_reads_the_events_of_all_partitions(core_url: str, queue_name: str):
    with sync.Queue[Any, Any](queue_name, core_url, partitions=3) as queue:
        events = sync.QueueEvents(queue_name, core_url)
        events.wait_until_ready()
        jobs = queue.add_bulk([("n", at, {"job_id": id_in(at % 3, 3) + str(at)}) for at in range(9)])
        found = list(islice(events, 4))
        events.close()
        rest = list(islice(sync.QueueEvents(queue_name, core_url, last_event_id=events.last_event_id), 5))
        assert sorted(event.job_id for event in (*found, *rest)) == sorted(job.id for job in jobs)


def test_blocking_code_ends_an_iteration_in_another_thread(url: str, queue_name: str):
    with sync.Queue[Any, Any](queue_name, url, partitions=2) as queue:
        events = sync.QueueEvents(queue_name, url)
        seen: list[str] = []
        first, ended = threading.Event(), threading.Event()

        def listen(event: QueueEvent) -> None:
            seen.append(event.event)
            first.set()

        with sync.QueueEvents(queue_name, url) as listening:
            listening.on("paused", listen)
            queue.pause()
            assert first.wait(100)
        events.wait_until_ready()

        def iterate() -> None:
            assert not list(events)
            ended.set()

        thread = threading.Thread(target=iterate)
        thread.start()
        assert not ended.wait(0.1)
        events.close()
        assert ended.wait(100)
        thread.join(100)
        assert set(seen) == {"paused"}


def test_blocking_code_continues_after_a_lost_connection(queue_name: str, server: ServerProcess):
    with LossyProxy(server.port) as proxy, sync.Queue[Any, Any](queue_name, server.url, partitions=2) as queue:
        events = sync.QueueEvents(queue_name, proxy.url)
        found: list[str] = []
        for number, event in enumerate(_with_first(events, queue)):
            found.append(event.job_id)
            if number == 1:
                proxy.cut()
                for at in (0, 1):
                    queue.add("n", job_id=id_in(at, 2) + "again")
            if number == 3:
                break
        assert sorted(found) == sorted(job.id for job in queue.iter_jobs("waiting"))


def _with_first(events: sync.QueueEvents, queue: sync.Queue[Any, Any]) -> Iterator[QueueEvent]:
    events.wait_until_ready()
    for at in (0, 1):
        queue.add("n", job_id=id_in(at, 2))
    yield from events
