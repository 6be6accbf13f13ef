"""Measure the cost of a job by queue size, and the longest calls: ``python -m tests.bench.scale``.

For each size, a backlog is created; then 2,000 jobs are added and processed in each of several rounds. The cost is the
server time of our functions (``INFO commandstats``) per job. The longest call comes from the server's slow log. The
largest size also measures every operation of an operator. The default sizes take long; ``--most 10000`` is quick.

Server time is elapsed time, so a call includes interruptions by other processes. The cost of a job is therefore the
minimum of several rounds, and the limit applies to the median of the rounds' longest calls: an algorithm needs its
time in every round. The longest call of all is printed too.

The target applies to the total cost. With a single group, a call reads and writes the group's record once for all its
jobs, so `fetch and complete` is cheaper than with several groups.

A larger backlog needs more memory, which makes every command slower. So each point also measures a plain script on
hashes of a job's size (`CONTROL`), and costs are compared relative to it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glidemq_py import Queue
from tests.bench.flow_scale import flows
from tests.bench.server import BenchServer, running_server
from tests.bench.server_time import DATA, JOBS, Gauge
from tests.inside import Row, add, keys_of, link_of, row, working

TURNS = 8
OPERATIONS = 3
"""Number of rounds of a repeatable operation."""
CHUNK = 100
"""Jobs per call when adding and fetching; the same as a worker's."""

FLAT = 1.20
LONGEST_MS = 5.0

