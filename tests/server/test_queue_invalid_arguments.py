"""Invalid arguments are rejected before anything is sent: a typed error names option and value, and no key is
written.
"""

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Any

import pytest

from glidemq_py import (
    ConnectionOptions,
    GlideMQError,
    GlideMQValidationError,
    PayloadTooLargeError,
    Queue,
    QueueEvents,
    SerializationError,
    UnknownOptionError,
    UnsupportedOptionError,
    Worker,
)
from glidemq_py._core.job_options import UNSUPPORTED
from glidemq_py.testing import RespClient

LIMIT = 1_048_576


@pytest.fixture(autouse=True)
def nothing_written(resp: RespClient, queue_name: str) -> Iterator[None]:
    yield
    assert resp.keys(f"*{{{queue_name}}}*") == []


@pytest.fixture
async def queue(url: str, queue_name: str) -> AsyncIterator[Queue]:
    async with Queue(queue_name, url) as queue:
        yield queue


BAD_RETENTION: list[Any] = [-1, "yes", {"age": -1}, {"ages": 1}, {}, []]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("job_id", bad) for bad in ("007", "0", str(10**13 + 1), "9" * 200, "a:b", "a{b", "a||b", "a\nb", "", 7)),
        ("job_id", "x" * 257),
        *(("delay", bad) for bad in (-5, 1.5, "soon", True, 10**15)),
        *(("attempts", bad) for bad in (-1, 2.0, "3", 10**9, True)),
        *(("priority", bad) for bad in (-1, 2048, "high")),
        *(("ttl", bad) for bad in (0, -1)),
        *(("timeout", bad) for bad in (0, -1, 0.5)),
        *(("lock_duration", bad) for bad in (999, 10**9)),
        *(("remove_on_complete", bad) for bad in BAD_RETENTION),
        *(("remove_on_fail", bad) for bad in (-1, {"count": -1})),
        *(("lifo", bad) for bad in (1, "yes")),
        *(("run_at", bad) for bad in (1_800_000_000_000, "2026-01-01")),
        *(("backoff", bad) for bad in (-1, "fixed", {"type": "fixed"}, {"type": "", "delay": 1})),
        *(("backoff", {"type": "fixed", "delay": 1} | bad) for bad in ({"delay": -1}, {"jitter": 2}, {"wait": 1})),
    ],
)
async def test_invalid_value_is_named(queue: Queue, option: str, value: Any):
    options: dict[str, Any] = {option: value}
    adding = queue.add("n", **options), queue.add_and_wait("n", **options), queue.add_bulk([("n", None, options)])
    for attempt in adding:
        with pytest.raises(GlideMQValidationError) as caught:
            await attempt
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, GlideMQError)
        assert option in caught.value.option
        assert option in str(caught.value)


async def test_run_at_and_delay_exclude_each_other(queue: Queue):
    with pytest.raises(GlideMQValidationError, match="delay"):
        await queue.add("n", delay=1, run_at=datetime.now().astimezone())


@pytest.mark.parametrize(
    ("option", "suggestion"),
    [
        ("atempts", "attempts"),
        ("prioritty", "priority"),
        ("jobId", "job_id"),
        ("removeOnComplete", "remove_on_complete"),
        ("zzzzzz", None),
    ],
)
async def test_unknown_option_is_rejected_with_a_suggestion(queue: Queue, option: str, suggestion: str | None):
    with pytest.raises(UnknownOptionError) as caught:
        await queue.add("n", **dict[str, Any]({option: 1}))
    assert isinstance(caught.value, TypeError)
    assert (caught.value.option, caught.value.suggestion) == (option, suggestion)
    assert suggestion is None or f"did you mean '{suggestion}'?" in str(caught.value)


@pytest.mark.parametrize("option", sorted(UNSUPPORTED.keys() - {"wait_timeout"}))
async def test_an_unsupported_option_is_named(queue: Queue, option: str):
    options: dict[str, Any] = {option: {"key": "x"}}
    with pytest.raises(UnsupportedOptionError, match=option):
        await queue.add("n", **options)
    with pytest.raises(UnsupportedOptionError, match=option):
        await queue.add_bulk([("n", None, options)])


@pytest.mark.parametrize("name", ["", "x" * 1_025, 7, None, b"bytes"])
async def test_a_bad_job_name(queue: Queue, name: Any):
    for attempt in (queue.add(name), queue.add_bulk([(name,)])):
        with pytest.raises(GlideMQValidationError, match="name"):
            await attempt


@dataclasses.dataclass
class Holder:
    inner: Any


@pytest.mark.parametrize("data", [object(), {"a": {"b": object()}}, {1, object()}, Holder(lambda: 1), b"\xff"])
async def test_unserializable_data_is_rejected(queue: Queue, data: Any):
    with pytest.raises(SerializationError, match="data"):
        await queue.add("n", data)
    with pytest.raises(SerializationError, match=r"jobs\[1\]\.data"):
        await queue.add_bulk([("n", 1), ("n", data)])


