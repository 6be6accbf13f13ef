"""One text as ordering key, deduplication id and custom id, while the number of partitions changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

from glidemq_py import Job, Queue, Worker, sync
from glidemq_py._features.partitions.layout import partition_of_key, split_partition_id
from glidemq_py.testing import RespClient
from tests.server.worker_support import until, with_timeout


def moving(before: int, after: int, count: int) -> list[str]:
    """Return texts that choose another partition after a change."""
    keys = (f"customer-{n}" for n in range(10_000))
    found = (key for key in keys if partition_of_key(key, before) != partition_of_key(key, after))
    return [next(found) for _ in range(count)]


KEYS = moving(1, 4, 5)


def unique(keys: Sequence[str], name: str = "report") -> list[tuple[str, Any, dict[str, Any]]]:
    return [(name, key, {"deduplication": {"id": key}}) for key in keys]


def ordered(keys: Sequence[str], data: Any = None) -> list[tuple[str, Any, dict[str, Any]]]:
    return [("step", [key, data], {"ordering": {"key": key}}) for key in keys]


def named(keys: Sequence[str]) -> list[tuple[str, Any, dict[str, Any]]]:
    return [("export", key, {"job_id": key}) for key in keys]


def outcomes(jobs: Sequence[Job]) -> set[str]:
    return {str(job.outcome) for job in jobs}


def partitions_of(jobs: Sequence[Job]) -> list[int]:
    return [split_partition_id(job.id)[0] for job in jobs]


async def add_one_by_one(queue: Queue, rows: Sequence[tuple[str, Any, dict[str, Any]]]) -> list[Job]:
    return [await queue.add(name, data, **options) for name, data, options in rows]


async def finish(queue: Queue, url: str) -> None:
    """Run all jobs."""
    ended = (await queue.get_job_counts()).completed
    left = await queue.count()
    seen: list[str] = []
    async with Worker(queue.name, lambda job: seen.append(job.id), url, concurrency=50):
        await with_timeout(until(lambda: len(seen) == left))
    assert (await queue.get_job_counts()).completed == ended + left


@pytest.mark.parametrize("as_bulk", [True, False])
async def test_a_waiting_unique_job_is_found_after_ordered_jobs_of_its_text(url: str, queue_name: str, as_bulk: bool):
    async with Queue(queue_name, url) as queue, Queue(queue_name, url) as other, Queue(queue_name, url) as third:
        first = await queue.add_bulk(unique(KEYS))
        await queue.set_partitions(4)
        if as_bulk:
            await queue.add_bulk(ordered(KEYS))
        else:
            await add_one_by_one(queue, ordered(KEYS))
        for client in (queue, other):
            assert outcomes(await add_one_by_one(client, unique(KEYS))) == {"skipped"}
        assert outcomes(await third.add_bulk(unique(KEYS))) == {"skipped"}
        await finish(queue, url)
        again = await third.add_bulk(unique(KEYS))
        assert outcomes(again) == {"added"}
        assert {job.id for job in first}.isdisjoint(job.id for job in again)


async def test_ordered_jobs_keep_their_order_after_a_unique_job_of_their_text(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.add_bulk(unique(KEYS))
        await finish(queue, url)
        await queue.add_bulk(ordered(KEYS, 1))
        await queue.set_partitions(4)
        await add_one_by_one(queue, unique(KEYS))
        assert partitions_of(await queue.add_bulk(ordered(KEYS, 2))) == [0] * len(KEYS)
        started: dict[str, list[int]] = defaultdict(list)

        async def handle(job: Job) -> None:
            if job.name == "step":
                started[job.data[0]].append(job.data[1])

        async with Worker(queue_name, handle, url, concurrency=50):
            await with_timeout(until(lambda: sum(map(len, started.values())) == 2 * len(KEYS)))
        assert dict(started) == {key: [1, 2] for key in KEYS}


@pytest.mark.parametrize("between", [ordered, unique])
async def test_a_custom_id_is_found_after_other_jobs_of_its_text(url: str, queue_name: str, between: Any):
    async with Queue(queue_name, url) as queue:
        first = await queue.add_bulk(named(KEYS))
        await queue.set_partitions(4)
        await add_one_by_one(queue, between(KEYS))
        for again in (await queue.add_bulk(named(KEYS)), await add_one_by_one(queue, named(KEYS))):
            assert outcomes(again) == {"duplicate"}
            assert [job.id for job in again] == [job.id for job in first]


@pytest.mark.parametrize("between", [ordered, unique])
def test_a_blocking_client_finds_a_custom_id_after_other_jobs_of_its_text(url: str, queue_name: str, between: Any):
    (key,) = KEYS[:1]
    with sync.Queue(queue_name, url) as queue:
        first = queue.add("export", job_id=key)
        queue.set_partitions(4)
        for name, data, options in between([key]):
            queue.add(name, data, **options)
        assert queue.add("export", job_id=key).id == first.id
        (again,) = queue.add_bulk([("export", None, {"job_id": key})])
        assert again.id == first.id


async def test_a_text_stays_in_its_partition_while_any_of_its_keys_has_jobs(url: str, queue_name: str):
    """A job may have two keys with the same text: it must find the jobs of both."""
    ordered_first, unique_first, other = KEYS[:3]
    async with Queue(queue_name, url) as queue:
        await queue.add_bulk(ordered([ordered_first]) + unique([unique_first]))
        await queue.set_partitions(4)
        jobs = await add_one_by_one(queue, named([ordered_first]) + ordered([unique_first]))
        assert partitions_of(jobs) == [0, 0]
        both = await queue.add("n", job_id=ordered_first, ordering={"key": ordered_first})
        assert (both.id, str(both.outcome)) == (jobs[0].id, "duplicate")
        both = await queue.add("n", deduplication={"id": unique_first}, ordering={"key": unique_first})
        assert str(both.outcome) == "skipped"
        jobs = await add_one_by_one(queue, ordered([other]) + unique([other]) + named([other]))
        assert partitions_of(jobs) == [partition_of_key(other, 4)] * 3
        both = await queue.add("n", job_id=other, ordering={"key": other})
        assert (both.id, str(both.outcome)) == (jobs[2].id, "duplicate")


@pytest.mark.parametrize("as_bulk", [True, False])
async def test_a_custom_id_is_looked_up_in_all_partitions_of_its_text(url: str, queue_name: str, as_bulk: bool):
    """The number changes back: the finished job is in the present partition, ordered jobs are in the former one."""
    keys = moving(2, 5, 3)
    async with Queue(queue_name, url, partitions=2) as queue:
        first = await queue.add_bulk(named(keys))
        await finish(queue, url)
        await queue.set_partitions(5)
        jobs = await queue.add_bulk(ordered(keys))
        await queue.set_partitions(2)
        assert partitions_of(jobs) == [partition_of_key(key, 5) for key in keys]
        rows = named(keys) + [("n", None, {"job_id": key, "ordering": {"key": key}}) for key in keys]
        again = await (queue.add_bulk(rows) if as_bulk else add_one_by_one(queue, rows))
        assert [job.id for job in again] == [job.id for job in first] * 2
        assert outcomes(again) == {"duplicate"}


async def test_looking_for_ordered_jobs_does_not_move_unique_ones(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue, Queue(queue_name, url) as other:
        await queue.add_bulk(ordered(KEYS))
        await finish(queue, url)
        await queue.add_bulk(unique(KEYS))
        await queue.set_partitions(4)
        assert not (await queue.set_partitions(4)).is_settled
        assert outcomes(await add_one_by_one(other, unique(KEYS))) == {"skipped"}


async def test_a_deduplication_window_holds_for_ordered_jobs_of_its_text(url: str, queue_name: str):
    window: Any = {"id": KEYS[0], "mode": "throttle", "ttl": 600_000}
    async with Queue(queue_name, url) as queue:
        first = await queue.add("n", deduplication=window)
        await finish(queue, url)
        await queue.set_partitions(4)
        assert partitions_of(await add_one_by_one(queue, ordered(KEYS[:2]))) == [0, partition_of_key(KEYS[1], 4)]
        again = await queue.add("n", deduplication=window)
        assert (again.id, str(again.outcome)) == (first.id, "skipped")


async def test_rows_of_a_bulk_with_different_windows_stay_together(url: str, queue_name: str):
    """The second row is outside of its window, so the text moves, and the first row with it."""
    key = KEYS[0]
    async with Queue(queue_name, url) as queue:
        await queue.add("n", deduplication={"id": key, "mode": "throttle", "ttl": 600_000})
        await finish(queue, url)
        await queue.set_partitions(4)
        jobs = await queue.add_bulk([
            ("step", 1, {"ordering": {"key": key}}),
            ("step", 2, {"ordering": {"key": key}, "deduplication": {"id": key, "mode": "throttle", "ttl": 1}}),
            ("step", 3, {"ordering": {"key": key}}),
        ])  # fmt: skip
        assert partitions_of(jobs) == [partition_of_key(key, 4)] * 3


async def test_texts_that_an_earlier_version_has_listed_count_for_all_kinds(
    url: str, queue_name: str, resp: RespClient
):
    key = KEYS[0]
    async with Queue(queue_name, url) as queue, Queue(queue_name, url) as other:
        await queue.add_bulk(unique([key]))
        await queue.set_partitions(4)
        resp.execute("SADD", f"{queue._keys.meta.removesuffix('meta')}moved-keys", key)
        jobs = await add_one_by_one(other, unique([key]) + ordered([key]))
        assert partitions_of(jobs) == [partition_of_key(key, 4)] * 2


async def test_the_group_of_a_key_is_found_while_a_unique_job_holds_it(url: str, queue_name: str):
    key = KEYS[0]
    async with Queue(queue_name, url) as queue:
        await queue.add_bulk(unique([key]))
        await queue.set_partitions(4)
        assert queue._partitions is not None
        await queue._partitions.queues[partition_of_key(key, 4)].set_group_limits(key, concurrency=3)
        group = await queue.get_group(key)
        assert group is not None
        assert group.limits.concurrency == 3
