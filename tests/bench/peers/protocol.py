"""What every Python driver does, written once so that all of them are measured by the same code.

A driver process is started as ``python -m tests.bench.peers.NAME ROLE URL PARAMS`` (PARAMS is JSON) and
prints JSON lines: ``{"ready": true}`` once a listener listens, then one ``{"result": {...}}``. It runs in the
peers' own environment too, so it imports the standard library only (and uvloop where BENCH_UVLOOP is set).
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

PAYLOAD_BYTES = 200
BULK = 1000
TOGETHER = 100
WARM_UP = 10

Hit = Callable[[Any], Any]
"""Called by a handler with the job's data; its return value is the job's result."""


class Driver(Protocol):
    """One library, opened on one server. Times are milliseconds."""

    async def add(self, data: dict[str, Any], delay: int) -> object: ...
    async def add_bulk(self, rows: list[dict[str, Any]]) -> object: ...
    async def start_worker(self, hit: Hit, concurrency: int, threads: bool): ...
    async def stop_worker(self): ...
    async def completed(self) -> int | None: ...
    async def close(self): ...


def payload(number: int, due: float = 0.0) -> dict[str, Any]:
    """Data of `PAYLOAD_BYTES` bytes as compact JSON; numbers get seven digits so that all are alike."""
    data: dict[str, Any] = {"n": 1_000_000 + number, "due": due, "text": ""}
    room = PAYLOAD_BYTES - len(json.dumps(data, separators=(",", ":")))
    data["text"] = ("benchmark payload " * (room // 18 + 1))[:room]
    return data


def emit(**message: Any):
    """Print one message for the harness."""
    print(json.dumps(message), flush=True)


class DrainGauge:
    """Times the first and the last of `jobs` starts. Threads may call it: `next` on a count is atomic."""

    def __init__(self, jobs: int, on_done: Callable[[], None]):
        self._ticket = itertools.count().__next__
        self._last = jobs - 1
        self._on_done = on_done
        self.began = self.ended = 0.0

    def __call__(self, data: Any) -> Any:
        ticket = self._ticket()
        if ticket == 0:
            self.began = time.perf_counter()
        elif ticket == self._last:
            self.ended = time.perf_counter()
            self._on_done()
        return data["n"]

    def result(self) -> dict[str, Any]:
        return {"jobs": self._last + 1, "seconds": self.ended - self.began}


class LatenessGauge:
    """Milliseconds from each job's `due` (its producer's stamp) to its start; the first few only warm up."""

    def __init__(self, jobs: int, on_done: Callable[[], None]):
        self._left = jobs
        self._on_done = on_done
        self._late: list[float] = []

    def __call__(self, data: Any) -> Any:
        self._late.append((time.time() - data["due"]) * 1000)
        self._left -= 1
        if self._left == 0:
            self._on_done()
        return data["n"]

    def result(self) -> dict[str, Any]:
        late = sorted(self._late[WARM_UP:])
        last = len(late) - 1
        return {
            "p50": late[last // 2],
            "p99": late[round(last * 0.99)],
            "max": late[last],
            "count": len(late),
        }


async def fill(driver: Driver, params: dict[str, Any]) -> dict[str, Any]:
    """Put `jobs` jobs into the queue, as fast as the library's bulk call allows."""
    jobs: int = params["jobs"]
    for start in range(0, jobs, BULK):
        await driver.add_bulk([payload(number) for number in range(start, min(start + BULK, jobs))])
    return {"jobs": jobs}


def _set_from_thread(loop: asyncio.AbstractEventLoop, done: asyncio.Event):
    loop.call_soon_threadsafe(done.set)


async def drain(driver: Driver, params: dict[str, Any]) -> dict[str, Any]:
    """Work off a filled queue; the time is that from the first to the last start of a handler."""
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    gauge = DrainGauge(params["jobs"], lambda: _set_from_thread(loop, done))
    await driver.start_worker(gauge, params["concurrency"], bool(params.get("threads")))
    await done.wait()
    await driver.stop_worker()
    return {**gauge.result(), "completed": await driver.completed()}


async def listen(driver: Driver, params: dict[str, Any]) -> dict[str, Any]:
    """An otherwise idle worker: how late does each job start?"""
    done = asyncio.Event()
    gauge = LatenessGauge(params["jobs"], done.set)
    await driver.start_worker(gauge, params["concurrency"], False)
    emit(ready=True)
    await done.wait()
    await driver.stop_worker()
    return gauge.result()


async def runtime(driver: Driver, params: dict[str, Any]) -> dict[str, Any]:
    """The producer of `listen`: one job each `gap` ms; with `delay` [low, high], a delayed one at a time."""
    low, high = params.get("delay", (0, 0))
    chance = random.Random(20)
    for number in range(params["jobs"]):
        delay = chance.randint(low, high)
        await driver.add(payload(number, time.time() + delay / 1000), delay)
        await asyncio.sleep((params["gap"] + delay) / 1000)
    return {"jobs": params["jobs"]}


async def add(driver: Driver, params: dict[str, Any]) -> dict[str, Any]:
    """Jobs added per second: "single" (one by one), 100 awaited "together", "bulk" (1000 a call)."""
    rows = [payload(number) for number in range(BULK)]
    some = rows[:TOGETHER]

    async def single() -> int:
        await driver.add(some[0], 0)
        return 1

    async def together() -> int:
        await asyncio.gather(*(driver.add(row, 0) for row in some))
        return TOGETHER

    async def bulk() -> int:
        await driver.add_bulk(rows)
        return BULK

    steps: dict[str, Callable[[], Awaitable[int]]] = {"single": single, "together": together, "bulk": bulk}
    step = steps[params["how"]]
    warm_until = time.perf_counter() + 0.2
    while time.perf_counter() < warm_until:
        await step()
    jobs = 0
    began = time.perf_counter()
    until = began + params["seconds"]
    while time.perf_counter() < until:
        jobs += await step()
    return {"jobs": jobs, "seconds": time.perf_counter() - began}


ROLES = {"fill": fill, "drain": drain, "listen": listen, "pace": runtime, "add": add}


async def _play(open_driver: Callable[[str], Driver], role: str, url: str, params: dict[str, Any]):
    driver = open_driver(url)
    try:
        result = await ROLES[role](driver, params)
    finally:
        await driver.close()
    emit(result=result)


def main(open_driver: Callable[[str], Driver]):
    """Run the role that the command line names."""
    role, url, text = sys.argv[1:4]
    params: dict[str, Any] = json.loads(text)
    new_loop = importlib.import_module("uvloop").new_event_loop if os.environ.get("BENCH_UVLOOP") else None
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_play(open_driver, role, url, params))
