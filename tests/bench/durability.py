"""Durable adds compared with other adds and with a bare ``WAITAOF``: ``python -m tests.bench.durability``.

The same program without ``durable=True`` shows the cost of the option: both have a task, a row and a future per job.

Two forms use a bare ``WAITAOF``, in the pipeline behind the add, which says nothing about jobs lost before the wait:

- *connections*: what an application would write. Each add in flight has a connection of its own, since the wait blocks
  it, and is one call with the wait behind it.
- *group*: the fastest possible. One connection adds as many jobs as are in flight in one call, without a task, a row or
  a future per job, and each add waits for the last group.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from glidemq_py import Queue
from glidemq_py._client.transport import Transport
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


async def _bare(queue: Queue, connections: int, jobs: int) -> float:
    """Return adds per second in calls of ``jobs`` jobs on each of the connections, with WAITAOF behind each call."""
    link = await queue._connected()
    transports = await asyncio.gather(*(link.transport.dedicated() for _ in range(connections)))
    rows: list[list[object]] = [["bench", '{"payload":"' + "x" * 180 + '"}', "{}"] for _ in range(jobs)]
    count, until = 0, time.perf_counter() + SECONDS

    async def producer(transport: Transport) -> None:
        nonlocal count
        while time.perf_counter() < until:
            await transport.call_before(add(link.keys.meta, rows, False), [["WAITAOF", "1", "0", "5000"]], 5_000)
            count += jobs

    began = time.perf_counter()
    await asyncio.gather(*map(producer, transports))
    rate = count / (time.perf_counter() - began)
    for transport in transports:
        await transport.close()
    return rate


async def connections(queue: Queue, depth: int) -> float:
    """Return adds per second with ``depth`` connections, each with one job and its WAITAOF in flight."""
    return await _bare(queue, depth, 1)


async def group(queue: Queue, depth: int) -> float:
    """Return adds per second in calls of ``depth`` jobs on one connection, each followed by WAITAOF."""
    return await _bare(queue, 1, depth)


async def compare(fsync: str, depth: int) -> None:
    """Print the rates, and the ratio of durable adds to each: medians of alternating rounds."""
    with ServerProcess(server_binary("valkey-9.1"), config={"appendonly": "yes", "appendfsync": fsync}) as server:
        async with Queue("bench", server.url) as queue:
            forms: tuple[Callable[[Queue, int], Awaitable[float]], ...] = (durable, plain, connections, group)
            await queue.add("bench", durable=True)
            rates = [[await form(queue, depth) for form in forms] for _ in range(ROUNDS)]
    parts = [f"{fsync:8} {depth:3} in flight:"]
    for i, form in enumerate(forms):
        rate = statistics.median(each[i] for each in rates)
        ratio = statistics.median(each[0] / each[i] for each in rates)
        parts.append(f" {form.__name__} {rate:9,.0f}/s" + (f" ({ratio:.2f} x)" if i else ""))
    print(" ".join(parts), flush=True)


async def main() -> None:
    """Compare at three depths, with both settings of appendfsync."""
    for fsync in ("always", "everysec"):
        for depth in (1, 10, 100):
            await compare(fsync, depth)


if __name__ == "__main__":
    asyncio.run(main())
