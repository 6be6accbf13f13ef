"""Serializers and compression, wherever data and results are written; the payload limit, wherever anything is."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from cryptography.fernet import Fernet

from glidemq_py import (
    JSON_SERIALIZER,
    MSGPACK_SERIALIZER,
    Broadcast,
    BroadcastWorker,
    DagNode,
    FlowJob,
    FlowProducer,
    GlideMQValidationError,
    Job,
    JobFailedError,
    JobSpec,
    Message,
    PayloadTooLargeError,
    Producer,
    Queue,
    SerializationError,
    UnrecoverableError,
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


# -- encryption --------------------------------------------------------------------------------------------


class Encrypted:
    """As in examples/encryption.py."""

    def __init__(self) -> None:
        self._fernet = Fernet(Fernet.generate_key())

    def serialize(self, value: Any) -> str:
        return self._fernet.encrypt(JSON_SERIALIZER.serialize(value).encode()).decode()

    def deserialize(self, text: str) -> Any:
        return JSON_SERIALIZER.deserialize(self._fernet.decrypt(text).decode())


SECRET = "4111-1111"
DATA = {"card": SECRET}


async def charge(job: Job) -> Any:
    assert job.data == DATA
    if job.name == "step" and job.attempts_made == 0:
        await job.update_data(DATA)
        raise ValueError("once more")
    if job.name == "broken":
        raise UnrecoverableError("no funds")
    return DATA


async def receive(message: Message) -> Any:
    assert message.data == DATA
    return DATA


def everything_on(resp: RespClient, queue_name: str) -> str:
    """Return the contents of all keys of the queue and of its dead letter queue."""
    read = {
        "hash": ("HGETALL",), "stream": ("XRANGE", "-", "+"), "zset": ("ZRANGE", "0", "-1"), "set": ("SMEMBERS",),
        "list": ("LRANGE", "0", "-1"), "string": ("GET",),
    }  # fmt: skip
    found: list[Any] = []
    for key in resp.execute("KEYS", f"*{queue_name}*"):
        name, *more = read[str(resp.execute("TYPE", key))]
        found.append(resp.execute(name, key, *more))
    return repr(found)


async def test_no_writer_stores_what_a_serializer_encrypts(url: str, resp: RespClient, queue_name: str) -> None:
    with_key: Any = {"serializer": Encrypted()}
    letters = f"{queue_name}-dead"
    async with (
        Queue(queue_name, url, dead_letter_queue=letters, **with_key) as queue,
        Producer(queue_name, url, **with_key) as producer,
        FlowProducer(url, **with_key) as flows,
        Worker(queue_name, charge, url, concurrency=5, log_failures=False, **with_key) as worker,
    ):
        await queue.add("add", DATA, headers={"tenant": "acme"})
        await queue.add_bulk([("bulk", DATA, {"fair_key": "a"}), ("later", DATA, {"delay": 50})])
        await queue.add("step", DATA, attempts=2)
        await queue.add("unique", DATA, deduplication={"id": "u", "replace": True})
        await producer.add("producer", DATA)
        await producer.add_bulk([("producer", DATA)])
        await flows.add(FlowJob("parent", queue_name, DATA, children=[FlowJob("child", queue_name, DATA)]))
        await flows.add_dag([DagNode("a", queue_name, DATA), DagNode("b", queue_name, DATA, deps=["a"])])
        await queue.upsert_job_scheduler("s", every=3_600_000, template=JobSpec("tick", DATA), immediately=True)
        async with await queue.create_batch(on_complete=("callback", DATA)) as batch:
            await batch.add("member", DATA)
        assert await queue.add_and_wait("waited", DATA) == DATA
        broken = await queue.add("broken", DATA)
        with pytest.raises(JobFailedError):
            await broken.wait_until_finished()
        await worker.drain()
        await queue.add("leased", DATA)
        await worker.drain()
        (letter,) = await queue.get_dead_letter_jobs()
        assert letter.data["data"] == DATA
        await queue.replay_dead_letter_job(letter.id)
        assert (await queue.get_job_counts()).completed > 10
    async with (
        Broadcast(f"{queue_name}-news", url, **with_key) as broadcast,
        BroadcastWorker(f"{queue_name}-news", receive, url, subscription="s", **with_key) as subscriber,
    ):
        await broadcast.publish("one", DATA)
        message, _ = await broadcast.publish_bulk([("more", DATA), ("later", DATA, {"delay": 20})])
        await subscriber.drain()
        delivery = await broadcast.get_delivery(str(message), "s")
        assert delivery is not None
        assert delivery.returnvalue == DATA
    stored = everything_on(resp, queue_name)
    assert "gAAAA" in stored
    assert SECRET not in stored
