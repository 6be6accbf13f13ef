"""Other keys on the server do not slow down a queue: only `check` and `obliterate(scan=True)` scan the server's
keys.
"""

import asyncio
from typing import Any

import pytest

from glidemq_py import Job, Queue, RateLimitError, Worker
from glidemq_py.testing import ServerProcess
from tests.server.worker_support import StartServer

OF_THE_KEYSPACE = {"cmdstat_scan", "cmdstat_keys", "cmdstat_randomkey", "cmdstat_dbsize"}

KINDS: tuple[dict[str, Any], ...] = (
    {}, {"delay": 20}, {"priority": 3}, {"lifo": True}, {"ttl": 1}, {"attempts": 2, "backoff": 10},
    {"ordering": {"key": "k"}}, {"ordering": {"key": "r", "concurrency": 2, "rate_limit": {"max": 50, "duration": 50}}},
    {"ordering": {"key": "t", "token_bucket": {"capacity": 5, "refill_rate": 200}}, "cost": 2},
    {"deduplication": {"id": "d", "mode": "debounce"}, "delay": 20}, {"remove_on_complete": 3},
)  # fmt: skip


async def handler(job: Job) -> str:
    if job.name == "fail":
        raise RuntimeError("as planned")
    if job.name == "again" and not job.progress:
        await job.update_progress(1)
        raise RateLimitError(10)
    await job.log("line")
    return "done"


def commands(server: ServerProcess) -> set[str]:
    with server.client() as client:
        return set(client.info("commandstats"))


async def all_ended(queue: Queue):
    async with asyncio.timeout(120):
        while True:
            counts = await queue.get_job_counts()
            if not (counts.waiting or counts.active or counts.delayed or counts.prioritized):
                return
            await asyncio.sleep(0.05)


async def steer(queue: Queue):
    """All that an operator does from day to day."""
    await queue.limits.set_concurrency(50)
    await queue.groups.set_limits("k", concurrency=2)
    await queue.groups.rate_limit("r", 10)
    later = [await queue.add("later", delay=60_000) for _ in range(6)]
    await queue.remove(later[0].id)
    await queue.revoke(later[1].id)
    await queue.promote(later[2].id)
    await queue.jobs.change_priority(later[3].id, 5)
    await queue.jobs.change_delay(later[4].id, 30_000)
    for state in ("waiting", "active", "delayed", "prioritized", "completed", "failed"):
        await queue.get_jobs(state)
    await queue.search_jobs(name="later")
    await queue.get_workers()
    await queue.get_metrics("completed")
    await queue.retry_jobs(2)


async def test_no_operation_scans_all_keys(private_server: StartServer):
    server = private_server()
    with server.client() as client:
        client.execute("MSET", *(part for i in range(5_000) for part in (f"another:{i}", "x")))
        client.execute("CONFIG", "RESETSTAT")
    async with Queue("q", server.url, dead_letter_queue={"name": "dead"}) as queue:
        for options in KINDS:
            for name in ("ok", "fail", "again"):
                await queue.add(name, {"a": 1}, **options)
        await queue.add_bulk([("ok", i) for i in range(50)])
        worker = Worker("q", handler, server.url, concurrency=4, lock_duration=1_000)
        another = Worker("q", handler, server.url, concurrency=4, lock_duration=1_000)
        async with worker, another:
            await all_ended(queue)
            await steer(queue)
            async with asyncio.timeout(120):
                # Until recovery has come round.
                while "cmdstat_hrandfield" not in commands(server):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        await queue.drain(delayed=True)
        await queue.clean(0)
        assert not commands(server) & OF_THE_KEYSPACE
        assert (await queue.check()).ok
        with server.client() as client:
            client.execute("CONFIG", "RESETSTAT")
        await queue.obliterate(force=True)
        assert not commands(server) & OF_THE_KEYSPACE
    with server.client() as client:
        assert client.keys("glide:{q}*") == []


@pytest.mark.parametrize("name", ["check", "obliterate"])
async def test_scans_use_small_steps(private_server: StartServer, name: str):
    """Each step looks at a thousand keys, and lets others in between."""
    server = private_server()
    with server.client() as client:
        client.execute("MSET", *(part for i in range(20_000) for part in (f"another:{i}", "x")))
    async with Queue("q", server.url) as queue:
        await queue.add("task")
        with server.client() as client:
            client.execute("CONFIG", "RESETSTAT")
        await (queue.check() if name == "check" else queue.obliterate(scan=True))
    with server.client() as client:
        stats = dict(part.split("=") for part in client.info("commandstats")["cmdstat_scan"].split(","))
        assert int(stats["calls"]) >= 20
        assert float(stats["usec_per_call"]) < 5_000


async def cost_of_obliterate(server: ServerProcess) -> tuple[dict[str, int], float]:
    """Fill a queue and obliterate it; return the number of calls per command, and the microseconds of server time."""
    async with Queue("q", server.url) as queue:
        await queue.add_bulk([("ok", i, {"delay": i % 2 * 60_000}) for i in range(2_000)])
        with server.client() as client:
            client.execute("CONFIG", "RESETSTAT")
        assert await queue.obliterate() == 2_000
    with server.client() as client:
        rows = {
            name.removeprefix("cmdstat_"): dict(part.split("=") for part in row.split(","))
            for name, row in client.info("commandstats").items()
        }
        assert client.keys("glide:*") == []
    ours = {name: row for name, row in rows.items() if not name.startswith(("config", "info", "client", "hello"))}
    spent = sum(float(row["usec"]) for name, row in ours.items() if name in {"fcall", "scan"})
    return {name: int(row["calls"]) for name, row in ours.items()}, spent


async def test_obliterate_costs_what_the_queue_holds(private_server: StartServer):
    server = private_server()
    await cost_of_obliterate(server)  # loads the library
    calls, spent = await cost_of_obliterate(server)
    with server.client() as client:
        for start in range(0, 200_000, 20_000):
            client.execute("MSET", *(part for i in range(start, start + 20_000) for part in (f"another:{i}", "x")))
    crowded_calls, crowded = await cost_of_obliterate(server)
    assert "scan" not in crowded_calls
    assert sum(crowded_calls.values()) < 1.2 * sum(calls.values())
    assert crowded < 3 * spent
