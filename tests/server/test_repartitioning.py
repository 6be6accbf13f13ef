"""Changing the number of partitions while the queue is in use: order, custom ids, unique keys, settings, workers."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Job, Queue, Worker, sync
from glidemq_py._api import job_queue, partitioned_changes
from glidemq_py._features.partitions.layout import partition_of_key, split_partition_id
from glidemq_py._worker import idle_queues, lanes
from glidemq_py.errors import GlideMQError, UnsupportedOptionError
from glidemq_py.testing import RespClient
from tests.server.worker_support import EventRecorder, until, with_timeout

LOCK_MS = 1_000
"""Lock duration of the workers: they send three heartbeats in this time, which report the layout."""


def moving(before: int, after: int, prefix: str = "k", count: int = 1) -> list[str]:
    """Return routing keys that have another partition after a change."""
    keys = (f"{prefix}{n}" for n in range(10_000))
    found = (key for key in keys if partition_of_key(key, before) != partition_of_key(key, after))
    return [next(found) for _ in range(count)]


def partition_in(job: Job | sync.Job) -> int:
    return split_partition_id(job.id)[0]


async def test_a_plain_queue_with_jobs_grows_without_moving_them(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk([("n", at) for at in range(10)])
        changed = await queue.set_partitions(4)
        assert (changed.count, changed.serving, len(changed.names), changed.names[0]) == (4, 4, 4, queue_name)
        assert [partition_in(job) for job in jobs] == [0] * 10
        assert (await queue.get_job_counts()).waiting == 10
        added = await queue.add_bulk([("n", at) for at in range(2_000)])
        assert {partition_in(job) for job in added} == {0, 1, 2, 3}
        async with Queue(queue_name, url) as other:
            assert await other.count() == 2_010
            assert (await other.get_partitions()).count == 4
        found = await queue.get_job(jobs[0].id)
        assert found is not None
        assert found.data == 0


async def test_change_during_a_change_of_another_client(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch):
    """The other client has changed a partition that this change is about to prepare."""
    note = partitioned_changes._note
    async with Queue(queue_name, url) as queue, Queue(queue_name, url) as other:
        await queue.add("n", 1)

        async def change_first(*args: Any) -> bool:
            monkeypatch.setattr(partitioned_changes, "_note", note)
            await other.set_partitions(3)
            return await note(*args)

        monkeypatch.setattr(partitioned_changes, "_note", change_first)
        with pytest.raises(GlideMQError, match="another client changed the number of partitions") as caught:
            await queue.set_partitions(3)
        assert type(caught.value) is GlideMQError
        assert (await queue.set_partitions(3)).count == 3
        assert await queue.count() == 1


async def test_a_key_stays_in_its_partition_until_its_jobs_have_ended(url: str, queue_name: str):
    key, *_ = moving(1, 3)
    async with Queue(queue_name, url) as queue:
        first = await queue.add("n", 1, ordering={"key": key})
        await queue.set_partitions(3)
        second = await queue.add("n", 2, ordering={"key": key})
        (third,) = await queue.add_bulk([("n", 3, {"ordering": {"key": key}})])
        assert [partition_in(job) for job in (first, second, third)] == [0, 0, 0]
        seen: list[Any] = []
        async with Worker(queue_name, lambda job: seen.append(job.data), url):
            await third.wait_until_finished()
        assert seen == [1, 2, 3]
        later = [await queue.add("n", 4, ordering={"key": key})]
        later += await queue.add_bulk([("n", 5, {"ordering": {"key": key}})])
        assert [partition_in(job) for job in later] == [partition_of_key(key, 3)] * 2


async def test_the_same_custom_id_finds_the_first_job(url: str, queue_name: str):
    wanted, other = moving(2, 5, "order-", 2)
    async with Queue(queue_name, url, partitions=2) as queue:
        first = await queue.add("n", 1, job_id=wanted)
        await queue.set_partitions(5)
        again = await queue.add("n", 2, job_id=wanted)
        (bulk,) = await queue.add_bulk([("n", 3, {"job_id": wanted})])
        assert {(job.id, str(job.outcome)) for job in (again, bulk)} == {(first.id, "duplicate")}
        found = await queue.get_job(wanted)
        assert found is not None
        assert found.data == 1
        new = await queue.add("n", job_id=other)
        assert partition_in(new) == partition_of_key(other, 5)
        assert await queue.remove(wanted)
        assert partition_in(await queue.add("n", job_id=wanted)) == partition_of_key(wanted, 5)


async def test_a_unique_job_stays_unique(url: str, queue_name: str):
    key, timed = moving(1, 4, count=2)
    async with Queue(queue_name, url) as queue:
        first = await queue.add("n", 1, deduplication={"id": key})
        second = await queue.add("n", 1, deduplication={"id": timed, "mode": "throttle", "ttl": 600_000})
        await queue.set_partitions(4)
        again: Any
        for existing, again in (
            (first, {"id": key}), (second, {"id": timed, "mode": "throttle", "ttl": 600_000}),
        ):  # fmt: skip
            skipped = await queue.add("n", 2, deduplication=again)
            assert (skipped.id, str(skipped.outcome)) == (existing.id, "skipped")
        async with Worker(queue_name, lambda _: None, url):
            await first.wait_until_finished()
        new = await queue.add("n", 3, deduplication={"id": key})
        assert (partition_in(new), str(new.outcome)) == (partition_of_key(key, 4), "added")


async def test_clients_that_are_open_find_the_new_partitions(url: str, queue_name: str):
    key, *_ = moving(1, 4)
    async with Queue(queue_name, url) as producer, Queue(queue_name, url) as reader, Queue(queue_name, url) as operator:
        await producer.add("n", ordering={"key": key})
        assert await reader.count() == 1
        await operator.set_partitions(4)
        assert partition_in(await producer.add("n", ordering={"key": key})) == 0
        added = await producer.add_bulk([("n", at) for at in range(2_000)])
        assert len({partition_in(job) for job in added}) == 4
        await operator.set_partitions(6)
        jobs = await asyncio.gather(*(producer.add("n", at) for at in range(2_000)))
        assert len({partition_in(job) for job in jobs}) == 6
        assert reader._partitions is None
        reader._layout_read_at = -job_queue.LAYOUT_S  # as it is after ten seconds
        assert await reader.count() == 4_002


def test_a_blocking_queue_finds_the_new_partitions(url: str, queue_name: str):
    (key,) = moving(1, 3)
    with sync.Queue(queue_name, url) as producer, sync.Queue(queue_name, url) as operator:
        producer.add("n", 1, ordering={"key": key})
        assert operator.set_partitions(3).count == 3
        assert partition_in(producer.add("n", 2, ordering={"key": key})) == 0
        assert len({partition_in(job) for job in (producer.add("n") for _ in range(6))}) == 3
        assert len({partition_in(job) for job in producer.add_bulk([("n", at) for at in range(1_000)])}) == 3


async def test_settings_and_limits_are_those_of_all_partitions(url: str, queue_name: str):
    group, fair = moving(1, 4, count=2)
    async with Queue(queue_name, url, dead_letter_queue=f"{queue_name}-dead") as queue:
        await queue.set_failure_policy(max_age=60_000)
        await queue.set_result_retention(500)
        await queue.set_global_concurrency(10)
        await queue.set_global_rate_limit(100, 1_000)
        await queue.set_name_limits("slow", concurrency=8)
        await queue.set_group_limits(group, concurrency=3)
        await queue.set_fair_key_limits(fair, weight=5, concurrency=2)
        await queue.set_fair_key_defaults(max_backlog=70)
        await queue.pause()
        await queue.set_partitions(4)
        assert queue._partitions is not None
        for part in queue._partitions.queues:
            assert await part.is_paused()
            assert (await part.get_failure_policy()) == await queue.get_failure_policy()
            assert await part.get_result_retention() == 500
            assert (await part.get_fair_key_defaults()).max_backlog == 70
        assert [await part.get_global_concurrency() for part in queue._partitions.queues] == [3, 3, 2, 2]
        limits = await queue.get_global_limits()
        assert limits.concurrency == 10
        assert limits.rate_limit is not None
        assert limits.rate_limit.max == 100
        assert (await queue.get_name_limits("slow")).concurrency == 8
        home = queue._partitions.queues[partition_of_key(group, 4)]
        found = await home.get_group(group)
        assert found is not None
        assert found.limits.concurrency == 3
        info = await queue._partitions.queues[partition_of_key(fair, 4)].get_fair_key(fair)
        assert (info.weight, info.concurrency) == (5, 2)
        await queue.set_partitions(2)
        assert (await queue.set_partitions(2)).is_settled
        assert await queue.get_global_concurrency() == 10
        assert (await queue.get_name_limits("slow")).concurrency == 8


async def test_a_partition_that_is_used_again_has_no_former_settings(url: str, queue_name: str):
    fair = next(f"f{n}" for n in range(100) if partition_of_key(f"f{n}", 4) == 3)
    async with Queue(queue_name, url, partitions=4, dead_letter_queue=f"{queue_name}-dead") as queue:
        await queue.set_failure_policy(max_age=60_000)
        await queue.set_global_concurrency(4)
        await queue.set_global_rate_limit(100, 1_000)
        await queue.set_name_limits("slow", concurrency=8)
        await queue.set_fair_key_limits(fair, weight=5, concurrency=2)
        assert queue._partitions is not None
        await queue._partitions.queues[3].set_group_limits("left behind", concurrency=3)
        await queue.pause()
        await queue.set_partitions(2)
        assert (await queue.set_partitions(2)).is_settled
        await queue.remove_failure_policy()
        await queue.set_fair_key_limits(fair, weight=1, concurrency=False)
        await queue.set_global_concurrency(0)
        await queue.remove_global_rate_limit()
        await queue.set_name_limits("slow", concurrency=False)
        await queue.resume()
        await queue.set_partitions(4)
        assert queue._partitions is not None
        for part in queue._partitions.queues:
            limits = await part.get_global_limits()
            assert (limits.concurrency, limits.rate_limit) == (None, None)
            assert (await part.get_name_limits("slow")).concurrency is None
            assert await part.get_failure_policy() == await queue._partitions.queues[0].get_failure_policy()
            assert not await part.is_paused()
        last = queue._partitions.queues[3]
        assert (await last.get_fair_key(fair)).concurrency is None
        assert await last.get_group("left behind") is None


async def test_the_limits_that_a_key_has_left_behind_are_not_copied(url: str, queue_name: str):
    keys = (f"k{n}" for n in range(10_000))
    key = next(key for key in keys if [partition_of_key(key, count) for count in (1, 3, 6)] == [0, 2, 5])
    async with Queue(queue_name, url) as queue:
        await queue.set_fair_key_limits(key, concurrency=2)
        await queue.set_partitions(3)
        assert (await queue.set_partitions(3)).is_settled
        await queue.set_fair_key_limits(key, concurrency=False)
        await queue.set_partitions(6)
        assert queue._partitions is not None
        assert (await queue._partitions.queues[5].get_fair_key(key)).concurrency is None


async def test_what_cannot_be_divided_is_rejected_before_anything_changes(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.set_global_concurrency(3)
        with pytest.raises(GlideMQValidationError, match="concurrency"):
            await queue.set_partitions(4)
        await queue.upsert_job_scheduler("s", every=60_000, template={"options": {"ordering": {"key": "a"}}})
        with pytest.raises(GlideMQValidationError, match="scheduler 's'"):
            await queue.set_partitions(2)
        with pytest.raises(GlideMQValidationError):
            await queue.set_partitions(0)
        found = await queue.get_partitions()
        assert (found.count, found.is_settled) == (1, True)
        assert await queue.get_global_concurrency() == 3


async def test_a_rejected_change_leaves_no_limits_behind(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.set_global_concurrency(4)
        with pytest.raises(GlideMQValidationError, match="concurrency"):
            await queue.set_partitions(8)
        await queue.set_global_concurrency(80)
        assert (await queue.set_partitions(8)).count == 8
        assert await queue.get_global_concurrency() == 80


async def test_the_limits_of_a_change_that_was_published_are_outdated(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    from glidemq_py._api import partitioned_changes as changes

    async def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    async with Queue(queue_name, url) as queue:
        await queue.add("n", job_id="kept")
        await queue.set_global_concurrency(12)
        with monkeypatch.context() as patched:
            patched.setattr(changes, "forget_limits", interrupted)
            with pytest.raises(KeyboardInterrupt):
                await queue.set_partitions(4)
        await queue.set_global_concurrency(40)
        assert (await queue.set_partitions(2)).count == 2
        assert await queue.get_global_concurrency() == 40


async def test_schedulers_stay_where_they_are(url: str, queue_name: str):
    (name,) = moving(1, 4, "s")
    async with Queue(queue_name, url) as queue:
        await queue.upsert_job_scheduler(name, every=60_000)
        await queue.set_partitions(4)
        assert await queue.get_job_scheduler(name) is not None
        await queue.upsert_job_scheduler(name, every=90_000)
        (found,) = await queue.get_job_schedulers()
        assert found.schedule.every == 90_000
        assert await queue.remove_job_scheduler(name)


async def test_schedulers_are_found_after_the_change_is_settled(url: str, queue_name: str):
    names = [f"s{n}" for n in range(12)]
    async with Queue(queue_name, url, partitions=3) as queue:
        for name in names:
            await queue.upsert_job_scheduler(name, pattern="0 0 1 1 *")
        await queue.set_partitions(7)
        assert (await queue.set_partitions(7)).is_settled
        for name in names:
            assert await queue.get_job_scheduler(name) is not None
            assert await queue.pause_job_scheduler(name) is not None
            await queue.upsert_job_scheduler(name, pattern="0 0 2 1 *")
        assert [each.name for each in await queue.get_job_schedulers()] == sorted(names)
        for name in names:
            assert await queue.remove_job_scheduler(name)
            assert not await queue.remove_job_scheduler(name)
        assert await queue.get_job_schedulers() == []


async def test_a_scheduler_of_two_partitions_is_removed_from_both(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=3) as queue:
        await queue.count()
        assert queue._partitions is not None
        for part in queue._partitions.queues[1:]:
            await part.upsert_job_scheduler("s", pattern="0 0 1 1 *")
        assert await queue.remove_job_scheduler("s")
        assert await queue.get_job_schedulers() == []


async def test_the_change_of_an_empty_queue_is_settled_at_once(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue, Queue(queue_name, url) as other:
        await other.count()
        for count in (4, 2):
            changed = await queue.set_partitions(count)
            assert (changed.count, changed.serving, changed.is_settled) == (count, count, True)
            assert changed == await queue.get_partitions()
            assert len({partition_in(job) for job in [await other.add("n") for _ in range(4)]}) == count
            await queue.drain()


async def test_a_change_is_settled_when_no_job_is_in_a_former_partition(url: str, queue_name: str):
    key, custom = moving(1, 3, count=2)
    async with Queue(queue_name, url) as queue:
        job = await queue.add("n", ordering={"key": key})
        named = await queue.add("n", job_id=custom)
        await queue.set_partitions(3)
        assert not (await queue.set_partitions(3)).is_settled
        async with Worker(queue_name, lambda _: None, url):
            await job.wait_until_finished()
            await named.wait_until_finished()
        assert not (await queue.set_partitions(3)).is_settled  # the custom id is still found
        await queue.remove(custom)
        settled = await queue.set_partitions(3)
        assert (settled.is_settled, settled.count) == (True, 3)
        assert partition_in(await queue.add("n", ordering={"key": key})) == partition_of_key(key, 3)


@pytest.mark.parametrize("option", ["ordering", "job_id"])
async def test_a_job_that_changes_its_state_while_they_are_listed_counts(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch, option: str
):
    """The first list of each state is empty, as it is for a job that moves to a state that was listed already."""
    (key,) = moving(1, 3)
    async with Queue(queue_name, url) as queue:
        given: Any = {"ordering": {"key": key}} if option == "ordering" else {"job_id": key}
        job = await queue.add("n", **given)
        await queue.set_partitions(3)
        original, listed = Queue.iter_jobs, set[tuple[str, str]]()

        async def nothing() -> Any:
            for job in list[Job]():
                yield job

        def missing(self: Queue, state: str, *args: Any, **options: Any) -> Any:
            if option == "ordering" or (self.name, state) not in listed:
                listed.add((self.name, state))
                return nothing()
            return original(self, state, *args, **options)

        with monkeypatch.context() as patched:
            patched.setattr(Queue, "iter_jobs", missing)
            assert not (await queue.set_partitions(3)).is_settled
        await queue.remove(job.id)
        assert (await queue.set_partitions(3)).is_settled


async def test_ordering_keys_without_jobs_do_not_hold_up_a_change(url: str, queue_name: str):
    """Whatever has happened to their jobs: they ran, failed, were removed, drained or cleaned, or had limits."""
    keys = moving(1, 3, count=7)

    def handle(job: Job) -> None:
        if job.data == keys[1]:
            raise ValueError("fails")

    async with Queue(queue_name, url) as queue:
        await queue.add_bulk([("n", key, {"ordering": {"key": key}}) for key in keys[:2] * 2])
        limits: Any
        for key, limits in (
            (keys[2], {"concurrency": 3}), (keys[3], {"rate_limit": {"max": 100, "duration": 1}}),
            (keys[4], {"token_bucket": {"capacity": 1_000, "refill_rate": 1_000}}),
        ):  # fmt: skip
            ordering: Any = {"key": key, **limits}
            await queue.add_bulk([("n", key, {"ordering": ordering, "cost": 1})] * 3)
        await queue.set_group_limits(keys[5], concurrency=2)
        async with Worker(queue_name, handle, url, concurrency=10) as worker:
            await worker.drain()
        for _ in range(2):
            await queue.remove((await queue.add("n", ordering={"key": keys[0]})).id)
            await queue.add("n", ordering={"key": keys[6]})
        await queue.drain()
        await queue.clean(0, 2)
        await queue.set_partitions(3)
        assert (await queue.set_partitions(3)).is_settled


async def test_a_queue_shrinks_when_its_last_partitions_are_empty(url: str, queue_name: str):
    async with Queue(queue_name, url, partitions=4) as queue, Queue(queue_name, url) as other:
        jobs = await queue.add_bulk([("n", at) for at in range(1_000)])
        keyed = next(f"k{n}" for n in range(100) if partition_of_key(f"k{n}", 4) == 3)
        last = await queue.add("n", ordering={"key": keyed})
        await other.count()
        changed = await queue.set_partitions(2)
        assert (changed.count, changed.serving, changed.is_settled) == (2, 4, False)
        assert {partition_in(job) for job in await other.add_bulk([("n", 1)] * 1_000)} == {0, 1}
        assert partition_in(await other.add("n", ordering={"key": keyed})) == 3
        async with Worker(queue_name, lambda _: None, url, concurrency=50) as worker:
            recorded = EventRecorder(worker)
            await recorded.wait("completed", 2_002)
        assert {partition_in(job) for job in jobs} == {0, 1, 2, 3}
        assert not (await queue.set_partitions(2)).is_settled  # finished jobs are kept
        assert await queue.get_job(last.id) is not None
        await queue.clean(0, 5_000)
        assert (await queue.set_partitions(2)) == await queue.get_partitions()
        settled = await queue.get_partitions()
        assert (settled.count, settled.serving, settled.is_settled) == (2, 2, True)
        again = await other.add("n", ordering={"key": keyed})
        assert partition_in(again) == partition_of_key(keyed, 2)
        assert (await queue.set_partitions(4)).names[:2] == settled.names


@pytest.mark.slow
async def test_workers_serve_the_new_partitions(url: str, queue_name: str):
    """A worker of a plain queue, and one of several queues; the first has a job that outlives the change."""
    started, proceed = asyncio.Event(), asyncio.Event()
    seen: list[Any] = []

    async def handle(job: Job) -> None:
        if job.name == "long":
            started.set()
            await proceed.wait()
        seen.append(job.data)

    async with (
        Queue(queue_name, url) as queue,
        Worker(queue_name, handle, url, concurrency=10, lock_duration=LOCK_MS) as worker,
    ):
        consumer = worker.consumer
        long = await queue.add("long", "long")
        await with_timeout(started.wait())
        await queue.set_partitions(3)
        jobs = await queue.add_bulk([("n", at) for at in range(750)])
        assert {partition_in(job) for job in jobs} == {0, 1, 2}
        await with_timeout(until(lambda: len(seen) == 750), 60)
        assert (worker.active_count, worker.consumer == consumer) == (1, False)
        assert {each.id for each in await queue.get_workers()} == {consumer, worker.consumer}
        proceed.set()
        await long.wait_until_finished()
        assert Counter(seen) == Counter(["long", *range(750)])
        await queue.set_partitions(5)
        more = await queue.add_bulk([("n", at) for at in range(1_250)])
        assert {partition_in(job) for job in more} == {0, 1, 2, 3, 4}
        await with_timeout(until(lambda: len(seen) == 2_001), 60)
        assert Counter(seen) == Counter(["long", *range(750), *range(1_250)])


@pytest.mark.parametrize("first", [None, 4])
async def test_partitions_have_equal_shares_after_a_change(url: str, queue_name: str, first: int | None):
    async with Queue(queue_name, url, partitions=first) as queue:
        await queue.connect()
        async with Worker(queue_name, print, url, lock_duration=LOCK_MS) as worker:
            life: Any = worker._life

            def weights() -> list[int]:
                return [lane.fetching.engine.weight for lane in getattr(life.parts, "lanes", ())]

            await queue.set_partitions(8)
            await with_timeout(until(lambda: len(weights()) == 8))
            assert len(set(weights())) == 1, weights()


async def test_a_worker_finds_the_partitions_of_a_quiet_queue(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    """A quiet queue has no heartbeats, which report the layout, as registrations do."""

    async def register(_: lanes.Lane, interval_s: float | None = None) -> None:
        """Do nothing: it is done at the start and every minute."""

    monkeypatch.setattr(lanes.Lane, "register", register)
    monkeypatch.setattr(idle_queues, "EXAMINED_S", 0.02)
    quiet = f"{queue_name}-quiet"
    async with Queue(quiet, url) as queue, Worker({queue_name: 1, quiet: 2}, lambda job: job.data, url):
        await queue.set_partitions(3)
        key = next(f"k{n}" for n in range(100) if partition_of_key(f"k{n}", 3) == 2)
        job = await queue.add("n", "ended", ordering={"key": key})
        assert partition_in(job) == 2
        assert await job.wait_until_finished(timeout=10_000) == "ended"


@pytest.mark.slow
async def test_concurrency_is_never_exceeded_while_a_worker_changes(url: str, queue_name: str):
    running = most = 0
    release = asyncio.Event()

    async def handle(job: Job) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await (release.wait() if job.name == "long" else asyncio.sleep(0.001))
        running -= 1

    async with (
        Queue(queue_name, url) as queue,
        Worker(queue_name, handle, url, concurrency=4, lock_duration=LOCK_MS) as worker,
    ):
        long = await queue.add_bulk([("long", at) for at in range(3)])
        await queue.set_partitions(3)
        jobs = await queue.add_bulk([("n", at) for at in range(900)])
        await asyncio.gather(*(job.wait_until_finished() for job in jobs))
        assert (most, worker.active_count) == (4, 3)
        release.set()
        await asyncio.gather(*(job.wait_until_finished() for job in long))
        worker.set_concurrency(8)
        more = await queue.add_bulk([("n", at) for at in range(900)])
        await asyncio.gather(*(job.wait_until_finished() for job in more))
        assert most <= 8


async def test_a_worker_can_be_closed_while_former_jobs_run(url: str, queue_name: str):
    started = asyncio.Event()

    async def handle(_: Job) -> None:
        started.set()
        await asyncio.sleep(600)

    async with Queue(queue_name, url) as queue:
        worker = Worker(queue_name, handle, url, lock_duration=LOCK_MS, concurrency=1)
        await worker.start()
        job = await queue.add("n")
        await with_timeout(started.wait())
        consumer = worker.consumer
        await queue.set_partitions(2)
        await until(lambda: worker.consumer != consumer)
        await worker.close(force=True)
        assert await job.get_state() == "waiting"
        assert (await queue.get_workers()) == []


@pytest.mark.parametrize("strict", [False, True], ids=["limiter", "strict-order"])
async def test_a_worker_that_cannot_serve_partitions_lets_its_jobs_end(
    url: str, queue_name: str, strict: bool, caplog: pytest.LogCaptureFixture
):
    started, proceed, closing = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(_: Job) -> str:
        started.set()
        await proceed.wait()
        return "ended"

    names: Any = [queue_name, f"{queue_name}-other"] if strict else queue_name
    options: Any = {} if strict else {"limiter": {"max": 1, "duration": 1_000}}
    async with Queue(queue_name, url) as queue:
        worker = Worker(names, handle, url, lock_duration=LOCK_MS, **options)
        worker.on("closing", closing.set)
        await worker.start()
        job = await queue.add("n")
        await with_timeout(started.wait())
        await queue.set_partitions(2)
        await with_timeout(closing.wait())
        states = [await job.get_state() for _ in range(20)]  # meanwhile, a forced close would cancel the job
        assert (set(states), worker.active_count) == ({"active"}, 1)
        proceed.set()
        with pytest.raises(GlideMQValidationError if strict else UnsupportedOptionError):
            await with_timeout(worker.wait_until_closed())
        assert await job.wait_until_finished() == "ended"
    assert "the worker closes when its running jobs have ended, as it cannot serve partitions" in caplog.text


@pytest.mark.parametrize(("first", "counts"), [(None, (4, 7)), (6, (2, 5))], ids=["grow", "shrink"])
async def test_order_holds_under_load(url: str, queue_name: str, first: int | None, counts: tuple[int, ...]):
    """Producers and workers run while the number changes twice: each key's jobs start in the order of their adds."""
    starts: dict[str, list[int]] = defaultdict(list)
    running: Counter[str] = Counter()
    overlaps: list[str] = []

    async def handle(job: Job) -> None:
        key, number = job.data
        running[key] += 1
        if running[key] > 1:
            overlaps.append(key)
        starts[key].append(number)
        await asyncio.sleep(0)
        running[key] -= 1

    rounds, keys, stop = 0, [f"customer-{n}" for n in range(20)], asyncio.Event()

    async def produce(queue: Queue) -> None:
        nonlocal rounds
        while not stop.is_set():
            rounds += 1
            if rounds % 2:
                await asyncio.gather(*(queue.add("n", [key, rounds], ordering={"key": key}) for key in keys))
            else:
                await queue.add_bulk([("n", [key, rounds], {"ordering": {"key": key}}) for key in keys])

    workers = [Worker(queue_name, handle, url, concurrency=20, lock_duration=LOCK_MS) for _ in range(2)]
    async with Queue(queue_name, url, partitions=first) as producer, Queue(queue_name, url) as operator:
        async with workers[0], workers[1]:
            recorded = EventRecorder(workers[0])
            producing = asyncio.create_task(produce(producer))
            for count in counts:
                before = rounds
                await until(lambda last=before + 10: rounds >= last)  # type: ignore[misc]
                await operator.set_partitions(count)
            before = rounds
            await until(lambda: rounds >= before + 20)
            stop.set()
            await producing
            await with_timeout(_drained(operator), 60)
        assert recorded is not None
    assert {key: starts[key] for key in keys} == {key: list(range(1, rounds + 1)) for key in keys}
    assert overlaps == []


