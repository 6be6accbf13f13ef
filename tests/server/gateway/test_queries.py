"""Commands that list, wait for, change and move jobs, with raw frames."""

from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.gateway import listing
from tests.server.gateway.wire import Wire, good


async def _pages(wire: Wire, queue_name: str, step: int, **fields: Any) -> list[int]:
    found: list[int] = []
    while True:
        jobs = (await good(wire, "GetJobs", queue=queue_name, offset=len(found), limit=step, **fields))["jobs"]
        found += [job["data"] for job in jobs]
        if len(jobs) < step:
            return found


@pytest.mark.parametrize(("limit", "partitions"), [(10_000, 1), (5, 1), (5, 3)])
async def test_pages_have_each_job_once(
    wire: Wire, url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch, limit: int, partitions: int
):
    """Also of states with too many jobs to sort, whose own order is kept."""
    monkeypatch.setattr(listing, "_MOST_SORTED", limit)
    monkeypatch.setattr(listing, "_KEPT_BEYOND", 2)
    async with Queue(queue_name, url, partitions=None if partitions == 1 else partitions) as queue:
        await queue.get_job_counts()
        jobs: list[dict[str, Any]] = [{"data": number, "priority": number % 4 - 1} for number in range(40)]
        for number in range(4, 40, 5):
            jobs[number]["delay"] = 600_000 - number
        for number in range(5, 40, 7):
            jobs[number] = {"data": number, "groupId": f"g{number % 2}"}
        for job in jobs:
            await good(wire, "PUSH", queue=queue_name, **job)
        await good(wire, "PULLB", queue=queue_name, count=4)
        for state, count in ((None, 40), ("prioritized", None), (["waiting", "active"], None)):
            found = await _pages(wire, queue_name, 5, state=state)
            backwards = await _pages(wire, queue_name, 5, state=state, asc=False)
            assert len(set(found)) == len(found) == (count or len(found)) > 8
            assert sorted(found) == sorted(backwards)
            assert found == (await _pages(wire, queue_name, 3, state=state))
            assert backwards == (await _pages(wire, queue_name, 7, state=state, asc=False))
            if limit > len(jobs):
                assert found == sorted(found) == backwards[::-1]
