"""Commands about failed jobs, with raw frames."""

from collections.abc import Sequence
from typing import Any

import pytest

from glidemq_py import FailurePolicy, FlowJob, FlowProducer, Queue
from glidemq_py.gateway.commands import dead_letters
from tests.server.gateway.wire import Wire, failure, good, state_of


async def failed(wire: Wire, queue: str, errors: Sequence[str]) -> list[str]:
    """Add a job per error that fails with it, and return their ids."""
    ids: list[str] = []
    for error in errors:
        ids.append((await good(wire, "PUSH", queue=queue, name=error, data=error, maxAttempts=1))["id"])
        token = (await good(wire, "PULL", queue=queue, owner="w"))["token"]
        await good(wire, "FAIL", id=ids[-1], token=token, error=error, stack=["Error", "at x"])
    return ids


async def entries(wire: Wire, queue: str, **fields: Any) -> list[str]:
    answer = await good(wire, "Dlq", queue=queue, **fields)
    assert answer["jobs"] == [entry["job"] for entry in answer["entries"]]
    return [entry["error"] for entry in answer["entries"]]


async def test_entries(wire: Wire, other: Wire, queue_name: str) -> None:
    ids = await failed(wire, queue_name, ["a", "b", "c"])
    (entry, *_) = (await good(other, "Dlq", queue=queue_name, count=1))["entries"]
    assert entry["job"]["id"] == ids[0]
    assert (entry["reason"], entry["error"], entry["retryCount"]) == ("max_attempts_exceeded", "a", 0)
    (attempt,) = entry["attempts"]
    assert (attempt["attempt"], attempt["error"]) == (1, "a")
    assert attempt["failedAt"] == entry["enteredAt"]
    assert await entries(wire, queue_name) == ["a", "b", "c"]
    assert await entries(wire, queue_name, filter={"limit": 1, "offset": 1}) == ["b"]
    assert await entries(wire, queue_name, filter={"reason": "stalled"}) == []
    assert await entries(wire, queue_name, filter={"retriable": True}) == []
    assert await entries(wire, queue_name, filter={"olderThan": 1}) == []
    assert "filter.reason must be one of" in await failure(wire, "Dlq", queue=queue_name, filter={"reason": "x"})
    assert await failure(wire, "Dlq", queue=queue_name, filter={"x": 1}) == "filter.x is not supported"


