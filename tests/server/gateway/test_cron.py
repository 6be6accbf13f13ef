"""Cron jobs of clients, with raw frames."""

import asyncio
from typing import Any

import pytest

from glidemq_py import Queue
from tests.server.gateway.wire import Wire, failure, good


async def names(wire: Wire) -> list[tuple[str, str]]:
    return [(cron["queue"], cron["name"]) for cron in (await good(wire, "CronList"))["crons"]]


async def test_cron_jobs_are_put_read_and_deleted(wire: Wire, other: Wire, queue: Queue) -> None:
    name = f"{queue.name}-report"
    put = {"name": name, "queue": queue.name, "schedule": "0 8 * * *", "timezone": "Europe/Berlin", "priority": 4}
    cron = (await good(wire, "Cron", **put, jobName="mail", maxLimit=9))["cron"]
    assert (cron["name"], cron["jobName"], cron["queue"], cron["schedule"]) == (name, "mail", queue.name, "0 8 * * *")
    assert (cron["repeatEvery"], cron["executions"], cron["maxLimit"], cron["priority"]) == (None, 0, 9, 4)
    assert isinstance(cron["nextRun"], float)
    assert (await good(other, "CronGet", name=name))["cron"] == cron
    assert (queue.name, name) in await names(other)
    (scheduler,) = await queue.get_job_schedulers()
    assert (scheduler.schedule.overlap, scheduler.schedule.misfire) == ("skip", "skip")
    await good(other, "CronDelete", name=name)
    assert await failure(wire, "CronDelete", name=name) == "Cron job not found"
    assert await failure(wire, "CronGet", name=name) == "Cron job not found"
    assert await queue.get_job_schedulers() == []


async def test_name_moves_to_another_queue(wire: Wire, other: Wire, queue: Queue) -> None:
    name, second = f"{queue.name}-move", f"{queue.name}-2"
    await good(wire, "Cron", name=name, queue=queue.name, repeatEvery=60_000)
    await good(other, "Cron", name=name, queue=second, repeatEvery=60_000)
    assert (await good(wire, "CronGet", name=name))["cron"]["queue"] == second
    assert await queue.get_job_schedulers() == []
    await good(wire, "CronDelete", name=name)


async def test_scheduler_of_python_is_found(wire: Wire, queue: Queue) -> None:
    await queue.add("x", 1)  # lists the queue
    name = f"{queue.name}-python"
    await queue.upsert_job_scheduler(name, every=60_000, template=("tick", {"a": 1}))
    assert (await good(wire, "CronGet", name=name))["cron"]["jobName"] == "tick"
    await good(wire, "CronDelete", name=name)
    assert await queue.get_job_schedulers() == []


async def test_cron_job_is_fired_in_time_though_another_gateway_maintains_the_queue(
    wire: Wire, other: Wire, queue: Queue
) -> None:
    await good(wire, "PUSH", queue=queue.name, data=1)
    ack = await good(wire, "PULL", queue=queue.name, owner="w")
    await good(wire, "ACK", id=ack["job"]["id"], token=ack["token"])
    link = await queue._connected()
    async with asyncio.timeout(60):
        while not await link.transport.command("EXISTS", link.keys.stem + "lock:maintenance"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await good(other, "Cron", name=f"{queue.name}-soon", queue=queue.name, repeatEvery=100, data="cron")
    fetched = await good(other, "PULL", queue=queue.name, owner="w", timeout=10_000)
    assert fetched["job"]["data"] == "cron"
    await good(other, "ACK", id=fetched["job"]["id"], token=fetched["token"])
    assert (await good(wire, "PULL", queue=queue.name, owner="w", timeout=10_000))["job"]["data"] == "cron"


async def test_gateway_fires_cron_jobs_without_a_worker(wire: Wire, queue: Queue) -> None:
    name = f"{queue.name}-tick"
    options = {"maxAttempts": 5, "removeOnComplete": True}
    await good(
        wire, "Cron", name=name, queue=queue.name, repeatEvery=60_000, immediately=True, data={"a": 1},
        uniqueKey="one", jobOptions=options,
    )  # fmt: skip
    job = (await good(wire, "PULL", queue=queue.name, owner="w", timeout=60_000))["job"]
    assert (job["name"], job["data"], job["maxAttempts"]) == ("default", {"a": 1}, 5)
    assert (job["uniqueKey"], job["removeOnComplete"]) == ("one", True)
    assert (await good(wire, "CronGet", name=name))["cron"]["executions"] == 1
    await good(wire, "CronDelete", name=name)


async def test_run_without_a_worker_is_skipped(wire: Wire, other: Wire, queue: Queue) -> None:
    """A client's worker counts, whichever gateway it uses, and a colon in the queue's name does not matter."""
    of_client, name = f"{queue.name}:x", f"{queue.name}-idle"
    cron = {"name": name, "queue": of_client, "repeatEvery": 200, "skipIfNoWorker": True}
    await good(wire, "Cron", **cron)
    async with Queue(f"{queue.name}%3Ax", queue._connection) as found, asyncio.timeout(60):
        while (await found.get_job_schedulers())[0].skipped_count < 2:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.05)
        assert await found.count() == 0
        await good(other, "RegisterWorker", name="w", queues=[of_client], workerId=name)
        assert (await good(other, "PULL", queue=of_client, owner="w", timeout=60_000))["job"]["name"] == "default"
        (scheduler,) = await found.get_job_schedulers()
        assert (scheduler.schedule.skip_without_worker, scheduler.for_peers) == (True, False)
    await good(wire, "CronDelete", name=name)