OPTIONS = '{"removeOnComplete":true}'


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement at one size: server time in us per job, and the longest call in ms."""

    size: int
    add: float
    work: float
    control: float
    typical: float
    longest: float
    what: str

    @property
    def total(self) -> float:
        """Return the server time of a job, from add to completion, us."""
        return self.add + self.work

    def relative(self, name: str) -> float:
        """Return the cost relative to the control."""
        return float(getattr(self, name)) / self.control


class Site:
    """A queue on a server, with the calls of a producer and a worker."""

    def __init__(self, server: BenchServer, queue: Queue, transport: Any, cpu: bool):
        self.gauge = Gauge(server, cpu)
        self.queue = queue
        self.server = server
        self._transport = transport
        self._meta = keys_of(queue).meta
        self.leasing: working.Leasing | None = None

    async def add(self, rows: list[Row]):
        for start in range(0, len(rows), CHUNK):
            await self._transport.call(add(self._meta, rows[start : start + CHUNK], False))

    async def work(self, jobs: int, *, fail: bool = False):
        """Fetch and complete this many jobs, as a worker does."""
        finished: list[working.Finished] = []
        left = jobs
        while left > 0 or finished:
            want = min(CHUNK, left)
            call = working.exchange(self._meta, "py-bench", want, finished, False, False, leasing=self.leasing)
            reply = await self._transport.call(call)
            if not reply.jobs and not finished:
                raise RuntimeError(f"{left} jobs are missing")
            left -= len(reply.jobs)
            finished = [_finished(job, reply.now, fail) for job in reply.jobs]


def _finished(job: Any, now: int, fail: bool) -> working.Finished:
    job_id, entry, fence, _, _, opts, *_ = job
    if fail:
        return working.failed(job_id, entry, fence, now, "broken", "ValueError", "[]", 0, 0)
    keep = 1 if "removeOnComplete" in opts else 0
    return working.completed(job_id, entry, fence, now, "null", keep)


def plain(options: str = OPTIONS) -> Row:
    return ["noop", DATA, options]


def delayed() -> Row:
    return ["noop", DATA, OPTIONS, "", 86_400_000, 0, 0, 0, 0]


def prioritized(number: int) -> Row:
    return ["noop", DATA, OPTIONS, "", 0, 0, 1 + number % 5, 0, 0]


def ranked(number: int) -> Row:
    return row("noop", DATA, OPTIONS, rank=10_000 + number % 100)


def fair(number: int, keys: int) -> Row:
    return row("noop", DATA, OPTIONS, fair_key=f"tenant-{number % keys}")


def unique(number: int, _: int = 0) -> Row:
    return row("noop", DATA, OPTIONS, deduplication=[f"document-{number}", 0, "simple"])


def grouped(number: int, groups: int) -> Row:
    return ["noop", DATA, OPTIONS, "", False, 0, False, 0, 0, False, [f"group-{number % groups}", CHUNK, 0, 0, 0, 0, 0]]


@asynccontextmanager
async def _site(server: BenchServer, cpu: bool = False) -> AsyncGenerator[Site]:
    server.empty()
    async with Queue("scale", server.url.replace("redis://", "valkey://", 1)) as queue:
        await queue.add("first")
        await queue.obliterate(force=True)
        yield Site(server, queue, link_of(queue).transport, cpu)


async def _measured(site: Site, size: int, row: Callable[[int], Row]) -> Point:
    """Add and process the same jobs in several rounds next to the backlog; return the minimum cost."""
    gauge = site.gauge
    adds: list[float] = []
    works: list[float] = []
    controls: list[float] = []
    longest: list[tuple[float, str]] = []
    for turn in range(TURNS):
        gauge.start()
        await site.add([row(turn * JOBS + number) for number in range(JOBS)])
        adds.append(gauge.microseconds() / JOBS)
        one = gauge.longest()
        gauge.start()
        await site.work(JOBS)
        works.append(gauge.microseconds() / JOBS)
        longest.append(max(one, gauge.longest()))
        controls.append(gauge.control())
    typical = statistics.median(ms for ms, _ in longest)
    return Point(size, min(adds), min(works), min(controls), typical, *max(longest))


async def _filled(site: Site, size: int, row: Callable[[int], Row]):
    for start in range(0, size, 10_000):
        await site.add([row(number) for number in range(start, min(size, start + 10_000))])


async def waiting(site: Site, size: int) -> Point:
    """Measure with a backlog of waiting jobs."""
    await _filled(site, size, lambda _: plain())
    return await _measured(site, size, lambda _: plain())


async def far_delayed(site: Site, size: int) -> Point:
    """Measure plain jobs next to jobs delayed by a day."""
    await _filled(site, size, lambda _: delayed())
    return await _measured(site, size, lambda _: plain())


async def waiting_prioritized(site: Site, size: int) -> Point:
    """Measure with a backlog of jobs of five priorities."""
    await _filled(site, size, prioritized)
    return await _measured(site, size, prioritized)


async def completed(site: Site, size: int) -> Point:
    """Measure plain jobs next to retained completed jobs."""
    await _filled(site, size, lambda _: plain("{}"))
    await site.work(size)
    return await _measured(site, size, lambda _: plain())


async def waiting_ranked(site: Site, size: int) -> Point:
    """Measure with a backlog of jobs of a hundred ranks."""
    await _filled(site, size, ranked)
    return await _measured(site, size, ranked)


async def fair_jobs(site: Site, size: int) -> Point:
    """Measure with a backlog of jobs of 1,000 fair keys."""
    await _filled(site, size, lambda number: fair(number, 1_000))
    return await _measured(site, size, lambda number: fair(number, 1_000))


async def fair_keys(site: Site, size: int) -> Point:
    """Measure with a backlog of one job of each of ``size`` fair keys."""
    await _filled(site, size, lambda number: fair(number, size))
    return await _measured(site, size, lambda number: fair(number, size))


async def unique_keys(site: Site, size: int) -> Point:
    """Measure unique jobs next to a backlog of jobs that are unique, too."""
    await _filled(site, size, unique)
    return await _measured(site, size, lambda number: unique(size + number))


async def leases(site: Site, size: int) -> Point:
    """Measure leases with a backlog of waiting jobs."""
    await _filled(site, size, lambda _: plain())
    site.leasing = working.Leasing("", 30_000, working.Expiry.STALL, ())
    return await _measured(site, size, lambda _: plain())


def in_groups(backlog: int) -> Callable[[Site, int], Awaitable[Point]]:
    """Return a measurement with this backlog in ``size`` ordering groups."""

    async def measure(site: Site, size: int) -> Point:
        await _filled(site, backlog, lambda number: grouped(number, size))
        return await _measured(site, size, lambda number: grouped(number, size))

    return measure


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation: its typical longest call and the longest of all in ms, with the function of that call."""

    name: str
    typical: float
    longest: float
    what: str


