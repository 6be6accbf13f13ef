"""Adding single jobs: the written keys, the result of `add`, and failures of the server."""

import asyncio
import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest

from glidemq_py import (
    AmbiguousResultError,
    Backoff,
    ClosedError,
    JobOptions,
    JobOutcome,
    JobState,
    KeepJobs,
    Queue,
    ServerOutOfMemoryError,
)
from glidemq_py.testing import RespClient, ServerProcess
from tests.key_leaks import KeyLeaks
from tests.server.lossy_proxy import LossyProxy
from tests.server.worker_support import Raw, with_timeout

BAND = 2**42


async def test_a_job_without_options(url: str, queue_name: str, raw: Raw, key_leaks: KeyLeaks):
    async with Queue(queue_name, url) as queue:
        job = await queue.add("welcome", {"to": "ä@b.c"})
    assert (job.id, job.outcome, job.name, job.data) == ("1", JobOutcome.ADDED, "welcome", {"to": "ä@b.c"})
    record = raw.job("1")
    ((entry, pairs),) = raw.run("XRANGE", "stream", "-", "+")
    assert pairs == ["jobId", "1", "name", "welcome", "plain", str(job.timestamp)]
    assert record == {
        "id": "1", "name": "welcome", "data": '{"to":"ä@b.c"}', "opts": "{}", "timestamp": str(job.timestamp),
        "attemptsMade": "0", "delay": "0", "priority": "0", "maxAttempts": "0", "state": "waiting",
    }  # fmt: skip
    assert raw.events() == [{"event": "added", "jobId": "1", "name": "welcome"}]
    assert job.timestamp == int(entry.split("-")[0])


async def test_every_option_arrives_in_the_hash(url: str, queue_name: str, raw: Raw):
    async with Queue(queue_name, url) as queue:
        job = await queue.add(
            "n", [1], delay=timedelta(minutes=1), attempts=3, job_id="own", priority=7,
            backoff={"type": "exponential", "delay": 250, "jitter": 0.5}, ttl=90_000, timeout=timedelta(seconds=5),
            remove_on_complete=True, remove_on_fail={"age": 60, "count": 5}, lock_duration=12_000,
        )  # fmt: skip
    record = raw.job("own")
    assert json.loads(record.pop("opts")) == {
        "jobId": "own", "delay": 60_000, "priority": 7, "attempts": 3, "timeout": 5_000, "ttl": 90_000,
        "backoff": {"type": "exponential", "delay": 250, "jitter": 0.5}, "lockDuration": 12_000,
        "removeOnComplete": True, "removeOnFail": {"age": 60, "count": 5},
    }  # fmt: skip
    assert record == {
        "id": "own", "name": "n", "data": "[1]", "timestamp": str(job.timestamp), "attemptsMade": "0",
        "delay": "60000", "priority": "7", "maxAttempts": "3", "state": "delayed",
        "expireAt": str(job.timestamp + 90_000),
    }  # fmt: skip
    assert int(raw.run("ZSCORE", "scheduled", "own")) == 7 * BAND + job.timestamp + 60_000
    assert (job.delay, job.priority) == (60_000, 7)


@pytest.mark.parametrize(
    ("options", "place", "state"),
    [
        ({}, "stream", "waiting"),
        ({"attempts": 5, "timeout": 50, "remove_on_complete": 3}, "stream", "waiting"),
        ({"lifo": True}, "lifo", "waiting"),
        ({"delay": 60_000}, "scheduled", "delayed"),
        ({"delay": 0}, "stream", "waiting"),
        ({"priority": 1}, "scheduled", "prioritized"),
        ({"priority": 0, "lifo": True}, "lifo", "waiting"),
        ({"priority": 1, "lifo": False}, "scheduled", "prioritized"),
        ({"ttl": 60_000}, "stream", "waiting"),
    ],
)
async def test_structure_of_an_added_job(url: str, queue_name: str, raw: Raw, options: Any, place: str, state: str):
    async with Queue(queue_name, url) as queue:
        job = await queue.add("n", **options)
        assert await job.get_state() == state
    sizes = {"stream": raw.run("XLEN", "stream"), "lifo": raw.run("LLEN", "lifo")}
    sizes["scheduled"] = raw.run("ZCARD", "scheduled")
    assert sizes == {"stream": 0, "lifo": 0, "scheduled": 0} | {place: 1}


