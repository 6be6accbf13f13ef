"""Serializers and compression, wherever data and results are written; the payload limit, wherever anything is."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from glidemq_py import MSGPACK_SERIALIZER, Job, JobFailedError, SerializationError
from glidemq_py.errors import PayloadTooLargeError
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.server.worker_support import WorkerFor

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
LIMIT = 1_048_576


async def echo(job: Job):
    return job.data


# -- everywhere --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serializer", ["msgpack", MSGPACK_SERIALIZER], ids=["by name", "itself"])
async def test_data_and_results(worker_for: WorkerFor, url: str, raw: Raw, queue_name: str, serializer: Any):
    data = {"bytes": b"\x00\xff", "at": WHEN}
    async with (
        Queue(queue_name, url, serializer=serializer) as queue,
        worker_for(echo, serializer=serializer),
    ):
        (job,) = await queue.add_bulk([("n", data)])
        assert await job.wait_until_finished() == data
        found = await queue.get_job(job.id)
        assert found is not None
        assert (found.data, found.returnvalue) == (data, data)
        nothing = await queue.add("n")
        assert await nothing.wait_until_finished() is None
    assert raw.job(job.id)["data"].startswith("mp:")
    assert raw.job(job.id)["returnvalue"].startswith("mp:")
    assert raw.job(nothing.id)["returnvalue"] == "null"


async def test_changed_serializer_reads_existing_jobs(worker_for: WorkerFor, url: str, queue_name: str):
    async with Queue(queue_name, url) as before:
        job = await before.add("n", {"a": 1})
        async with worker_for(echo, serializer="msgpack"):
            assert await job.wait_until_finished() == {"a": 1}  # its result is MessagePack
        async with Queue(queue_name, url, serializer="msgpack") as after:
            found = await after.get_job(job.id)
            assert found is not None
            assert (found.data, found.returnvalue) == ({"a": 1}, {"a": 1})


async def test_updated_data_uses_the_serializer(worker_for: WorkerFor, url: str, raw: Raw, queue_name: str):
    larger = b"again" * 1_000

    async def rewrite(job: Job):
        if job.attempts_made == 0:
            await job.update_data({"step": larger})
            raise ValueError("again")
        return job.data["step"]

    async with (
        Queue(queue_name, url, serializer="msgpack", compression="gzip") as queue,
        worker_for(rewrite, serializer="msgpack", compression="gzip"),
    ):
        job = await queue.add("n", {"step": b""}, attempts=2)
        assert await job.wait_until_finished() == larger
    stored = raw.job(job.id)["data"]
    assert (stored[:3], len(stored) < 500) == ("gz:", True)


async def test_data_given_to_move_to_delayed(worker_for: WorkerFor, url: str, raw: Raw, queue_name: str):

    async def steps(job: Job):
        if job.data["step"] == 1:
            job.move_to_delayed(1, data={"step": 2, "text": "again and " * 500})
        return job.data["text"][:5]

    async with (
        Queue(queue_name, url, serializer="msgpack", compression="gzip") as queue,
        worker_for(steps, serializer="msgpack", compression="gzip"),
    ):
        job = await queue.add("n", {"step": 1})
        assert await job.wait_until_finished() == "again"
    assert raw.job(job.id)["data"].startswith("gz:")


class Upper:
    """Text and nothing else."""

    def serialize(self, value: Any, /) -> str:
        if not isinstance(value, str):
            raise TypeError("text alone")
        return value.upper()

    def deserialize(self, text: str, /):
        return text


async def test_a_serializer_of_ones_own(worker_for: WorkerFor, url: str, raw: Raw, queue_name: str):
    async with Queue(queue_name, url, serializer=Upper()) as queue:
        with pytest.raises(SerializationError, match="text alone"):
            await queue.add("n", 5)
        async with worker_for(echo, serializer=Upper()):
            job = await queue.add("n", "loud")
            assert await job.wait_until_finished() == "LOUD"
    assert raw.job(job.id)["data"] == "LOUD"


# -- the payload limit -------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_no_data_above_the_limit(url: str, queue_name: str, compression: Any):
    async with Queue(queue_name, url, compression=compression) as queue:
        await queue.add("n", "x" * (LIMIT - 2))
        for data in ("x" * (LIMIT - 1), "ö" * (LIMIT // 2)):
            with pytest.raises(PayloadTooLargeError, match="data"):
                await queue.add("n", data)
            with pytest.raises(PayloadTooLargeError, match="data"):
                await queue.add_bulk([("n", 1), ("n", data)])
        assert await queue.count() == 1


async def test_all_handler_output_respects_the_size_limit(raw: Raw, queue: Queue, worker_for: WorkerFor):
    large = "x" * LIMIT
    refused: list[str] = []

    async def write(job: Job):
        for attempt in (job.log(large + "y"), job.update_progress({"p": large}), job.update_data(large)):
            try:
                await attempt
            except PayloadTooLargeError as error:
                refused.append(error.option)
        return large

    async with worker_for(write):
        with pytest.raises(JobFailedError, match="result"):
            await queue.add_and_wait("n")
    assert refused == ["log line", "progress", "data"]
    assert raw.keys("log:*") == []


async def test_exception_message_is_bounded(raw: Raw, queue: Queue, worker_for: WorkerFor):
    async def fail(job: Job):
        raise ValueError("x" * LIMIT)

    async with worker_for(fail):
        job = await queue.add("n", attempts=15)
        with pytest.raises(JobFailedError):
            await job.wait_until_finished()
    record = raw.job(job.id)
    assert len(record["failedReason"]) <= 4_096
    traces = json.loads(record["stacktrace"])
    assert len(traces) == 10
    assert max(map(len, traces)) <= 8_192


@dataclass(frozen=True)
class Point:
    x: int


async def test_msgpack_rejects_a_key_that_could_not_be_read(url: str, queue_name: str):
    async with Queue(queue_name, url, serializer="msgpack") as queue:
        with pytest.raises(SerializationError, match=r"\{'x': 1\} cannot be the key of a mapping"):
            await queue.add("n", {Point(1): "first"})
        assert (await queue.add("n", {"point": Point(1)})).data == {"point": Point(1)}
