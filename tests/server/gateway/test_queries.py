"""Commands that list, wait for, change and move jobs, with raw frames."""

import asyncio
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.gateway import listing
from tests.server.gateway.wire import Wire, failure, good, state_of


@pytest.fixture
async def ids(wire: Wire, queue_name: str) -> list[str]:
    """The jobs 0 to 2 are ready, 3 is delayed, 4 has a priority."""
    options: list[dict[str, Any]] = [{}, {}, {}, {"delay": 600_000}, {"priority": 5}]
    jobs = [{"data": number, **each} for number, each in enumerate(options)]
    found: list[str] = (await good(wire, "PUSHB", queue=queue_name, jobs=jobs))["ids"]
    return found


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"state": "waiting"}, [0, 1, 2]),
        ({"state": ["waiting", "delayed"]}, [0, 1, 2, 3]),
        ({"state": ["prioritized", "unheard-of"]}, [4]),
        ({"state": "unheard-of"}, []),
        ({"state": "paused"}, []),
        ({"state": []}, [0, 1, 2, 3, 4]),
        ({"state": ""}, [0, 1, 2, 3, 4]),
        ({"state": "waiting", "asc": False}, [2, 1, 0]),
        ({"state": "waiting", "offset": 1, "limit": 1}, [1]),
        ({"state": "waiting", "asc": False, "limit": 2}, [2, 1]),
        ({"limit": 0}, []),
    ],
)
async def test_jobs_are_listed(
    wire: Wire, queue_name: str, ids: list[str], fields: dict[str, Any], expected: list[int]
) -> None:
    jobs = (await good(wire, "GetJobs", queue=queue_name, **fields))["jobs"]
    assert [job["data"] for job in jobs] == expected
    assert [job["id"] for job in jobs] == [ids[number] for number in expected]


async def test_jobs_of_a_paused_queue(wire: Wire, queue_name: str, ids: list[str]) -> None:
    await good(wire, "Pause", queue=queue_name)
    jobs = (await good(wire, "GetJobs", queue=queue_name, state="paused"))["jobs"]
    assert sorted(job["id"] for job in jobs) == sorted(ids[number] for number in (0, 1, 2, 4))
    assert {job["state"] for job in jobs} == {"paused"}
    both = (await good(wire, "GetJobs", queue=queue_name, state=["paused", "waiting"]))["jobs"]
    assert {job["state"] for job in both} == {"waiting", "prioritized"}
    found: list[tuple[Any, list[int]]] = [
        ("waiting", []), (["prioritized"], []), (["waiting", "delayed"], [3]), (None, [0, 1, 2, 3, 4]),
    ]  # fmt: skip
    for state, expected in found:
        jobs = (await good(wire, "GetJobs", queue=queue_name, state=state))["jobs"]
        assert [job["data"] for job in jobs] == expected


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
) -> None:
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


async def test_groups_are_in_the_counts_per_priority(wire: Wire, queue_name: str) -> None:
    for fields in ({"groupId": "a"}, {"groupId": "a"}, {"groupId": "b"}, {}, {"priority": 5}, {"delay": 60_000}):
        await good(wire, "PUSH", queue=queue_name, data=1, **fields)
    assert (await good(wire, "GetCountsPerPriority", queue=queue_name))["counts"] == {"0": 4, "5": 1}
    figures = (await good(wire, "DashboardQueue", queue=queue_name))["data"]
    assert figures["priorityCounts"] == {"0": 4, "5": 1}


async def test_cleaning_wait_and_paused(wire: Wire, queue_name: str, ids: list[str]) -> None:
    assert (await good(wire, "Clean", queue=queue_name, state="paused"))["count"] == 0
    assert sorted((await good(wire, "Clean", queue=queue_name, state="wait"))["ids"]) == sorted(ids[:3])
    await good(wire, "PUSH", queue=queue_name, data=1)
    await good(wire, "Pause", queue=queue_name)
    assert (await good(wire, "Clean", queue=queue_name, state="paused"))["count"] == 2
    assert (await good(wire, "Clean", queue=queue_name, state=""))["ids"] == [ids[3]]


