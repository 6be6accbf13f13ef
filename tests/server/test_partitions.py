"""Partitioned queues: layout, routing, ids, and the methods of `Queue` over all partitions."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from glidemq_py import (
    BulkAddError,
    GlideMQError,
    GlideMQValidationError,
    Job,
    JobNotFoundError,
    JobStateError,
    Middleware,
    NewJob,
    Queue,
    RateLimitError,
    UnsupportedOptionError,
    Worker,
    sync,
)
from glidemq_py._features.partitions.layout import partition_names, partition_of_key, split_partition_id
from glidemq_py.testing import RespClient, ServerProcess
from tests.server.worker_support import EventRecorder, until, with_timeout


def keyed(partition: int, partitions: int, prefix: str = "k") -> str:
    """Return a routing key of a partition."""
    return next(f"{prefix}{n}" for n in range(10_000) if partition_of_key(f"{prefix}{n}", partitions) == partition)


def assert_deleted(resp: RespClient, name: str) -> None:
    """Check that a deleted queue has left marks that expire only, apart from streams of open workers."""
    keys = [key for key in resp.keys(f"glide:{{{name}*") if not key.endswith(":stream")]
    assert [key for key in keys if not key.endswith(":deleted-layout")] == []
    assert [key for key in keys if not 0 < int(resp.execute("PTTL", key)) <= 86_400_000] == []


def id_in(partition: int, partitions: int) -> str:
    return keyed(partition, partitions, "order-")


# -- the layout -----------------------------------------------------------------------------------------------


async def test_the_layout_is_stored_once_and_found_by_others(url: str, resp: RespClient, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue, Queue(queue_name, url) as other:
        await queue.add_bulk([("n", None, {"ordering": {"key": keyed(at, 3)}}) for at in range(3)])
        assert await other.count() == 3
        assert list(await other.get_features()) == ["partitions"]
    for name in partition_names(queue_name, 3):
        assert resp.execute("XLEN", f"glide:{{{name}}}:stream") == 1


async def test_an_empty_queue_keeps_its_settings(url: str, resp: RespClient, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.pause()
        await queue.set_result_retention(500)
    async with Queue(queue_name, url, partitions=3) as queue:
        for part in queue._parts:
            async with Queue(part.name, url) as single:
                assert await single.is_paused()
                assert await single.get_result_retention() == 500
        await queue.resume()
        assert not await queue.is_paused()


async def test_new_partitions_are_not_those_of_a_deleted_queue(url: str, resp: RespClient, queue_name: str):
    """A late command for the name of a partition may have created its meta key again."""
    *_, last = partition_names(queue_name, 3)
    fields = ("paused", "globalConcurrency", "resultsKept")
    resp.execute("HSET", f"glide:{{{last}}}:meta", *(word for field in fields for word in (field, "1")))
    async with Queue(queue_name, url, partitions=3):
        assert resp.execute("HMGET", f"glide:{{{last}}}:meta", *fields) == [None] * 3


@pytest.mark.parametrize("limit", ["set_global_concurrency", "set_fair_key_limits", "set_group_limits"])
async def test_limits_are_divided_by_set_partitions_only(url: str, queue_name: str, limit: str):
    arguments = {"set_global_concurrency": (6,), "set_fair_key_limits": ("k",), "set_group_limits": ("k",)}[limit]
    options = {} if limit == "set_global_concurrency" else {"concurrency": 6}
    async with Queue(queue_name, url) as queue:
        await getattr(queue, limit)(*arguments, **options)
        with pytest.raises(GlideMQValidationError, match=r"has jobs or limits .*; call Queue.set_partitions\(3\)"):
            await Queue(queue_name, url, partitions=3).connect()
        await queue.set_partitions(3)


async def test_limits_that_have_ended_are_none(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.set_global_concurrency(6, ttl=1)
        async with asyncio.timeout(60):
            while await queue.get_global_concurrency():
                pass  # nothing tells that a limit has ended, but its time to live is 1 ms
    async with Queue(queue_name, url, partitions=3) as queue:
        assert (await queue.get_partitions()).count == 3


async def test_a_rejected_number_leaves_no_keys(url: str, resp: RespClient, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.pause()
        await queue.add("n")
    with pytest.raises(GlideMQValidationError, match="has jobs"):
        await Queue(queue_name, url, partitions=3).connect()
    assert not any(resp.execute("EXISTS", f"glide:{{{name}}}:meta") for name in partition_names(queue_name, 3)[1:])


async def test_a_wrong_number_of_partitions_is_rejected(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3):
        pass
    for wrong, has in ((4, "has 3 partitions"), (1, "has 3 partitions")):
        with pytest.raises(GlideMQValidationError, match=has) as raised:
            await Queue(queue_name, url, partitions=wrong).connect()
        assert raised.value.option == "partitions"
    with pytest.raises(GlideMQValidationError, match="partitions"):
        Queue(queue_name, url, partitions=257)


async def test_a_queue_with_jobs_is_not_partitioned(url: str, queue_name: str):
    for options in ({}, {"delay": 60_000}, {"priority": 3}, {"lifo": True}, {"fair_key": "a"}):
        name = f"{queue_name}-{'-'.join(options)}"
        async with Queue(name, url) as plain:
            job = await plain.add("n", **options)
            with pytest.raises(GlideMQValidationError, match="has jobs"):
                await Queue(name, url, partitions=2).connect()
            await plain.remove(job.id)
            async with Queue(name, url, partitions=2) as queue:
                assert await queue.count() == 0


@pytest.mark.parametrize("text", ["", "x", "[]", '{"version":1,"names":["other","x"]}', '{"version":1,"names":[1,2]}'])
async def test_a_damaged_layout_is_reported(url: str, resp: RespClient, queue_name: str, text: str):
    resp.execute("HSET", f"glide:{{{queue_name}}}:meta", "partitions", text or "{")
    with pytest.raises(GlideMQError, match="damaged"):
        await Queue(queue_name, url).connect()


# -- routing and ids ------------------------------------------------------------------------------------------


async def test_each_kind_of_key_chooses_the_partition(url: str, queue_name: str):
    key = keyed(2, 3)
    async with Queue(queue_name, url, partitions=3) as queue:
        jobs = [
            await queue.add("n", ordering={"key": key}),
            await queue.add("n", fair_key=key),
            await queue.add("n", deduplication={"id": key}),
            await queue.add("n", job_id=id_in(2, 3)),
            await queue.add("n", ordering={"key": key}, deduplication={"id": key}),
        ]
        assert {job.id.partition("||")[0] for job in jobs} == {"2"}
        assert {job.queue_name for job in jobs} == {queue_name}
        spread = {split_partition_id((await queue.add("n")).id)[0] for _ in range(3)}
        assert len(spread) == 3


async def test_options_that_choose_different_partitions_are_rejected(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        with pytest.raises(UnsupportedOptionError) as raised:
            await queue.add("n", ordering={"key": "a"}, job_id="b")
        assert raised.value.option == "job_id"
        with pytest.raises(GlideMQValidationError) as numeric:
            await queue.add_bulk([("n", 1), ("n", 1, {"job_id": "17"})])
        assert numeric.value.option == "jobs[1].job_id"
        with pytest.raises(GlideMQValidationError) as invalid:
            await queue.add_bulk([("n", 1), ("n", object())])
        assert invalid.value.option == "jobs[1].data"
        assert await queue.count() == 0


async def test_a_custom_id_is_found_with_and_without_its_partition(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        wanted = id_in(2, 3)
        job = await queue.add("n", 1, job_id=wanted)
        again = await queue.add("n", 2, job_id=wanted)
        assert (job.id, again.id, str(again.outcome)) == (f"2||{wanted}", f"2||{wanted}", "duplicate")
        for given in (wanted, job.id):
            found = await queue.get_job(given)
            assert found is not None
            assert (found.id, found.data) == (job.id, 1)
        async with Queue(f"{queue_name}-plain", url) as plain:
            assert await plain.get_job(job.id) is None
        for missing in ("1||17", "17", "order-0", "9||17", "x||y||z"):
            assert await queue.get_job(missing) is None
            with pytest.raises(JobNotFoundError) as raised:
                await queue.promote(missing)
            assert raised.value.job_id == missing


async def test_jobs_that_other_clients_added_to_partition_0_are_found_and_run(
    url: str, resp: RespClient, queue_name: str
):
    own = id_in(2, 3)
    async with Queue(queue_name, url, partitions=3) as queue:
        plain = queue._partitions
        assert plain is not None
        # What a client without partitions does: it adds to the plain queue.
        await plain.queues[0].add("n", "peer", job_id=own)
        found = await queue.get_job(own)
        assert found is not None
        assert (found.id, found.data) == (own, "peer")
        seen: list[str] = []
        async with Worker(queue_name, lambda job: seen.append(job.id), url):
            await found.wait_until_finished()
        assert seen == [own]
        assert await queue.remove(own)


async def test_bulk_keeps_positions_and_order(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=4) as queue:
        specs: list[Any] = [("n", at, {"ordering": {"key": f"k{at % 7}"}}) for at in range(40)]
        specs[5] = ("plain", 5)
        specs[6] = ("custom", 6, {"job_id": "order-6"})
        jobs = await queue.add_bulk(specs)
        assert [job.data for job in jobs] == list(range(40))
        for job in jobs:
            again = await queue.get_job(job.id)
            assert again is not None
            assert again.data == job.data
        assert await queue.add_bulk([]) == []


async def test_a_rejected_job_of_a_bulk_leaves_the_others(url: str, queue_name: str):
    key = keyed(1, 3)
    async with Queue(queue_name, url, partitions=3) as queue:
        await queue.set_fair_key_limits(key, max_backlog=1)
        with pytest.raises(BulkAddError) as raised:
            await queue.add_bulk([("n", 0), ("n", 1, {"fair_key": key}), ("n", 2, {"fair_key": key}), ("n", 3)])
        assert [isinstance(result, Job) for result in raised.value.results] == [True, True, False, True]
        assert await queue.count() == 3


# -- reading and changing -------------------------------------------------------------------------------------


async def filled(queue: Queue) -> list[Job]:
    return await queue.add_bulk([("n", at, {"fair_key" if at % 2 else "job_id": f"key-{at}"}) for at in range(12)])


async def test_lists_have_the_jobs_of_all_partitions(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        jobs = await queue.add_bulk([("n", at, {"job_id": f"key-{at}", "tags": ["t"]}) for at in range(12)])
        ids = sorted(job.id for job in jobs)
        assert sorted([job.id async for job in queue.iter_jobs("waiting", 2)]) == ids
        assert sorted([job.id async for job in queue.iter_search_jobs(name="n")]) == ids
        everything = [job.id for job in await queue.get_jobs("waiting")]
        assert sorted(everything) == ids
        for first, last in ((0, 0), (3, 7), (10, 40), (12, 20), (5, -1)):
            expected = everything[first : None if last == -1 else last + 1]
            assert [job.id for job in await queue.get_jobs("waiting", first, last)] == expected
            assert [job.id for job in await queue.get_jobs("waiting", first, last, tags="t")] == expected
        assert len(await queue.search_jobs(name="n", limit=5)) == 5
        assert (await queue.get_job_counts()).waiting == await queue.count() == 12
        assert await queue.get_rank_counts() == {0: 12}


async def test_jobs_are_changed_by_their_ids(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        for at in range(3):
            job = await queue.add("n", at, job_id=id_in(at, 3), delay=60_000)
            await queue.change_priority(job.id, 5)
            await queue.change_delay(job.id, 90_000)
            await queue.promote(job.id)
            found = await queue.get_job(job.id)
            assert found is not None
            assert found.priority == 5
            await found.log("line")
            await found.update_data("new")
            assert (await queue.get_job_logs(job.id)).logs == ["line"]
            await found.reload()
            assert found.data == "new"
            with pytest.raises(JobStateError) as raised:
                await queue.promote(job.id)
            assert raised.value.job_id == job.id
            assert await queue.revoke(job.id) == "revoked"
            assert await queue.remove(job.id)
            assert not await queue.remove(job.id)


async def test_first_arguments_may_have_names(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        job = await queue.add("n", job_id=id_in(2, 3))
        assert await queue.get_job(exclude_data=True, job_id=job.id) is not None
        key = keyed(2, 3)
        await queue.set_group_limits(concurrency=2, key=key)
        await queue.add("n", ordering={"key": key})
        group = await queue.get_group(key=key)
        assert group is not None
        assert group.limits.concurrency == 2
        assert await queue.remove_deduplication(deduplication_id="x") is False


async def test_concurrent_adds_are_spread_in_batches(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=4) as queue:
        await asyncio.gather(*(queue.add("n", at) for at in range(1_000)))
        assert queue._partitions is not None
        counts = [await part.count() for part in queue._partitions.queues]
        assert sum(counts) == 1_000
        assert min(counts) >= 100


async def test_operations_on_the_whole_queue(url: str, resp: RespClient, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        await queue.pause()
        assert await queue.is_paused()
        await queue.add_bulk([("n", at, {"job_id": f"key-{at}", "attempts": 1}) for at in range(12)])

        async def fail(job: Job) -> None:
            raise ValueError(job.id)

        async with Worker(queue_name, fail, url, concurrency=4, log_failures=False) as worker:
            recorded = EventRecorder(worker)
            assert (await queue.get_job_counts()).paused
            await queue.resume()
            await recorded.wait("failed", 12)
        assert (await queue.get_job_counts()).failed == 12
        assert len(await queue.get_failures(limit=7)) == 7
        failures = [failure async for failure in queue.iter_failures()]
        assert sorted(failure.error for failure in failures) == sorted(failure.job_id for failure in failures)
        for change in (queue.retry_jobs, queue.requeue_completed, queue.promote_jobs):
            with pytest.raises(
                GlideMQValidationError, match="option 'count' = 0: must be at least 1; leave it out for all"
            ):
                await change(0)
        assert await queue.retry_jobs(5) == 5
        assert await queue.retry_jobs() == 7
        assert await queue.drain() == 12
        assert (await queue.get_job_counts()).waiting == 0
        await queue.add_bulk([("n", at, {"job_id": f"key-{at}", "delay": 60_000}) for at in range(6)])
        assert await queue.promote_jobs(4) == 4
        removed = await queue.clean(0, 5, "waiting")
        assert len(removed) == 4
        assert await queue.get_job(removed[0]) is None
        assert await queue.obliterate() == 2
        assert_deleted(resp, queue_name)
        # It is a new queue now, and gets its partitions again.
        assert (await queue.add("n", job_id=id_in(2, 3))).id == f"2||{id_in(2, 3)}"


async def test_obliterate_by_a_client_that_does_not_know_the_partitions(url: str, queue_name: str, resp: RespClient):
    async with Queue(queue_name, url) as queue, Queue(queue_name, url) as other:
        await queue.connect()
        assert await queue.count() == 0
        await other.set_partitions(3)
        await other.add_bulk([("n", None, {"job_id": id_in(at, 3)}) for at in range(3)])
        assert await queue.obliterate() == 3
    assert_deleted(resp, queue_name)


async def test_objects_of_an_obliterated_queue_stay_usable(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        job = await queue.add("n")
        part = queue._parts[0]
        await queue.obliterate()
        assert await job.get_state() is None
        assert await part.get_job(job.id) is None
        again = await queue.add("n")
        assert await again.get_state() == "waiting"
        assert (await queue.get_job_counts()).waiting == 1
        assert queue._parts[0] is not part


async def test_obliterate_after_a_shrink_leaves_no_layout(url: str, queue_name: str, resp: RespClient):
    async with Queue(queue_name, url, partitions=4) as queue:
        await queue.count()
        assert (await queue.set_partitions(2)).is_settled
        await queue.obliterate()
    assert_deleted(resp, queue_name)
    async with Queue(queue_name, url, partitions=4) as again:
        await again.add("n")
        assert again._partitions is not None
        assert again._partitions.layout.partitions == 4


async def test_obliterate_keeps_everything_while_jobs_are_active(url: str, queue_name: str):
    running, proceed = asyncio.Event(), asyncio.Event()

    async def handle(_: Job) -> None:
        running.set()
        await proceed.wait()

    async with Queue(queue_name, url, partitions=3) as queue, Worker(queue_name, handle, url):
        await queue.add("n", job_id=id_in(2, 3))
        await with_timeout(running.wait())
        await queue.add_bulk([("n", at) for at in range(3)])
        with pytest.raises(JobStateError):
            await queue.obliterate()
        assert (await queue.get_job_counts()).active == 1
        proceed.set()


async def test_usage_is_summed_over_partitions(core_url: str, queue_name: str):
    prefix, other = f"usage-{queue_name}", f"{queue_name}-other"
    async with (
        Queue(queue_name, core_url, prefix=prefix, partitions=3) as queue,
        Queue(other, core_url, prefix=prefix) as plain,
    ):
        for at in range(3):
            job = await queue.add("n", job_id=id_in(at, 3))
            await job.report_usage(model="m", tokens={"input": 10**at}, costs={"x": 0.5}, cost_unit="EUR")
        await (await plain.add("n")).report_usage(total_tokens=1_000)
        summary = await queue.get_usage_summary()
        assert (summary.queues, summary.job_count, summary.total_tokens) == ((queue_name, other), 4, 1_111)
        assert {name: usage.total_tokens for name, usage in summary.per_queue.items()} == {queue_name: 111, other: 1000}
        assert (await plain.get_usage_summary([queue_name])).per_queue == {queue_name: summary.per_queue[queue_name]}
        part = partition_names(queue_name, 3)[2]
        assert (await queue.get_usage_summary([part])).total_tokens == 100
        with pytest.raises(GlideMQValidationError, match="of 4 queues"):
            await queue.get_usage_summary(window=30 * 86_400_000)
        for waiting in await queue.get_jobs("waiting"):
            await waiting.remove()
        assert (await queue.set_partitions(1)).is_settled
        assert (await queue.get_usage_summary([queue_name])).total_tokens == 111
        await queue.obliterate()
        await plain.obliterate()


async def test_middleware_and_errors_name_the_whole_queue(url: str, queue_name: str):
    class Note(Middleware):
        def __init__(self) -> None:
            self.queues: list[str] = []

        def add(self, job: NewJob) -> None:
            self.queues.append(job.queue)

    note = Note()
    async with Queue(queue_name, url, partitions=2, middleware=[note]) as queue:
        await queue.add("n")
        await queue.add_bulk([("n", 1), ("n", 2)])
        assert note.queues == [queue_name] * 3


def test_blocking_code(url: str, queue_name: str):
    with sync.Queue[Any, Any](queue_name, url, partitions=3) as queue:
        jobs = queue.add_bulk([("n", at, {"job_id": f"key-{at}"}) for at in range(9)])
        assert len({job.id for job in jobs}) == 9
        assert queue.add("n", 1).queue_name == queue_name
        assert queue.count() == 10
        assert len(list(queue.iter_jobs("waiting"))) == 10
        found = queue.get_job("key-3")
        assert found is not None
        assert found.data == 3
        assert queue.drain() == 10


# -- workers --------------------------------------------------------------------------------------------------


async def test_a_worker_serves_all_partitions_and_returns_results(url: str, queue_name: str):
    async def handle(job: Job) -> Any:
        await job.update_progress(50)
        await job.log(f"{job.queue_name} {job.id}")
        return job.data

    async with Queue(queue_name, url, partitions=3) as queue, Worker(queue_name, handle, url, concurrency=3) as worker:
        jobs = await queue.add_bulk([("n", at, {"job_id": id_in(at, 3)}) for at in range(3)])
        assert await asyncio.gather(*(job.wait_until_finished() for job in jobs)) == [0, 1, 2]
        assert await queue.add_and_wait("n", 7) == 7
        for job in jobs:
            assert (await queue.get_job_logs(job.id)).logs == [f"{queue_name} {job.id}"]
        (info,) = await queue.get_workers()
        assert info.id == worker.consumer


@pytest.mark.slow
async def test_calls_are_as_large_as_those_of_a_plain_queue(private_server: Callable[..., ServerProcess]):
    """Each call for few jobs costs the server more per job: 2.5 times as much with the slots dealt one by one."""
    jobs, left, done = 10_000, 0, asyncio.Event()

    async def handle(_: Job) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    server, calls = private_server(), dict[str, int]()
    with server.client() as resp:
        for name, partitions in (("plain", None), ("parted", 8)):
            left = jobs
            done.clear()
            async with Queue(name, server.url, partitions=partitions) as queue:
                await queue.add_bulk([("n", None)] * jobs)
            resp.execute("CONFIG", "RESETSTAT")
            workers = [Worker(name, handle, server.url, concurrency=50) for _ in range(3)]
            await asyncio.gather(*(worker.start() for worker in workers))
            await with_timeout(done.wait(), 60)
            found = re.search(r"cmdstat_fcall:calls=(\d+)", str(resp.execute("INFO", "commandstats")))
            await asyncio.gather(*(worker.close() for worker in workers))
            assert found is not None
            calls[name] = int(found[1])
    # Each of 24 lanes makes some calls before and after.
    assert calls["parted"] <= 2 * calls["plain"] + 240, calls


async def test_an_urgent_job_waits_for_two_fetches_of_each_other_partition_at_most(core_url: str, queue_name: str):
    partitions, slots, fetched = 8, 10, 5
    started: list[str] = []
    urgent = asyncio.Event()

    async def handle(job: Job) -> None:
        started.append(job.name)
        if job.name == "urgent":
            urgent.set()
        await asyncio.sleep(0.005)

    late: list[int] = []
    async with Queue(queue_name, core_url, partitions=partitions) as queue:
        await queue.add_bulk([("usual", None, {"priority": 1_000})] * 6_000)
        async with Worker(queue_name, handle, core_url, concurrency=slots):
            for _ in range(4):
                await until(lambda: len(started) >= 200 * (len(late) + 1))
                urgent.clear()
                await queue.add("urgent", priority=1)
                at = len(started)
                async with asyncio.timeout(10):
                    await urgent.wait()
                late.append(len(started) - 1 - started[::-1].index("urgent") - at)
            assert await queue.count() > 0
    assert max(late) <= 2 * fetched * (partitions - 1) + 2 * fetched, late


async def test_jobs_of_a_key_run_in_order_with_several_workers(url: str, queue_name: str):
    keys = [f"customer-{number}" for number in range(9)]
    order: defaultdict[str, list[int]] = defaultdict(list)

    async def handle(job: Job) -> None:
        await asyncio.sleep(0)
        order[job.data[0]].append(job.data[1])

    async with Queue(queue_name, url, partitions=4) as queue:
        await queue.add_bulk([("n", [key, at], {"ordering": {"key": key}}) for at in range(20) for key in keys])
        workers = [Worker(queue_name, handle, url, concurrency=5) for _ in range(3)]
        await asyncio.gather(*(worker.start() for worker in workers))
        await with_timeout(asyncio.gather(*(worker.drain() for worker in workers)))
    assert dict(order) == {key: list(range(20)) for key in keys}


async def test_a_running_job_is_cancelled_by_its_id(url: str, queue_name: str):
    running = asyncio.Event()

    async def handle(_: Job) -> None:
        running.set()
        await asyncio.Event().wait()

    async with Queue(queue_name, url, partitions=3) as queue, Worker(queue_name, handle, url) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", job_id=id_in(2, 3))
        await with_timeout(running.wait())
        assert not worker.cancel_job(id_in(2, 3))
        assert worker.cancel_job(job.id, queue_name)
        await recorded.wait("failed")


async def test_a_worker_of_several_queues_divides_the_weight(url: str, queue_name: str):
    names = [f"{queue_name}-a", f"{queue_name}-b"]
    async with Queue(names[0], url, partitions=3) as first, Queue(names[1], url) as second:
        seen: list[str] = []

        async def handle(job: Job) -> None:
            seen.append(job.queue_name)

        await first.add_bulk([("n", at) for at in range(3)])
        await second.add_bulk([("n", at) for at in range(3)])
        worker = Worker({names[0]: 2, names[1]: 1}, handle, url)
        await worker.start()
        await with_timeout(worker.drain())
        assert sorted(seen) == sorted([names[0]] * 3 + [names[1]] * 3)
        with pytest.raises(GlideMQValidationError, match="strict order"):
            await Worker(names, handle, url).start()


async def test_the_limiter_of_a_worker_is_divided(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        seen: list[Job] = []
        limiter: Any = {"max": 7, "duration": 3_600_000}
        worker = Worker(queue_name, seen.append, url, concurrency=20, limiter=limiter, lock_duration=1_000)
        async with worker:
            await queue.set_partitions(3)
            life: Any = worker._life
            await with_timeout(until(lambda: len(getattr(life.parts, "lanes", ())) == 3))
            assert [lane.fetching._limiter for lane in life.parts.lanes] == [(each, 3_600_000) for each in (3, 2, 2)]
            await asyncio.gather(*(queue.add("n") for _ in range(600)))
            await with_timeout(until(lambda: len(seen) == 7))
            assert Counter(split_partition_id(job.id)[0] for job in seen) == {0: 3, 1: 2, 2: 2}
            await queue.set_partitions(5)
            await with_timeout(until(lambda: len(life.parts.lanes) == 5))
            assert [lane.fetching._limiter[0] for lane in life.parts.lanes] == [2, 2, 1, 1, 1]


async def test_tokens_of_a_worker_are_counted_over_all_partitions(url: str, queue_name: str):
    begun: list[Job] = []

    async def handle(job: Job) -> None:
        begun.append(job)
        await job.report_tokens(10)

    limiter: Any = {"max_tokens": 50, "duration": 3_600_000, "scope": "worker"}
    async with Queue(queue_name, url, partitions=4) as queue:
        await queue.add_bulk([("n", None, {"fair_key": keyed(at % 4, 4, f"{at}-")}) for at in range(40)])
        async with Worker(queue_name, handle, url, token_limiter=limiter) as worker:
            await with_timeout(until(lambda: len(begun) == 5))
            life: Any = worker._life
            await with_timeout(until(lambda: not worker.active_count))
            assert all(lane.fetching.engine.throttle.holding for lane in life.parts.lanes)
            await queue.add_bulk([("n", None, {"fair_key": keyed(at, 4)}) for at in range(4)])
            assert (await queue.get_job_counts()).completed == 5
        assert len(begun) == 5


async def test_tokens_of_the_queue_are_divided(url: str, queue_name: str):
    begun: Counter[int] = Counter()

    async def handle(job: Job) -> None:
        begun[split_partition_id(job.id)[0]] += 1
        await job.report_tokens(10)

    limiter: Any = {"max_tokens": 70, "duration": 3_600_000}
    async with Queue(queue_name, url, partitions=3) as queue:
        await queue.add_bulk([("n", None, {"fair_key": keyed(at % 3, 3, f"{at}-")}) for at in range(30)])
        async with Worker(queue_name, handle, url, token_limiter=limiter | {"scope": "queue"}) as worker:
            await with_timeout(until(lambda: begun == {0: 3, 1: 3, 2: 3}))  # 24, 23 and 23 tokens
            await with_timeout(until(lambda: not worker.active_count))
            life: Any = worker._life
            assert [lane.fetching.engine.token_share for lane in life.parts.lanes] == [24, 23, 23]
    assert sum(begun.values()) == 9


@pytest.mark.slow
async def test_a_rate_limit_error_pauses_all_partitions(url: str, queue_name: str):
    begun: list[str] = []
    limited = asyncio.Event()

    async def handle(job: Job) -> None:
        begun.append(job.name)
        if job.name == "limited" and not limited.is_set():
            limited.set()
            raise RateLimitError(1_500)

    async with (
        Queue(queue_name, url, partitions=3) as queue,
        Worker(queue_name, handle, url, concurrency=10) as worker,
    ):
        recorded = EventRecorder(worker)
        await queue.add("limited", job_id=id_in(1, 3))
        await with_timeout(limited.wait())
        await recorded.wait("delayed")
        jobs = await queue.add_bulk([("n", None, {"fair_key": keyed(at, 3)}) for at in range(3)])
        life: Any = worker._life
        assert [lane.fetching.engine.throttle.holding for lane in life.parts.lanes] == [True] * 3
        assert begun == ["limited"]
        for job in jobs:
            await job.wait_until_finished()
        assert life.parts.lanes[0].fetching.paused_ms == 0


@pytest.mark.slow
async def test_a_limiter_is_divided_by_the_partitions_that_are_left(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=4) as queue:
        await queue.count()
        limiter: Any = {"max": 7, "duration": 3_600_000}
        async with Worker(queue_name, lambda _: None, url, limiter=limiter, lock_duration=1_000) as worker:
            life: Any = worker._life

            def limits() -> list[int]:
                return [lane.fetching._limiter[0] for lane in life.parts.lanes]

            assert limits() == [2, 2, 2, 1]
            assert (await queue.set_partitions(2)).is_settled
            await with_timeout(until(lambda: limits() == [4, 3, 1, 1]))


async def test_a_sandbox_runs_jobs_of_all_partitions(url: str, queue_name: str):
    handler = "tests.server.sandboxed_handlers:plain"
    async with Queue(queue_name, url) as queue, Worker(queue_name, handler, url, lock_duration=1_000) as worker:
        first = await queue.add("log", 1)
        assert (await first.wait_until_finished())[1] == "active"
        await queue.set_partitions(3)
        life: Any = worker._life
        await with_timeout(until(lambda: len(getattr(life.parts, "lanes", ())) == 3))
        jobs = [await queue.add("log", 1) for _ in range(6)]
        assert {split_partition_id(job.id)[0] for job in jobs} == {0, 1, 2}
        for job in jobs:
            assert (await job.wait_until_finished())[1] == "active"
            assert await job.logs() == ["one"]
        echoed = [await (await queue.add("echo", 2)).wait_until_finished() for _ in range(3)]
        assert {split_partition_id(each["id"])[0] for each in echoed} == {0, 1, 2}


async def test_options_of_one_queue_are_rejected(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=2):
        options: list[dict[str, Any]] = [
            {"limiter": {"max": 1, "duration": 1_000}}, {"token_limiter": {"max_tokens": 1, "duration": 1_000}},
        ]  # fmt: skip
        for option in options:
            with pytest.raises(UnsupportedOptionError, match="= 1: must be at least 2, the number of part") as raised:
                await Worker(queue_name, lambda _: None, url, **option).start()
            assert raised.value.option in option


async def test_an_empty_queue_keeps_its_deduplication_windows(url: str, queue_name: str):
    ids = [f"id-{number}" for number in range(12)]

    def throttled(each: str) -> Any:
        return {"deduplication": {"id": each, "mode": "throttle", "ttl": 600_000}, "remove_on_complete": True}

    async with Queue(queue_name, url) as queue:
        first = await queue.add_bulk([("n", each, throttled(each)) for each in ids])
        for lease in await queue.fetch(len(ids)):
            await lease.complete(None)
        async with Queue(queue_name, url, partitions=4) as opened:
            again = await opened.add_bulk([("n", each, throttled(each)) for each in ids])
            again += [await opened.add("n", each, **throttled(each)) for each in ids]
            assert {str(job.outcome) for job in again} == {"skipped"}
            assert [job.id for job in again] == [job.id for job in first] * 2
            assert not (await opened.get_partitions()).is_settled
            assert not (await opened.set_partitions(4)).is_settled
            for each in ids:
                await opened.remove_deduplication(each)
            assert (await opened.set_partitions(4)).is_settled
            new = await opened.add_bulk([("n", each, throttled(each)) for each in ids])
            assert [split_partition_id(job.id)[0] for job in new] == [partition_of_key(each, 4) for each in ids]
        async with Queue(queue_name, url, partitions=4) as opened:
            assert await opened.count() == len(ids)