async def test_run_at_is_an_instant_where_delay_is_a_duration(url: str, queue_name: str, raw: Raw):
    at = datetime.now(UTC) + timedelta(hours=2)
    at_ms = round(at.timestamp() * 1000)
    async with Queue(queue_name, url) as queue:
        jobs = [
            await queue.add("aware", run_at=at),
            await queue.add("naive", run_at=at.astimezone().replace(tzinfo=None)),
            await queue.add("elsewhere", run_at=at.astimezone(timezone(timedelta(hours=5)))),
        ]
        past = await queue.add("past", run_at=at - timedelta(days=1))
    for job in jobs:
        assert abs(int(raw.run("ZSCORE", "scheduled", job.id)) - at_ms) <= 1
        assert abs(int(raw.job(job.id)["delay"]) - (at_ms - job.timestamp)) <= 1
        assert "runAt" not in raw.job(job.id)["opts"]
    assert raw.state(past.id) == "waiting"
    assert raw.job(past.id)["delay"] == "0"


async def test_duplicate_keeps_the_existing_job(url: str, queue_name: str, raw: Raw):
    async with Queue(queue_name, url) as queue:
        first = await queue.add("n", 1, job_id="same")
        before = raw.job("same")
        second = await queue.add("n", 2, job_id="same", delay=5_000, priority=3)
        assert (first.outcome, second.outcome) == (JobOutcome.ADDED, JobOutcome.DUPLICATE)
        assert second.id == "same"
        assert raw.job("same") == before
        assert (await queue.get_job_counts()).total == 1
        await first.remove()
        assert (await queue.add("n", 3, job_id="same")).outcome is JobOutcome.ADDED


async def test_digit_ids_move_the_counter_and_do_not_break_it(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        await queue.add("n", job_id=str(10**13))
        assert (await queue.add("n")).id == str(10**13 + 1)
        await queue.add("n", job_id="5")
        assert (await queue.add("n")).id == str(10**13 + 2)


async def test_job_options_override_defaults(url: str, queue_name: str, raw: Raw):
    backoff = Backoff(type="fixed", delay=50)
    defaults = JobOptions(attempts=3, backoff=backoff, delay=9_000, remove_on_fail=KeepJobs(age=5))
    async with Queue(queue_name, url, default_job_options=defaults) as queue:
        plain = await queue.add("n")
        own = await queue.add("n", attempts=9, delay=0, remove_on_fail=False)
        (bulk,) = await queue.add_bulk([("n", None, {"priority": 4, "run_at": datetime.now(UTC) + timedelta(days=1)})])
    assert json.loads(raw.job(plain.id)["opts"]) == {
        "attempts": 3, "backoff": {"type": "fixed", "delay": 50}, "delay": 9_000, "removeOnFail": {"age": 5},
    }  # fmt: skip
    assert json.loads(raw.job(own.id)["opts"]) == {
        "attempts": 9, "backoff": {"type": "fixed", "delay": 50}, "delay": 0, "removeOnFail": False,
    }  # fmt: skip
    assert raw.state(own.id) == "waiting"
    assert json.loads(raw.job(bulk.id)["opts"]) == {
        "attempts": 3, "backoff": {"type": "fixed", "delay": 50}, "priority": 4, "removeOnFail": {"age": 5},
    }  # fmt: skip
    assert int(raw.job(bulk.id)["delay"]) > 80_000_000


async def test_prefix_and_events_off(url: str, queue_name: str, resp: RespClient):
    async with Queue(queue_name, url, prefix="other:place", events=False) as queue:
        await queue.add("n")
        await queue.add_bulk([("n",), ("n", None, {"lifo": True})])
    keys = set(resp.keys(f"*{{{queue_name}}}*"))
    assert keys >= {f"other:place:{{{queue_name}}}:{key}" for key in ("id", "stream", "lifo", "job:1", "job:3")}
    assert f"other:place:{{{queue_name}}}:events" not in keys


# -- data -------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Point:
    x: int
    when: datetime


class Order(pydantic.BaseModel):
    id: int
    price: Decimal
    tags: set[str] = set()


class Packet(msgspec.Struct):
    body: str
    inner: list[Point]


WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("data", "stored"),
    [
        (Point(1, WHEN), {"x": 1, "when": WHEN.isoformat()}),
        (Order(id=3, price=Decimal("1.50"), tags={"a"}), {"id": 3, "price": "1.50", "tags": ["a"]}),
        (Packet("b", [Point(2, WHEN)]), {"body": "b", "inner": [{"x": 2, "when": WHEN.isoformat()}]}),
        ({"deep": [Order(id=1, price=Decimal(2))]}, {"deep": [{"id": 1, "price": "2", "tags": []}]}),
        (None, None),
        ("\N{GRINNING FACE} \x00 \ud7ff", "\N{GRINNING FACE} \x00 \ud7ff"),
        (2**70, 2**70),
    ],
)
async def test_data_travels_as_json(url: str, queue_name: str, raw: Raw, data: Any, stored: Any):
    async with Queue(queue_name, url) as queue:
        job = await queue.add("n", data)
        (twin,) = await queue.add_bulk([("n", data)])
        found = await queue.get_job(job.id)
        assert found is not None
        read = json.loads(json.dumps(found.data).replace("Z", "+00:00"))
        assert read == stored
        assert raw.job(job.id)["data"] == raw.job(twin.id)["data"]


