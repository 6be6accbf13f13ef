"""Commands about groups, unique keys and logs, with raw frames."""

from collections import Counter
from typing import Any

import pytest

from glidemq_py import FairKeyDefaults, Queue, RateLimit
from tests.server.gateway.wire import Wire, failure, good


async def add(wire: Wire, queue: str, group: str, count: int) -> None:
    jobs = [{"data": number, "groupId": group} for number in range(count)]
    await good(wire, "PUSHB", queue=queue, jobs=jobs)


async def test_counts(wire: Wire, other: Wire, queue_name: str) -> None:
    await add(wire, queue_name, "a", 3)
    await add(wire, queue_name, "b", 2)
    await good(wire, "PULL", queue=queue_name, owner="w")
    counts = {
        cmd: (await good(other, cmd, queue=queue_name, groupId="a"))["data"]["count"]
        for cmd in ("GetGroupJobsCount", "GetGroupActiveCount")
    }
    assert counts == {"GetGroupJobsCount": 2, "GetGroupActiveCount": 1}
    assert (await good(wire, "GetGroupsJobsCount", queue=queue_name))["data"]["count"] == 4


async def test_priority_of_a_job_of_a_group(wire: Wire, other: Wire, queue_name: str) -> None:
    fields = {"queue": queue_name, "groupId": "a"}
    ids = [(await good(wire, "PUSH", data=n, priority=n, **fields))["id"] for n in (1, 2)]
    await good(wire, "ChangePriority", id=ids[1], priority=0)
    assert (await good(wire, "GetJob", id=ids[1]))["job"]["priority"] == 0
    for priority in (-1, 2_047):
        error = await failure(wire, "ChangePriority", id=ids[0], priority=priority)
        assert error == "priority must be 0 to 2046 for jobs with a groupId"
    pulled = await good(other, "PULL", queue=queue_name, owner="w")
    assert pulled["job"]["id"] == ids[1]
    await good(other, "ACK", id=ids[1], token=pulled["token"])


async def test_limits_are_set_read_and_removed(wire: Wire, queue_name: str) -> None:
    group = {"queue": queue_name, "groupId": "a"}
    assert (await good(wire, "GetGroupRateLimit", **group))["data"]["limit"] is None
    await good(wire, "SetGroupRateLimit", **group, max=1, duration=60_000)
    assert (await good(wire, "GetGroupRateLimit", **group))["data"]["limit"] == {"max": 1, "duration": 60_000}
    await add(wire, queue_name, "a", 2)
    first = await good(wire, "PULLB", queue=queue_name, count=2, owner="w")
    assert len(first["jobs"]) == 1
    assert 0 < (await good(wire, "GetGroupRateLimitTtl", **group))["data"]["ttl"] <= 60_000
    assert (await good(wire, "RemoveGroupRateLimit", **group))["data"]["removed"] == 1
    assert (await good(wire, "RemoveGroupRateLimit", **group))["data"]["removed"] == 0
    assert (await good(wire, "GetGroupRateLimitTtl", **group))["data"]["ttl"] == -2
    await good(wire, "SetGroupConcurrency", **group, concurrency=1)
    assert (await good(wire, "GetGroupConcurrency", **group))["data"]["concurrency"] == 1
    assert (await good(wire, "PULL", queue=queue_name, owner="w"))["job"] is None
    assert (await good(wire, "RemoveGroupConcurrency", **group))["data"]["removed"] == 1
    assert (await good(wire, "PULL", queue=queue_name, owner="w"))["job"]["data"] == 1


async def test_paused_group_is_not_served(wire: Wire, other: Wire, queue: Queue) -> None:
    await queue.add("x", 1, fair_key="a")
    group = {"queue": queue.name, "groupId": "a"}
    assert (await good(wire, "PauseGroup", **group))["data"]["changed"] is True
    assert (await good(wire, "PauseGroup", **group))["data"]["changed"] is False
    assert (await good(other, "IsGroupPaused", **group))["data"]["paused"] is True
    assert (await good(other, "PULL", queue=queue.name, owner="w"))["job"] is None
    assert (await good(wire, "ResumeGroup", **group))["data"]["changed"] is True
    assert (await good(other, "PULL", queue=queue.name, owner="w"))["job"]["groupId"] == "a"