async def test_refused_change_leaves_the_cron_job(wire: Wire, other: Wire, queue: Queue) -> None:
    name = f"{queue.name}-kept"
    await good(wire, "Cron", name=name, queue=queue.name, repeatEvery=60_000)
    assert "Invalid cron" in await failure(other, "Cron", name=name, queue=f"{queue.name}-2", schedule="nope")
    await good(other, "Cron", name=name, queue=f"{queue.name}-2", repeatEvery=60_000)
    assert await queue.get_job_schedulers() == []
    await good(wire, "CronDelete", name=name)


async def test_scheduler_of_python_with_the_name_stays(wire: Wire, queue: Queue) -> None:
    await queue.add("x", 1)
    name = f"{queue.name}-tick"
    await queue.upsert_job_scheduler(name, every=60_000)
    await good(wire, "Cron", name=name, queue=f"{queue.name}-2", repeatEvery=60_000)
    assert len(await queue.get_job_schedulers()) == 1
    await good(wire, "CronDelete", name=name)
    assert len(await queue.get_job_schedulers()) == 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, "Cron job must have either schedule or repeatEvery"),
        ({"schedule": "* * * * *", "repeatEvery": 1}, "Cron job must not have both schedule and repeatEvery"),
        ({"repeatEvery": -1}, "Cron repeatEvery must be a positive safe integer number of milliseconds"),
        ({"repeatEvery": 1.5}, "Cron repeatEvery must be a positive safe integer number of milliseconds"),
        ({"schedule": "nope"}, "Invalid cron expression: schedule 'nope': "),
        ({"schedule": "* * * * *", "timezone": "Mars/X"}, "Invalid cron expression: timezone 'Mars/X': unknown"),
        ({"repeatEvery": 1_000, "timezone": "UTC"}, "timezone requires schedule"),
        ({"repeatEvery": 1_000, "skipIfNoWorker": 1}, "skipIfNoWorker must be a boolean"),
        ({"repeatEvery": 1_000, "jobOptions": {"color": 1}}, "jobOptions.color is not supported"),
        ({"repeatEvery": 1_000, "jobOptions": {"maxAttempts": 0}}, "jobOptions.maxAttempts must be at least 1"),
    ],
)
async def test_invalid_cron_job(wire: Wire, queue: Queue, fields: dict[str, Any], error: str) -> None:
    assert (await failure(wire, "Cron", name="x", queue=queue.name, **fields)).startswith(error)
    assert await queue.get_job_schedulers() == []


@pytest.mark.parametrize("zone", ["europe/berlin", "EUROPE/BERLIN", "Europe/Berlin"])
async def test_time_zone_in_any_case(wire: Wire, queue: Queue, zone: str) -> None:
    name = f"{queue.name}-zone"
    added = await good(wire, "Cron", name=name, queue=queue.name, schedule="0 9 * * *", timezone=zone)
    assert added["cron"]["timezone"] == "Europe/Berlin"
    await good(wire, "CronDelete", name=name)
    repeat = {"pattern": "0 9 * * *", "tz": zone, "jobId": "r"}
    await good(wire, "PUSH", queue=queue.name, data=1, repeat=repeat)
    (scheduler,) = await queue.get_job_schedulers()
    assert scheduler.schedule.tz == "Europe/Berlin"