async def test_compressed_data(url: str, queue_name: str, raw: Raw):
    text = "to be or not to be " * 1_000
    async with Queue(queue_name, url, compression="gzip") as packing, Queue(queue_name, url) as plain:
        job = await packing.add("n", {"text": text})
        assert raw.job(job.id)["data"].startswith("gz:")
        assert len(raw.job(job.id)["data"]) < 1_000
        found = await plain.get_job(job.id)
        assert found is not None
        assert found.data == {"text": text}


class Shouting:
    """A serializer of a user's own."""

    def serialize(self, value: Any, /) -> str:
        return str(value).upper()

    def deserialize(self, text: str, /) -> Any:
        return text.lower()


async def test_custom_serializer(url: str, queue_name: str, raw: Raw):
    async with Queue(queue_name, url, serializer=Shouting()) as queue:
        job = await queue.add("n", "quiet")
        assert raw.job(job.id)["data"] == "QUIET"
        found = await queue.get_job(job.id)
        assert found is not None
        assert found.data == "quiet"


# -- when the server cannot -------------------------------------------------------------------------------


async def test_full_server_rejects_add_and_writes_nothing(private_server: Callable[..., ServerProcess]):
    server = private_server(maxmemory_policy="noeviction")
    async with Queue("full", server.url) as queue:
        await queue.add("n", 1)
        with server.client() as resp:
            raw = Raw(resp, "full")
            before = set(resp.keys("*")), raw.run("XLEN", "stream"), raw.run("GET", "id"), len(raw.events())
            resp.execute("CONFIG", "SET", "maxmemory", 1)
            for options in ({}, {"delay": 50}, {"priority": 2}, {"lifo": True}, {"job_id": "own"}):
                with pytest.raises(ServerOutOfMemoryError, match="the call changed nothing"):
                    await queue.add("n", 2, **options)
            results = await asyncio.gather(*(queue.add("n", 3) for _ in range(5)), return_exceptions=True)
            assert {type(result) for result in results} == {ServerOutOfMemoryError}
            assert before == (set(resp.keys("*")), raw.run("XLEN", "stream"), raw.run("GET", "id"), len(raw.events()))
            resp.execute("CONFIG", "SET", "maxmemory", 0)
        assert (await queue.add("n", 4)).id == "2"


async def test_full_server_without_the_library_raises_out_of_memory(private_server: Callable[..., ServerProcess]):
    server = private_server(maxmemory=1, maxmemory_policy="noeviction")
    async with Queue("full", server.url) as queue:
        with pytest.raises(ServerOutOfMemoryError, match="library"):
            await queue.add("n")