async def test_priority_is_changed_with_lifo(wire: Wire, other: Wire, queue_name: str, ids: list[str]) -> None:
    for job_id, priority in ((ids[1], 5), (ids[2], 0)):
        await good(wire, "ChangePriority", id=job_id, priority=priority, lifo=True)
    await good(wire, "ChangePriority", id=ids[4], priority=5, lifo=False)
    jobs = (await good(other, "PULLB", queue=queue_name, count=10))["jobs"]
    assert [job["id"] for job in jobs] == [ids[1], ids[4], ids[2], ids[0]]
    grouped = (await good(wire, "PUSH", queue=queue_name, data=1, groupId="g"))["id"]
    error = await failure(wire, "ChangePriority", id=grouped, priority=1, lifo=True)
    assert error == "lifo is not supported for jobs with a groupId"


async def test_progress_is_limited(wire: Wire, queue_name: str, ids: list[str]) -> None:
    await good(wire, "PULL", queue=queue_name)
    for given, stored in ((200, 100), (-5, 0), (50.5, 50.5), (100, 100), (0, 0), ({"done": 200}, {"done": 200})):
        await good(wire, "Progress", id=ids[4], progress=given)
        assert (await good(wire, "GetProgress", id=ids[4]))["progress"] == stored


async def test_job_with_a_negative_priority_is_waiting(wire: Wire, queue_name: str) -> None:
    jobs = [{"data": number, "priority": rank} for number, rank in enumerate((0, -1, 5, -7, 9_000))]
    ids = (await good(wire, "PUSHB", queue=queue_name, jobs=jobs))["ids"]
    assert [await state_of(wire, each) for each in ids] == [
        "waiting", "waiting", "prioritized", "waiting", "prioritized"
    ]  # fmt: skip
    assert (await good(wire, "GetJob", id=ids[1]))["job"]["state"] == "waiting"
    counts = (await good(wire, "GetJobCounts", queue=queue_name))["counts"]
    assert (counts["waiting"], counts["prioritized"], counts["paused"]) == (3, 2, 0)
    for asc in (True, False):
        for state, expected in (("waiting", [0, 1, 3]), ("prioritized", [2, 4])):
            found = (await good(wire, "GetJobs", queue=queue_name, state=state, asc=asc))["jobs"]
            assert [job["data"] for job in found] == sorted(expected, reverse=not asc)
            assert {job["state"] for job in found} == {state}
        newest = (await good(wire, "GetJobs", queue=queue_name, state="waiting", asc=asc, limit=1))["jobs"]
        assert [job["data"] for job in newest] == [0 if asc else 3]
    await good(wire, "Pause", queue=queue_name)
    counts = (await good(wire, "GetJobCounts", queue=queue_name))["counts"]
    assert (counts["waiting"], counts["prioritized"], counts["paused"]) == (0, 0, 5)
    await good(wire, "Resume", queue=queue_name)
    assert (await good(wire, "Clean", queue=queue_name, state="waiting", limit=2))["count"] == 2
    assert (await good(wire, "Clean", queue=queue_name, state="waiting"))["count"] == 1
    assert sorted((await good(wire, "Clean", queue=queue_name, state="prioritized"))["ids"]) == sorted(ids[2::2])


async def test_run_at_of_a_delayed_job_is_its_time(wire: Wire, other: Wire, queue_name: str) -> None:
    job_id = (await good(wire, "PUSH", queue=queue_name, data=1, delay=60_000, backoff=3_600_000))["id"]

    async def run_at() -> float:
        job = (await good(other, "GetJob", id=job_id))["job"]
        state = job["state"]
        (listed,) = (await good(other, "GetJobs", queue=queue_name, state=state))["jobs"]
        assert listed["runAt"] == job["runAt"]
        return float(job["runAt"]) - float(job["createdAt"])

    assert await run_at() == 60_000
    await good(wire, "ChangeDelay", id=job_id, delay=600_000)
    assert 600_000 <= await run_at() < 660_000
    await good(wire, "Promote", id=job_id)
    assert await run_at() < 60_000
    pulled = await good(wire, "PULL", queue=queue_name, owner="w")
    assert pulled["job"]["runAt"] <= pulled["job"]["startedAt"]
    await good(wire, "MoveToDelayed", id=job_id, delay=7_000_000, token=pulled["token"])
    assert 7_000_000 <= await run_at() < 7_060_000
    await good(wire, "MoveToWait", id=job_id)
    pulled = await good(wire, "PULL", queue=queue_name, owner="w")
    await good(wire, "FAIL", id=job_id, token=pulled["token"], error="bad")
    assert await run_at() >= 1_800_000  # half the backoff at least


