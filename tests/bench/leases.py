"""Leases compared with a `Worker` in the same run: ``python -m tests.bench.leases``.

Batches: leases of 50 in two loops, each report fetches the next batch; compared with a worker of concurrency 100.
Single: one lease at a time with ``fetch_next``, and separate calls; compared with a worker of concurrency 1.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import ServerProcess, server_binary

DATA = {"payload": "x" * 180}
BATCH = 50
BARS = {"batches of 50": 0.9, "single, fetch_next": 0.9, "single, two calls": 0.45}
"""Least ratio to the worker."""

Form = Callable[[Queue, str, int], Awaitable[None]]


async def batches(queue: Queue, _: str, jobs: int):
    """Complete the jobs in two loops."""

    async def loop():
        leases = await queue.fetch(BATCH)
        while leases:
            leases = (await queue.leases.complete([(lease, None) for lease in leases], fetch_next=BATCH)).leases

    await asyncio.gather(loop(), loop())


async def chained(queue: Queue, _: str, jobs: int):
    """Report each lease and fetch the next one in one call."""
    leases = await queue.fetch(1)
    while leases:
        leases = await leases[0].complete(fetch_next=1)


async def separate(queue: Queue, _: str, jobs: int):
    """Fetch and report with a call each."""
    while leases := await queue.fetch(1):
        await leases[0].complete()


def worker(concurrency: int) -> Form:
    """Return the drain by a worker."""

    async def drain(queue: Queue, url: str, jobs: int):
        count, done = 0, asyncio.Event()

        async def handle(_: Job):
            nonlocal count
            count += 1
            if count == jobs:
                done.set()

        async with Worker(queue.name, handle, url, concurrency=concurrency):
            await done.wait()

    return drain


async def rate(url: str, form: Form, jobs: int) -> float:
    """Return jobs per second."""
    async with Queue("bench", url) as queue:
        await queue.add_bulk([("bench", DATA)] * jobs)
        began = time.perf_counter()
        await form(queue, url, jobs)
        taken = time.perf_counter() - began
        counts = await queue.get_job_counts()
        assert counts.waiting == 0, counts
        await queue.obliterate(force=True)
    return jobs / taken


async def compare(url: str, name: str, ours: Form, theirs: Form, jobs: int, rounds: int) -> float:
    """Print both rates and their ratio, the median of alternating rounds; return the ratio."""
    rates = [(await rate(url, ours, jobs), await rate(url, theirs, jobs)) for _ in range(rounds)]
    ratio = statistics.median(mine / other for mine, other in rates)
    mine, other = (statistics.median(column) for column in zip(*rates, strict=True))
    print(f"{name:20} {mine:9,.0f}/s  worker {other:9,.0f}/s  ratio {ratio:.2f} (bar {BARS[name]})", flush=True)
    return ratio


async def main(scale: float = 1.0, rounds: int = 5):
    """Compare all forms."""
    with ServerProcess(server_binary("valkey-9.1")) as server:
        many, few = int(30_000 * scale), int(4_000 * scale)
        await compare(server.url, "batches of 50", batches, worker(100), many, rounds)
        await compare(server.url, "single, fetch_next", chained, worker(1), few, rounds)
        await compare(server.url, "single, two calls", separate, worker(1), few, rounds)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0))