async def _drained(queue: Queue) -> None:
    while True:
        counts = await queue.get_job_counts()
        if not (counts.waiting or counts.active or counts.delayed or counts.group_waiting):
            return
        await asyncio.sleep(0.05)


async def test_an_interrupted_change_is_continued(url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch):
    from glidemq_py._api import partitioned_changes as changes

    async with Queue(queue_name, url) as queue:
        await queue.add("n", job_id="kept")
        await queue.set_global_concurrency(12)

        async def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(changes, "_publish", interrupted)
            with pytest.raises(KeyboardInterrupt):
                await queue.set_partitions(4)
        assert (await queue.get_partitions()).count == 1
        await queue.set_partitions(4)
        assert await queue.get_global_concurrency() == 12
        await queue.set_partitions(2)
        await queue.remove("kept")
        with monkeypatch.context() as patched:
            patched.setattr(changes, "divide_limits", interrupted)
            with pytest.raises(KeyboardInterrupt):
                await queue.set_partitions(2)
        assert (await queue.set_partitions(2)).is_settled
        assert await queue.get_global_concurrency() == 12


async def test_two_operators_do_not_change_it_at_the_same_time(url: str, queue_name: str, resp: RespClient):
    async with Queue(queue_name, url) as one, Queue(queue_name, url) as two:
        await one.count()
        await two.count()
        results = await asyncio.gather(one.set_partitions(3), two.set_partitions(5), return_exceptions=True)
        failed = [each for each in results if isinstance(each, BaseException)]
        found = await one.get_partitions()
        assert len(failed) <= 1
        assert all("another client" in str(each) for each in failed)
        assert found.count in (3, 5)