async def operators(site: Site, size: int) -> list[Operation]:
    """Measure every operation on a queue with ``size`` waiting, delayed, completed and failed jobs in total.

    The longest call of a round is its 99th percentile, because thousands of calls include stalls of the machine.
    Repeatable operations run in several rounds; the typical value is the median of the rounds.
    """
    part = size // 4
    await _filled(site, part, lambda _: plain("{}"))
    await site.work(part)
    await _filled(site, part, lambda _: plain("{}"))
    await site.work(part, fail=True)
    await _filled(site, part, lambda _: delayed())
    await _filled(site, part, lambda _: plain("{}"))
    queue = site.queue

    async def some(state: str):
        seen = 0
        async for _ in queue.iter_jobs(state):
            seen += 1
            if seen == 5_000:
                return

    again: list[tuple[str, Callable[[int], Awaitable[object]]]] = [
        ("get_job_counts", lambda _: queue.get_job_counts()),
        ("get_jobs, the last ten waiting", lambda _: queue.get_jobs("waiting", part - 10, part - 1)),
        ("get_jobs, the last ten completed", lambda _: queue.get_jobs("completed", part - 10, part - 1)),
        ("iter_jobs, 5,000 waiting", lambda _: some("waiting")),
        ("iter_jobs, 5,000 failed", lambda _: some("failed")),
        (
            "search_jobs by name and data",
            lambda _: queue.search_jobs(state="completed", data={"n": -1}, limit=10),
        ),
        ("check", lambda _: queue.check()),
        ("remove a waiting job", lambda turn: queue.remove(str(part * 4 - 5 - turn))),
        ("revoke a waiting job", lambda turn: queue.revoke(str(part * 4 - 105 - turn))),
    ]
    once: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("retry_jobs", queue.retry_jobs),
        ("clean", lambda: queue.clean(0, 100_000, "completed")),
        ("drain, including delayed jobs", lambda: queue.drain(delayed=True)),
        ("obliterate", lambda: queue.obliterate(force=True)),
    ]
    found: list[Operation] = []
    for name, call in again:
        turns: list[float] = []
        longest: list[tuple[float, str]] = []
        for turn in range(OPERATIONS):
            site.gauge.start()
            await call(turn)
            turns.append(site.gauge.longest(99)[0])
            longest.append(site.gauge.longest())
        found.append(Operation(name, statistics.median(turns), *max(longest)))
    for name, act in once:
        site.gauge.start()
        await act()
        found.append(Operation(name, site.gauge.longest(99)[0], *site.gauge.longest()))
    return found