async def test_invalid_listing(wire: Wire, queue_name: str) -> None:
    assert await failure(wire, "GetJobs", queue=queue_name, state=7) == "state must be a list"
    assert await failure(wire, "GetJobs", queue=queue_name, limit=-1) == "limit must be at least 0"
    error = await failure(wire, "GetJobs", queue=queue_name, offset=9_999, limit=2)
    assert error == "offset + limit must be at most 10,000"


async def test_waiting_for_a_job(wire: Wire, other: Wire, queue_name: str, ids: list[str]) -> None:
    pulled = await good(other, "PULLB", queue=queue_name, count=2, owner="w")
    first, second = (job["id"] for job in pulled["jobs"])
    assert await failure(wire, "WaitJob", id="unknown") == "Job not found"
    assert (await good(wire, "WaitJob", id=first, timeout=0))["completed"] is False
    waiting = asyncio.create_task(wire.call("WaitJob", id=first, timeout=60_000))
    await good(other, "ACK", id=first, token=pulled["tokens"][0], result={"r": 1})
    assert (await waiting) == {"ok": True, "completed": True, "result": {"r": 1}, "reqId": "1"}
    waiting = asyncio.create_task(wire.call("WaitJob", id=second, timeout=60_000))
    await good(other, "FAIL", id=second, token=pulled["tokens"][1], error="bad", unrecoverable=True)
    assert (await waiting)["completed"] is False
    assert await failure(wire, "WaitJob", id=first, timeout=600_001) == "timeout must be at most 600000"


async def test_changing_jobs(wire: Wire, other: Wire, queue_name: str, ids: list[str]) -> None:
    await good(wire, "Update", id=ids[0], data={"new": True})
    await good(wire, "ChangePriority", id=ids[0], priority=9)
    await good(wire, "ChangeDelay", id=ids[3], delay=0)
    await good(wire, "ChangeDelay", id=ids[1], delay=600_000)
    assert await state_of(other, ids[1]) == "delayed"
    pulled = await good(other, "PULL", queue=queue_name, owner="w")
    assert (pulled["job"]["id"], pulled["job"]["data"]) == (ids[0], {"new": True})
    assert await failure(wire, "ChangePriority", id=ids[0], priority=1) == "Job not found or not in queue"
    assert await failure(wire, "ChangeDelay", id=ids[0], delay=1) == "Job not found or cannot change delay"
    await good(other, "ACK", id=ids[0], token=pulled["token"])
    assert await failure(wire, "Update", id=ids[0], data=1) == "Job not found or cannot be updated"
    for cmd, fields in (("Update", {}), ("ChangePriority", {"priority": 1}), ("ChangeDelay", {"delay": 1})):
        assert (await failure(wire, cmd, id="unknown", **fields)).startswith("Job not found")


async def test_active_job_is_delayed_with_its_token(wire: Wire, other: Wire, queue_name: str, ids: list[str]) -> None:
    pulled = await good(wire, "PULL", queue=queue_name, owner="w")
    job_id = pulled["job"]["id"]
    move = {"id": job_id, "delay": 600_000}
    assert await failure(other, "MoveToDelayed", **move) == f"Lock token required for job {job_id}"
    assert "Invalid or expired lock token" in await failure(other, "MoveToDelayed", **move, token="x|1|1|1|0")
    await good(other, "MoveToDelayed", **move, token=pulled["token"])
    job = (await good(wire, "GetJob", id=job_id))["job"]
    assert (job["state"], job["attempts"]) == ("delayed", 0)
    await good(wire, "MoveToDelayed", id=ids[0], delay=600_000)  # a ready job too
    assert await state_of(wire, ids[0]) == "delayed"


