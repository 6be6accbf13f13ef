"""Durable adds compared with other adds and with a bare ``WAITAOF``: ``python -m tests.bench.durability``.

The same program without ``durable=True`` shows the cost of the option: both have a task, a row and a future per job.

Three forms use a bare ``WAITAOF``, in the pipeline behind the add, which says nothing about jobs lost before the wait:

- *connections*: what an application would write. Each add in flight has a connection of its own, since the wait blocks
  it, and is one call with the wait behind it.
- *shared*: a careful application. Each add in flight has a task that encodes its job and awaits a future. One
  connection adds all waiting jobs in one call with the wait behind it.
- *group*: the fastest possible. As *shared*, but the jobs are encoded once, and have no task and no future.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable

from glidemq_py import Queue
from glidemq_py.testing import ServerProcess, server_binary
from tests.inside import Transport, add, connected

DATA = {"payload": "x" * 180}
SECONDS = 2.0
ROUNDS = 5


async def _adds(queue: Queue, depth: int, is_durable: bool) -> float:
    count, until = 0, time.perf_counter() + SECONDS

    async def producer():
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
    link = await connected(queue)
    transports = await asyncio.gather(*(link.transport.dedicated() for _ in range(connections)))
    rows: list[list[object]] = [["bench", '{"payload":"' + "x" * 180 + '"}', "{}"] for _ in range(jobs)]
    count, until = 0, time.perf_counter() + SECONDS

    async def producer(transport: Transport):
        nonlocal count
        while time.perf_counter() < until:
            await transport.call_with(add(link.keys.meta, rows, False), [["WAITAOF", "1", "0", "5000"]], 5_000)
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


async def shared(queue: Queue, depth: int) -> float:
    """Return adds per second of ``depth`` tasks that share one connection and each wait."""
    link = await connected(queue)
    transport = await link.transport.dedicated()
    waiting: list[tuple[list[object], asyncio.Future[None]]] = []
    senders = set[asyncio.Task[None]]()
    count, until = 0, time.perf_counter() + SECONDS

    async def send():
        while waiting:
            group = waiting.copy()
            waiting.clear()
            call = add(link.keys.meta, [row for row, _ in group], False)
            await transport.call_with(call, [["WAITAOF", "1", "0", "5000"]], 5_000)
            for _, future in group:
                future.set_result(None)
            await asyncio.sleep(0)  # the tasks add their next jobs
        senders.clear()

    async def producer():
        nonlocal count
        loop = asyncio.get_running_loop()
        while time.perf_counter() < until:
            future: asyncio.Future[None] = loop.create_future()
            waiting.append((["bench", json.dumps(DATA), "{}"], future))
            if not senders:
                senders.add(asyncio.create_task(send()))
            await future
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(producer() for _ in range(depth)))
    rate = count / (time.perf_counter() - began)
    await transport.close()
    return rate


async def group(queue: Queue, depth: int) -> float:
    """Return adds per second in calls of ``depth`` jobs on one connection, each followed by WAITAOF."""
    return await _bare(queue, 1, depth)


async def compare(fsync: str, depth: int):
    """Print the rates, and the ratio of durable adds to each: medians of alternating rounds."""
    with ServerProcess(server_binary("valkey-9.1"), config={"appendonly": "yes", "appendfsync": fsync}) as server:
        async with Queue("bench", server.url) as queue:
            forms: tuple[Callable[[Queue, int], Awaitable[float]], ...] = (durable, plain, connections, shared, group)
            await queue.add("bench", durable=True)
            rates = [[await form(queue, depth) for form in forms] for _ in range(ROUNDS)]
    parts = [f"{fsync:8} {depth:3} in flight:"]
    for i, form in enumerate(forms):
        rate = statistics.median(each[i] for each in rates)
        ratio = statistics.median(each[0] / each[i] for each in rates)
        parts.append(f" {form.__name__} {rate:9,.0f}/s" + (f" ({ratio:.2f} x)" if i else ""))
    print(" ".join(parts), flush=True)


async def main():
    """Compare at three depths, with both settings of appendfsync."""
    for fsync in ("always", "everysec"):
        for depth in (1, 10, 100):
            await compare(fsync, depth)


if __name__ == "__main__":
    asyncio.run(main())
