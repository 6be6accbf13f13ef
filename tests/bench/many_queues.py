"""One process that serves many queues: ``python -m tests.bench.many_queues``.

Prints, for 1, 100 and 1,000 queues, the clients on the server, its commands per second while all queues are idle
(those of functions included), and the time from the start of an add until the handler runs: of one `Worker`, and of 100
and 1,000 workers of one queue each in one process.

``python -m tests.bench.many_queues throughput`` drains three queues whose jobs do nothing, with a list and with weights
in turns: jobs per second, calls per 1,000 jobs, and the largest distance of a queue from its share.
"""

from __future__ import annotations

import asyncio
import random
import re
import statistics
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import ServerProcess, server_binary

SETTLE_S = 35.0
"""Time for the registrations of the worker, which are spread, and the tasks of the start."""
IDLE_S = 40.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The result for one number of queues; times in milliseconds."""

    name: str
    clients: int
    commands: float
    p50: float
    p99: float

    def __str__(self) -> str:
        return (
            f"{self.name:24} {self.clients:3} clients  {self.commands:7.1f} commands/s idle  wake-up p50 "
            f"{self.p50:6.2f} ms  p99 {self.p99:6.2f} ms"
        )


async def measure(
    server: ServerProcess, queues: int, wakes: int, idle_s: float, settle_s: float, *, separate: bool = False
) -> Measured:
    """Measure a worker of so many queues, or with ``separate`` so many workers of one queue each."""
    started: asyncio.Queue[float] = asyncio.Queue()

    async def handle(_: Job):
        started.put_nowait(time.perf_counter())

    names = [f"q{number}" for number in range(queues)]
    with server.client() as resp:
        resp.execute("FLUSHALL")
        async with AsyncExitStack() as stack:
            for served in names if separate else [names]:
                await stack.enter_async_context(Worker(served, handle, server.url, concurrency=10))
            await asyncio.sleep(settle_s)
            clients = len(re.findall(r"^id=", str(resp.execute("CLIENT", "LIST")), re.MULTILINE)) - 1
            before = commands(str(resp.execute("INFO", "stats")))
            await asyncio.sleep(idle_s)
            rate = (commands(str(resp.execute("INFO", "stats"))) - before - 1) / idle_s
            times = await wake_times(server.url, names, wakes, started)
    name = _name(queues, separate=separate)
    return Measured(name, clients, rate, times[len(times) // 2] * 1000, times[int(len(times) * 0.99)] * 1000)


def _name(queues: int, *, separate: bool) -> str:
    if separate:
        return "one queue, by name" if queues == 1 else f"{queues:,} workers of one"
    return f"{queues:,} queues"


def commands(stats: str) -> int:
    """Return the number of commands that a server has run."""
    return int(stats.partition("total_commands_processed:")[2].split()[0])


async def wake_times(url: str, names: list[str], wakes: int, started: asyncio.Queue[float]) -> list[float]:
    """Add one job at a time to random queues; return the sorted times until the handlers ran, in seconds."""
    chance, times = random.Random(1), list[float]()
    for at in range(wakes + 20):
        async with Queue(chance.choice(names), url) as queue:
            await queue.connect()
            await asyncio.sleep(0.02)
            began = time.perf_counter()
            await queue.add("n")
            if at >= 20:
                times.append(await started.get() - began)
            else:
                await started.get()
    return sorted(times)


async def main(wakes: int = 500, idle_s: float = IDLE_S, settle_s: float = SETTLE_S) -> list[Measured]:
    """Measure all numbers of queues."""
    results: list[Measured] = []
    with ServerProcess(server_binary("valkey-9.1")) as server:
        for queues, separate in ((1, True), (100, False), (1_000, False), (100, True), (1_000, True)):
            results.append(await measure(server, queues, wakes, idle_s, settle_s, separate=separate))
            print(results[-1], flush=True)
    return results


WEIGHTS = {"critical": 6, "default": 3, "bulk": 1}
BAR = 0.85
"""Least throughput with weights, compared with a list."""


async def drain(server: ServerProcess, queues: list[str] | dict[str, int], jobs: int) -> tuple[float, float, float]:
    """Drain the queues; return jobs per second, calls per 1,000 jobs, and how many jobs a queue is off its share."""
    total = sum(WEIGHTS.values())
    seen, furthest, done = dict.fromkeys(WEIGHTS, 0), 0.0, asyncio.Event()

    async def handle(job: Job):
        nonlocal furthest
        name = job.queue_name
        seen[name] += 1
        started = sum(seen.values())
        furthest = max(furthest, abs(seen[name] - started * WEIGHTS[name] / total))
        if started == jobs:
            done.set()

    with server.client() as resp:
        resp.execute("FLUSHALL")
        for name, weight in WEIGHTS.items():
            async with Queue(name, server.url) as queue:
                await queue.add_bulk([("n", {"payload": "x" * 180})] * (jobs * weight // total))
        resp.execute("CONFIG", "RESETSTAT")
        began = time.perf_counter()
        async with Worker(queues, handle, server.url, concurrency=50):
            await done.wait()
            taken = time.perf_counter() - began
        found = re.search(r"cmdstat_fcall:calls=(\d+)", str(resp.execute("INFO", "commandstats")))
    return jobs / taken, int(found[1]) * 1000 / jobs if found else 0.0, furthest


async def throughput(jobs: int = 20_000, rounds: int = 5) -> float:
    """Compare weights with a list, in turns; return the median ratio."""
    ratios: list[float] = []
    with ServerProcess(server_binary("valkey-9.1")) as server:
        for _ in range(rounds):
            listed, weighted = await drain(server, list(WEIGHTS), jobs), await drain(server, WEIGHTS, jobs)
            ratios.append(weighted[0] / listed[0])
            for name, (rate, calls, furthest) in (("list", listed), ("weights", weighted)):
                print(f"{name:8} {rate:8,.0f}/s  {calls:5.1f} calls per 1,000 jobs  {furthest:6.0f} jobs from a share")
    print(f"median ratio {statistics.median(ratios):.2f} (bar {BAR})")
    return statistics.median(ratios)


if __name__ == "__main__":
    if "throughput" in sys.argv:
        asyncio.run(throughput())
    else:
        asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
