"""Adding single jobs: the written keys, the result of `add`, and failures of the server."""

import asyncio
import dataclasses
import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest

from glidemq_py import (
    Backoff,
    ClosedError,
    JobOptions,
    JobOutcome,
    KeepJobs,
)
from glidemq_py.testing import RespClient
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.key_leaks import KeyLeaks
from tests.server.worker_support import with_timeout

BAND = 2**42


async def test_a_job_without_options(queue: Queue, raw: Raw, key_leaks: KeyLeaks):
    job = await queue.add("welcome", {"to": "ä@b.c"})
    assert (job.outcome, job.name, job.data) == (JobOutcome.ADDED, "welcome", {"to": "ä@b.c"})
    record = raw.job(job.id)
    (found,) = [found for base in raw.bases for found in raw.resp.execute("XRANGE", f"{base}:stream", "-", "+")]
    entry, pairs = found
    assert pairs == ["jobId", "1", "name", "welcome", "plain", str(job.timestamp)]
    assert record == {
        "id": "1", "name": "welcome", "data": '{"to":"ä@b.c"}', "opts": "{}", "timestamp": str(job.timestamp),
        "attemptsMade": "0", "delay": "0", "priority": "0", "maxAttempts": "0", "state": "waiting",
    }  # fmt: skip
    assert raw.events() == [{"event": "added", "jobId": "1", "name": "welcome"}]
    assert job.timestamp == int(entry.split("-")[0])


async def test_every_option_arrives_in_the_hash(queue: Queue, raw: Raw):
    job = await queue.add(
        "n", [1], delay=timedelta(minutes=1), attempts=3, job_id="own", priority=7,
        backoff={"type": "exponential", "delay": 250, "jitter": 0.5}, ttl=90_000, timeout=timedelta(seconds=5),
        remove_on_complete=True, remove_on_fail={"age": 60, "count": 5}, lock_duration=12_000,
    )  # fmt: skip
    record = raw.job(job.id)
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
    assert int(raw.score("scheduled", job.id)) == 7 * BAND + job.timestamp + 60_000
    assert (job.delay, job.priority) == (60_000, 7)


async def test_run_at_is_an_instant_where_delay_is_a_duration(queue: Queue, raw: Raw):
    at = datetime.now(UTC) + timedelta(hours=2)
    at_ms = round(at.timestamp() * 1000)
    jobs = [
        await queue.add("aware", run_at=at),
        await queue.add("naive", run_at=at.astimezone().replace(tzinfo=None)),
        await queue.add("elsewhere", run_at=at.astimezone(timezone(timedelta(hours=5)))),
    ]
    past = await queue.add("past", run_at=at - timedelta(days=1))
    for job in jobs:
        assert abs(int(raw.score("scheduled", job.id)) - at_ms) <= 1
        assert abs(int(raw.job(job.id)["delay"]) - (at_ms - job.timestamp)) <= 1
        assert "runAt" not in raw.job(job.id)["opts"]
    assert raw.state(past.id) == "waiting"
    assert raw.job(past.id)["delay"] == "0"


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
async def test_data_travels_as_json(queue: Queue, raw: Raw, data: Any, stored: Any):
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

    def deserialize(self, text: str, /):
        return text.lower()


async def test_custom_serializer(url: str, queue_name: str, raw: Raw):
    async with Queue(queue_name, url, serializer=Shouting()) as queue:
        job = await queue.add("n", "quiet")
        assert raw.job(job.id)["data"] == "QUIET"
        found = await queue.get_job(job.id)
        assert found is not None
        assert found.data == "quiet"


# -- when the server cannot -------------------------------------------------------------------------------


async def test_closed_queue_rejects_adds(url: str, queue_name: str, raw: Raw):
    queue = Queue(queue_name, url)
    await queue.close()
    async with Queue(queue_name, url) as used:
        pass
    for closed in (queue, used):
        for use in (closed.add("n"), closed.add_bulk([("n",)]), closed.add_and_wait("n"), closed.count()):
            with pytest.raises(ClosedError, match="closed"):
                await use
        await closed.close()
    assert [key for key in raw.keys("*") if key != "meta"] == []


async def test_close_completes_pending_adds(url: str, queue_name: str, raw: Raw):
    queue = Queue(queue_name, url)
    await queue.connect()
    adds = [asyncio.create_task(queue.add("n", i)) for i in range(30)]
    await asyncio.sleep(0)
    await queue.close()
    assert len({job.id for job in await with_timeout(asyncio.gather(*adds))}) == 30
    assert raw.run("XLEN", "stream") == 30
