"""Fuzzed frames against a gateway: `python -m tests.server.gateway.fuzz --frames 1000000`.

Every frame must be answered by one with `ok`, the memory of the gateway must stay flat, and the calls of another client
must not take longer than beside as many good frames. Phases of good and fuzzed frames alternate. A third of the frames
names a partitioned queue, its jobs, or one of its partitions.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgpack

from glidemq_py import Queue
from glidemq_py.gateway.commands import COMMANDS
from glidemq_py.testing import ServerProcess, server_binary
from tests.inside import parts_of
from tests.server.gateway.command_frames import good_fields, random_command
from tests.server.gateway.states import prepared
from tests.server.gateway.wire import Wire, framed

CONNECTIONS: Final = 4
WINDOW: Final = 10
"""Frames of a connection without an answer."""
NEW_JOBS: Final = 2_000
"""Frames of a connection after which its jobs are replaced."""
PHASES: Final = 4
PARTITIONS: Final = 3
_SLOW: Final = frozenset({"WaitJob", "SubscribeEvents", "UnsubscribeEvents", "Auth"})
_COMMANDS: Final = tuple(command for name, command in COMMANDS.items() if name not in _SLOW)
_HUGE: Final = (67_108_865).to_bytes(4, "big")


@dataclass
class Findings:
    """What the clients have seen.

    Attributes:
        frames: Fuzzed frames that were answered.
        errors: Answers that are errors, by their first words.
        wrong: Answers that a client must never get.
        latency: Seconds of the calls of the other client, by kind of the load beside it.
        memory: Memory of the gateway after each phase, MiB.
    """

    frames: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    latency: dict[str, list[float]] = field(default_factory=lambda: {"none": [], "good": [], "fuzzed": []})
    memory: list[float] = field(default_factory=list)

    def p99(self, load: str) -> float:
        """Return the 99th percentile in ms."""
        return statistics.quantiles(self.latency[load], n=100)[98] * 1_000

    def __str__(self) -> str:
        rows = [
            f"{self.frames:,} fuzzed frames, {self.errors.total():,} errors of {len(self.errors)} kinds",
            f"wrong: {self.wrong[:5]}",
            "memory of the gateway after each phase: " + ", ".join(f"{each:.0f}" for each in self.memory) + " MiB",
        ]
        for load, found in self.latency.items():
            if len(found) > 1:
                p50 = statistics.median(found) * 1_000
                rows.append(f"calls of another client, load {load}: p50 {p50:.2f} ms, p99 {self.p99(load):.2f} ms")
        return "\n".join(rows)


class Fuzzer:
    """One connection that sends frames, opened again if the gateway closes it."""

    def __init__(self, url: str, port: int, seed: int, findings: Findings):
        self._url, self._port, self._random, self._findings = url, port, random.Random(seed), findings
        self._queue = f"fuzz-{seed}"
        self._plain: dict[str, Any] = {}
        self._partitioned: dict[str, Any] = {}
        self._partitions: list[str] = []

    async def run(self, frames: int, *, is_fuzzed: bool):
        """Send so many frames, and wait for their answers."""
        left = frames
        while left > 0:
            async with Wire(self._port) as wire:
                await self._prepare(wire)
                some = min(left, NEW_JOBS)
                await self._send(wire, some, is_fuzzed=is_fuzzed)
                left -= some
                if is_fuzzed:
                    await self._end_badly(wire)
            async with Wire(self._port) as wire:
                for hook in (await wire.call("ListWebhooks"))["data"]["webhooks"]:
                    await wire.call("RemoveWebhook", webhookId=hook["id"])
                for queue in (await wire.call("ListQueues"))["queues"]:
                    if queue.startswith(self._queue) or not queue.startswith(("fuzz-", "other", "gateway@")):
                        await wire.call("Obliterate", queue=queue)

    async def _prepare(self, wire: Wire):
        """Fill a queue without partitions, and a partitioned one."""
        plain = f"{self._queue}-{self._random.randrange(5)}"
        partitioned = f"{self._queue}-p{self._random.randrange(3)}"
        for name in (plain, partitioned):
            await wire.call("Obliterate", queue=name)  # a fuzzed frame may have paused it
        async with Queue(partitioned, self._url, partitions=PARTITIONS) as queue:
            self._partitions = [part.name for part in parts_of(queue)[1:]]
        self._plain, self._partitioned = await prepared(wire, plain), await prepared(wire, partitioned)

    def _values(self, *, is_fuzzed: bool) -> dict[str, Any]:
        """Return the queue and jobs that a frame names; a fuzzed one may mix those of both queues."""
        chance = self._random.random()
        if chance < 0.66:
            return self._plain
        if chance < 0.92 or not is_fuzzed:
            return self._partitioned
        if chance < 0.95:
            return {**self._partitioned, "queue": self._random.choice(self._partitions)}
        return {name: self._random.choice((each, self._plain[name])) for name, each in self._partitioned.items()}

    async def _send(self, wire: Wire, frames: int, *, is_fuzzed: bool):
        window = asyncio.Semaphore(WINDOW)
        reading = asyncio.create_task(self._receive(wire, frames, window, is_fuzzed=is_fuzzed))
        for _ in range(frames):
            await window.acquire()
            if reading.done():
                break
            values = self._values(is_fuzzed=is_fuzzed)
            data = framed(self._payload(values) if is_fuzzed else self._good(values))
            if is_fuzzed and self._random.random() < 0.1:  # in pieces
                cut = self._random.randrange(len(data))
                wire.send(data[:cut])
                await wire.writer.drain()
                data = data[cut:]
            wire.send(data)
        await reading

    async def _receive(self, wire: Wire, frames: int, window: asyncio.Semaphore, *, is_fuzzed: bool):
        seen = 0
        while seen < frames:
            try:
                answer = await wire.receive()
            except (EOFError, TimeoutError, OSError) as error:
                self._findings.wrong.append(f"no answer after {seen} of {frames}: {error!r}")
                window.release()
                return
            if answer.get("type") == "event":
                continue
            seen += 1
            window.release()
            if answer.get("ok") not in (True, False) or answer.get("error") == "Internal error":
                self._findings.wrong.append(str(answer)[:200])
            if is_fuzzed:
                self._findings.frames += 1
                if not answer["ok"]:
                    self._findings.errors[" ".join(answer["error"].split()[:4])[:40]] += 1

    def _good(self, values: dict[str, Any]) -> bytes:
        command = self._random.choice(_COMMANDS)
        payload: bytes = msgpack.packb({"cmd": command.name, **good_fields(command, values), "reqId": 1})
        return payload

    def _payload(self, values: dict[str, Any]) -> bytes:
        pick = self._random
        chance = pick.random()
        if chance < 0.2:
            return pick.randbytes(pick.choice((0, 1, 2, 7, 40, 300)))
        if chance < 0.55:
            frame = random_command(pick, values)
            frame["reqId"] = pick.choice((1, "a", None, [1], {"a": b"b"}, 2**40, -1.5))
            payload: bytes = msgpack.packb(frame, unicode_errors="surrogatepass")
            return payload
        changed = bytearray(self._good(values))
        for _ in range(pick.choice((1, 1, 2, 5))):
            place, how = pick.randrange(len(changed)), pick.random()
            if how < 0.5:
                changed[place] = pick.randrange(256)
            elif how < 0.7 and len(changed) > 1:
                del changed[place]
            elif how < 0.85:
                changed[place:place] = pick.randbytes(pick.randrange(1, 5))
            else:
                del changed[max(1, place) :]
        return bytes(changed)

    async def _end_badly(self, wire: Wire):
        """Leave with half a frame, or with one that is too long, which is answered."""
        if self._random.random() < 0.5:
            wire.send((1_000).to_bytes(4, "big") + b"half")
            await wire.writer.drain()
            return
        wire.send(_HUGE)
        while (answer := await wire.receive()).get("type") == "event":
            pass
        if "Frame too large" not in answer["error"]:
            self._findings.wrong.append(str(answer))


async def other_client(port: int, found: list[float], stop: asyncio.Event, rounds: int = 0):
    """Add, fetch and complete jobs one after the other, and measure each call; with `rounds`, stop after so many."""
    async with Wire(port) as wire:

        async def call(cmd: str, **fields: Any) -> dict[str, Any]:
            begin = time.perf_counter()
            answer = await wire.call(cmd, **fields)
            found.append(time.perf_counter() - begin)
            if not answer["ok"]:
                raise AssertionError(f"{cmd}: {answer}")
            return answer

        while not stop.is_set():
            await call("PUSH", queue="other", data=1)
            pulled = await call("PULL", queue="other", owner="o")
            await call("ACK", id=pulled["job"]["id"], token=pulled["token"])
            rounds -= 1
            if rounds == 0:
                stop.set()
            await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def gateway_process(url: str) -> AsyncIterator[tuple[int, int]]:
    """Run the command; yield its port and its process id. Fail if it has logged a traceback."""
    environment = {**os.environ, "AUTH_TOKENS": ""}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "glidemq_py.gateway", "--url", url, "--port", "0", env=environment,
        stderr=asyncio.subprocess.PIPE, limit=1 << 24,
    )  # fmt: skip
    assert process.stderr is not None
    tracebacks: list[str] = []

    async def watch(stderr: asyncio.StreamReader):
        async for line in stderr:
            if b"Traceback" in line or tracebacks:
                tracebacks.append(line.decode(errors="replace"))

    try:
        async with asyncio.timeout(120):
            while b"listening on" not in (line := await process.stderr.readline()):
                assert line
        watching = asyncio.create_task(watch(process.stderr))
        yield int(line.rpartition(b":")[2]), process.pid
    finally:
        process.terminate()
        await process.wait()
    await watching
    assert process.returncode == 0
    assert not tracebacks, "".join(tracebacks[:60])


def memory_of(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1_024
    return 0.0


async def fuzz(url: str, frames: int, seed: int) -> Findings:
    """Send fuzzed frames to a new gateway on a server."""
    findings = Findings()
    async with gateway_process(url) as (port, pid):
        fuzzers = [Fuzzer(url, port, seed * 1_000 + number, findings) for number in range(CONNECTIONS)]
        each = max(1, frames // PHASES // CONNECTIONS)
        for _ in range(PHASES):
            for load, count in (("none", 0), ("good", min(each, 1_000)), ("fuzzed", each)):
                stop = asyncio.Event()
                measuring = asyncio.create_task(other_client(port, findings.latency[load], stop, 0 if count else 300))
                if count:
                    await asyncio.gather(*(one.run(count, is_fuzzed=load == "fuzzed") for one in fuzzers))
                else:
                    await stop.wait()
                stop.set()
                await measuring
            findings.memory.append(memory_of(pid))
    return findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.server.gateway.fuzz", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    given = parser.parse_args()
    with ServerProcess(server_binary("valkey-9.1")) as server:
        found = asyncio.run(fuzz(server.url, given.frames, given.seed))
    print(f"seed {given.seed}\n{found}")
    is_flat = found.memory[-1] < 1.1 * found.memory[PHASES // 2 - 1]  # what a gateway remembers is complete by then
    is_fast = found.p99("fuzzed") < 2 * found.p99("good")
    print(f"memory {'flat' if is_flat else 'GROWS'}; p99 of others {found.p99('fuzzed') / found.p99('good'):.2f} x")
    return 0 if is_flat and is_fast and not found.wrong else 1


if __name__ == "__main__":
    sys.exit(main())
