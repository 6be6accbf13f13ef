"""The cost of the dashboard: ``python -m tests.bench.dashboard [--queues 1000] [--jobs 1000000] [--seconds 10]``.

Measures the first page with many queues, the pages and filters of a queue with many jobs in each state, and 50 open
pages of each kind. Prints a table with the bars: 100 ms of CPU time for a page, in the dashboard and on the server
together, 5 ms for a call of the server, 5 % of the server's core for open pages. The jobs of the large queue are
copies, made on the server, of one real job in each state.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple

import httpx

from glidemq_py import FlowProducer, Job, Queue, QueueEvents, Worker
from glidemq_py.dashboard import Dashboard
from tests.bench.server import BenchServer, running_server
from tests.inside import QueueKeys

LARGE: Final = "large"
PAGE_BAR_MS: Final = 100.0
CALL_BAR_MS: Final = 5.0
CORE_BAR: Final = 5.0
"""Percent of a core of the server."""
OPEN_PAGES: Final = 50
ROUNDS: Final = 7
_DAY_MS: Final = 86_400_000
_LOCK_MS: Final = 12 * 3_600_000
_COPIES: Final = 20_000
"""Jobs per call of the copying script."""

COPY: Final = """
local source, base, first, count, kind = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local record, id, target = redis.call('HGETALL', source), string.sub(source, #base + 1), KEYS[2]
local at, entry, named, score
for n = 1, #record, 2 do
  if record[n] == 'eid' then at = n + 1 end
end
if kind == 'zset' then
  score = tonumber(redis.call('ZSCORE', target, id))
else
  entry = redis.call('XRANGE', target, kind, kind)[1][2]
  for n = 2, #entry, 2 do
    if entry[n] == id then named = n end
  end
end
for n = first, first + count - 1 do
  local own = id .. '-' .. n
  if entry then
    entry[named] = own
    local added = redis.call('XADD', target, '*', unpack(entry))
    if at then record[at] = added end
  else
    redis.call('ZADD', target, string.format('%.0f', score + n), own)
  end
  redis.call('HSET', base .. own, unpack(record))
end
"""
"""Copies a job: its record and its entry in a stream (the kind is the id of the entry) or in a sorted set."""


class Row(NamedTuple):
    """A measured value and its bar."""

    label: str
    value: float
    unit: str
    bar: float
    more: str = ""

    @property
    def is_met(self) -> bool:
        """True if the value is within the bar."""
        return self.value <= self.bar

    def text(self) -> str:
        """Return the line of the table."""
        more = f"; {self.more}" if self.more else ""
        met = "yes" if self.is_met else "no"
        return f"| {self.label} | {self.value:.3g} {self.unit}{more} | {self.bar:g} {self.unit} | {met} |"


# -- filling -----------------------------------------------------------------------------------------------


async def fill_queues(url: str, queues: int):
    """Add jobs to so many queues, a few of them failed."""
    for start in range(0, queues, 50):
        names = [f"q{number:04}" for number in range(start, min(start + 50, queues))]
        await asyncio.gather(*(_fill_queue(url, name, int(name[1:])) for name in names))


async def _fill_queue(url: str, name: str, number: int):
    async with Queue(name, url) as queue:
        await queue.add_bulk([("mail", {"n": n}) for n in range(5)])
        await queue.add_bulk([("late", {"n": n}, {"delay": _DAY_MS}) for n in range(3)])
        if number % 10 == 0:
            for lease in await queue.fetch(3):
                await lease.fail(ValueError(f"mailbox {number} is full"))


async def fill_large(url: str, server: BenchServer, jobs: int) -> dict[str, int]:
    """Fill the large queue with so many jobs in each state; return the counts that the library reads."""

    async def handler(job: Job):
        await job.wait_for_signal("approval", timeout=_DAY_MS)

    data, child = {"customer": 7, "to": "ada@example.org"}, {"name": "part", "queue": "parts", "data": {}}
    base, delay = f"{QueueKeys('glide', LARGE).base}:", {"delay": _DAY_MS}
    async with Queue(LARGE, url) as queue, FlowProducer(url) as flows:

        async def add(**options: Any) -> str:
            return (await queue.add("mail", data, **options)).id

        def copy(job_id: str, key: str, kind: str = "zset"):
            for first in range(1, jobs, _COPIES):
                number = str(min(_COPIES, jobs - first))
                server.call(
                    "EVAL", COPY, "2", f"{base}job:{job_id}", base + key, f"{base}job:", str(first), number, kind
                )
                if job_id == active:
                    consumer = server.call("XPENDING", base + key, "workers", "-", "+", "1")[0][1].decode()
                    server.call("XREADGROUP", "GROUP", "workers", consumer, "COUNT", number, "STREAMS", base + key, ">")

        suspended, active = await add(), ""
        async with Worker(LARGE, handler, url), QueueEvents(LARGE, url, last_event_id="0") as events:
            async for event in events:
                if event.event == "suspended":
                    break
        copy(suspended, "suspended")
        for state in ("completed", "failed", "active"):
            job_id = await add(attempts=1)
            (lease,) = await queue.fetch(1, lock_duration=_LOCK_MS)
            if state == "completed":
                await lease.complete({"sent": True})
                copy(job_id, state)
            elif state == "failed":
                await lease.fail(ConnectionRefusedError("smtp-7.example.org: connection refused"))
                copy(job_id, state)
            else:
                active = job_id
                copy(job_id, "stream", _entry(server, f"{base}stream", job_id))
        root: Any = {"name": "mail", "queue": LARGE, "data": data, "children": [{**child, "options": delay}]}
        copy((await flows.add(root)).job.id, "waiting-children")
        copy(await add(priority=5), "scheduled")
        copy(await add(**delay), "scheduled")
        waiting = await add()
        copy(waiting, "stream", _entry(server, f"{base}stream", waiting))
        return {name: number for name, number in asdict(await queue.get_job_counts()).items() if name != "paused"}


def _entry(server: BenchServer, stream: str, job_id: str) -> str:
    """Return the id of the stream entry of a job, the newest."""
    (found,) = server.call("XREVRANGE", stream, "+", "-", "COUNT", "1")
    assert job_id.encode() in found[1]
    return found[0].decode()


# -- measuring ---------------------------------------------------------------------------------------------


class Cost(NamedTuple):
    """What a request costs, in ms: until the reply, CPU of this process and of the server, its longest call."""

    wall: float
    own: float
    server: float
    call: float


async def measure_page(server: BenchServer, url: str, path: str, rounds: int) -> list[Cost]:
    """Request a page so many times; only templates and connections are cached between them."""
    found: list[Cost] = []
    async with Dashboard(url) as dashboard:
        transport = httpx.ASGITransport(dashboard)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
            await client.get(path)
            for _ in range(rounds):
                dashboard._reader._values.clear()
                server.call("SLOWLOG", "RESET")
                cpu, own, began = server.cpu_seconds(), time.process_time(), time.perf_counter()
                response = await client.get(path)
                wall, own = time.perf_counter() - began, time.process_time() - own
                used = server.cpu_seconds() - cpu
                assert response.status_code == 200, (path, response.text[:500])
                found.append(Cost(wall * 1_000, own * 1_000, used * 1_000, longest_call(server)))
    return found


def longest_call(server: BenchServer) -> float:
    """Return the time of the longest call of a function since the log was emptied, ms; 0 if all took less than 0.5."""
    calls = [entry for entry in server.call("SLOWLOG", "GET", "-1") if entry[3][0].upper().startswith(b"FCALL")]
    return max((entry[2] / 1_000 for entry in calls), default=0.0)


def page_rows(label: str, costs: Sequence[Cost]) -> list[Row]:
    """Return the rows of a page: the median of its CPU time in both processes, and its longest call.

    A call is timed by the clock, so the shortest of all rounds is the one that other programs have held up least.
    """
    wall, own, cpu, _ = (statistics.median(each) for each in zip(*costs, strict=True))
    more = f"dashboard {own:.3g} and server {cpu:.3g}, reply after {wall:.3g} ms"
    call = min(each.call for each in costs)
    return [
        Row(label, own + cpu, "ms", PAGE_BAR_MS, more), Row(f"{label}: longest call", call, "ms", CALL_BAR_MS),
    ]  # fmt: skip


async def measure_open(server: BenchServer, address: str, paths: Sequence[str], seconds: float) -> float:
    """Keep pages open; return the share of a core that the server uses, in percent."""
    opened = asyncio.Semaphore(0)

    async def hold(client: httpx.AsyncClient, path: str):
        async with client.stream("GET", path) as response:
            assert response.status_code == 200, path
            is_first = True
            async for line in response.aiter_lines():
                if is_first and line.startswith("event: page"):
                    is_first = False
                    opened.release()

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=address, timeout=60, limits=limits) as client:
        pages = [asyncio.create_task(hold(client, path)) for path in paths]
        try:
            for _ in paths:
                await opened.acquire()
            cpu, began = server.cpu_seconds(), time.perf_counter()
            await asyncio.sleep(seconds)
            return 100 * (server.cpu_seconds() - cpu) / (time.perf_counter() - began)
        finally:
            for page in pages:
                page.cancel()
            await asyncio.gather(*pages, return_exceptions=True)


@contextlib.contextmanager
def serving(url: str) -> Iterator[str]:
    """Run the command; yield its address."""
    command = [sys.executable, "-m", "glidemq_py.dashboard", "--url", url, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                found = re.search(r"running on (http://\S+)", line)
                if found:
                    yield found[1]
                    break
        finally:
            process.terminate()
            process.stderr.read()


PAGES: Final = {
    "first page: all queues": "/",
    "overview of the queue": f"/queue?q={LARGE}",
    **{f"jobs, {state}": f"/jobs?q={LARGE}&state={state}" for state in (
        "waiting", "prioritized", "active", "delayed", "waiting-children", "suspended", "completed", "failed",
    )},
    "jobs, filter by name": f"/jobs?q={LARGE}&state=completed&filter=name:mail",
    "jobs, filter by data that few have": f"/jobs?q={LARGE}&state=completed&filter=data:customer=8",
    "jobs, filter by tag that none has": f"/jobs?q={LARGE}&filter=tag:vip",
    "failures": f"/failures?q={LARGE}",
    "workers": f"/workers?q={LARGE}",
    "schedules": f"/schedules?q={LARGE}",
    "metrics": f"/metrics?q={LARGE}",
}  # fmt: skip
OPEN: Final = {
    "first page": "/live?of=all", "overview of a queue": f"/live?of=queue&q={LARGE}",
    "failures": f"/live?of=failures&q={LARGE}", "workers": f"/live?of=workers&q={LARGE}",
    "schedules": f"/live?of=schedules&q={LARGE}", "metrics": f"/live?of=metrics&q={LARGE}",
}  # fmt: skip


async def fill(server: BenchServer, queues: int, jobs: int):
    """Fill the server, and check that it has what it should have."""
    url = url_of(server)
    await fill_queues(url, queues)
    counts = await fill_large(url, server, jobs)
    assert all(number == jobs for name, number in counts.items() if name != "group_waiting"), counts


def url_of(server: BenchServer) -> str:
    """Return the URL for the library, which accepts that the server stores nothing."""
    return f"{server.url.replace('redis://', 'valkey://')}?allow_no_aof=true"


async def measure(server: BenchServer, seconds: float, rounds: int = ROUNDS) -> list[Row]:
    """Return all rows."""
    server.call("CONFIG", "SET", "slowlog-log-slower-than", "500")
    server.call("CONFIG", "SET", "slowlog-max-len", "10000")
    url = url_of(server)
    rows: list[Row] = []
    for label, path in PAGES.items():
        rows += page_rows(label, await measure_page(server, url, path, rounds))
    kinds = list(OPEN.values())
    groups = {label: [path] * OPEN_PAGES for label, path in OPEN.items()}
    groups["of all kinds"] = [kinds[number % len(kinds)] for number in range(OPEN_PAGES)]
    with serving(url) as address:
        for label, paths in groups.items():
            used = await measure_open(server, address, paths, seconds)
            rows.append(Row(f"{OPEN_PAGES} open pages: {label}", used, "% of a core", CORE_BAR))
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Measure, and print the table; return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dashboard", description=(__doc__ or "").split(":")[0])
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="jobs in each state of the large queue")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long pages stay open")
    parser.add_argument("--fill", action="store_true", help="only fill a server, and keep it until a line is typed")
    parser.add_argument("--port", type=int, help="measure the server that another process has filled")
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        if options.port is None:
            server = stack.enter_context(running_server())
            asyncio.run(fill(server, options.queues, options.jobs))
        else:
            server = BenchServer(subprocess.Popen(["true"]), options.port)
        if options.fill:
            print(f"filled the server on port {server.url.rpartition(':')[2]}", flush=True)
            sys.stdin.readline()
            return 0
        rows = asyncio.run(measure(server, options.seconds))
    print("| | measured | bar | met |\n| --- | --- | --- | --- |")
    for row in rows:
        print(row.text())
    return 0 if all(row.is_met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
