"""Ids that clients choose for their jobs, with raw frames."""

import asyncio
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.gateway import Gateway, chosen_ids
from glidemq_py.gateway.chosen_ids import engine_id
from tests.server.gateway.wire import Wire, good, state_of


async def push(wire: Wire, queue: str, job_id: str, **fields: Any) -> str:
    found: str = (await good(wire, "PUSH", queue=queue, **{"data": 1, "jobId": job_id, **fields}))["id"]
    return found


async def test_two_gateways_add_one_job(wire: Wire, other: Wire, queue: Queue):
    for number in range(10):
        job_id = f"{queue.name}-{number}"
        await asyncio.gather(push(wire, queue.name, job_id), push(other, queue.name, job_id))
    assert (await queue.get_job_counts()).waiting == 10


async def test_claim_is_awaited_for_a_moment(gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue):
    """Another gateway has claimed the id, and adds its job now."""
    job_id = f"{queue.name}-id"
    claimed: dict[str, str] = {}
    await gateways[1].ids.claim(queue.name, [job_id], claimed)
    pushing = asyncio.create_task(push(wire, f"{queue.name}-2", job_id))
    await queue.add("x", "first", job_id=engine_id(job_id))
    assert await pushing == job_id
    assert (await good(wire, "GetJob", id=job_id))["job"]["data"] == "first"
    assert (await good(wire, "Count", queue=f"{queue.name}-2"))["count"] == 0


async def test_unused_entries_are_swept(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    kept, gone = f"{queue.name}-kept", f"{queue.name}-gone"
    await push(wire, queue.name, kept)
    ids = gateways[0].ids
    await ids.claim(queue.name, [gone])
    for _ in range(chosen_ids.SHARDS):
        await ids.chosen.sweep()
    assert await ids.chosen.queue_of(gone) == queue.name  # its job may still be added
    monkeypatch.setattr(chosen_ids, "UNUSED_S", -1)
    assert sum([await ids.chosen.sweep() for _ in range(chosen_ids.SHARDS)]) >= 1
    assert await ids.chosen.queue_of(gone) is None
    assert await state_of(wire, kept) == "waiting"
