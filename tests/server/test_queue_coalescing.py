"""Adds that are awaited together travel together: each arrives once, in few calls, and none waits for a timer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from glidemq_py import Queue, SerializationError
from glidemq_py.testing import RespClient
from tests.server.worker_support import Raw, StartServer, with_timeout


class Counted:
    """A queue on a private server, whose calls are counted."""

    def __init__(self, queue: Queue, resp: RespClient):
        self.queue = queue
        self.resp = resp
        self.raw = Raw(resp, queue.name)

    def calls(self) -> int:
        """FCALLs since the last look."""
        stats = self.resp.info("commandstats").get("cmdstat_fcall", "calls=0,")
        self.resp.execute("CONFIG", "RESETSTAT")
        return int(stats.split("calls=")[1].split(",")[0])


@pytest.fixture
async def counted(private_server: StartServer) -> AsyncIterator[Counted]:
    server = private_server()
    with server.client() as resp:
        async with Queue("counted", server.url) as queue:
            await queue.add("first")
            counted = Counted(queue, resp)
            counted.calls()
            yield counted


async def test_a_lone_add_is_one_call(counted: Counted):
    for _ in range(3):
        await counted.queue.add("n")
    assert counted.calls() == 3


async def test_concurrent_adds_use_few_calls(counted: Counted):
    jobs = await asyncio.gather(*(counted.queue.add("n", i) for i in range(100)))
    assert counted.calls() <= 3
    assert len({job.id for job in jobs}) == 100
    for i, job in enumerate(jobs):
        assert counted.raw.job(job.id)["data"] == str(i)
        assert job.data == i
    assert counted.raw.run("XLEN", "stream") == 101
    # The order of the calls is the order of the stream.
    ids = [int(pairs[1]) for _, pairs in counted.raw.run("XRANGE", "stream", "-", "+")]
    assert ids == list(range(1, 102))


async def test_batches_are_bounded(counted: Counted):
    await asyncio.gather(*(counted.queue.add("n", i) for i in range(1_000)))
    assert 4 <= counted.calls() <= 7
    big = "x" * 200_000
    await asyncio.gather(*(counted.queue.add("n", big) for _ in range(12)))
    assert 4 <= counted.calls() <= 7


async def test_adds_with_different_options_share_a_call(counted: Counted):
    options: list[dict[str, Any]] = [{}, {"delay": 60_000}, {"priority": 3}, {"lifo": True}, *[{"job_id": "a"}] * 2]
    jobs = await asyncio.gather(*(counted.queue.add("n", **each) for each in options))
    assert counted.calls() <= 2
    states = [counted.raw.state(job.id) for job in jobs]
    assert states == ["waiting", "delayed", "prioritized", "waiting", "waiting", "waiting"]
    assert [job.outcome for job in jobs] == ["added"] * 5 + ["duplicate"]


@pytest.mark.parametrize("canceled", [slice(1, None, 2), slice(0, 1)], ids=["every second", "the first"])
async def test_canceled_adds_do_not_affect_others(counted: Counted, canceled: slice):
    adds = [asyncio.create_task(counted.queue.add("n", i)) for i in range(50)]
    await asyncio.sleep(0)  # the first has left, the others wait for it
    for task in adds[canceled]:
        task.cancel()
    results = await with_timeout(asyncio.gather(*adds, return_exceptions=True))
    kept = set(range(50)) - set(range(50)[canceled])
    assert {at: type(result).__name__ for at, result in enumerate(results)} == {
        at: "Job" if at in kept else "CancelledError" for at in range(50)
    }
    assert {job.data for job in results if not isinstance(job, BaseException)} == kept
    await counted.queue.add("n", -1)  # later adds work
    sent = kept | {-1, 0}
    stored = sorted(int(counted.raw.job(str(at + 2))["data"]) for at in range(len(sent)))
    assert (stored, counted.raw.run("XLEN", "stream")) == (sorted(sent), len(sent) + 1)


async def test_canceled_pending_adds_are_not_sent(counted: Counted):
    adds = [asyncio.create_task(counted.queue.add("n", i)) for i in range(10)]
    await asyncio.sleep(0)
    for task in adds:
        task.cancel()
    await asyncio.gather(*adds, return_exceptions=True)
    assert (await with_timeout(counted.queue.add("later", 7))).data == 7
    assert counted.raw.run("XLEN", "stream") <= 3


async def test_invalid_data_of_one_add_does_not_affect_others(counted: Counted):
    results = await asyncio.gather(
        *(counted.queue.add("n", object() if i == 5 else i) for i in range(10)), return_exceptions=True
    )
    assert [i for i, result in enumerate(results) if isinstance(result, SerializationError)] == [5]
    assert counted.raw.run("XLEN", "stream") == 10


async def test_concurrent_first_uses_connect_once(private_server: StartServer):
    server = private_server()
    queue = Queue("once", server.url)
    try:
        jobs = await asyncio.gather(*(queue.add("n", i) for i in range(20)))
        assert sorted(int(job.id) for job in jobs) == list(range(1, 21))
        with server.client() as resp:
            assert str(resp.execute("CLIENT", "LIST")).count("lib-name=GlidePy") == 1
    finally:
        await queue.close()
