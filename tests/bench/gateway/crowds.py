"""Many idle clients of one gateway, and one queue worked on through several gateways."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import msgpack

from tests.bench.bunqueue import BunqueuePackages
from tests.bench.gateway.servers import Served, cpu_us, gateways, memory_mib

__all__ = ["CLIENT", "cpu_of_two", "idle_connections", "idle_workers"]

CLIENT: Final = Path(__file__).with_name("client.mjs")
_POLL_S: Final = 0.05
"""Interval of the polls of the npm client's idle worker."""
_POLLS_BEFORE: Final = 5
"""Polls of each worker before the measure begins: the first ones open its queue and look at it."""
_WARM_UP_S: Final = 90.0
_OPENED_TOGETHER: Final = 250
_CLIENTS: Final = 2
_CONCURRENCY: Final = 50


def _frame(value: dict[str, Any]) -> bytes:
    payload: bytes = msgpack.packb(value)
    return len(payload).to_bytes(4, "big") + payload


class _Client(asyncio.Protocol):
    """A connection that counts the bytes of its answers."""

    def __init__(self):
        self.received = 0
        self.answered = asyncio.Event()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport):
        self.transport = transport

    def data_received(self, data: bytes):
        self.received += len(data)
        self.answered.set()

    def send(self, frame: bytes):
        self.transport.write(frame)


async def _open(port: int, count: int) -> list[_Client]:
    """Open connections, and wait until the gateway has answered on each."""
    loop = asyncio.get_running_loop()
    clients: list[_Client] = []
    while len(clients) < count:
        some = min(_OPENED_TOGETHER, count - len(clients))
        opened = await asyncio.gather(*(loop.create_connection(_Client, "127.0.0.1", port) for _ in range(some)))
        for _, client in opened:
            client.send(_frame({"cmd": "Ping", "reqId": "1"}))
            await client.answered.wait()
            clients.append(client)
    return clients


async def idle_connections(served: Served, count: int) -> dict[str, float]:
    """Return the memory of a gateway with idle connections, MiB, and its processor time, percent of a core."""
    before = memory_mib(served.processes[0])
    clients = await _open(served.port, count)
    cpu, began = served.cpu(), time.monotonic()
    await asyncio.sleep(3)
    percent = (served.cpu()[0] - cpu[0]) / (time.monotonic() - began) / 10_000
    found = {"memory": memory_mib(served.processes[0]), "before": before, "gateway": percent}
    for client in clients:
        client.transport.abort()
    return found


async def idle_workers(served: Served, count: int, seconds: float) -> dict[str, float]:
    """Return the processor time of the Valkey and the gateway, percent of a core, with idle workers on a queue each.

    A worker polls as that of the npm client: `PULL` without waiting, 50 ms after the last answer.
    """
    clients = await _open(served.port, count)
    run = secrets.token_hex(4)
    polls = [0] * count
    warm, is_over = asyncio.Event(), False

    async def work(number: int, client: _Client):
        frame = _frame({
            "cmd": "PULL", "queue": f"idle-{run}-{number}", "timeout": 0, "owner": f"w{number}", "lockTtl": 30_000,
            "reqId": "2",
        })  # fmt: skip
        await asyncio.sleep(number / count * _POLL_S)
        while not is_over:
            client.answered.clear()
            client.send(frame)
            await client.answered.wait()
            polls[number] += 1
            if polls[number] == _POLLS_BEFORE and min(polls) >= _POLLS_BEFORE:
                warm.set()
            await asyncio.sleep(_POLL_S)

    working = [asyncio.create_task(work(number, client)) for number, client in enumerate(clients)]
    async with asyncio.timeout(_WARM_UP_S):
        await warm.wait()
    cpu, began, earlier = served.cpu(), time.monotonic(), sum(polls)
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    server, store = (after - before for after, before in zip(served.cpu(), cpu, strict=True))
    found = {"store": store / took / 10_000, "gateway": server / took / 10_000, "rate": (sum(polls) - earlier) / took}
    is_over = True
    await asyncio.gather(*working)
    for client in clients:
        client.transport.abort()
    return found


def cpu_of_two(packages: BunqueuePackages, jobs: int, rounds: int) -> dict[str, float]:
    """Compare the processor time per job of two gateways that share a queue, and have a worker each, with that of one.

    Returns:
        ``ratio``: to one gateway with one worker; ``low`` and ``high`` are the extremes of the runs. ``merged``: to one
        gateway with both workers, whose commands leave in common calls: those of two gateways cannot.

    Raises:
        RuntimeError: If a job was lost, or completed twice.
    """
    ratios: list[float] = []
    merged: list[float] = []
    with gateways("everysec", _CLIENTS) as served:
        for _ in range(rounds):
            alone = _drained(packages, served, served.ports[:1], jobs // _CLIENTS)
            together = _drained(packages, served, served.ports[:1] * _CLIENTS, jobs)
            two = _drained(packages, served, served.ports, jobs)
            ratios.append(two / alone)
            merged.append(two / together)
    return {
        "ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios), "merged": statistics.median(merged)
    }  # fmt: skip


def _drained(packages: BunqueuePackages, served: Served, ports: tuple[int, ...], jobs: int) -> float:
    """Return the processor time per job of the gateways on these ports, us; their clients share a queue."""
    queue, environment = f"bench-{secrets.token_hex(4)}", {**os.environ, "BUNQUEUE_CLIENT": str(packages.client)}

    def command(role: str, port: int) -> list[str]:
        params = json.dumps({"jobs": jobs, "concurrency": _CONCURRENCY})
        return [str(packages.bun), str(CLIENT), role, str(port), queue, params]

    subprocess.run(command("fill", ports[0]), env=environment, check=True, capture_output=True, timeout=60)
    used = [process for process, port in zip(served.processes, served.ports, strict=True) if port in ports]
    before = sum(map(cpu_us, used))
    clients = [
        subprocess.Popen(command("drain", port), env=environment, stdout=subprocess.PIPE, text=True) for port in ports
    ]
    done = [job_id for client in clients for job_id in json.loads(client.communicate(timeout=120)[0])["ids"]]
    if len(done) != jobs or len(set(done)) != jobs:
        raise RuntimeError(f"{jobs} jobs were added; {len(done)} completed, {len(set(done))} different ones")
    return (sum(map(cpu_us, used)) - before) / jobs
