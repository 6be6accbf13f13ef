"""Measure durable steps: ``python -m tests.bench.steps [STEPS]``.

Rates of `Job.run` and of `Job.update_data`, in turns on one server with an append-only file, the time that the server's
functions take per call, and how long 10,000 sleeping jobs take that wake together.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import sys
import time
from typing import Any

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import ServerProcess, server_binary

ROUNDS = 3
SLEEPERS = 10_000


async def result() -> int:
    return 1


async def function_us() -> float:
    """Return the time that functions have taken on the server, us."""
    stats = str(await asyncio.to_thread(lambda: SERVER.client().execute("INFO", "commandstats")))
    found = re.search(r"cmdstat_fcall:calls=\d+,usec=(\d+)", stats)
    return float(found[1]) if found else 0.0


async def measure(url: str, kind: str, jobs: int, steps: int) -> tuple[float, float]:
    """Return calls per second, and the server's time per call, us, of jobs that run at the same time."""

    async def handle(job: Job):
        for number in range(steps):
            if kind == "run":
                await job.run("step", result)
            else:
                await job.update_data({"number": number})

    async with Queue(f"{kind}-{time.time_ns()}", url) as queue:
        added = await queue.add_bulk([("n", {"number": 0})] * jobs)
        before, began = await function_us(), time.perf_counter()
        async with Worker(queue.name, handle, url, concurrency=jobs):
            await asyncio.gather(*(job.wait_until_finished(600_000) for job in added))
        took = time.perf_counter() - began
        return jobs * steps / took, (await function_us() - before) / (jobs * steps)


async def wake_up(url: str) -> float:
    """Return the seconds from the end of the sleep of many jobs to the end of the last one."""
    due, ended = time.time() + 8, list[float]()

    async def handle(job: Job):
        await job.sleep("until then", max(1, round((due - time.time()) * 1_000)))
        ended.append(time.time())

    async with Queue("sleepers", url) as queue, Worker("sleepers", handle, url, concurrency=200):
        jobs = await queue.add_bulk([("n", None)] * SLEEPERS)
        await asyncio.gather(*(job.wait_until_finished(60_000) for job in jobs))
    return max(ended) - due


async def main(url: str, steps: int):
    for jobs, each in ((100, steps // 100), (1, min(steps, 900))):
        found: dict[str, list[tuple[float, float]]] = {"run": [], "update_data": []}
        for _ in range(ROUNDS):
            for kind, runs in found.items():
                runs.append(await measure(url, kind, jobs, each))
        middle: dict[str, Any] = {
            kind: [statistics.median(each) for each in zip(*runs, strict=True)] for kind, runs in found.items()
        }
        for kind, (rate, us) in middle.items():
            print(f"{jobs:4} in flight  {kind:12} {rate:9,.0f}/s  server {us:5.1f} us")
        print(f"{jobs:4} in flight  ratio {middle['run'][0] / middle['update_data'][0]:.2f}")
    print(f"{SLEEPERS:,} sleeping jobs: {await wake_up(url):.2f} s")


if __name__ == "__main__":
    with ServerProcess(server_binary("valkey-9.1"), config={"appendonly": "yes", "appendfsync": "everysec"}) as SERVER:
        asyncio.run(main(SERVER.url, int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
