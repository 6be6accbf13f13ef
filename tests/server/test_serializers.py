"""Serializers and compression, wherever data and results are written; the payload limit, wherever anything is."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from glidemq_py import (
    JSON_SERIALIZER,
    MSGPACK_SERIALIZER,
    GlideMQValidationError,
    Job,
    JobFailedError,
    PayloadTooLargeError,
    Queue,
    SerializationError,
    Worker,
)
from glidemq_py.testing import RespClient
from tests.server.worker_support import Raw

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
LIMIT = 1_048_576


async def echo(job: Job) -> Any:
    return job.data


# -- the values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -(2**63), 2**64 - 1, 1.5, "", "ö\U0001f600", b"", b"\x00\xff", [], [1, [2]], {},
        {"a": {"b": None}}, {1: "int", b"k": 2, None: 3}, WHEN, [WHEN, b"x"],
    ],
    ids=repr,
)  # fmt: skip
def test_msgpack_round_trip(value: Any):
    text = MSGPACK_SERIALIZER.serialize(value)
    assert text.isascii()
    assert text.startswith("mp:")
    assert MSGPACK_SERIALIZER.deserialize(text) == value


def test_msgpack_accepts_all_json_values():
    identifier = UUID(int=7)
    read = MSGPACK_SERIALIZER.deserialize(MSGPACK_SERIALIZER.serialize({"id": identifier, "at": datetime(2026, 1, 2)}))  # noqa: DTZ001
    assert read == {"id": str(identifier), "at": "2026-01-02T00:00:00"}


def test_msgpack_reads_json_too():
    assert MSGPACK_SERIALIZER.deserialize('{"a":[1]}') == {"a": [1]}


def test_names_mean_ours():
    assert Queue("q", serializer="json").options.serializer == "json"
    with pytest.raises(GlideMQValidationError, match="did you mean 'msgpack'"):
        Queue("q", serializer="msgpck")  # type: ignore[arg-type]
    with pytest.raises(GlideMQValidationError, match="must have the methods"):
        Worker("q", echo, serializer=object())  # type: ignore[arg-type]


# -- everywhere --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serializer", ["msgpack", MSGPACK_SERIALIZER], ids=["by name", "itself"])
async def test_data_and_results(core_url: str, core_resp: RespClient, queue_name: str, serializer: Any):
    data = {"bytes": b"\x00\xff", "at": WHEN}
    raw = Raw(core_resp, queue_name)
    async with (
        Queue(queue_name, core_url, serializer=serializer) as queue,
        Worker(queue_name, echo, core_url, serializer=serializer),
    ):
        assert await queue.add_and_wait("n", data) == data
        (job,) = await queue.add_bulk([("n", data)])
        assert await job.wait_until_finished() == data
        found = await queue.get_job(job.id)
        assert found is not None
        assert (found.data, found.returnvalue) == (data, data)
        assert await queue.add_and_wait("n") is None
    assert raw.job("1")["data"].startswith("mp:")
    assert raw.job("1")["returnvalue"].startswith("mp:")
    assert raw.job("3")["returnvalue"] == "null"


async def test_changed_serializer_reads_existing_jobs(url: str, queue_name: str):
    async with Queue(queue_name, url) as before:
        job = await before.add("n", {"a": 1})
        async with Worker(queue_name, echo, url, serializer="msgpack"):
            assert await job.wait_until_finished() == {"a": 1}  # its result is MessagePack
        async with Queue(queue_name, url, serializer="msgpack") as after:
            found = await after.get_job(job.id)
            assert found is not None
            assert (found.data, found.returnvalue) == ({"a": 1}, {"a": 1})


async def test_updated_data_uses_the_serializer(url: str, resp: RespClient, queue_name: str):
    raw = Raw(resp, queue_name)
    larger = b"again" * 1_000

    async def rewrite(job: Job) -> Any:
        if job.attempts_made == 0:
            await job.update_data({"step": larger})
            raise ValueError("again")
        return job.data["step"]

    async with (
        Queue(queue_name, url, serializer="msgpack", compression="gzip") as queue,
        Worker(queue_name, rewrite, url, serializer="msgpack", compression="gzip"),
    ):
        assert await queue.add_and_wait("n", {"step": b""}, attempts=2) == larger
    assert raw.job("1")["data"].startswith("gz:")
    assert len(raw.job("1")["data"]) < 500


async def test_data_given_to_move_to_delayed(url: str, resp: RespClient, queue_name: str):
    raw = Raw(resp, queue_name)

    async def steps(job: Job) -> Any:
        if job.data["step"] == 1:
            job.move_to_delayed(1, data={"step": 2, "text": "again and " * 500})
        return job.data["text"][:5]

    async with (
        Queue(queue_name, url, serializer="msgpack", compression="gzip") as queue,
        Worker(queue_name, steps, url, serializer="msgpack", compression="gzip"),
    ):
        assert await queue.add_and_wait("n", {"step": 1}) == "again"
    assert raw.job("1")["data"].startswith("gz:")


class Upper:
    """Text and nothing else."""

    def serialize(self, value: Any, /) -> str:
        if not isinstance(value, str):
            raise TypeError("text alone")
        return value.upper()

    def deserialize(self, text: str, /) -> Any:
        return text


async def test_a_serializer_of_ones_own(url: str, resp: RespClient, queue_name: str):
    async with Queue(queue_name, url, serializer=Upper()) as queue:
        with pytest.raises(SerializationError, match="text alone"):
            await queue.add("n", 5)
        async with Worker(queue_name, echo, url, serializer=Upper()):
            assert await queue.add_and_wait("n", "loud") == "LOUD"
    assert Raw(resp, queue_name).job("1")["data"] == "LOUD"


async def test_unserializable_result_fails_the_job(url: str, queue_name: str):
    async def unwritable(job: Job) -> Any:
        return object()

    async with Queue(queue_name, url) as queue, Worker(queue_name, unwritable, url, serializer="msgpack"):
        with pytest.raises(JobFailedError, match="object"):
            await queue.add_and_wait("n")


def test_json_is_the_default():
    assert JSON_SERIALIZER.deserialize(JSON_SERIALIZER.serialize({"a": 1})) == {"a": 1}


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


async def test_all_handler_output_respects_the_size_limit(url: str, resp: RespClient, queue_name: str):
    large = "x" * LIMIT
    refused: list[str] = []

    async def write(job: Job) -> Any:
        for attempt in (job.log(large + "y"), job.update_progress({"p": large}), job.update_data(large)):
            try:
                await attempt
            except PayloadTooLargeError as error:
                refused.append(error.option)
        return large

    async with Queue(queue_name, url) as queue, Worker(queue_name, write, url):
        with pytest.raises(JobFailedError, match="result"):
            await queue.add_and_wait("n")
    assert refused == ["log line", "progress", "data"]
    assert not Raw(resp, queue_name).run("EXISTS", "log:1")


async def test_exception_message_is_bounded(url: str, resp: RespClient, queue_name: str):
    async def fail(job: Job) -> None:
        raise ValueError("x" * LIMIT)

    async with Queue(queue_name, url) as queue, Worker(queue_name, fail, url):
        with pytest.raises(JobFailedError):
            await queue.add_and_wait("n", attempts=15)
    record = Raw(resp, queue_name).job("1")
    assert len(record["failedReason"]) <= 4_096
    traces = json.loads(record["stacktrace"])
    assert len(traces) == 10
    assert max(map(len, traces)) <= 8_192
