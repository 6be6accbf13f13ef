"""Partitioned queues: layout, routing, ids, and the methods of `Queue` over all partitions."""

import asyncio
import re
from operator import attrgetter
from typing import Any

import pytest

from glidemq_py import GlideMQError, GlideMQValidationError, Job, JobNotFoundError, Middleware, NewJob, Queue, Worker
from glidemq_py.errors import QueuePartitionsError
from glidemq_py.testing import RespClient
from tests.inside import keyed, partition_names, partition_of, parts_of
from tests.server.worker_support import StartServer, WorkerFor, until, with_timeout


@pytest.fixture
def partitions() -> int:
    return 3


def assert_deleted(resp: RespClient, name: str):
    """Check that a deleted queue has left marks that expire only, apart from streams of open workers."""
    keys = [key for key in resp.keys(f"glide:{{{name}*") if not key.endswith(":stream")]
    assert [key for key in keys if not key.endswith(":deleted-layout")] == []
    assert [key for key in keys if not 0 < int(resp.execute("PTTL", key)) <= 86_400_000] == []


def id_in(partition: int, partitions: int) -> str:
    return keyed(partition, partitions, "order-")


# -- the layout -----------------------------------------------------------------------------------------------


async def test_an_empty_queue_keeps_its_settings(url: str, resp: RespClient, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.pause()
        await queue.settings.set_result_retention(500)
    async with Queue(queue_name, url, partitions=3) as queue:
        for part in parts_of(queue):
            async with Queue(part.name, url) as single:
                assert await single.is_paused()
                assert await single.settings.get_result_retention() == 500
        await queue.resume()
        assert not await queue.is_paused()


async def test_new_partitions_are_not_those_of_a_deleted_queue(url: str, resp: RespClient, queue_name: str):
    """A late command for the name of a partition may have created its meta key again."""
    *_, last = partition_names(queue_name, 3)
    fields = ("paused", "globalConcurrency", "resultsKept")
    resp.execute("HSET", f"glide:{{{last}}}:meta", *(word for field in fields for word in (field, "1")))
    async with Queue(queue_name, url, partitions=3):
        assert resp.execute("HMGET", f"glide:{{{last}}}:meta", *fields) == [None] * 3


@pytest.mark.parametrize("limit", ["limits.set_concurrency", "fair_keys.set_limits", "groups.set_limits"])
async def test_a_queue_with_limits_is_not_partitioned(url: str, resp: RespClient, queue_name: str, limit: str):
    arguments = {"limits.set_concurrency": (6,), "fair_keys.set_limits": ("k",), "groups.set_limits": ("k",)}[limit]
    options = {} if limit == "limits.set_concurrency" else {"concurrency": 6}
    async with Queue(queue_name, url) as queue:
        await attrgetter(limit)(queue)(*arguments, **options)
        with pytest.raises(QueuePartitionsError, match="first job or limit"):
            await Queue(queue_name, url, partitions=3).connect()
    assert not any(resp.execute("EXISTS", f"glide:{{{name}}}:meta") for name in partition_names(queue_name, 3)[1:])


@pytest.mark.parametrize("options", [{}, {"delay": 60_000}, {"priority": 3}, {"lifo": True}, {"fair_key": "a"}])
async def test_a_queue_with_jobs_is_not_partitioned(url: str, resp: RespClient, queue_name: str, options: Any):
    async with Queue(queue_name, url) as plain:
        await plain.add("n", **options)
        with pytest.raises(QueuePartitionsError, match="first job or limit"):
            await Queue(queue_name, url, partitions=2).connect()
    assert not any(resp.execute("EXISTS", f"glide:{{{name}}}:meta") for name in partition_names(queue_name, 2)[1:])
    with pytest.raises(GlideMQValidationError, match="partitions"):
        Queue(queue_name, url, partitions=257)


async def test_limits_that_have_ended_are_none(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.limits.set_concurrency(6, ttl=1)
        async with asyncio.timeout(60):
            while (await queue.limits.get()).concurrency:
                pass  # nothing tells that a limit has ended, but its time to live is 1 ms
    async with Queue(queue_name, url, partitions=3) as queue:
        assert (await queue.settings.get_partitions()).count == 3


@pytest.mark.parametrize("text", ["", "x", "[]", '{"version":1,"names":["other","x"]}', '{"version":1,"names":[1,2]}'])
async def test_a_damaged_layout_is_reported(url: str, resp: RespClient, queue_name: str, text: str):
    resp.execute("HSET", f"glide:{{{queue_name}}}:meta", "partitions", text or "{")
    with pytest.raises(GlideMQError, match="damaged"):
        await Queue(queue_name, url).connect()


# -- routing and ids ------------------------------------------------------------------------------------------


async def test_each_kind_of_key_chooses_the_partition(queue: Queue, queue_name: str):
    key = keyed(2, 3)
    jobs = [
        await queue.add("n", ordering={"key": key}),
        await queue.add("n", fair_key=key),
        await queue.add("n", deduplication={"id": key}),
        await queue.add("n", job_id=id_in(2, 3)),
        await queue.add("n", ordering={"key": key}, deduplication={"id": key}),
    ]
    assert {job.id.partition("||")[0] for job in jobs} == {"2"}
    assert {job.queue_name for job in jobs} == {queue_name}
    spread = {partition_of((await queue.add("n")).id) for _ in range(3)}
    assert len(spread) == 3


async def test_options_that_choose_different_partitions_are_rejected(queue: Queue):
    with pytest.raises(GlideMQValidationError) as raised:
        await queue.add("n", ordering={"key": "a"}, job_id="b")
    assert raised.value.option == "job_id"
    with pytest.raises(GlideMQValidationError) as numeric:
        await queue.add_bulk([("n", 1), ("n", 1, {"job_id": "17"})])
    assert numeric.value.option == "jobs[1].job_id"
    with pytest.raises(GlideMQValidationError) as invalid:
        await queue.add_bulk([("n", 1), ("n", object())])
    assert invalid.value.option == "jobs[1].data"
    assert await queue.count() == 0


async def test_a_custom_id_is_found_with_and_without_its_partition(queue: Queue, url: str, queue_name: str):
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
    queue: Queue, worker_for: WorkerFor, resp: RespClient
):
    own = id_in(2, 3)
    # What a client without partitions does: it adds to the plain queue.
    await parts_of(queue)[0].add("n", "peer", job_id=own)
    found = await queue.get_job(own)
    assert found is not None
    assert (found.id, found.data) == (own, "peer")
    seen: list[str] = []
    async with worker_for(lambda job: seen.append(job.id)):
        await found.wait_until_finished()
    assert seen == [own]
    assert await queue.remove(own)


# -- reading and changing -------------------------------------------------------------------------------------


async def test_first_arguments_may_have_names(queue: Queue):
    job = await queue.add("n", job_id=id_in(2, 3))
    assert await queue.get_job(exclude_data=True, job_id=job.id) is not None
    key = keyed(2, 3)
    await queue.groups.set_limits(concurrency=2, key=key)
    await queue.add("n", ordering={"key": key})
    group = await queue.groups.get(key=key)
    assert group is not None
    assert group.limits.concurrency == 2
    assert await queue.jobs.remove_deduplication(deduplication_id="x") is False


async def test_concurrent_adds_are_spread_in_batches(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=4) as queue:
        await asyncio.gather(*(queue.add("n", at) for at in range(1_000)))
        counts = [await part.count() for part in parts_of(queue)]
        assert sum(counts) == 1_000
        assert min(counts) >= 100


async def test_obliterate_by_a_client_that_does_not_know_the_partitions(url: str, queue_name: str, resp: RespClient):
    async with Queue(queue_name, url) as queue:
        await queue.connect()
        assert await queue.count() == 0
        async with Queue(queue_name, url, partitions=3) as other:
            await other.add_bulk([("n", None, {"job_id": id_in(at, 3)}) for at in range(3)])
            assert await queue.obliterate() == 3
    assert_deleted(resp, queue_name)


async def test_objects_of_an_obliterated_queue_stay_usable(queue: Queue):
    job = await queue.add("n")
    part = parts_of(queue)[0]
    await queue.obliterate()
    assert await job.get_state() is None
    assert await part.get_job(job.id) is None
    again = await queue.add("n")
    assert await again.get_state() == "waiting"
    assert (await queue.get_job_counts()).waiting == 1
    assert parts_of(queue)[0] is not part


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
        summary = await queue.usage.get_summary()
        assert (summary.queues, summary.job_count, summary.total_tokens) == ((queue_name, other), 4, 1_111)
        assert {name: usage.total_tokens for name, usage in summary.per_queue.items()} == {queue_name: 111, other: 1000}
        assert (await plain.usage.get_summary([queue_name])).per_queue == {queue_name: summary.per_queue[queue_name]}
        part = partition_names(queue_name, 3)[2]
        assert (await queue.usage.get_summary([part])).total_tokens == 100
        with pytest.raises(GlideMQValidationError, match="of 4 queues"):
            await queue.usage.get_summary(window=30 * 86_400_000)
        await queue.obliterate()
        await plain.obliterate()


async def test_middleware_and_errors_name_the_whole_queue(url: str, queue_name: str):
    class Note(Middleware):
        def __init__(self):
            self.queues: list[str] = []

        def add(self, job: NewJob):
            self.queues.append(job.queue)

    note = Note()
    async with Queue(queue_name, url, partitions=2, middleware=[note]) as queue:
        await queue.add("n")
        await queue.add_bulk([("n", 1), ("n", 2)])
        assert note.queues == [queue_name] * 3


# -- workers --------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_calls_are_as_large_as_those_of_a_plain_queue(private_server: StartServer):
    """Each call for few jobs costs the server more per job: 2.5 times as much with the slots dealt one by one."""
    jobs, left, done = 10_000, 0, asyncio.Event()

    async def handle(_: Job):
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

    async def handle(job: Job):
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


async def test_a_worker_of_several_queues_divides_the_weight(url: str, queue_name: str):
    names = [f"{queue_name}-a", f"{queue_name}-b"]
    async with Queue(names[0], url, partitions=3) as first, Queue(names[1], url) as second:
        seen: list[str] = []

        async def handle(job: Job):
            seen.append(job.queue_name)

        await first.add_bulk([("n", at) for at in range(3)])
        await second.add_bulk([("n", at) for at in range(3)])
        worker = Worker({names[0]: 2, names[1]: 1}, handle, url)
        await worker.start()
        await with_timeout(worker.drain())
        assert sorted(seen) == sorted([names[0]] * 3 + [names[1]] * 3)
        with pytest.raises(GlideMQValidationError, match="strict order"):
            await Worker(names, handle, url).start()


async def test_options_of_one_queue_are_rejected(worker_for: WorkerFor, url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=2):
        options: list[dict[str, Any]] = [
            {"limiter": {"max": 1, "duration": 1_000}}, {"token_limiter": {"max_tokens": 1, "duration": 1_000}},
        ]  # fmt: skip
        for option in options:
            with pytest.raises(GlideMQValidationError, match="= 1: must be at least 2, the number of part") as raised:
                await worker_for(lambda _: None, **option).start()
            assert raised.value.option in option
