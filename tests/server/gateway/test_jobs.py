"""Jobs that are added, fetched and reported through gateways, with raw frames."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py._features.leases.tokens import decode_token, encode_token
from glidemq_py.gateway import Gateway
from glidemq_py.gateway.ids import queue_number
from glidemq_py.testing import ServerProcess
from tests.server.gateway.wire import Wire, failure, good, packed, state_of


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await reached():  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.01)


def state_is(wire: Wire, job_id: str, state: str) -> Callable[[], Awaitable[bool]]:
    async def reached() -> bool:
        return await state_of(wire, job_id) == state

    return reached


async def test_job_is_pulled_by_one_gateway_and_acknowledged_by_another(
    wire: Wire, other: Wire, queue_name: str
) -> None:
    data = {"to": "a@example.org", "n": 1.5, "list": [1, None, True], "big": 1_700_000_000_000.0}
    job_id = (await good(wire, "PUSH", queue=queue_name, name="mail", data=data))["id"]
    assert UUID(job_id).version == 7
    assert await state_of(other, job_id) == "waiting"
    pulled = await good(wire, "PULL", queue=queue_name, owner="w1")
    job = pulled["job"]
    assert (job["id"], job["queue"], job["name"], job["data"]) == (job_id, queue_name, "mail", data)
    assert (job["attempts"], job["maxAttempts"], job["backoff"]) == (0, 3, 1_000)
    assert isinstance(job["createdAt"], float)  # clients decode a 64-bit integer to BigInt
    assert await state_of(other, job_id) == "active"
    await good(other, "ACK", id=job_id, token=pulled["token"], result={"sent": True})
    assert (await good(wire, "GetResult", id=job_id))["result"] == {"sent": True}
    found = (await good(wire, "GetJob", id=job_id))["job"]
    assert (found["state"], found["returnvalue"], found["progress"]) == ("completed", {"sent": True}, 100)
    assert (await good(wire, "PULL", queue=queue_name, owner="w1"))["job"] is None


async def test_ids_of_all_gateways_contain_the_same_number(wire: Wire, other: Wire, queue_name: str) -> None:
    answers = await asyncio.gather(*(good(each, "PUSH", queue=queue_name, data=1) for each in (wire, other)))
    numbers = {queue_number(answer["id"]) for answer in answers}
    assert len(numbers) == 1
    elsewhere = (await good(wire, "PUSH", queue=f"{queue_name}:b", data=1))["id"]
    assert queue_number(elsewhere) not in numbers
    assert (await good(other, "GetJob", id=elsewhere))["job"]["queue"] == f"{queue_name}:b"


async def test_pushes_of_a_connection_keep_their_order(wire: Wire, queue: Queue) -> None:
    for number in range(40):
        wire.send(packed({"cmd": "PUSH", "reqId": number, "queue": queue.name, "data": number}))
    answers = [await wire.receive() for _ in range(40)]
    assert all(answer["ok"] for answer in answers)
    pulled = (await good(wire, "PULLB", queue=queue.name, count=40, owner="w"))["jobs"]
    assert [job["data"] for job in pulled] == list(range(40))
    assert sorted(job["id"] for job in pulled) == [job["id"] for job in pulled]


async def test_python_worker_runs_what_a_client_pushed(wire: Wire, url: str, queue_name: str) -> None:
    async def handler(job: Job) -> Any:
        return {"doubled": job.data["n"] * 2}

    async with Worker(queue_name, handler, url):
        job_id = (await good(wire, "PUSH", queue=queue_name, name="n", data={"n": 21}))["id"]

        async def is_completed() -> bool:
            return await state_of(wire, job_id) == "completed"

        await until(is_completed)
    assert (await good(wire, "GetResult", id=job_id))["result"] == {"doubled": 42}


async def test_client_pulls_what_python_added(wire: Wire, other: Wire, queue: Queue) -> None:
    added = await queue.add("n", {"a": 1}, tags=["x"])
    custom = await queue.add("n", 2, job_id="order-5")
    jobs = await good(wire, "PULLB", queue=queue.name, count=10, owner="w")
    assert [job["id"] for job in jobs["jobs"]] == [f"{queue.name}:{added.id}", f"{queue.name}:order-5"]
    assert (jobs["jobs"][0]["tags"], jobs["jobs"][0]["maxAttempts"]) == (["x"], 1)
    assert await state_of(other, f"{queue.name}:order-5") == "active"
    ids = [job["id"] for job in jobs["jobs"]]
    await good(other, "ACKB", ids=ids, tokens=jobs["tokens"], results=["a", None])
    assert await added.wait_until_finished() == "a"
    assert await custom.wait_until_finished() is None


async def test_wrong_and_missing_tokens_change_nothing(wire: Wire, other: Wire, queue_name: str) -> None:
    ids = [(await good(wire, "PUSH", queue=queue_name, data=n))["id"] for n in range(2)]
    pulled = await good(wire, "PULLB", queue=queue_name, count=2, owner="w")
    first, second = ids
    assert await failure(other, "ACK", id=first) == f"Lock token required for job {first}"
    for token in ("junk", pulled["tokens"][1]):
        assert await failure(other, "ACK", id=first, token=token) == f"Invalid or expired lock token for job {first}"
    assert await failure(other, "FAIL", id=first, token="junk", error="x") == (
        f"Invalid or expired lock token for job {first}"
    )
    error = f"Invalid or expired lock token for job {second}"
    assert await failure(wire, "ACKB", ids=ids, tokens=[pulled["tokens"][0], "junk"]) == error
    assert [await state_of(wire, job_id) for job_id in ids] == ["active", "active"]
    unknown = "Job not found or not in processing state: nothing"
    assert await failure(wire, "ACK", id="nothing", token="t") == unknown
    assert await failure(wire, "ACKB", ids=ids, tokens=["a"]) == "ACKB tokens length must match ids length"


async def test_job_that_is_named_twice_is_completed_once(
    gateways: tuple[Gateway, Gateway], wire: Wire, other: Wire, queue_name: str
) -> None:
    await good(wire, "PUSHB", queue=queue_name, jobs=[{"data": number} for number in range(4)])
    pulled = await good(wire, "PULLB", queue=queue_name, count=2, owner="w")
    (first, second), tokens = [job["id"] for job in pulled["jobs"]], pulled["tokens"]
    before = gateways[0].figures.totals["completed"]
    # A token of another job rejects all, also if the job itself is named before.
    error = f"Invalid or expired lock token for job {first}"
    assert await failure(wire, "ACKB", ids=[first, second, first], tokens=[*tokens, tokens[1]]) == error
    assert [await state_of(wire, job_id) for job_id in (first, second)] == ["active", "active"]
    twice = {"ids": [first, second, first], "tokens": [*tokens, tokens[0]], "results": [1, 2, 3]}
    for connection in (wire, other):  # a repeated command changes nothing
        await good(connection, "ACKB", **twice)
        assert [(await good(wire, "GetResult", id=job_id))["result"] for job_id in (first, second)] == [1, 2]
    assert gateways[0].figures.totals["completed"] == before + 2
    assert (await good(wire, "GetJobCounts", queue=queue_name))["counts"]["completed"] == 2
    third = (await good(wire, "PULL", queue=queue_name))["job"]["id"]  # without a token
    await good(wire, "ACKB", ids=[third, third], results=["a", "b"])
    assert (await good(wire, "GetResult", id=third))["result"] == "a"


async def test_lock_that_is_named_twice_is_renewed(wire: Wire, other: Wire, queue_name: str) -> None:
    await good(wire, "PUSHB", queue=queue_name, jobs=[{"data": number} for number in range(2)])
    pulled = await good(wire, "PULLB", queue=queue_name, count=2, owner="w")
    (first, second), (token, of_second) = [job["id"] for job in pulled["jobs"]], pulled["tokens"]
    renewed = {"ids": [first, second, first], "tokens": [token, of_second, token]}
    # The other gateway has not fetched them, so it renews them on the server.
    assert (await good(other, "JobHeartbeatB", **renewed))["data"]["count"] == 3
    assert (await good(other, "ExtendLocks", **renewed, durations=[1_000, 60_000, 3_600_000]))["count"] == 3
    assert [await state_of(wire, job_id) for job_id in (first, second)] == ["active", "active"]
    extended = await good(other, "ExtendLocks", ids=[first] * 2, tokens=["junk", token], durations=[9_000] * 2)
    assert extended["count"] == 1


async def test_token_with_an_entry_that_is_none_is_invalid(wire: Wire, queue: Queue) -> None:
    job_id = (await good(wire, "PUSH", queue=queue.name, data=1))["id"]
    token = (await good(wire, "PULL", queue=queue.name, owner="w"))["token"]
    facts = decode_token(queue.options.prefix, queue.name, token)
    for entry in ("e\ud800", "1", "1-", "-1", "1-1\n", "\u0661-\u0661", "1-" + "1" * 21):
        crafted = encode_token(queue.options.prefix, queue.name, facts._replace(entry=entry))
        error = f"Invalid or expired lock token for job {job_id}"
        assert await failure(wire, "ACK", id=job_id, token=crafted) == error
    of_list = facts._replace(entry="")
    assert decode_token("p", "q", encode_token("p", "q", of_list)) == of_list
    await good(wire, "ACK", id=job_id, token=token)


async def test_job_pulled_without_owner_needs_no_token(wire: Wire, queue_name: str) -> None:
    job_id = (await good(wire, "PUSH", queue=queue_name, data=1))["id"]
    pulled = await good(wire, "PULL", queue=queue_name)
    assert "token" not in pulled
    error = f"Invalid or expired lock token for job {job_id}"
    assert await failure(wire, "ACK", id=job_id, token="any", result=2) == error
    await good(wire, "ACK", id=job_id, result=3)
    assert (await good(wire, "GetResult", id=job_id))["result"] == 3
    assert await failure(wire, "ACK", id=job_id) == f"Job not found or not in processing state: {job_id}"


async def test_a_stale_token_does_not_complete_an_attempt_without_a_token(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue
) -> None:
    job_id = (await good(wire, "PUSH", queue=queue.name, data=1, maxAttempts=2, backoff=0))["id"]
    stale = (await good(wire, "PULL", queue=queue.name, owner="w"))["token"]
    await good(wire, "FAIL", id=job_id, token=stale, error="no luck")
    async with Wire(gateways[0]) as second:  # of the same process
        await good(second, "PULL", queue=queue.name, timeout=60_000)
        error = f"Invalid or expired lock token for job {job_id}"
        assert await failure(wire, "ACK", id=job_id, token=stale, result="first") == error
        assert await failure(wire, "ACKB", ids=[job_id], tokens=[stale], results=["first"]) == error
        assert await failure(wire, "FAIL", id=job_id, token=stale, error="first") == error
        assert (await good(wire, "JobHeartbeatB", ids=[job_id], tokens=[stale]))["data"]["count"] == 0
        assert await state_of(wire, job_id) == "active"
        await good(second, "ACK", id=job_id, result="second")
    assert (await good(wire, "GetResult", id=job_id))["result"] == "second"


async def test_last_failure_may_delete_the_job(wire: Wire, queue: Queue) -> None:
    pushed = await good(wire, "PUSH", queue=queue.name, data=1, maxAttempts=2, backoff=0)
    for remaining in (1, 0):
        fetched = await good(wire, "PULL", queue=queue.name, owner="w", timeout=10_000)
        await good(wire, "FAIL", id=pushed["id"], token=fetched["token"], error="x", removeOnFail=True)
        assert await queue.count() == remaining
    assert (await good(wire, "GetState", id=pushed["id"]))["state"] == "unknown"
    assert (await queue.get_job_counts()).failed == 0


async def test_failed_attempts_and_stale_tokens(wire: Wire, queue: Queue) -> None:
    backoff = {"type": "fixed", "delay": 60_000}
    job_id = (await good(wire, "PUSH", queue=queue.name, data=1, maxAttempts=2, backoff=backoff))["id"]
    first = await good(wire, "PULL", queue=queue.name, owner="w")
    await good(wire, "FAIL", id=job_id, token=first["token"], error="no luck", stack=["Error: no luck", "  at x.js:1"])
    assert await state_of(wire, job_id) == "delayed"
    assert (await good(wire, "GetJob", id=job_id))["job"]["stacktrace"] == ["Error: no luck", "at x.js:1"]
    # bunqueue accepts this one, and completes the job.
    for token in (None, first["token"]):
        assert job_id in await failure(wire, "ACK", id=job_id, token=token)
    await good(wire, "Promote", id=job_id)
    assert await failure(wire, "Promote", id=job_id) == "Job not found or not delayed"
    second = await good(wire, "PULL", queue=queue.name, owner="w")
    assert second["job"]["attempts"] == 1
    await good(wire, "FAIL", id=job_id, token=second["token"], error="again", unrecoverable=True)
    found = (await good(wire, "GetJob", id=job_id))["job"]
    assert (found["state"], found["failedReason"]) == ("failed", "again")
    assert found["stacktrace"] == ["again"]
    await good(wire, "MoveToWait", id=job_id)
    assert await state_of(wire, job_id) == "waiting"


async def test_lost_connection_releases_its_jobs(gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue) -> None:
    ids = [(await good(wire, "PUSH", queue=queue.name, data=n))["id"] for n in range(4)]
    async with Wire(gateways[0]) as leaving:
        first = await good(leaving, "PULLB", queue=queue.name, count=3, owner="w")
        await good(leaving, "PULL", queue=queue.name, owner="w", detach=True)
        async with Wire(gateways[1]) as elsewhere:
            await good(wire, "JobHeartbeat", id=ids[0], token=first["tokens"][0])
            await good(elsewhere, "ExtendLock", id=ids[1], token=first["tokens"][1], duration=60_000)

    async def is_released() -> bool:
        return await state_of(wire, ids[2]) == "waiting"

    await until(is_released)
    # Those that were renewed, by whichever gateway, and the detached one stay locked.
    assert [await state_of(wire, job_id) for job_id in ids] == ["active", "active", "waiting", "active"]
    await good(wire, "ACK", id=ids[0], token=first["tokens"][0])
    again = await good(wire, "PULL", queue=queue.name, owner="w")
    assert (again["job"]["id"], again["job"]["attempts"]) == (ids[2], 0)
    assert await failure(wire, "ACK", id=ids[2], token=first["tokens"][2]) == (
        f"Invalid or expired lock token for job {ids[2]}"
    )


async def test_closing_gateway_answers_long_polls_and_releases_jobs(url: str, queue: Queue) -> None:
    gateway = Gateway(url, port=0)
    await gateway.start()
    async with Wire(gateway) as wire:
        job_id = (await good(wire, "PUSH", queue=queue.name, data=1))["id"]
        await good(wire, "PULL", queue=queue.name, owner="w")
        wire.send(packed({"cmd": "PULL", "reqId": 1, "queue": queue.name, "timeout": 60_000, "owner": "w"}))
        assert (await good(wire, "Ping"))["ok"] is True
        await gateway.close()
        answer = await wire.receive()
        assert (answer["ok"], answer["job"]) == (True, None)
    job = await queue.get_job(job_id)
    assert job is not None
    assert job.state == "waiting"


async def test_long_poll_gets_a_job_that_is_pushed_later(wire: Wire, other: Wire, queue_name: str) -> None:
    wire.send(packed({"cmd": "PULL", "reqId": "poll", "queue": queue_name, "timeout": 60_000, "owner": "w"}))
    assert (await good(other, "Ping"))["ok"] is True
    job_id = (await good(other, "PUSH", queue=queue_name, data="late"))["id"]
    answer = await wire.receive()
    assert (answer["reqId"], answer["job"]["id"]) == ("poll", job_id)


async def test_options_of_push(wire: Wire, queue: Queue) -> None:
    options = {
        "priority": 5, "delay": 60_000, "maxAttempts": 7, "backoff": 250, "ttl": 90_000.0, "timeout": 5_000,
        "tags": ["a", "b"], "removeOnComplete": True, "removeOnFail": {"age": 60, "count": 5}, "uniqueKey": "u",
        "dedup": {"ttl": 5_000, "extend": True}, "timestamp": 1.0,
    }  # fmt: skip
    job_id = (await good(wire, "PUSH", queue=queue.name, data=None, **options))["id"]
    job = await queue.get_job(job_id)
    assert job is not None
    assert dict(job.opts) == {
        "jobId": job_id, "delay": 60_000, "priority": 2_043, "attempts": 7,
        "backoff": {"type": "exponential", "delay": 250, "jitter": 1.0, "maxDelay": 3_600_000},
        "timeout": 5_000, "ttl": 90_000, "removeOnComplete": True, "removeOnFail": {"age": 60, "count": 5},
        "deduplication": {"id": "u", "ttl": 5_000, "mode": "simple", "extend": True}, "tags": ["a", "b"],
    }  # fmt: skip
    assert (await good(wire, "PUSH", queue=queue.name, data=2, uniqueKey="u"))["id"] == job_id
    found = (await good(wire, "GetJob", id=job_id))["job"]
    assert (found["priority"], found["uniqueKey"], found["state"]) == (5, "u", "delayed")
    assert found["runAt"] - found["createdAt"] == 60_000


async def test_order_of_priorities_and_groups(wire: Wire, queue: Queue) -> None:
    for name, options in (
        ("plain", {}), ("late", {"priority": -1}), ("high", {"priority": 9}), ("last in", {"lifo": True}),
    ):  # fmt: skip
        await good(wire, "PUSH", queue=queue.name, name=name, data=1, **options)
    jobs = (await good(wire, "PULLB", queue=queue.name, count=10, owner="w"))["jobs"]
    assert [job["name"] for job in jobs] == ["high", "last in", "plain", "late"]
    for group, priority in (("a", 3), ("a", 0), ("b", 0)):
        await good(wire, "PUSH", queue=queue.name, name=f"{group}{priority}", groupId=group, priority=priority)
    jobs = (await good(wire, "PULLB", queue=queue.name, count=10, owner="w"))["jobs"]
    assert [job["name"] for job in jobs if job["groupId"] == "a"] == ["a0", "a3"]
    assert {(job["name"], job["priority"]) for job in jobs} == {("a0", 0), ("a3", 3), ("b0", 0)}


async def test_dependencies(wire: Wire, queue: Queue) -> None:
    first = (await good(wire, "PUSH", queue=queue.name, name="first"))["id"]
    second = (await good(wire, "PUSH", queue=queue.name, name="second", dependsOn=[first] * 1_001))["id"]
    assert await state_of(wire, second) == "waiting-children"
    assert await failure(wire, "PUSH", queue=queue.name, dependsOn=["no"]) == "Dependency job not found: no"
    missing = f"{queue.name}:no"
    assert "Dependency job not found" in await failure(wire, "PUSH", queue=queue.name, dependsOn=[missing])
    pulled = await good(wire, "PULL", queue=queue.name, owner="w")
    await good(wire, "ACK", id=first, token=pulled["token"])
    assert await state_of(wire, second) == "waiting"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"priority": 1.5}, "priority must be an integer"),
        ({"delay": -1}, "delay must be at least 0"),
        ({"maxAttempts": 0}, "maxAttempts must be at least 1"),
        ({"backoff": {"type": "linear"}}, "backoff.type must be 'fixed' or 'exponential'"),
        ({"backoff": {"type": "fixed"}}, "backoff.delay is required"),
        ({"backoff": "x"}, "backoff must be a number"),
        ({"backoff": float("nan")}, "backoff must be at least 0"),
        ({"name": ""}, "Job name must be a non-empty string of at most 256 characters"),
        ({"name": 5}, "Job name must be a non-empty string of at most 256 characters"),
        ({"stallTimeout": -1}, "stallTimeout must be at least 0"),
        ({"stackTraceLimit": 1.5}, "stackTraceLimit must be an integer"),
        ({"groupId": "g", "groupMaxSize": 0}, "groupMaxSize must be at least 1"),
        ({"data": "abcdefgh", "sizeLimit": 9}, "data has 10 bytes, more than sizeLimit 9"),
        ({"debounceId": "d", "debounceTtl": -1}, "debounceTtl must be at least 0"),
        ({"parentId": "p"}, "Parent job not found: p"),
        ({"parentId": "p", "uniqueKey": "u"}, "parentId is not supported with uniqueKey or debounceId"),
        ({"failParentOnFailure": True}, "failParentOnFailure requires parentId"),
        ({"childrenIds": ["p"]}, "childrenIds is not supported yet"),
        ({"dedup": {"ttl": 5}}, "dedup requires uniqueKey"),
        ({"uniqueKey": "u", "dedup": {"extend": True}}, "dedup.extend requires dedup.ttl"),
        ({"uniqueKey": "u", "dedup": {"x": True}}, "dedup.x is not supported"),
        ({"groupId": "g", "priority": -1}, "priority must be 0 to 2046 for jobs with a groupId"),
        ({"groupId": "g", "lifo": True}, "lifo is not supported for jobs with a groupId"),
        ({"removeOnFail": -1}, "removeOnFail must be an integer from 0 to 2147483647"),
        ({"removeOnFail": {"x": 1}}, "removeOnFail must have age (seconds), count, or both"),
        ({"tags": ["a", "x" * 65]}, "tags[1] must have at most 64 characters, not 65"),
        ({"tags": [""]}, "tags[0] must not be empty"),
        ({"tags": [f"{number}" for number in range(21)]}, "tags must have at most 20 tags"),
        ({"dependsOn": [f"{number}" for number in range(1_001)]}, "dependsOn must have at most 1000 ids"),
        ({"tags": [1]}, "tags[0] must be a string"),
        ({"queue": "a b"}, "Queue name contains invalid characters"),
    ],
)
async def test_invalid_option_is_named_and_nothing_is_added(
    wire: Wire, queue: Queue, fields: dict[str, Any], error: str
) -> None:
    assert error in await failure(wire, "PUSH", **{"queue": queue.name, **fields})
    if "queue" not in fields:
        jobs = [{"data": 1}, fields]
        assert f"{error}" in await failure(wire, "PUSHB", queue=queue.name, jobs=jobs)
    assert await queue.count() == 0


async def test_maximum_size_of_a_group(wire: Wire, other: Wire, queue: Queue) -> None:
    options: dict[str, Any] = {"queue": queue.name, "groupId": "g", "groupMaxSize": 2}
    for connection in (wire, other):
        await good(connection, "PUSH", **options)
    full = "Group g has reached its maximum size of 2"
    assert await failure(wire, "PUSH", **options) == full
    assert await failure(other, "PUSHB", queue=queue.name, jobs=[options]) == full
    await failure(wire, "PUSHB", queue=queue.name, jobs=[options, options])
    await good(wire, "PUSH", **{**options, "groupId": "another"})
    await good(wire, "PUSH", **{**options, "groupMaxSize": 3})
    assert (await good(wire, "GetGroupJobsCount", queue=queue.name, groupId="g"))["data"]["count"] == 3


async def test_debounced_jobs_are_added_once(wire: Wire, other: Wire, queue: Queue) -> None:
    options: dict[str, Any] = {"queue": queue.name, "debounceId": "d", "debounceTtl": 60_000, "sizeLimit": 10}
    first = (await good(wire, "PUSH", data=1, **options))["id"]
    assert (await good(other, "PUSH", data=2, **options))["id"] == first
    assert await queue.count() == 1


async def test_options_without_effect_are_accepted(wire: Wire, queue: Queue) -> None:
    without: dict[str, Any] = {
        "stallTimeout": 0,
        "repeat": None,
        "childrenIds": [],
        "durable": False,
    }
    await good(wire, "PUSH", queue=queue.name, data={"name": "moved", "x": 1}, **without)
    job = (await good(wire, "PULL", queue=queue.name, owner="w"))["job"]
    assert (job["name"], job["data"]) == ("moved", {"x": 1})


async def test_bulk_is_added_as_a_whole_or_not_at_all(wire: Wire, queue: Queue) -> None:
    jobs: list[dict[str, Any]] = [{"name": f"n{n}", "data": {"n": n}, "priority": n % 3} for n in range(250)]
    ids = (await good(wire, "PUSHB", queue=queue.name, jobs=jobs))["ids"]
    assert len(set(ids)) == 250
    assert await queue.count() == 250
    assert (await good(wire, "PUSHB", queue=queue.name, jobs=[]))["ids"] == []
    jobs[7]["delay"] = "soon"
    assert await failure(wire, "PUSHB", queue=queue.name, jobs=jobs) == "jobs[7]: delay must be a number"
    jobs = [{"data": 1}, {"data": 2, "dependsOn": [f"{queue.name}:none"]}, {"data": 3}]
    assert "jobs[1]: Dependency job not found" in await failure(wire, "PUSHB", queue=queue.name, jobs=jobs)
    assert await failure(wire, "PUSHB", queue=queue.name, jobs=[5]) == "jobs[0]: must be a map"
    assert await queue.count() == 250


async def test_progress_cancel_and_discard(wire: Wire, queue: Queue) -> None:
    ids = [(await good(wire, "PUSH", queue=queue.name, data=n))["id"] for n in range(3)]
    first, second, third = ids
    error = "Job is not active (current state: waiting)"
    assert await failure(wire, "Progress", id=first, progress=1) == error
    assert await failure(wire, "GetProgress", id=first) == error
    await good(wire, "PULL", queue=queue.name, owner="w")
    await good(wire, "Progress", id=first, progress=40, message="almost")
    found = await good(wire, "GetProgress", id=first)
    assert (found["progress"], found["message"]) == (40, "almost")
    assert await failure(wire, "Cancel", id=first) == "Job not found or cannot be cancelled"
    await good(wire, "Cancel", id=second)
    assert await state_of(wire, second) == "unknown"
    assert await failure(wire, "Cancel", id=second) == "Job not found or cannot be cancelled"
    await good(wire, "Discard", id=third)
    assert await state_of(wire, third) == "failed"
    for cmd in ("GetJob", "Progress", "GetProgress", "Discard"):
        assert await failure(wire, cmd, id=second) == "Job not found"
    assert await failure(wire, "MoveToWait", id=second) == "Cannot move job from state 'unknown' to waiting"
    assert "result" in await good(wire, "GetResult", id=second)


async def test_locks(wire: Wire, other: Wire, queue: Queue) -> None:
    job_id = (await good(wire, "PUSH", queue=queue.name, data=1))["id"]
    token = (await good(wire, "PULL", queue=queue.name, owner="w", lockTtl=5_000))["token"]
    await good(other, "ExtendLock", id=job_id, token=token, duration=60_000)
    assert (
        await failure(other, "ExtendLock", id=job_id, token="x", duration=60_000) == "Lock not found or invalid token"
    )
    assert (await good(other, "JobHeartbeat", id=job_id, token=token))["data"] == {"ok": True}
    assert await failure(other, "JobHeartbeat", id="no", token=token) == (
        "Job not found or not active (or invalid token)"
    )
    beat = await good(other, "JobHeartbeatB", ids=[job_id, "no"], tokens=[token, token])
    assert beat["data"] == {"ok": True, "count": 1}
    await good(other, "MoveToWait", id=job_id, token=token)
    assert await state_of(wire, job_id) == "waiting"
    assert (
        await failure(wire, "ExtendLock", id=job_id, token=token, duration=1_000) == "Lock not found or invalid token"
    )
    assert (await failure(wire, "PULL", queue=queue.name, lockTtl=5)) == "lockTtl must be at least 1000"
    assert (await failure(wire, "PULL", queue=queue.name, timeout=60_001)) == "timeout must be at most 60000"


@pytest.mark.slow
async def test_lock_of_a_job_with_a_stall_timeout_is_as_short(wire: Wire, other: Wire, queue: Queue) -> None:
    options: dict[str, Any] = {"queue": queue.name, "data": 1, "backoff": 0, "maxAttempts": 2}
    job_id = (await good(wire, "PUSH", **options, stallTimeout=1_000))["id"]
    pulled = await good(wire, "PULL", queue=queue.name, owner="w", lockTtl=600_000)
    assert pulled["job"]["stallTimeout"] == 1_000
    started = pulled["job"]["startedAt"]
    link = await queue._connected()

    async def deadline() -> int:
        found = await link.transport.command("HGET", link.keys.job(job_id), "lastActive")
        return int(found or b"0")

    assert await deadline() == started + 1_000
    await good(other, "JobHeartbeat", id=job_id, token=pulled["token"], duration=600_000)  # silent for 1 s from now on
    assert started + 1_000 <= await deadline() < started + 60_000
    again = await good(other, "PULL", queue=queue.name, owner="w", timeout=60_000)  # after the lock has expired
    assert (again["job"]["id"], again["job"]["attempts"]) == (job_id, 1)
    assert await failure(wire, "ACK", id=job_id, token=pulled["token"])
    await good(wire, "ACK", id=job_id, token=again["token"])


async def test_stall_timeout_does_not_extend_a_lock(wire: Wire, queue: Queue) -> None:
    job_id = (await good(wire, "PUSH", queue=queue.name, data=1, stallTimeout=86_400_000))["id"]
    pulled = await good(wire, "PULL", queue=queue.name, owner="w", lockTtl=5_000)
    link = await queue._connected()
    found = await link.transport.command("HGET", link.keys.job(job_id), "lastActive")
    assert int(found or b"0") == pulled["job"]["startedAt"] + 5_000


async def test_job_with_a_stall_timeout_is_released_with_its_connection(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue
) -> None:
    async with Wire(gateways[0]) as lost:
        job_id = (await good(lost, "PUSH", queue=queue.name, data=1, stallTimeout=3_600_000))["id"]
        await good(lost, "PULL", queue=queue.name, owner="w", lockTtl=7_200_000)
    pulled = await good(wire, "PULL", queue=queue.name, owner="w", timeout=60_000)
    assert (pulled["job"]["id"], pulled["job"]["attempts"]) == (job_id, 0)


@pytest.mark.parametrize(
    ("limit", "stored"), [(2, ["bad", "at a"]), (0, None), (None, ["bad", "at a", "at b", "at c"])]
)
async def test_stack_of_a_failure_is_limited(
    wire: Wire, other: Wire, queue: Queue, limit: int | None, stored: list[str] | None
) -> None:
    job_id = (await good(wire, "PUSH", queue=queue.name, data=1, maxAttempts=1, stackTraceLimit=limit))["id"]
    pulled = await good(wire, "PULL", queue=queue.name, owner="w")
    assert pulled["job"]["stackTraceLimit"] == (10 if limit is None else limit)
    stack = ["bad", "at a", "at b", "at c"]
    await good(other, "FAIL", id=job_id, token=pulled["token"], error="bad", stack=stack)
    assert (await good(wire, "GetJob", id=job_id))["job"]["stacktrace"] == stored


async def test_report_after_the_timeout_of_the_job_is_ignored(wire: Wire, queue: Queue) -> None:
    job_id = (await good(wire, "PUSH", queue=queue.name, data=1, timeout=1, maxAttempts=1))["id"]
    token = (await good(wire, "PULL", queue=queue.name, owner="w"))["token"]

    async def is_failed() -> bool:
        await queue.fetch()  # a fetch ends attempts whose time is over
        return await state_of(wire, job_id) == "failed"

    await until(is_failed)
    ignored = await good(wire, "ACK", id=job_id, token=token)
    assert ignored["data"] == {"applied": False, "reason": "already-finalized"}
    ignored = await good(wire, "ACKB", ids=[job_id], tokens=[token])
    assert ignored["data"] == {"ignoredIndices": [0], "ignoredIds": [job_id]}


async def test_timeout_of_a_job_ends_soon_without_a_fetch(wire: Wire, other: Wire, queue: Queue) -> None:
    job_id = (await good(wire, "PUSH", queue=queue.name, data=1, timeout=150, maxAttempts=1))["id"]
    token = (await good(wire, "PULL", queue=queue.name, owner="w"))["token"]
    start = time.monotonic()
    await until(state_is(other, job_id, "failed"))
    assert time.monotonic() - start < 5
    ignored = await good(wire, "ACK", id=job_id, token=token)
    assert ignored["data"] == {"applied": False, "reason": "already-finalized"}


async def test_lock_expires_soon_without_a_fetch(
    wire: Wire, other: Wire, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    long = (await good(wire, "PUSH", queue=queue.name, data=1))["id"]
    short = (await good(wire, "PUSH", queue=queue.name, data=1, backoff=60_000))["id"]
    await good(wire, "PULL", queue=queue.name, owner="w", lockTtl=60_000)
    await good(wire, "PULL", queue=queue.name, owner="w", lockTtl=1_000)
    start = time.monotonic()
    await until(state_is(other, short, "waiting"))
    assert time.monotonic() - start < 5
    job = (await good(wire, "GetJob", id=short))["job"]
    assert (job["attempts"], job["stallCount"]) == (1, 1)
    assert await state_of(wire, long) == "active"
    assert f"job {short}: stalled (its lock or timeout expired); it will run again" in caplog.text


async def test_lock_that_is_shortened_through_its_gateway_expires_soon(wire: Wire, queue: Queue) -> None:
    job_id = (await good(wire, "PUSH", queue=queue.name, data=1, maxAttempts=1))["id"]
    token = (await good(wire, "PULL", queue=queue.name, owner="w", lockTtl=60_000))["token"]
    await good(wire, "ExtendLock", id=job_id, token=token, duration=1_000)
    start = time.monotonic()
    await until(state_is(wire, job_id, "failed"))
    assert time.monotonic() - start < 5


async def test_ended_leases_deliver_to_parents_of_other_queues(wire: Wire, queue: Queue) -> None:
    child, parent = f"c-{queue.name}", f"p-{queue.name}"
    options = {"maxAttempts": 1, "timeout": 100, "parentId": parent, "failParentOnFailure": True}
    jobs = [
        {"id": child, "queue": f"{queue.name}-c", "input": {"data": {}, **options}},
        {"id": parent, "queue": queue.name, "input": {"data": {}, "childrenIds": [child], "dependsOn": [child]}},
    ]
    await good(wire, "PUSHF", jobs=jobs)
    await good(wire, "PULL", queue=f"{queue.name}-c", owner="w")
    start = time.monotonic()
    await until(state_is(wire, parent, "failed"))
    assert time.monotonic() - start < 5


async def test_jobs_that_another_gateway_completed_are_not_released(
    gateways: tuple[Gateway, Gateway], other: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    released: list[str] = []
    release: Any = Queue.release_leases

    async def recorded(given: Queue, leases: Any) -> Any:
        released.extend(lease.id for lease in leases)
        return await release(given, leases)

    monkeypatch.setattr(Queue, "release_leases", recorded)
    async with Wire(gateways[0]) as lost:
        done, left = (await good(lost, "PUSHB", queue=queue.name, jobs=[{"data": 1}, {"data": 2}]))["ids"]
        tokens = (await good(lost, "PULLB", queue=queue.name, count=2, owner="w"))["tokens"]
        await good(other, "ACK", id=done, token=tokens[0])
    await until(state_is(other, left, "waiting"))
    assert await state_of(other, done) == "completed"
    assert released == [left]
    assert "discarded" not in caplog.text


async def test_few_completed_jobs_are_kept(url: str, queue: Queue) -> None:
    async with Gateway(url, port=0, max_completed=2) as gateway, Wire(gateway) as wire:
        jobs = [{"data": number} for number in range(6)]
        jobs[5]["removeOnComplete"] = True
        ids = (await good(wire, "PUSHB", queue=queue.name, jobs=jobs))["ids"]
        pulled = await good(wire, "PULLB", queue=queue.name, count=6, owner="w")
        await good(wire, "ACKB", ids=ids[:3], tokens=pulled["tokens"][:3])
        for number in range(3, 6):
            await good(wire, "ACK", id=ids[number], token=pulled["tokens"][number])
        assert [await state_of(wire, each) for each in ids] == ["unknown"] * 3 + ["completed"] * 2 + ["unknown"]


async def test_data_that_cannot_be_read_fails_the_job(wire: Wire, queue: Queue) -> None:
    bad = await queue.add("n", {"a": 1})
    link = await queue._connected()
    await link.transport.command("HSET", link.keys.job(bad.id), "data", "mp:???")
    await good(wire, "PUSH", queue=queue.name, data=1)
    assert [job["data"] for job in (await good(wire, "PULLB", queue=queue.name, count=2, owner="w"))["jobs"]] == [1]
    assert await state_of(wire, f"{queue.name}:{bad.id}") == "failed"


async def test_held_jobs_of_expired_locks_are_forgotten(
    gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glidemq_py.gateway.held._MARGIN_S", -2.0)
    for number in range(5):
        await good(wire, "PUSH", queue=queue.name, data=number)
        await good(wire, "PULL", queue=queue.name, owner="w", lockTtl=1_000)
    assert len(gateways[0].held) == 1


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("kind", ["durable", "dependsOn", "parentId", "PUSHB", "jobId"])
async def test_pushes_of_all_kinds_keep_their_order(
    private_server: Callable[..., ServerProcess], queue_name: str, kind: str, partitions: int
) -> None:
    url = private_server(appendonly="yes").url
    async with (
        Queue(queue_name, url, partitions=partitions) as queue,
        Gateway(url, port=0) as gateway,
        Wire(gateway) as wire,
    ):
        done = (await good(wire, "PUSH", queue=f"{queue_name}-done", data=0))["id"]
        token = (await good(wire, "PULL", queue=f"{queue_name}-done", owner="w"))["token"]
        if kind == "dependsOn":
            await good(wire, "ACK", id=done, token=token)
        for number in range(12):
            fields: dict[str, Any] = {"queue": queue_name, "data": number, "groupId": "g"}
            if number % 3 == 1:
                added: dict[str, dict[str, Any]] = {
                    "durable": {"durable": True}, "dependsOn": {"dependsOn": [done]}, "parentId": {"parentId": done},
                    "jobId": {"jobId": f"{queue_name}-{number}"},
                }  # fmt: skip
                fields |= added.get(kind, {})
            if kind == "PUSHB" and number % 3 == 1:
                job = {key: value for key, value in fields.items() if key != "queue"}
                wire.send(packed({"cmd": "PUSHB", "reqId": number, "queue": queue_name, "jobs": [job, job]}))
            else:
                wire.send(packed({"cmd": "PUSH", "reqId": number, **fields}))
        for _ in range(12):
            answer = await wire.receive()
            assert answer["ok"] is True, answer
        expected = sorted([*range(12), *([1, 4, 7, 10] if kind == "PUSHB" else [])])
        found: list[int] = []
        while len(found) < len(expected):  # a group has one active job at a time
            pulled = await good(wire, "PULL", queue=queue_name, owner="w", timeout=60_000)
            found.append(pulled["job"]["data"])
            await good(wire, "ACK", id=pulled["job"]["id"], token=pulled["token"])
        assert found == expected
        await queue.obliterate(force=True)


async def test_discard_of_a_finished_job(wire: Wire, other: Wire, queue_name: str) -> None:
    ids = [(await good(wire, "PUSH", queue=queue_name, data=1, maxAttempts=1))["id"] for _ in range(2)]
    for cmd in ("ACK", "FAIL"):
        pulled = await good(wire, "PULL", queue=queue_name, owner="w")
        await good(wire, cmd, id=pulled["job"]["id"], token=pulled["token"])
    assert [await state_of(wire, job_id) for job_id in ids] == ["completed", "failed"]
    for job_id in ids:
        assert await failure(other, "Discard", id=job_id) == "Job not found"
    assert [await state_of(wire, job_id) for job_id in ids] == ["completed", "failed"]


@pytest.mark.parametrize("partitions", [1, 3])
async def test_discard_of_an_active_job_needs_its_token(
    wire: Wire, other: Wire, url: str, queue_name: str, partitions: int
) -> None:
    async with Queue(queue_name, url, partitions=partitions) as queue:
        job_id = (await good(wire, "PUSH", queue=queue_name, data=1, backoff=0))["id"]
        old = (await good(wire, "PULL", queue=queue_name, owner="w"))["token"]
        await good(other, "FAIL", id=job_id, token=old)
        pulled = await good(wire, "PULL", queue=queue_name, owner="w", timeout=60_000)
        for each in (wire, other):
            assert await failure(each, "Discard", id=job_id) == f"Lock token required for job {job_id}"
            for token in (old, "junk"):
                error = await failure(each, "Discard", id=job_id, token=token)
                assert error == f"Invalid or expired lock token for job {job_id}"
        await good(other, "Discard", id=job_id, token=pulled["token"])
        assert await state_of(wire, job_id) == "failed"
        unowned = (await good(wire, "PUSH", queue=queue_name, data=1))["id"]
        await good(wire, "PULL", queue=queue_name)
        await good(wire, "Discard", id=unowned)
        await queue.obliterate(force=True)