async def test_lost_reply_is_ambiguous(server: Any, queue_name: str, raw: Raw):
    with LossyProxy(server.port) as proxy:
        async with Queue(queue_name, proxy.url) as queue:
            await queue.add("n", 0)
            proxy.lose("fcall")
            with pytest.raises(AmbiguousResultError, match="may have been executed"):
                await queue.add("n", 1, job_id="own")
            assert raw.state("own") == "waiting"
            # With an id of one's own it is safe to add again.
            assert (await with_timeout(queue.add("n", 1, job_id="own"))).outcome is JobOutcome.DUPLICATE
            assert raw.run("XLEN", "stream") == 2


async def test_lost_reply_affects_only_adds_of_the_same_call(server: Any, queue_name: str, raw: Raw):
    with LossyProxy(server.port) as proxy:
        async with Queue(queue_name, proxy.url) as queue:
            await queue.add("n", 0)
            proxy.lose("in-company")
            adds = [queue.add("alone", 1)] + [queue.add("in-company", i) for i in range(2, 300)]
            results = await with_timeout(asyncio.gather(*adds, return_exceptions=True))
            received = [result for result in results if isinstance(result, BaseException)]
            assert 1 < len(received) < 299
            assert {type(error) for error in received} == {AmbiguousResultError}
            assert not isinstance(results[0], BaseException)
            # Each arrived, once: those whose reply was lost, and those that left after them.
            stored = sorted(int(raw.job(str(i))["data"]) for i in range(1, 301))
            assert stored == list(range(300))


@pytest.mark.slow
async def test_a_time_out_is_ambiguous(private_server: Callable[..., ServerProcess]):
    server = private_server()
    async with Queue("slow", server.url) as patient:
        await patient.add("n")  # loads the library, which takes longer on a loaded machine
    async with Queue("slow", server.url + "?request_timeout=200") as queue:
        server.pause()
        with pytest.raises(AmbiguousResultError, match="timeout"):
            await queue.add("n")
        server.resume()


async def test_functions_flushed_away_are_loaded_again(private_server: Callable[..., ServerProcess]):
    server = private_server()
    async with Queue("q", server.url) as queue:
        await queue.add("n")
        with server.client() as resp:
            resp.execute("FUNCTION", "FLUSH")
        jobs = await asyncio.gather(*(queue.add("n") for _ in range(50)))
        assert [job.id for job in jobs] == [str(i) for i in range(2, 52)]


async def test_closed_queue_rejects_adds(url: str, queue_name: str, resp: RespClient):
    queue = Queue(queue_name, url)
    await queue.close()
    async with Queue(queue_name, url) as used:
        pass
    for closed in (queue, used):
        for use in (closed.add("n"), closed.add_bulk([("n",)]), closed.add_and_wait("n"), closed.count()):
            with pytest.raises(ClosedError, match="closed"):
                await use
        await closed.close()
    assert resp.keys(f"*{{{queue_name}}}*") == []


async def test_close_completes_pending_adds(url: str, queue_name: str, raw: Raw):
    queue = Queue(queue_name, url)
    await queue.connect()
    adds = [asyncio.create_task(queue.add("n", i)) for i in range(30)]
    await asyncio.sleep(0)
    await queue.close()
    assert sorted([int(job.id) for job in await with_timeout(asyncio.gather(*adds))]) == list(range(1, 31))
    assert raw.run("XLEN", "stream") == 30


async def test_state_queries(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        waiting, delayed = await queue.add("n"), await queue.add("n", delay=50_000)
        urgent = await queue.add("n", priority=1)
        assert await waiting.is_waiting()
        assert not await waiting.is_delayed()
        assert not await waiting.is_active()
        assert await delayed.is_delayed()
        assert not await delayed.is_failed()
        assert not await delayed.is_completed()
        assert await urgent.get_state() is JobState.PRIORITIZED
        await waiting.remove()
        assert await waiting.get_state() is None
        assert not await waiting.is_waiting()