async def test_data_that_is_too_large(queue: Queue, queue_name: str, url: str):
    for text in ("x" * (LIMIT - 1), "ä" * (LIMIT // 2)):
        with pytest.raises(PayloadTooLargeError) as caught:
            await queue.add("n", text)
        assert (caught.value.limit, caught.value.option) == (LIMIT, "data")
        assert caught.value.size > LIMIT
    async with Queue(queue_name, url, compression="gzip") as packing:  # the limit is that of the text before
        with pytest.raises(PayloadTooLargeError):
            await packing.add("n", "x" * LIMIT)


async def test_largest_data_is_accepted(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        job = await queue.add("n", "x" * (LIMIT - 2))
        assert len((await queue.get_job(job.id)).data) == LIMIT - 2  # type: ignore[union-attr]
        await queue.obliterate()


async def test_a_bulk_with_one_bad_row_sends_none(queue: Queue):
    def rows(bad: Any) -> list[Any]:
        return [bad if i == 777 else ("n", i) for i in range(1_000)]

    refused: tuple[Any, ...] = (
        ("n", 1, {"delay": -1}),
        ("n", 1, {"atempts": 2}),
        ("n", object()),
        ("",),
        ([], 1),
        "n",
        (),
        (1, 2, {}, 4),
        5,
    )
    for bad in refused:
        with pytest.raises(GlideMQValidationError, match=r"jobs\[777\]"):
            await queue.add_bulk(rows(bad))
    assert (await queue.get_job_counts()).total == 0


@pytest.mark.parametrize("name", ["", *(f"a{bad}b" for bad in ":{}*?[]\\\n\x7f"), "x" * 257, None, 5, b"q"])
@pytest.mark.parametrize("kind", [Queue, QueueEvents, Worker])
def test_bad_queue_names(kind: Callable[..., Any], name: Any):
    option = "queue_name" if kind is Worker else "name"
    with pytest.raises(GlideMQValidationError, match=f"option '{option}' = "):
        kind(name)


def test_bad_queue_options(queue_name: str):
    for option, value in (
        ("prefix", "a{b"), ("compression", "zip"), ("serializer", object()), ("events", 1),
        ("default_job_options", {"delay": -1}), ("default_job_options", {"job_id": "a"}),
    ):  # fmt: skip
        with pytest.raises(GlideMQValidationError):
            Queue(queue_name, **{option: value})  # type: ignore[arg-type]
    with pytest.raises(GlideMQValidationError, match="last_event_id"):
        QueueEvents(queue_name, last_event_id="yesterday")


@pytest.mark.parametrize(
    "connection",
    [5, "localhost", "http://x:1", "valkey://h:99999", "valkey://h?bogus=1", ["valkey://h"], object(), b"valkey://h"],
)
async def test_invalid_connection_is_rejected_at_first_use(queue_name: str, connection: Any):
    with pytest.raises(GlideMQValidationError):
        await Queue(queue_name, connection).connect()


async def test_reading_with_bad_arguments(queue: Queue):
    for attempt in (
        queue.get_jobs("nonsense"), queue.get_jobs("waiting", -1), queue.get_jobs("waiting", 0, -2),
        queue.get_job("a:b"), queue.get_job(""), queue.remove("a\nb"), queue.get_jobs("waiting", 1.5),  # type: ignore[arg-type]
    ):  # fmt: skip
        with pytest.raises(GlideMQValidationError):
            await attempt
    with pytest.raises(GlideMQValidationError, match="state"):
        queue.iter_jobs("nonsense")
    for page in (0, 1_001, "x"):
        with pytest.raises(GlideMQValidationError, match="page"):
            async for _ in queue.iter_jobs("waiting", page=page):  # type: ignore[arg-type]
                pass
    for timeout in (0, -1, "x", 1.5):
        with pytest.raises(GlideMQValidationError, match="wait_timeout"):
            await queue.add_and_wait("n", wait_timeout=timeout)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, True, 1.0, b"1", ["1"], Queue("q"), "a:b", ""])
@pytest.mark.parametrize(
    "method",
    [
        "get_job",
        "get_job_logs",
        "remove",
        "revoke",
        "promote",
        "get_suspend_info",
        "read_stream",
        "get_dead_letter_job",
    ],
)
async def test_invalid_job_id_is_rejected(url: str, queue_name: str, method: str, given: Any):
    async with Queue(queue_name, url) as queue:
        with pytest.raises(GlideMQValidationError, match="job_id"):
            await getattr(queue, method)(given)
        assert await queue.get_job(7) is None  # type: ignore[arg-type]
        with pytest.raises(GlideMQValidationError, match="page"):
            await anext(queue.iter_dead_letter_jobs(page=0))


async def test_add_and_wait_rejects_remove_options(queue: Queue, url: str, queue_name: str):
    for options in ({"remove_on_complete": True}, {"remove_on_fail": 0}, {"remove_on_complete": {"age": 1}}):
        with pytest.raises(UnsupportedOptionError, match="add_and_wait"):
            await queue.add_and_wait("n", **options)
    async with Queue(queue_name, url, default_job_options={"remove_on_complete": 3}) as other:
        with pytest.raises(UnsupportedOptionError, match="add_and_wait"):
            await other.add_and_wait("n")


def test_errors_contain_no_password():
    for bad in ("valkey://user:s3cret@host:99999", "valkey://user:s3cret@host?bogus=1", "valkeyy://u:s3cret@host"):
        with pytest.raises(GlideMQValidationError) as caught:
            ConnectionOptions.from_url(bad)
        assert "s3cret" not in str(caught.value) + repr(caught.value)