async def test_reason_of_a_parent_whose_child_failed_is_one_that_clients_know(
    wire: Wire, url: str, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FlowProducer(url) as flows:
        child = FlowJob("child", queue_name, "no", options={"attempts": 1})
        await flows.add(FlowJob("parent", queue_name, "parent", children=[child]))
    pulled = await good(wire, "PULL", queue=queue_name, owner="w")
    await good(wire, "FAIL", id=pulled["job"]["id"], token=pulled["token"], error="no")
    found = (await good(wire, "Dlq", queue=queue_name))["entries"]
    assert sorted(entry["reason"] for entry in found) == ["max_attempts_exceeded", "unknown"]
    assert len(await entries(wire, queue_name, filter={"reason": "unknown"})) == 1
    assert "child_failed" not in await failure(wire, "Dlq", queue=queue_name, filter={"reason": "child_failed"})
    for counted in (dead_letters._COUNTED, 0):
        monkeypatch.setattr(dead_letters, "_COUNTED", counted)
        reasons = (await good(wire, "GetDlqStats", queue=queue_name))["data"]["stats"]["byReason"]
        assert (reasons["unknown"], "child_failed" in reasons) == (1, False)


async def test_retry_one_some_and_all(wire: Wire, queue_name: str) -> None:
    ids = await failed(wire, queue_name, ["a", "b", "c", "d"])

    async def retry(**fields: Any) -> int:
        count: int = (await good(wire, "RetryDlq", queue=queue_name, **fields))["count"]
        return count

    assert await retry(jobId="unknown") == 0
    assert await retry(jobId=ids[1]) == 1
    assert await retry(jobId=ids[1]) == 0  # it has not failed any more
    assert [await state_of(wire, job_id) for job_id in ids] == ["failed", "waiting", "failed", "failed"]
    assert await retry(filter={"reason": "timeout"}) == 0
    assert await retry(filter={"reason": "max_attempts_exceeded"}, count=1) == 1
    assert await retry(count=1) == 1
    assert await retry() == 1
    assert await entries(wire, queue_name) == []


async def test_remove_and_purge(wire: Wire, queue_name: str) -> None:
    ids = await failed(wire, queue_name, ["a", "b", "c"])
    waiting = (await good(wire, "PUSH", queue=queue_name, data=1))["id"]
    remove = {"queue": queue_name, "jobId": ids[0]}
    assert (await good(wire, "RemoveDlqJob", **remove))["data"]["removed"] is True
    assert (await good(wire, "RemoveDlqJob", **remove))["data"]["removed"] is False
    assert (await good(wire, "RemoveDlqJob", queue=queue_name, jobId=waiting))["data"]["removed"] is False
    assert (await good(wire, "PurgeDlq", queue=queue_name))["count"] == 2
    assert await state_of(wire, waiting) == "waiting"


async def test_stats(wire: Wire, queue_name: str, monkeypatch: Any) -> None:
    await failed(wire, queue_name, ["a", "b"])
    by_reading = (await good(wire, "GetDlqStats", queue=queue_name))["data"]["stats"]
    assert by_reading["total"] == 2
    assert by_reading["byReason"]["max_attempts_exceeded"] == 2
    assert by_reading["byReason"]["stalled"] == 0
    assert by_reading["byQueue"] == {queue_name: 2}
    assert by_reading["oldestEntry"] <= by_reading["newestEntry"]
    monkeypatch.setattr(dead_letters, "_COUNTED", 1)
    assert (await good(wire, "GetDlqStats", queue=queue_name))["data"]["stats"] == by_reading


async def test_policy(wire: Wire, queue: Queue) -> None:
    async def config() -> dict[str, Any]:
        found: dict[str, Any] = (await good(wire, "GetDlqConfig", queue=queue.name))["config"]
        return found

    defaults = await config()
    assert defaults == {
        "autoRetry": False, "autoRetryInterval": 3_600_000, "maxAutoRetries": 3, "maxAge": None, "maxEntries": None
    }  # fmt: skip
    await good(wire, "SetDlqConfig", queue=queue.name, config={"autoRetry": True, "maxEntries": 5})
    await good(wire, "SetDlqConfig", queue=queue.name, config={"autoRetryInterval": 5_000})
    assert await queue.get_failure_policy() == FailurePolicy(5_000, 3, None, 5)
    assert await config() == defaults | {"autoRetry": True, "autoRetryInterval": 5_000, "maxEntries": 5}
    await good(wire, "SetDlqConfig", queue=queue.name, config={"autoRetry": False, "maxEntries": None})
    assert await queue.get_failure_policy() is None
    for invalid, error in (
        ({"maxEntries": 0}, "config.maxEntries must be at least 1"),
        ({"other": 1}, "config.other is not supported"),
        ({"autoRetry": None}, "config.autoRetry must not be null"),
        ({"autoRetryInterval": 5_000}, "config.autoRetryInterval requires config.autoRetry"),
        ({"maxAutoRetries": 7}, "config.maxAutoRetries requires config.autoRetry"),
        (
            {"autoRetry": True, "maxAge": 5_000},
            "config.maxAge must be greater than config.autoRetryInterval (3600000 ms)",
        ),
    ):
        assert await failure(wire, "SetDlqConfig", queue=queue.name, config=invalid) == error
    assert await queue.get_failure_policy() is None


async def test_stalled_policy(wire: Wire, queue: Queue) -> None:
    assert (await good(wire, "GetStallConfig", queue=queue.name))["config"]["maxStalls"] == 3
    await good(wire, "SetStallConfig", queue=queue.name, config={"stallInterval": 2_000, "maxStalls": 7})
    assert (await good(wire, "GetStallConfig", queue=queue.name))["config"] == {
        "enabled": True, "stallInterval": 2_000, "maxStalls": 7, "gracePeriod": 0
    }  # fmt: skip
    assert (await queue.get_stalled_policy()).max_stalled_count == 7
    error = await failure(wire, "SetStallConfig", queue=queue.name, config={"enabled": False})
    assert error.startswith("config.enabled must be true")


async def test_completed_jobs_are_requeued(wire: Wire, queue_name: str) -> None:
    ids = [(await good(wire, "PUSH", queue=queue_name, data=number))["id"] for number in range(3)]
    pulled = await good(wire, "PULLB", queue=queue_name, count=3, owner="w")
    await good(wire, "ACKB", ids=ids, tokens=pulled["tokens"], results=[1, 2, 3])
    assert (await good(wire, "RetryCompleted", queue=queue_name, id="unknown"))["count"] == 0
    assert (await good(wire, "RetryCompleted", queue=queue_name, id=ids[1]))["count"] == 1
    assert (await good(wire, "RetryCompleted", queue=queue_name, count=1))["count"] == 1
    assert [await state_of(wire, job_id) for job_id in ids] == ["waiting", "waiting", "completed"]
