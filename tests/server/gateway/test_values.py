"""Data and results that JSON cannot represent, and large ones, with raw frames."""

import math
from datetime import UTC, datetime
from typing import Any

import msgpack
import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py.errors import PayloadTooLargeError
from tests.inside import connected
from tests.server.gateway.wire import Wire, failure, good

DATE = datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=UTC)
LOSSY: dict[Any, Any] = {
    "date": msgpack.Timestamp.from_datetime(DATE), "bytes": b"\0\xff", "nan": math.nan, "inf": -math.inf,
    "map": {1: "one", 2.5: "x", "a": [None, True]}, "big": 1.5e300, "whole": 2.0**40, "text": "\u00e4",
}  # fmt: skip
MIB = 1_048_576


async def pulled(wire: Wire, queue: str) -> tuple[Any, dict[str, Any]]:
    """Fetch a job; return its data and what a report needs."""
    answer = await good(wire, "PULL", queue=queue, owner="w", timeout=60_000)
    return answer["job"]["data"], {"id": answer["job"]["id"], "token": answer["token"]}


def assert_same(found: Any):
    assert found["date"] == LOSSY["date"] or found["date"] == DATE
    assert math.isnan(found["nan"])
    for name in ("bytes", "inf", "map", "big", "whole", "text"):
        assert found[name] == LOSSY[name]


async def test_python_worker_reads_values_and_flow_keeps_them(wire: Wire, queue: Queue, url: str):
    got: list[Any] = []

    async def handle(job: Job) -> Any:
        got.append((job.data, await job.get_children_values()))
        return None

    parent, child = f"{queue.name}-p", f"{queue.name}-c"
    await good(wire, "PUSHF", jobs=[
        {"id": child, "queue": f"{queue.name}2", "input": {"data": {"v": LOSSY}}},
        {"id": parent, "queue": queue.name, "input": {"data": {"v": 1}, "dependsOn": [child], "childrenIds": [child]}},
    ])  # fmt: skip
    data, report = await pulled(wire, f"{queue.name}2")
    assert_same(data["v"])
    await good(wire, "ACKB", ids=[report["id"]], tokens=[report["token"]], results=[LOSSY])
    (values,) = (await good(wire, "GetChildrenValues", id=parent))["data"]["values"].values()
    assert_same(values)
    waiting = await queue.get_job(parent)
    assert waiting is not None
    async with Worker(queue.name, handle, url):
        await waiting.wait_until_finished(timeout=60_000)
    ((_, children),) = got
    assert_same(*children.values())


@pytest.mark.slow
async def test_large_data_and_results(wire: Wire, other: Wire, queue: Queue, url: str):
    text = "x" * (10 * MIB - 2)  # with its quotes 10 MiB
    too_large = "Job data too large (max 10MB)"
    assert await failure(wire, "PUSH", queue=queue.name, data=text + "x") == too_large
    assert await failure(wire, "PUSHB", queue=queue.name, jobs=[{"data": text + "x"}]) == f"jobs[0]: {too_large}"
    jobs: list[Any] = [{"data": 1}, {"data": text + "x"}]
    assert await failure(wire, "PUSHB", queue=queue.name, jobs=jobs) == f"jobs[1]: {too_large}"
    pushed = (await good(wire, "PUSHB", queue=queue.name, jobs=[{"data": text}, {"data": [b"x" * (9 * MIB)]}]))["ids"]
    for value in (text, [b"x" * (9 * MIB)]):
        data, report = await pulled(other, queue.name)
        assert data == value
        assert "bytes exceed the limit of 10,485,760 bytes" in await failure(other, "ACK", **report, result=text + "x")
        await good(other, "ACK", **report, result=data)
        assert (await good(wire, "GetResult", id=report["id"]))["result"] == value
    # A Python worker reads it, but stores at most 1 MiB itself.
    job = await queue.get_job(pushed[0])
    assert job is not None
    assert (job.data, job.returnvalue) == (text, text)
    with pytest.raises(PayloadTooLargeError):
        await queue.add("x", text)
    listed = (await good(wire, "GetJobs", queue=queue.name, state="completed"))["jobs"]
    assert [len(each["data"]) for each in listed] == [len(text), 1]
    # The event of a large result does not have it.
    link = await connected(queue)
    events = await link.transport.command("XRANGE", link.keys.events, "-", "+")
    assert max(len(value) for pairs in events.values() for _, value in pairs) < 1_000


@pytest.mark.slow
async def test_list_of_too_much_data_is_rejected(wire: Wire, queue: Queue):
    for _ in range(7):
        await good(wire, "PUSH", queue=queue.name, data="x" * (10 * MIB - 2), maxAttempts=1)
    error = await failure(wire, "GetJobs", queue=queue.name, state="waiting")
    assert error == "data and results exceed 67,108,864 characters; use a smaller limit"
    for offset in (0, 5):
        jobs = (await good(wire, "GetJobs", queue=queue.name, state="waiting", limit=2, offset=offset))["jobs"]
        assert len(jobs) == 2