async def test_group_is_held_for_a_time(wire: Wire, other: Wire, queue_name: str) -> None:
    group = {"queue": queue_name, "groupId": "a"}
    assert await failure(wire, "RateLimitGroup", **group, duration=0) == "duration must be a positive safe integer"
    await good(wire, "RateLimitGroup", **group, duration=3_600_000)  # also without jobs
    await add(wire, queue_name, "a", 2)
    await add(wire, queue_name, "b", 1)
    assert (await good(other, "PULL", queue=queue_name, owner="w"))["job"]["groupId"] == "b"
    assert (await good(other, "PULL", queue=queue_name, owner="w"))["job"] is None
    assert 0 < (await good(wire, "GetGroupRateLimitTtl", **group))["data"]["ttl"] <= 3_600_000
    assert (await good(wire, "GetGroupRateLimit", **group))["data"]["limit"] is None
    # Neither a pause nor another limit ends the hold; a new one replaces it.
    await good(wire, "PauseGroup", **group)
    await good(wire, "ResumeGroup", **group)
    await good(wire, "SetGroupConcurrency", **group, concurrency=2)
    assert (await good(other, "PULL", queue=queue_name, owner="w"))["job"] is None
    await good(wire, "RateLimitGroup", **group, duration=1)
    pulled = await good(other, "PULL", queue=queue_name, owner="w", timeout=60_000)
    assert pulled["job"]["groupId"] == "a"
    assert (await good(wire, "GetGroupRateLimitTtl", **group))["data"]["ttl"] == -2
    assert (await good(wire, "GetGroupConcurrency", **group))["data"]["concurrency"] == 2


async def test_invalid_group(wire: Wire, queue_name: str) -> None:
    assert await failure(wire, "PauseGroup", queue=queue_name) == "groupId is required"
    assert await failure(wire, "PauseGroup", queue=queue_name, groupId="") == "groupId must be a non-empty string"
    assert await failure(wire, "PauseGroup", queue=queue_name, groupId="\0a") == "groupId must not contain NUL"
    error = await failure(wire, "SetGroupConcurrency", queue=queue_name, groupId="a", concurrency=0)
    assert error == "concurrency must be a positive safe integer"
    for most in ("5", 1.5, True):
        error = await failure(wire, "SetGroupRateLimit", queue=queue_name, groupId="a", max=most, duration=1)
        assert error == "max must be a positive safe integer"
    error = await failure(wire, "SetGroupRateLimit", queue=queue_name, groupId="a", max=2**40, duration=1)
    assert error == "max must be at most 2147483647"


async def test_rejected_jobs_leave_the_maximum_size_of_their_group(wire: Wire, queue: Queue) -> None:
    sized: dict[str, Any] = {"data": 1, "groupId": "g", "groupMaxSize": 1}
    chosen = {**sized, "jobId": f"{queue.name}-chosen"}
    await good(wire, "PUSH", queue=queue.name, jobId=chosen["jobId"])
    large = "x" * 11_000_000
    rejected: list[list[dict[str, Any]]] = [
        [sized, {"maxAttempts": 0}],
        [sized, {"data": large}],
        [{**sized, "data": large}],
        [{**sized, "sizeLimit": 0}],
        [sized, *({"data": 1} for _ in range(250)), {"dependsOn": [f"{queue.name}:1"]}],
    ]
    for jobs in rejected:
        await failure(wire, "PUSHB", queue=queue.name, jobs=jobs)
    await good(wire, "PUSH", queue=queue.name, **chosen)  # its id belongs to an unfinished job
    await good(wire, "PUSHB", queue=queue.name, jobs=[chosen, {"data": 2}])
    assert (await queue.get_fair_key("g")).max_backlog is None
    assert await queue.count() == 2


async def test_maximum_size_is_set_once_for_many_jobs(
    wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[str, int]] = []
    set_limits = Queue.set_fair_key_limits

    async def count(queue: Queue, key: str, *, max_backlog: int) -> None:
        found.append((key, max_backlog))
        await set_limits(queue, key, max_backlog=max_backlog)

    monkeypatch.setattr(Queue, "set_fair_key_limits", count)
    sizes = [("g", 90), ("h", 50), ("g", 80)]
    jobs = [{"groupId": group, "groupMaxSize": size} for group, size in sizes for _ in range(10)]
    await good(wire, "PUSHB", queue=queue.name, jobs=jobs)
    assert found == [("g", 80), ("h", 50)]
    for _ in range(3):
        await good(wire, "PUSH", queue=queue.name, groupId="g", groupMaxSize=80)
    assert found == [("g", 80), ("h", 50)]
    await good(wire, "PUSH", queue=queue.name, groupId="g", groupMaxSize=81)
    assert (await queue.get_fair_key("g")).max_backlog == 81
    await good(wire, "Obliterate", queue=queue.name)
    await good(wire, "PUSH", queue=queue.name, groupId="g", groupMaxSize=81)
    assert (await queue.get_fair_key("g")).max_backlog == 81


