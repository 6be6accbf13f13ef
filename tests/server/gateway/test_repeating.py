"""`repeat` of jobs: a scheduler adds the further ones."""

import time
from typing import Any

import pytest

from glidemq_py import Queue
from glidemq_py.gateway import Gateway
from tests.server.gateway.wire import Wire, failure, good


async def run_next(wire: Wire, queue: str, timeout: int = 10_000) -> dict[str, Any] | None:
    """Fetch and complete the next job; return it."""
    answer = await good(wire, "PULL", queue=queue, owner="o", timeout=timeout)
    job: dict[str, Any] | None = answer["job"]
    if job is not None:
        await good(wire, "ACK", id=job["id"], token=answer["token"])
    return job


async def test_a_job_repeats_until_its_limit(wire: Wire, other: Wire, queue: Queue) -> None:
    repeat = {"every": 100, "limit": 2}
    pushed = await good(
        wire, "PUSH", queue=queue.name, name="report", data={"n": 1}, tags=["t"], priority=5, repeat=repeat
    )
    jobs = [await run_next(other, queue.name) for _ in range(3)]
    assert await run_next(wire, queue.name, 500) is None
    assert [job and (job["name"], job["data"], job["tags"], job["priority"]) for job in jobs] == [
        ("report", {"n": 1}, ["t"], 5)
    ] * 3
    assert jobs[0] is not None
    assert jobs[0]["id"] == pushed["id"]


async def test_a_failing_job_repeats(wire: Wire, queue: Queue) -> None:
    await good(wire, "PUSH", queue=queue.name, data=1, maxAttempts=1, repeat={"every": 100, "limit": 1})
    for _ in range(2):
        fetched = await good(wire, "PULL", queue=queue.name, owner="o", timeout=10_000)
        await good(wire, "FAIL", id=fetched["job"]["id"], token=fetched["token"], error="x")
    assert (await queue.get_job_counts()).failed == 2


async def test_cron_commands_know_the_repetition(wire: Wire, queue: Queue) -> None:
    repeat = {"pattern": "0 3 * * *", "tz": "Europe/Rome", "jobId": "nightly"}
    await good(wire, "PUSH", queue=queue.name, data=1, repeat=repeat)
    await good(wire, "PUSH", queue=queue.name, data=2, repeat=repeat)
    (scheduler,) = await queue.get_job_schedulers()
    assert (scheduler.name, scheduler.schedule.pattern, scheduler.schedule.tz) == (
        "repeat:nightly", "0 3 * * *", "Europe/Rome",
    )  # fmt: skip
    cron = (await good(wire, "CronGet", name="repeat:nightly"))["cron"]
    assert (cron["queue"], cron["schedule"]) == (queue.name, "0 3 * * *")
    await good(wire, "CronDelete", name="repeat:nightly")
    assert await queue.get_job_schedulers() == []
    assert await queue.count() == 2


async def test_jobs_of_a_bulk_repeat(wire: Wire, queue: Queue) -> None:
    now = round(time.time() * 1_000)
    jobs = [
        {"data": 1, "repeat": {"every": 60_000, "startDate": float(now + 60_000), "endDate": float(now + 600_000)}},
        {"data": 2},
        {"data": 3, "repeat": {"every": 90_000}, "delay": 50, "groupId": "g"},
    ]
    answer = await good(wire, "PUSHB", queue=queue.name, jobs=jobs)
    assert len(answer["ids"]) == 3
    found = {each.schedule.every: each for each in await queue.get_job_schedulers()}
    assert set(found) == {60_000, 90_000}
    assert found[90_000].options.fair_key == "g"
    assert found[90_000].options.delay is None
    assert found[60_000].next_run is not None
    assert found[60_000].next_run >= now + 60_000


async def test_a_refused_job_leaves_no_scheduler(gateways: tuple[Gateway, Gateway], wire: Wire, queue: Queue) -> None:
    await good(wire, "PUSH", queue=queue.name, data=1, groupId="g", groupMaxSize=1)
    job = {"data": 2, "groupId": "g", "groupMaxSize": 1, "repeat": {"every": 1_000}}
    assert "maximum size" in await failure(wire, "PUSH", queue=queue.name, **job)
    assert "maximum backlog" in await failure(wire, "PUSHB", queue=queue.name, jobs=[{"data": 3}, job])
    assert await queue.get_job_schedulers() == []
    assert await queue.count() == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"repeat": 5}, "repeat requires exactly one of every or pattern"),
        ({"repeat": {"limit": 5}}, "repeat requires exactly one of every or pattern"),
        ({"repeat": {"every": 5, "pattern": "* * * * *"}}, "repeat requires exactly one of every or pattern"),
        ({"repeat": {"every": "x"}}, "repeat.every must be a positive finite number"),
        ({"repeat": {"every": -1}}, "repeat.every must be a positive finite number"),
        ({"repeat": {"every": float("inf")}}, "repeat.every must be a positive finite number"),
        ({"repeat": {"every": 100, "offset": 5}}, "repeat.offset is not supported yet"),
        ({"repeat": {"every": 100, "foo": 5}}, "repeat.foo is not supported"),
        ({"repeat": {"every": 100}, "jobId": "mine"},
         "repeat jobs cannot use JobOptions.jobId; use repeat.jobId instead"),
        ({"repeat": {"every": 100}, "data": b"x"}, "data must be JSON for jobs with repeat"),
        ({"repeat": {"every": 100}, "dependsOn": ["x"]}, "dependsOn is not supported for jobs with repeat"),
        ({"repeat": {"every": 100}, "priority": 10_000_000}, "priority must be at most 1000000"),
    ],
)  # fmt: skip
async def test_invalid_repetitions(wire: Wire, queue: Queue, options: dict[str, Any], error: str) -> None:
    assert await failure(wire, "PUSH", queue=queue.name, **{"data": 1, **options}) == error
    assert await failure(wire, "PUSHB", queue=queue.name, jobs=[{"data": 1}, {"data": 1, **options}]) == (
        f"jobs[1]: {error}"
    )
    assert await queue.get_job_schedulers() == []
    assert await queue.count() == 0


async def test_invalid_pattern_names_the_problem(wire: Wire, queue: Queue) -> None:
    error = await failure(wire, "PUSH", queue=queue.name, data=1, repeat={"pattern": "nope"})
    assert error.startswith("Invalid repeat pattern: ")
    error = await failure(wire, "PUSH", queue=queue.name, data=1, repeat={"pattern": "* * * * *", "tz": "Mars"})
    assert error.startswith("Invalid repeat pattern: ")
    assert await queue.count() == 0
