"""A partitioned queue compared with a plain one: ``python -m tests.bench.partitions``.

Both run on one server, in turns, so partitions cannot gain anything: the ratios are what they cost. Adds of 100
concurrent tasks, then a drain by three workers of one process with 50 slots each; jobs without keys. Prints jobs per
second, microseconds of server CPU per job, and the jobs of the fullest partition compared with the mean. Then drains of
jobs that take a random time, of which the plain queue's are bounded by the same slots and the same cores.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from dataclasses import dataclass

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import RespClient, ServerProcess, server_binary
from tests.inside import parts_of

PARTITIONS = 8
CPU_BAR, DRAIN_BAR, BALANCE_BAR = 1.15, 0.85, 1.15


@dataclass(frozen=True, slots=True)
class Figures:
    """Jobs per second and microseconds of server CPU per job, of adds and of a drain; and the balance."""

    added: float
    add_cpu: float
    drained: float
    drain_cpu: float
    balance: float

    def __str__(self) -> str:
        return (
            f"add {self.added:8,.0f}/s {self.add_cpu:6.1f} us of server CPU   drain {self.drained:8,.0f}/s "
            f"{self.drain_cpu:6.1f} us   fullest partition {self.balance:.2f} x the mean"
        )


def cpu_us(resp: RespClient) -> float:
    """Return the CPU time of the server, microseconds."""
    fields = dict(line.split(":") for line in str(resp.execute("INFO", "cpu")).split() if ":" in line)
    return (float(fields["used_cpu_user"]) + float(fields["used_cpu_sys"])) * 1_000_000


async def measure(
    server: ServerProcess, partitions: int | None, jobs: int, tasks: int = 100, *, job_ms: float = 0.0
) -> Figures:
    """Add and drain so many jobs, which take 0.5 to 1.5 times ``job_ms``."""
    left, done, chance = jobs, asyncio.Event(), random.Random(1)

    async def handle(_: Job):
        nonlocal left
        if job_ms:
            await asyncio.sleep(job_ms * chance.uniform(0.5, 1.5) / 1000)
        left -= 1
        if not left:
            done.set()

    with server.client() as resp:
        resp.execute("FLUSHALL")
        async with Queue("q", server.url, partitions=partitions) as queue:

            async def add():
                for _ in range(jobs // tasks):
                    await queue.add("n", {"payload": "x" * 180})

            began, cpu = time.perf_counter(), cpu_us(resp)
            await asyncio.gather(*(add() for _ in range(tasks)))
            add_time, add_cpu = time.perf_counter() - began, cpu_us(resp) - cpu
            counts = [await part.count() for part in parts_of(queue)]
            workers = [Worker("q", handle, server.url, concurrency=50) for _ in range(3)]
            began, cpu = time.perf_counter(), cpu_us(resp)
            await asyncio.gather(*(worker.start() for worker in workers))
            await done.wait()
            drain_time, drain_cpu = time.perf_counter() - began, cpu_us(resp) - cpu
            await asyncio.gather(*(worker.close() for worker in workers))
    balance = max(counts) / statistics.mean(counts)
    return Figures(jobs / add_time, add_cpu / jobs, jobs / drain_time, drain_cpu / jobs, balance)


async def durations(server: ServerProcess, rounds: int):
    """Compare the drains of jobs that take some time; print the median ratios."""
    for job_ms in (5.0, 20.0, 50.0):
        drains, cpus, jobs = list[float](), list[float](), int(20_000 / job_ms**0.5) // 100 * 100
        for _ in range(rounds):
            plain = await measure(server, None, jobs, job_ms=job_ms)
            parted = await measure(server, PARTITIONS, jobs, job_ms=job_ms)
            drains.append(parted.drained / plain.drained)
            cpus.append(parted.drain_cpu / plain.drain_cpu)
        print(
            f"jobs of {job_ms:.0f} ms: drain {statistics.median(drains):.2f}, its server CPU "
            f"{statistics.median(cpus):.2f}", flush=True,
        )  # fmt: skip


async def main(jobs: int = 20_000, rounds: int = 3) -> dict[str, float]:
    """Compare the two in turns; return the median ratios."""
    adds, cpus, drains, balances = list[float](), list[float](), list[float](), list[float]()
    with ServerProcess(server_binary("valkey-9.1")) as server:
        await measure(server, None, jobs // 10)
        for _ in range(rounds):
            plain = await measure(server, None, jobs)
            parted = await measure(server, PARTITIONS, jobs)
            print(f"plain         {plain}\n{PARTITIONS} partitions  {parted}", flush=True)
            adds.append(parted.add_cpu / plain.add_cpu)
            cpus.append((parted.add_cpu + parted.drain_cpu) / (plain.add_cpu + plain.drain_cpu))
            drains.append(parted.drained / plain.drained)
            balances.append(parted.balance)
        await durations(server, rounds)
    found = {
        "server CPU of adds": statistics.median(adds), "server CPU": statistics.median(cpus),
        "drain": statistics.median(drains), "balance": statistics.median(balances),
    }  # fmt: skip
    bars = f"bars: {CPU_BAR} server CPU, {DRAIN_BAR} drain, {BALANCE_BAR} balance"
    print(", ".join(f"{name} {value:.2f}" for name, value in found.items()), f"({bars})")
    return found


if __name__ == "__main__":
    asyncio.run(main())
