"""One process that serves many queues: ``python -m tests.bench.many_queues``.

Prints, for 1, 100 and 1,000 queues, the clients on the server, its commands per second while all queues are idle
(those of functions included), and the time from the start of an add until the handler runs. A `Worker` of one queue is
measured in the same run.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
import time
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


async def measure(server: ServerProcess, queues: int | None, wakes: int, idle_s: float, settle_s: float) -> Measured:
    """Measure a worker of so many queues; None is a worker of a single name."""
    started: asyncio.Queue[float] = asyncio.Queue()

    async def handle(_: Job) -> None:
        started.put_nowait(time.perf_counter())

    names = [f"q{number}" for number in range(queues or 1)]
    with server.client() as resp:
        resp.execute("FLUSHALL")
        async with Worker(names[0] if queues is None else names, handle, server.url, concurrency=10):
            await asyncio.sleep(settle_s)
            clients = len(re.findall(r"^id=", str(resp.execute("CLIENT", "LIST")), re.MULTILINE)) - 1
            before = commands(str(resp.execute("INFO", "stats")))
            await asyncio.sleep(idle_s)
            rate = (commands(str(resp.execute("INFO", "stats"))) - before - 1) / idle_s
            times = await wake_times(server.url, names, wakes, started)
    name = "one queue, by name" if queues is None else f"{queues:,} queues" if queues > 1 else "list of one queue"
    return Measured(name, clients, rate, times[len(times) // 2] * 1000, times[int(len(times) * 0.99)] * 1000)


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
        for queues in (None, 1, 100, 1_000):
            results.append(await measure(server, queues, wakes, idle_s, settle_s))
            print(results[-1], flush=True)
    return results


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
