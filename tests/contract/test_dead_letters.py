"""Dead-letter entries end to end: every final failure creates exactly one; reading, replaying and removing."""

import asyncio
import json
from typing import Any

import pytest

from glidemq_py import (
    Job,
    JobFailedError,
    JobNotFoundError,
    Worker,
)
from glidemq_py.testing import RespClient
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.inside import decode_data
from tests.server.worker_support import EventRecorder, Gate, WorkerFor, until, with_timeout


async def fail(job: Job):
    raise ValueError(f"no {job.name}")


def dlq_of(name: str) -> str:
    return f"{name}-dead"


def open_queue(name: str, url: str, **options: Any) -> Queue:
    return Queue(name, url, dead_letter_queue=options.pop("dead_letter_queue", dlq_of(name)), **options)


async def failed_job(queue: Queue, url: str, data: Any = None, handler: Any = fail, **options: Any) -> Job:
    """Return a job that has finally failed."""
    worker_options: Any = {"serializer": queue.options.serializer, "compression": queue.options.compression}
    async with Worker(queue.name, handler, url, **worker_options):
        job = await queue.add("mail", data, **options)
        with pytest.raises((JobFailedError, JobNotFoundError)):
            await job.wait_until_finished()
    return job


# -- every end ---------------------------------------------------------------------------------------------


async def test_failed_job_creates_an_entry(worker_for: WorkerFor, url: str, resp: RespClient, queue_name: str):
    letters = Raw(resp, dlq_of(queue_name))
    async with open_queue(queue_name, url) as queue:
        async with worker_for(fail) as worker:
            recorded = EventRecorder(worker)
            job = await queue.add("mail", {"to": "ö"}, attempts=2, job_id="mine")
            await recorded.wait("failed")
            # The exchange that fails the job delivers the entry; no request is needed.
            await with_timeout(until(lambda: letters.run("XLEN", "stream") == 1))
        (letter,) = await queue.dead_letters.get_all()
        assert letter.name == "mail"
        entry = letter.data
        attempts = entry.pop("failedAttempts")
        assert [(each["number"], each["error"]) for each in attempts] == [(1, "no mail"), (2, "no mail")]
        assert entry == {
            "originalQueue": queue_name, "originalJobId": job.id, "data": {"to": "ö"}, "failedReason": "no mail",
            "attemptsMade": 1,
        }  # fmt: skip
        assert list(entry) == ["originalQueue", "originalJobId", "data", "failedReason", "attemptsMade"]
        record = letters.job(letter.id)
        assert (record["opts"], record["maxAttempts"], record["state"]) == ("{}", "0", "waiting")
        assert await job.get_state() == "failed"
        assert (await queue.dead_letters.get(letter.id)) is not None
    assert Raw(resp, queue_name).run("XLEN", "outbox") == 0


async def test_expired_job_creates_an_entry(worker_for: WorkerFor, url: str, queue_name: str):
    async with open_queue(queue_name, url) as queue:
        job = await queue.add("late", 1, ttl=1, delay=5)
        async with worker_for(fail):
            with pytest.raises(JobFailedError, match="expired"):
                await job.wait_until_finished()
        assert [letter.data["failedReason"] for letter in await queue.dead_letters.get_all()] == ["expired"]


async def test_job_revoked_while_active(worker_for: WorkerFor, url: str, queue_name: str):
    gate = Gate()
    wanted = {"name": dlq_of(queue_name), "on": ("revoked",)}
    async with open_queue(queue_name, url, dead_letter_queue=wanted) as queue:
        async with worker_for(gate, lock_duration=1_000):
            job = await queue.add("a", attempts=3)
            await gate.next()
            await job.revoke()
            with pytest.raises(JobFailedError):
                await job.wait_until_finished()
        assert len(await queue.dead_letters.get_all()) == 1


async def test_worker_sets_the_dead_letter_queue(worker_for: WorkerFor, url: str, queue: Queue, queue_name: str):
    async with worker_for(fail, dead_letter_queue=dlq_of(queue_name)):
        pass
    await failed_job(queue, url)
    assert len(await queue.dead_letters.get_all()) == 1
    async with Queue(queue_name, url, dead_letter_queue=False):
        pass
    await failed_job(queue, url)
    assert await queue.dead_letters.get_all() == []
    assert await queue.dead_letters.replay("x") is None


# -- contents ----------------------------------------------------------------------------------------------


async def test_entries_are_compressed_like_the_queue(url: str, resp: RespClient, queue_name: str):
    data = {"text": "again and " * 1_000}
    async with open_queue(queue_name, url, compression="gzip") as queue:
        await failed_job(queue, url, data)
        (letter,) = await queue.dead_letters.get_all()
        assert letter.data["data"] == data
    stored = Raw(resp, dlq_of(queue_name)).job(letter.id)["data"]
    assert stored.startswith("gz:")
    assert len(stored) < 1_000


async def test_entries_are_json_with_any_serializer(url: str, resp: RespClient, queue_name: str):
    async with open_queue(queue_name, url, serializer="msgpack") as queue:
        await failed_job(queue, url, {"plain": [1, 2.5, None]})
        (letter,) = await queue.dead_letters.get_all()
    envelope = json.loads(Raw(resp, dlq_of(queue_name)).job(letter.id)["data"])
    assert envelope["data"] == {"plain": [1, 2.5, None]}
    assert "encoding" not in envelope


async def test_broken_data_is_kept_as_it_was_stored(worker_for: WorkerFor, url: str, raw: Raw, queue_name: str):
    async with open_queue(queue_name, url) as queue:
        raw.put_job("b", data="{broken")
        async with worker_for(lambda job: job.data) as worker:
            await EventRecorder(worker).wait("failed")
        (letter,) = await queue.dead_letters.get_all()
    assert (letter.data["data"], letter.data["encoding"]) == ("{broken", "stored")


