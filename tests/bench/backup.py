"""The cost of a backup for the server and for its other clients: ``python -m tests.bench.backup [scale]``.

Cost: CPU time of the server, from INFO, around an unthrottled backup. Others: the p99 of calls of another process,
alone, during a backup of this server with the default throttle, and during one of another server. The last one is the
baseline: the client of the backup also competes for the processors of this machine.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time

from glidemq_py import Queue
from glidemq_py.testing import RespClient, ServerProcess, server_binary

DATA = {"payload": "x" * 180}
COST_BAR_US = 12
P99_BAR = 2.0
PROBE = """
import sys, time
from glidemq_py.testing import RespClient
with RespClient("127.0.0.1", int(sys.argv[1])) as client:
    print("ready", flush=True)
    times, end = [], time.perf_counter() + float(sys.argv[2])
    while time.perf_counter() < end:
        began = time.perf_counter()
        client.execute("HGETALL", "other")
        times.append(time.perf_counter() - began)
        time.sleep(0.0005)
times.sort()
print(times[len(times) * 99 // 100] * 1000)
"""


def cpu_seconds(client: RespClient) -> float:
    """Return the CPU time that the server has used."""
    fields = dict(line.split(":", 1) for line in str(client.execute("INFO", "cpu")).splitlines() if ":" in line)
    return float(fields["used_cpu_user"]) + float(fields["used_cpu_sys"])


def start_probe(port: int, seconds: float) -> subprocess.Popen[str]:
    """Start another client that measures its calls for some time."""
    probe = subprocess.Popen([sys.executable, "-c", PROBE, str(port), str(seconds)], stdout=subprocess.PIPE, text=True)
    assert probe.stdout is not None
    assert probe.stdout.readline() == "ready\n"
    return probe


def p99_of(probe: subprocess.Popen[str]) -> float:
    """Return the p99 of the probe, ms."""
    return float(probe.communicate()[0])


async def cost(queue: Queue, client: RespClient, folder: str) -> float:
    """Return the server's CPU time per job of an unthrottled backup, microseconds."""
    before = cpu_seconds(client)
    info = await queue.backups.create(folder, max_server_cpu=1)
    return (cpu_seconds(client) - before) * 1_000_000 / info.jobs


async def others(queue: Queue, port: int, folder: str) -> tuple[float, float]:
    """Return the p99 of a client of the server at ``port`` during a backup, ms, and the backup's jobs per second."""
    probe = await asyncio.to_thread(start_probe, port, 5)
    began = time.perf_counter()
    info = await queue.backups.create(folder)
    taken = time.perf_counter() - began
    return await asyncio.to_thread(p99_of, probe), info.jobs / taken


async def main(scale: float = 1.0):
    """Measure both."""
    with (
        ServerProcess(server_binary("valkey-9.1")) as server,
        ServerProcess(server_binary("valkey-9.1")) as idle,
        RespClient(server.host, server.port) as client,
        RespClient(idle.host, idle.port) as idle_client,
        tempfile.TemporaryDirectory() as folder,
    ):
        async with Queue("bench", server.url) as queue:
            for _ in range(10):
                await queue.add_bulk([("bench", DATA)] * int(10_000 * scale))
            for each in (client, idle_client):
                each.execute("HSET", "other", "field", "value")
            costs = [await cost(queue, client, folder) for _ in range(3)]
            print(f"server CPU per job {min(costs):.1f} to {max(costs):.1f} us (bar {COST_BAR_US})", flush=True)
            quiet = p99_of(await asyncio.to_thread(start_probe, server.port, 5))
            elsewhere, _ = await others(queue, idle.port, folder)
            busy, rate = await others(queue, server.port, folder)
            print(f"throttled: {rate:,.0f} jobs/s; p99 of others {quiet:.2f} ms alone, {busy:.2f} ms during a backup")
            print(f"p99 while another server is backed up {elsewhere:.2f} ms: {busy / elsewhere:.2f} x (bar {P99_BAR})")


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0))