async def test_parent_waits_for_children_that_it_has_added(wire: Wire, queue: Queue) -> None:
    job = await queue.add("parent", 1)
    pulled = await good(wire, "PULL", queue=queue.name, owner="w")
    move = {"id": pulled["job"]["id"], "token": pulled["token"]}
    assert (await good(wire, "MoveToWaitingChildren", **move))["data"]["moved"] is False
    await queue.add("child", 2, parent=job)
    assert (await good(wire, "MoveToWaitingChildren", **move))["data"]["moved"] is True
    assert await state_of(wire, move["id"]) == "waiting-children"
    assert await failure(wire, "MoveToWaitingChildren", **move) == "Job is not active"


async def test_clean(wire: Wire, queue_name: str, ids: list[str]) -> None:
    assert (await good(wire, "Clean", queue=queue_name, grace=600_000))["count"] == 0
    assert (await good(wire, "Clean", queue=queue_name, state="active"))["ids"] == []
    cleaned = await good(wire, "Clean", queue=queue_name, state="prioritized")
    assert (cleaned["count"], cleaned["ids"]) == (1, [ids[4]])
    assert (await good(wire, "Clean", queue=queue_name, limit=2))["ids"] == ids[:2]
    assert sorted((await good(wire, "Clean", queue=queue_name))["ids"]) == sorted(ids[2:4])


async def test_queues_are_listed_and_obliterated(wire: Wire, other: Wire, queue_name: str, ids: list[str]) -> None:
    await good(wire, "PULL", queue=queue_name, owner="w")
    assert queue_name in (await good(other, "ListQueues"))["queues"]
    await good(other, "Obliterate", queue=queue_name)
    assert queue_name not in (await good(wire, "ListQueues"))["queues"]
    assert await state_of(wire, ids[0]) == "unknown"


async def test_events_are_trimmed(wire: Wire, queue_name: str, ids: list[str]) -> None:
    removed = (await good(wire, "TrimEvents", queue=queue_name, maxLength=1))["data"]["removed"]
    assert removed > 0
    assert (await good(wire, "TrimEvents", queue=queue_name, maxLength=1))["data"]["removed"] == 0


async def test_queue_limits(wire: Wire, other: Wire, queue_name: str, ids: list[str]) -> None:
    limits = (await good(wire, "GetQueueLimits", queue=queue_name))["data"]["limits"]
    assert limits == {"rateLimit": None, "rateLimitTtl": -2, "concurrencyLimit": None, "maxed": False}
    await good(wire, "RateLimit", queue=queue_name, limit=5, duration=2_000, ttl=600_000)
    await good(wire, "SetConcurrency", queue=queue_name, limit=1)
    await good(wire, "PULL", queue=queue_name, owner="w")
    limits = (await good(other, "GetQueueLimits", queue=queue_name))["data"]["limits"]
    assert limits["rateLimit"] == {"max": 5, "duration": 2_000}
    assert 0 < limits["rateLimitTtl"] <= 600_000
    assert (limits["concurrencyLimit"], limits["maxed"]) == (1, True)


async def test_locks_of_many_jobs_are_extended(wire: Wire, other: Wire, queue_name: str, ids: list[str]) -> None:
    pulled = await good(wire, "PULLB", queue=queue_name, count=2, owner="w")
    found = [job["id"] for job in pulled["jobs"]]
    extend = {"ids": found, "tokens": [pulled["tokens"][0], "junk"], "durations": [60_000, 60_000]}
    assert (await good(other, "ExtendLocks", **extend))["count"] == 1
    error = await failure(other, "ExtendLocks", **extend | {"durations": [1]})
    assert error == "durations must have as many items as ids"
    error = await failure(other, "ExtendLocks", **extend | {"durations": [60_000, 1]})
    assert error.startswith("durations[1] must be a number from 1000")