async def test_largest_data_creates_an_entry(url: str, queue_name: str):
    data = "x" * (1_048_576 - 2)
    for compression in ("none", "gzip"):
        async with open_queue(queue_name, url, compression=compression) as queue:
            await failed_job(queue, url, data)
            assert (await queue.dead_letters.get_all())[-1].data["data"] == data


# -- crashes -----------------------------------------------------------------------------------------------


async def test_concurrent_workers_deliver_each_entry_once(
    worker_for: WorkerFor, url: str, resp: RespClient, queue_name: str
):
    async with open_queue(queue_name, url) as queue:
        workers = [worker_for(fail, concurrency=5) for _ in range(3)]
        await asyncio.gather(*(worker.start() for worker in workers))
        await queue.add_bulk([("mail", i) for i in range(60)])
        await with_timeout(until(lambda: Raw(resp, dlq_of(queue_name)).run("XLEN", "stream") == 60))
        await asyncio.gather(*(worker.close() for worker in workers))
        found = await queue.dead_letters.get_all()
    assert sorted(letter.data["data"] for letter in found) == list(range(60))
    assert Raw(resp, queue_name).run("XLEN", "outbox") == 0


@pytest.mark.parametrize("fields", [
    {"kind": "dead"},
    {"kind": "dead", "to": "q", "id": "1", "name": "n", "data": "1", "reason": "r", "attempts": "x", "activation": "1"},
    {"kind": "child", "to": "glide:{q}:"},
    {"kind": "parents"},
    {"kind": "budget", "key": "x"},
])  # fmt: skip
async def test_malformed_entry_is_deleted_and_the_others_are_delivered(
    url: str, raw: Raw, queue_name: str, fields: dict[str, str], caplog: pytest.LogCaptureFixture
):
    flat = [text for pair in fields.items() for text in pair]
    raw.run("XADD", "outbox", "1-0", *flat)
    async with open_queue(queue_name, url) as queue:
        await failed_job(queue, url)
        assert len(await queue.dead_letters.get_all()) == 1
    assert raw.run("XLEN", "outbox") == 0
    if fields["kind"] != "budget":
        assert "deleted malformed outbox entry 1-0" in caplog.text


# -- removing and replaying --------------------------------------------------------------------------------


async def test_removed_entry_of_a_node_client_leaves_no_keys(url: str, resp: RespClient, queue_name: str):
    """It has its own clock, and no record names its stream entry (W76)."""
    letters = Raw(resp, dlq_of(queue_name))
    envelope = {"originalQueue": queue_name, "originalJobId": "7", "data": 5, "failedReason": "x", "attemptsMade": 0}
    async with open_queue(queue_name, url) as queue, Queue(dlq_of(queue_name), url) as dead:
        await dead.add_bulk([("other", i) for i in range(500)])
        letters.put_job("9001", data=json.dumps(envelope), timestamp=1)
        (letter,) = await queue.dead_letters.get_all()
        again = await queue.dead_letters.replay(letter.id)
        assert again is not None
        assert (again.name, again.data) == ("task", 5)
    assert letters.run("XLEN", "stream") == 500
    assert letters.job("9001") == {}


# -- serializers of the application -------------------------------------------------------------------------


class Reversed:
    """Stands for a serializer that encrypts: its texts are not JSON."""

    def serialize(self, value: Any) -> str:
        return json.dumps(value)[::-1]

    def deserialize(self, text: str):
        return json.loads(text[::-1])


class Wrapped:
    """A serializer whose texts are JSON of another form than its values."""

    def serialize(self, value: Any) -> str:
        return json.dumps({"wrapped": value})

    def deserialize(self, text: str):
        return json.loads(text)["wrapped"]


async def test_entry_has_the_text_of_a_serializer_of_the_application(url: str, resp: RespClient, queue_name: str):
    async with open_queue(queue_name, url, serializer=Reversed()) as queue:
        job = await failed_job(queue, url, {"card": "4111"})
        (letter,) = await queue.dead_letters.get_all()
        stored = json.loads(Raw(resp, dlq_of(queue_name)).job(letter.id)["data"])
        assert (stored["data"], stored["encoding"]) == (Reversed().serialize({"card": "4111"}), "stored")
        assert letter.data["data"] == {"card": "4111"}  # for those who have the serializer
        assert "encoding" not in letter.data
        found = await queue.dead_letters.get(letter.id)
        assert found is not None
        assert found.data == letter.data
        async with open_queue(queue_name, url) as stranger:
            (same,) = await stranger.dead_letters.get_all()
            assert (same.data["data"], same.data["encoding"]) == (stored["data"], "stored")
        await job.remove()
        again = await queue.dead_letters.replay(letter.id)
        assert again is not None
        assert again.data == {"card": "4111"}


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_entry_embeds_the_json_of_a_serializer_of_the_application(
    url: str, resp: RespClient, queue_name: str, compression: Any
):
    async with open_queue(queue_name, url, serializer=Wrapped(), compression=compression) as queue:
        job = await failed_job(queue, url, ["a"])
        (letter,) = await queue.dead_letters.get_all()
        assert (letter.data["data"], letter.data["encoding"]) == ({"wrapped": ["a"]}, "json")
        await job.remove()
        again = await queue.dead_letters.replay(letter.id)
        assert again is not None
        assert again.data == ["a"]
        assert decode_data(Raw(resp, queue_name).job(again.id)["data"]) == {"wrapped": ["a"]}
