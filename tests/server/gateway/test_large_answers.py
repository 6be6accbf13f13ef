"""Answers with many or large jobs: encoded in slices, complete, and bounded in memory."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
import pytest

from glidemq_py import Queue
from glidemq_py.gateway import Gateway
from glidemq_py.gateway.slices import JSON_PARTS, VALUE_PARTS, Parts, Slices
from glidemq_py.gateway.values import UNDEFINED, Encoded, LargeAnswer, PortableMap, packed_value, plain, portable
from tests.inside import connected, sessions_of
from tests.server.gateway.test_http import Client
from tests.server.gateway.wire import Wire, failure, good, packed

VALUES: dict[str, Any] = {
    "numbers": [*range(30_000)], "times": [1_795_467_852_047 + number for number in range(30_000)],
    "floats": [number + 0.5 for number in range(30_000)], "mixed": [None, True, 2**40, "x", 1.5, b"b"] * 5_000,
    "maps": [{"a": number, "b": [number]} for number in range(9_000)],
    "keys": {f"key {number}": {"n": number} for number in range(9_000)}, "nested": [[[[*range(20_000)]], []], {}],
    "texts": ["x" * 1_000] * 3_000, "text": "é" * 3_000_000, "absent": {"a": UNDEFINED, "b": [0] * 20_000},
    "only absent": {**dict.fromkeys(range(2_000), UNDEFINED), "b": [0] * 20_000}, "small": {"a": [1, {"b": None}]},
    "small keys": {1: "a", 2.5: "b"}, "empty": [],
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("parts", [VALUE_PARTS, JSON_PARTS])
async def test_parts_are_those_of_the_whole_value(parts: Parts, name: str):
    value = VALUES[name]
    async with Slices(parts) as slices:
        found = await slices.encoded(value, "7")
        pair = await slices.encoded({"job": found, "n": 2**40})
    assert found.job_id == "7"
    answer = LargeAnswer(ok=True, jobs=[found, pair], job=found, reqId=[1], id=UNDEFINED)
    whole = {"ok": True, "jobs": [value, {"job": value, "n": 2**40}], "job": value, "reqId": [1], "id": UNDEFINED}
    content = b"".join(parts.content(answer))
    if parts is VALUE_PARTS:
        assert found.content == packed_value(value)
        assert content == packed_value(whole)
    else:
        assert json.loads(found.content) == plain(value)
        assert json.loads(content) == plain(whole)


async def test_portable_map_is_not_converted():
    data = {"x": [{"a": number} for number in range(9_000)], "n": 2**40}
    async with Slices(VALUE_PARTS) as slices:
        assert (await slices.encoded(PortableMap(data))).content == msgpack.packb(data)


def test_lists_of_one_type_are_portable_as_they_are():
    for value in ([*range(100)], ["a"] * 100, [1.5] * 100, [True, None, "x"] * 10):
        assert portable(value) is value
    assert portable([2**40] * 100) == [float(2**40)] * 100
    assert [type(each) for each in portable([2**32 - 1, 2**32] * 20)[:2]] == [int, float]


async def test_slices_of_several_answers_take_turns():
    turns: list[int] = []
    ended = asyncio.Event()

    async def count():
        while not ended.is_set():
            began = time.perf_counter()
            await asyncio.sleep(0)
            turns.append(round((time.perf_counter() - began) * 1_000))

    async def encode() -> Encoded:
        async with Slices(VALUE_PARTS) as slices:
            return await slices.encoded([VALUES["maps"]] * 3)

    counting = asyncio.create_task(count())
    await asyncio.gather(*(encode() for _ in range(5)))
    ended.set()
    await counting
    assert len(turns) > 5


async def test_cancelled_answer_does_not_block_others():
    async def encode() -> Encoded:
        async with Slices(VALUE_PARTS) as slices:
            return await slices.encoded([VALUES["maps"]] * 10)

    tasks = [asyncio.create_task(encode()) for _ in range(4)]
    for _ in range(3):
        await asyncio.sleep(0)
    for task in tasks[:3]:
        task.cancel()
    await tasks[3]
    assert [task.cancelled() for task in tasks] == [True, True, True, False]
    async with asyncio.timeout(10), Slices(VALUE_PARTS) as slices:
        await slices.encoded([])


DATA = {"x": [{"a": number, "t": 1_795_467_852_047} for number in range(8_000)]}


@pytest.fixture
async def large(wire: Wire, queue_name: str) -> list[str]:
    """Ids of jobs with large data."""
    jobs = [{"data": {**DATA, "n": number}} for number in range(6)]
    ids: list[str] = (await good(wire, "PUSHB", queue=queue_name, jobs=jobs))["ids"]
    return ids


async def test_commands_return_large_jobs(wire: Wire, other: Wire, queue_name: str, large: list[str]):
    expected = [{**DATA, "n": number} for number in range(6)]
    jobs = (await good(other, "GetJobs", queue=queue_name))["jobs"]
    assert ([job["id"] for job in jobs], [job["data"] for job in jobs]) == (large, expected)
    assert {job["state"] for job in jobs} == {"waiting"}
    assert (await good(wire, "GetJob", id=large[2]))["job"] == jobs[2]
    pulled = await good(wire, "PULL", queue=queue_name, owner="w")
    assert (pulled["job"]["id"], pulled["job"]["data"]) == (large[0], expected[0])
    await good(other, "ACK", id=large[0], token=pulled["token"], result=DATA)
    assert (await good(wire, "GetResult", id=large[0]))["result"] == DATA
    rest = await good(wire, "PULLB", queue=queue_name, owner="w", count=9)
    assert [job["data"] for job in rest["jobs"]] == expected[1:]
    for job_id, token in zip(large[1:], rest["tokens"], strict=True):
        await good(other, "FAIL", id=job_id, token=token, error="bad", unrecoverable=True)
    dead = await good(wire, "Dlq", queue=queue_name)
    assert [job["data"] for job in dead["jobs"]] == expected[1:]
    assert [entry["job"] for entry in dead["entries"]] == dead["jobs"]
    assert {entry["error"] for entry in dead["entries"]} == {"bad"}


async def test_http_and_web_sockets_return_large_jobs(url: str, queue_name: str):
    async with Gateway(url, port=0, http_port=0) as gateway, Wire(gateway) as wire:
        client = Client(gateway)
        job_id = (await good(wire, "PUSH", queue=queue_name, data=DATA))["id"]
        assert (await client.good("GET", f"/jobs/{job_id}"))["job"]["data"] == DATA
        assert [job["data"] for job in (await client.good("GET", f"/queues/{queue_name}/jobs/list"))["jobs"]] == [DATA]
        pulled = await client.good("GET", f"/queues/{queue_name}/jobs?owner=w")
        assert pulled["job"]["data"] == DATA
        held = gateway.held.find(job_id)
        assert held is not None
        assert held.is_kept


async def test_data_nested_too_deeply_is_an_error(wire: Wire, queue: Queue):
    job, link = await queue.add("n"), await connected(queue)
    text = f'{{"deep":{"[" * 700}{"]" * 700},"x":"{"x" * 100_000}"}}'
    await link.transport.command("HSET", link.keys.job(job.id), "data", text)
    assert "nested too deeply" in await failure(wire, "GetJob", id=f"{queue.name}:{job.id}")


async def until_full(session: Any, meanwhile: Callable[[], Awaitable[object]]):
    async with asyncio.timeout(60):
        while not session._is_write_paused:
            await meanwhile()


async def test_unread_large_answers_are_built_one_at_a_time(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue_name: str
):
    jobs = [{"data": "x" * 100_000} for _ in range(20)]
    await good(wire, "PUSHB", queue=queue_name, jobs=jobs)
    before = set(sessions_of(gateways[0]))
    async with Wire(gateways[0]) as unread:
        await good(unread, "Ping")
        (session,) = set(sessions_of(gateways[0])) - before
        for number in range(20):
            unread.send(packed({"cmd": "GetJobs", "queue": queue_name, "reqId": number}))
        await until_full(session, lambda: good(wire, "Ping"))
        for _ in range(20):
            await good(wire, "Ping")
        assert len(session._running) > 15
        transport = session._transport
        assert transport is not None
        assert transport.get_write_buffer_size() < 2 * 2_100_000
        answers = [await unread.receive() for _ in range(20)]
    assert sorted(answer["reqId"] for answer in answers) == [*range(20)]
    assert all(answer["ok"] and len(answer["jobs"]) == 20 for answer in answers)


async def test_gateway_closes_while_large_answers_wait(url: str, queue_name: str):
    gateway = Gateway(url, port=0)
    await gateway.start()
    async with Wire(gateway) as wire:
        await good(wire, "PUSHB", queue=queue_name, jobs=[{"data": "x" * 100_000} for _ in range(30)])
        for number in range(10):
            wire.send(packed({"cmd": "GetJobs", "queue": queue_name, "reqId": number}))
        (session,) = sessions_of(gateway)
        await until_full(session, lambda: asyncio.sleep(0))
        async with asyncio.timeout(60):
            closing = asyncio.create_task(gateway.close())
            answers = [await wire.receive() for _ in range(10)]
            await closing
    assert {answer.get("error") for answer in answers} == {None, "The gateway is closing"}
