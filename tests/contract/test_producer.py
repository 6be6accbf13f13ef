"""Producers: ids by position, and a pool that never hands two callers with different options the same one."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from glidemq_py import (
    BulkAddError,
    ClosedError,
    ConnectionOptions,
    GlideMQValidationError,
    ServerlessPool,
)
from tests.contract.api import Producer, Queue
from tests.contract.observe import Raw
from tests.key_leaks import KeyLeaks


async def test_add_returns_the_id_or_none(url: str, queue: Queue, queue_name: str):
    async with Producer(queue_name, url) as producer:
        first_id = await producer.add("n", 1)
        assert first_id is not None
        mine = await producer.add("n", 2, job_id="mine")
        assert (mine or "").endswith("mine")
        assert await producer.add("n", 3, job_id="mine") is None
        dedup: Any = {"id": "d", "mode": "debounce", "ttl": 60_000}
        first = await producer.add("n", 4, deduplication=dedup, delay=60_000)
        again = await producer.add("n", 5, deduplication=dedup, delay=60_000)
        assert first is not None
        assert again is not None  # the newer one remains
    job = await queue.get_job(first_id)
    assert job is not None
    assert job.data == 1


async def test_bulk_is_positional(url: str, queue_name: str):
    # W83: a job that is not added keeps its position, and no result shifts.
    async with Producer(queue_name, url) as producer:
        await producer.add("n", job_id="b")
        ids = await producer.add_bulk([("n", 1), ("n", 2, {"job_id": "b"}), ("n", 3, {"job_id": "c"}), ("n", 4)])
        assert ids[1] is None
        assert (ids[2] or "").endswith("c")
        assert None not in (ids[0], ids[3])


async def test_partly_failed_bulk_has_a_result_per_position(url: str, queue: Queue, queue_name: str):
    group = {"key": "g", "token_bucket": {"capacity": 5, "refill_rate": 1}}
    rows: Any = [
        ("n", 1, {"job_id": "x"}), ("n", 2, {"ordering": group, "cost": 9}), ("n", 3, {"job_id": "x"}), ("n", 4),
    ]  # fmt: skip
    async with Producer(queue_name, url) as producer:
        with pytest.raises(BulkAddError) as caught:
            await producer.add_bulk(rows)
        first, second, third, fourth = caught.value.results
        assert first == "x"
        assert isinstance(second, GlideMQValidationError)
        assert second.option == "cost"
        assert third is None
        assert isinstance(fourth, str)
    assert await queue.count() == 2  # the others were added, and the caller knows which


async def test_validation_matches_the_queue(url: str, queue_name: str):
    producer = Producer(queue_name, url)
    with pytest.raises(GlideMQValidationError, match="lock_duration"):
        await producer.add("n", lock_duration=5)
    with pytest.raises(GlideMQValidationError, match=r"jobs\[1\].priority"):
        await producer.add_bulk([("n",), ("n", None, {"priority": 2048})])
    with pytest.raises(GlideMQValidationError):
        Producer("bad{name")
    await producer.close()


async def test_options_reach_the_jobs(url: str, queue_name: str, raw: Raw, key_leaks: KeyLeaks):
    async with Producer(
        queue_name, url, compression="gzip", events=False, default_job_options={"attempts": 4}, serializer="msgpack"
    ) as producer:
        job_id = await producer.add("n", {"text": "a" * 100})
    fields = raw.job(job_id or "")
    assert fields["data"].startswith("gz:")
    assert fields["maxAttempts"] == "4"
    assert raw.events() == []


async def test_closing(url: str, queue_name: str):
    producer = Producer(queue_name, url)
    assert not producer.is_closed
    await producer.close()
    await producer.close()
    assert producer.is_closed
    with pytest.raises(ClosedError):
        await producer.add("n")


# -- the pool -------------------------------------------------------------------------------------------------


@pytest.mark.exclude("memory", reason="it has no URL")
async def test_the_same_arguments_get_the_same_producer(url: str, queue_name: str):
    pool = ServerlessPool()
    one = pool.get_producer(queue_name, url)
    assert pool.get_producer(queue_name, ConnectionOptions.from_url(url)) is one
    assert pool.get_producer(queue_name, url, prefix="glide", serializer=None, default_job_options={}) is one
    assert len(pool) == 1
    assert await one.add("n")
    await pool.close_all()
    assert one.is_closed
    assert len(pool) == 0


class Upper:
    def serialize(self, value: Any) -> str:
        return str(value).upper()

    def deserialize(self, text: str):
        return text


@pytest.mark.exclude("memory", reason="it has no URL")
async def test_producers_with_different_options_are_distinct(
    url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    # W99: events, timeouts and read_from were forgotten.
    options = ConnectionOptions.from_url(url)
    host = str(options.addresses[0])
    serializer = Upper()
    kinds: list[Callable[[ServerlessPool], Producer]] = [
        lambda p: p.get_producer(queue_name, url),
        lambda p: p.get_producer(queue_name + "2", url),
        lambda p: p.get_producer(queue_name, url, events=False),
        lambda p: p.get_producer(queue_name, url, prefix="other"),
        lambda p: p.get_producer(queue_name, url, compression="gzip"),
        lambda p: p.get_producer(queue_name, url, serializer="msgpack"),
        lambda p: p.get_producer(queue_name, url, serializer=serializer),
        lambda p: p.get_producer(queue_name, url, default_job_options={"attempts": 2}),
        lambda p: p.get_producer(queue_name, url, default_job_options={"timeout": 5_000}),
        lambda p: p.get_producer(queue_name, ConnectionOptions([host], request_timeout=1_000)),
        lambda p: p.get_producer(queue_name, ConnectionOptions([host], connection_timeout=1_000)),
        lambda p: p.get_producer(queue_name, ConnectionOptions([host], read_from="prefer_replica")),
        lambda p: p.get_producer(queue_name, ConnectionOptions([host], inflight_requests_limit=7)),
        lambda p: p.get_producer(queue_name, ConnectionOptions([host], username="u", password="one")),
        lambda p: p.get_producer(queue_name, ConnectionOptions([host], username="u", password="two")),
        lambda p: p.get_producer(queue_name, ConnectionOptions([host], client_name="x")),
    ]
    pool = ServerlessPool()
    first = [kind(pool) for kind in kinds]
    assert len({id(producer) for producer in first}) == len(kinds) == len(pool)
    assert [kind(pool) for kind in kinds] == first
    same = pool.get_producer(queue_name, url, default_job_options={"timeout": timedelta(seconds=5)})
    assert same is first[8]
    monkeypatch.setenv("GLIDEMQ_URL", url)
    assert pool.get_producer(queue_name) is first[0]
    monkeypatch.setenv("GLIDEMQ_URL", "valkey://127.0.0.1:2")
    assert pool.get_producer(queue_name) is not first[0]
    await pool.close_all()


async def test_a_closed_producer_is_replaced(url: str, queue_name: str):
    pool = ServerlessPool()
    one = pool.get_producer(queue_name, url)
    await one.close()
    assert len(pool) == 0
    two = pool.get_producer(queue_name, url)
    assert two is not one
    assert await two.add("n")
    await pool.close_all()


async def test_wrong_options_leave_nothing_in_the_pool(url: str, queue_name: str):
    pool = ServerlessPool()
    with pytest.raises(GlideMQValidationError):
        pool.get_producer(queue_name, url, compression="zip")  # type: ignore[arg-type]
    with pytest.raises(GlideMQValidationError):
        pool.get_producer("bad{", url)
    assert len(pool) == 0