async def test_fair_keys_are_those_of_all_partitions_during_a_change(url: str, queue_name: str):
    keys = sorted(f"tenant-{number}" for number in range(8))
    async with Queue(queue_name, url) as queue:
        await queue.add_bulk([("n", None, {"fair_key": key}) for key in keys for _ in range(10)])
        await queue.set_fair_key_limits(keys[1], concurrency=1, weight=3)
        await queue.set_partitions(4)
        assert [(await queue.get_fair_key(key)).backlog for key in keys] == [10] * 8
        await queue.add_bulk([("n", None, {"fair_key": key}) for key in keys for _ in range(3)])
        infos = [info async for info in queue.iter_fair_keys()]
        assert [(info.key, info.backlog, info.active) for info in infos] == [(key, 13, 0) for key in keys]
        assert [await queue.get_fair_key(key) for key in keys] == infos
        assert (infos[1].concurrency, infos[1].weight, infos[1].paused) == (1, 3, False)
        await queue.pause_fair_key(keys[1])
        assert (await queue.get_fair_key(keys[1])).paused
        await queue.resume_fair_key(keys[1])
        assert queue._partitions is not None
        former = queue._partitions.queues[0]
        await former.fetch(80)
        infos = [info async for info in queue.iter_fair_keys()]
        assert sum(info.backlog for info in infos) == await queue.count()
        assert max(info.active for info in infos) == 10
        assert [await queue.get_fair_key(info.key) for info in infos] == infos
        assert (await queue.get_fair_key("unknown")).backlog == 0
        with pytest.raises(GlideMQValidationError, match="key"):
            await queue.get_fair_key("")