async def test_unique_keys(wire: Wire, other: Wire, queue_name: str) -> None:
    key = {"queue": queue_name, "deduplicationId": "k"}
    assert (await good(wire, "GetDeduplicationJobId", **key))["data"]["jobId"] is None
    push = {"queue": queue_name, "data": 1, "uniqueKey": "k", "dedup": {"ttl": 600_000}}
    first = (await good(wire, "PUSH", **push))["id"]
    assert (await good(other, "GetDeduplicationJobId", **key))["data"]["jobId"] == first
    assert (await good(other, "RemoveDeduplicationKey", **key))["data"]["count"] == 1
    assert (await good(other, "RemoveDeduplicationKey", **key))["data"]["count"] == 0
    second = (await good(wire, "PUSH", **push))["id"]
    assert second != first
    # The first job does not own the key any more.
    assert (await good(wire, "RemoveJobDeduplicationKey", id=first))["data"]["removed"] is False
    assert (await good(wire, "RemoveJobDeduplicationKey", id=second))["data"]["removed"] is True
    assert (await good(wire, "RemoveJobDeduplicationKey", id="unknown"))["data"]["removed"] is False


async def test_logs(wire: Wire, other: Wire, queue: Queue) -> None:
    job = await queue.add("x", 1)
    job_id = f"{queue.name}:{job.id}"
    for level in ("warn", "info"):
        await good(wire, "AddLog", id=job_id, message=level, level=level)
    await good(wire, "AddLog", id=job_id, message="last")
    assert await job.logs() == ["[WARNING] warn", "[INFO] info", "[INFO] last"]
    found = (await good(other, "GetLogs", id=job_id, start=0, end=1))["data"]
    assert found["count"] == 3
    assert [(line["level"], line["message"]) for line in found["logs"]] == [("warn", "warn"), ("info", "info")]
    await good(wire, "ClearLogs", id=job_id, keepLogs=1)
    assert await job.logs() == ["[INFO] last"]
    await good(wire, "ClearLogs", id=job_id)
    assert await job.logs() == []
    assert (await good(wire, "GetLogs", id="unknown"))["data"] == {"logs": [], "count": 0}
    assert await failure(wire, "AddLog", id="unknown", message="x") == "Job not found"
    assert "level must be one of" in await failure(wire, "AddLog", id=job_id, message="x", level="loud")


async def test_limits_of_a_fetch_are_those_of_each_group(wire: Wire, other: Wire, queue: Queue) -> None:
    for name in "abc":
        await add(wire, queue.name, name, 3)
    await good(wire, "SetGroupConcurrency", queue=queue.name, groupId="c", concurrency=2)
    group = {"concurrency": 1, "affinity": "a"}
    first = await good(wire, "PULLB", queue=queue.name, count=9, owner="o", group=group)
    assert Counter(job["groupId"] for job in first["jobs"]) == {"a": 1, "b": 1, "c": 2}
    assert (await good(other, "PULLB", queue=queue.name, count=9, owner="p"))["jobs"] == []
    await good(wire, "ACK", id=first["jobs"][0]["id"], token=first["tokens"][0])
    (following,) = (await good(other, "PULLB", queue=queue.name, count=9, owner="p", group=group))["jobs"]
    assert following["groupId"] == first["jobs"][0]["groupId"]
    assert await queue.get_fair_key_defaults() == FairKeyDefaults(concurrency=1)
    rate = {"limit": {"max": 5, "duration": 1_000}}
    await good(wire, "PULLB", queue=queue.name, count=9, owner="o", group=rate)
    assert await queue.get_fair_key_defaults() == FairKeyDefaults(rate_limit=RateLimit(5, 1_000))


async def test_a_fetch_without_limits_writes_none(wire: Wire, queue: Queue) -> None:
    await good(wire, "PULL", queue=queue.name, owner="o", group={})
    assert "fair-defaults" not in await queue.get_features()


@pytest.mark.parametrize(
    ("group", "error"),
    [
        (5, "group must be a map"),
        ({"concurrency": 0}, "group.concurrency must be a positive safe integer"),
        ({"limit": 5}, "group.limit must be a map"),
        ({"limit": {"max": 1}}, "group.limit.duration is required"),
        ({"limit": {"max": 0, "duration": 1}}, "group.limit.max must be a positive safe integer"),
        ({"affinity": 5}, "group.affinity must be a string"),
        ({"size": 5}, "group.size is not supported"),
    ],
)
async def test_invalid_limits_of_a_fetch(wire: Wire, queue: Queue, group: Any, error: str) -> None:
    assert await failure(wire, "PULL", queue=queue.name, timeout=1, group=group) == error
