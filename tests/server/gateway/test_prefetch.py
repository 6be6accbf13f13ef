"""Tests of jobs that are fetched together with reports."""

import asyncio
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.gateway import Gateway, prefetch
from glidemq_py.gateway.prefetch import _PROMPT_FETCHES as PROMPT_FETCHES
from tests.inside import around, hubs_of
from tests.server.gateway.wire import Wire, good, packed


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch):
    """Let prefetched jobs wait for a fetch until they are returned."""
    monkeypatch.setattr(prefetch, "_PROMPT_S", 60.0)
    monkeypatch.setattr(prefetch, "_KEPT_S", 60.0)


async def fetched(wire: Wire, queue: Queue) -> list[int]:
    """Fetch and complete three jobs; return their data."""
    answer = await good(wire, "PULLB", queue=queue.name, count=3, owner="w", timeout=0)
    await good(wire, "ACKB", ids=[job["id"] for job in answer["jobs"]], tokens=answer["tokens"])
    return [job["data"] for job in answer["jobs"]]


async def test_a_client_that_leaves_during_a_return_does_not_stop_it(
    gateway: Gateway, wire: Wire, queue: Queue, exchanges: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
):
    await good(wire, "PUSHB", queue=queue.name, jobs=[{"name": "x", "data": number} for number in range(100)])
    for _ in range(PROMPT_FETCHES + 1):
        await fetched(wire, queue)
    known = hubs_of(gateway)[queue.name]
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def late(return_all: Any, jobs: Any):
        begun.set()
        await go_on.wait()
        await return_all(jobs)

    around(monkeypatch, known, "_return_all", late)
    async with Wire(gateway) as leaving:
        leaving.send(packed({"cmd": "GetJobCounts", "queue": queue.name, "reqId": "1"}))
        async with asyncio.timeout(60):
            await begun.wait()
    go_on.set()
    assert (await good(wire, "GetJobCounts", queue=queue.name))["counts"]["active"] == 0
    assert await fetched(wire, queue) == [12, 13, 14]