def _table(title: str, points: list[Point]) -> list[str]:
    lines = [
        f"### {title}",
        "",
        "| size | add, us per job | fetch and complete, us per job | total | control, us | longest call, median, ms "
        "| longest call of all, ms |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for p in points:
        costs = f"{p.add:.2f} | {p.work:.2f} | {p.total:.2f} | {p.control:.2f}"
        lines.append(f"| {p.size:,} | {costs} | {p.typical:.2f} | {p.longest:.2f} {p.what} |")
    spread = ", ".join(f"{words} {_spread(points, name):.2f}" for name, words in COSTS.items())
    return [*lines, "", f"Largest cost divided by smallest cost, relative to the control: {spread}", ""]


COSTS = {"add": "add", "work": "fetch and complete", "total": "total"}
JUDGED = "total"


def _spread(points: list[Point], name: str) -> float:
    costs = [point.relative(name) for point in points]
    return max(costs) / min(costs)


async def run(most: int, most_groups: int, only: str, cpu: bool = False) -> tuple[str, list[str]]:
    """Measure; return the report and the measurements above the limits."""
    sizes = [10**power for power in range(3, 7) if 10**power <= most]
    groups = [size for size in (1, 10, 100, 1_000, 10_000, 100_000) if size <= most_groups]
    situations: list[tuple[str, list[int], Callable[[Site, int], Awaitable[Point]]]] = [
        ("Waiting jobs", sizes, waiting),
        ("Plain jobs next to delayed jobs", sizes, far_delayed),
        ("Prioritized jobs", sizes, waiting_prioritized),
        ("Plain jobs next to completed jobs", sizes, completed),
        ("Ranked jobs, 100 ranks", sizes, waiting_ranked),
        ("Fair jobs, 1,000 keys", sizes, fair_jobs),
        ("Fair keys with a job each", sizes, fair_keys),
        ("Unique jobs", sizes, unique_keys),
        ("Leases of waiting jobs", sizes, leases),
        (f"Ordering groups in a backlog of {most_groups:,} jobs", groups, in_groups(most_groups)),
    ]
    lines, beyond = [""], list[str]()
    with running_server() as server:
        for title, at, measure in situations:
            if only and not title.lower().startswith(only.lower()):
                continue
            points: list[Point] = []
            for size in at:
                async with _site(server, cpu) as site:
                    points.append(await measure(site, size))
                    print(title, points[-1], flush=True)
            lines += _table(title, points)
            if _spread(points, JUDGED) > FLAT:
                beyond.append(f"{title}: {COSTS[JUDGED]} differs by a factor of {_spread(points, JUDGED):.2f}")
            beyond += [f"{title}, {p.size:,}: {p.what} {p.typical:.1f} ms" for p in points if p.typical > LONGEST_MS]
        if not only or "flows".startswith(only.lower()):
            table, missed = await flows(server)
            lines += table
            beyond += missed
        if not only or "operators".startswith(only.lower()):
            async with _site(server) as site:
                found = await operators(site, most)
            lines += [f"### Operations on {most:,} jobs", ""]
            lines += ["| operation | longest call, median, ms | longest call of all, ms |", "| --- | ---: | ---: |"]
            lines += [*(f"| {each.name} | {each.typical:.2f} | {each.longest:.2f} {each.what} |" for each in found), ""]
            beyond += [f"{o.name}: {o.what} {o.typical:.1f} ms" for o in found if o.typical > LONGEST_MS]
    return "\n".join(lines), beyond


_HEAD = """# Cost by size

This report shows how the server time per job changes with the size of a queue. It is generated by
`python -m tests.bench.scale` against one Valkey on an otherwise idle machine. There are two targets:

- The server time of a job, from add to completion and relative to the control, varies by at most 20 % from 1,000 to
  1,000,000 jobs and from 1 to 100,000 ordering groups.
- No call blocks the server for more than 5 ms, measured as the median of the longest calls.

The cost of a job is the minimum of eight rounds of 2,000 jobs, in calls of 100 jobs. If a server uses more memory,
every command becomes slower, because CPU caches hold a smaller part of it. The control measures this: a plain script
writes, reads, changes and deletes hashes of a job's size next to the same backlog. Costs are compared relative to the
control. "Longest call" is the median of the rounds' longest calls. The last column is the longest call of all rounds
with the name of its function, and includes stalls of the machine. If a call is listed as 0.50 without a name, no call
took longer than that.
"""


def main():
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description="Cost by size.")
    parser.add_argument("--most", type=int, default=1_000_000, help="jobs at the largest size (default 1000000)")
    parser.add_argument("--most-groups", type=int, default=100_000, help="groups at the largest size")
    parser.add_argument("--only", default="", help="the start of one table's title, `flows` or `operators`")
    parser.add_argument("--write", metavar="FILE", help="also write the tables to FILE")
    parser.add_argument("--cpu", action="store_true", help="costs are CPU time of the server, for a busy machine")
    args = parser.parse_args()
    report, beyond = asyncio.run(run(args.most, args.most_groups, args.only, args.cpu))
    print(report)
    if args.write:
        Path(args.write).write_text(_HEAD + report)
    print("\n".join(["Above the limits:", *beyond] if beyond else ["All within the limits."]))


if __name__ == "__main__":
    main()
