"""Durable adds compared with other adds and with a bare ``WAITAOF``: ``python -m tests.bench.durability``.

The same program without ``durable=True`` shows the cost of the option: both have a task, a row and a future per job.

The bare form is the fastest possible: one connection adds as many jobs as are in flight in one call, with ``WAITAOF``
behind it in the same pipeline. It says nothing about jobs lost before the wait, and each add waits for the last group.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from glidemq_py import Queue
from glidemq_py._core.calls.adding import add
from glidemq_py.testing import ServerProcess, server_binary

DATA = {"payload": "x" * 180}
SECONDS = 2.0
ROUNDS = 5


async def _adds(queue: Queue, depth: int, is_durable: bool) -> float:
    count, until = 0, time.perf_counter() + SECONDS

    async def producer() -> None:
        nonlocal count
        while time.perf_counter() < until:
            await queue.add("bench", DATA, durable=is_durable)
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(producer() for _ in range(depth)))
    return count / (time.perf_counter() - began)


async def durable(queue: Queue, depth: int) -> float:
    """Return durable adds per second with ``depth`` in flight."""
    return await _adds(queue, depth, is_durable=True)


async def plain(queue: Queue, depth: int) -> float:
    """Return adds per second with ``depth`` in flight."""
    return await _adds(queue, depth, is_durable=False)


async def bare(queue: Queue, depth: int) -> float:
    """Return adds per second in calls of ``depth`` jobs, each followed by WAITAOF."""
    link = await queue._connected()
    transport = await link.transport.dedicated()
    rows: list[list[object]] = [["bench", '{"payload":"' + "x" * 180 + '"}', "{}"] for _ in range(depth)]
    count, began = 0, time.perf_counter()
    while time.perf_counter() < began + SECONDS:
        await transport.call_before(add(link.keys.meta, rows, False), [["WAITAOF", "1", "0", "5000"]], 5_000)
        count += depth
    rate = count / (time.perf_counter() - began)
    await transport.close()
    return rate


async def compare(fsync: str, depth: int) -> None:
    """Print the rates, and the ratios of durable adds to the others: medians of alternating rounds."""
    with ServerProcess(server_binary("valkey-9.1"), config={"appendonly": "yes", "appendfsync": fsync}) as server:
        async with Queue("bench", server.url) as queue:
            forms: tuple[Callable[[Queue, int], Awaitable[float]], ...] = (durable, plain, bare)
            await queue.add("bench", durable=True)
            rates = [[await form(queue, depth) for form in forms] for _ in range(ROUNDS)]
    of_plain, of_bare = (statistics.median(each[0] / each[i] for each in rates) for i in (1, 2))
    ours, others, theirs = (statistics.median(column) for column in zip(*rates, strict=True))
    print(
        f"{fsync:8} {depth:5} in flight: durable {ours:9,.0f}/s  plain {others:9,.0f}/s ({of_plain:.2f} x)"
        f"  bare {theirs:9,.0f}/s ({of_bare:.2f} x)", flush=True,
    )  # fmt: skip


async def main() -> None:
    """Compare at three depths, with both settings of appendfsync."""
    for fsync in ("always", "everysec"):
        for depth in (1, 10, 100):
            await compare(fsync, depth)


if __name__ == "__main__":
    asyncio.run(main())
