"""What a job costs as a queue grows, and how long any call holds the server: ``python -m tests.bench.scale``.

A backlog of each size is built, and then the same 2,000 jobs are added and worked off again and again: the server's
time inside our functions (``INFO commandstats``), divided by jobs. Beside it the longest single call, from the
server's slow log. At the largest size every call of an operator is made too. ``--most 1000000`` is the long form.

Server time is elapsed time: a call may have been interrupted by whatever else the machine does. The cost of a job is
therefore the least of several turns, and the longest call is judged by the median of the turns' longest: what an
algorithm needs it needs in every turn. The longest of all is shown beside it.

What is judged is the whole job; of one group a call reads and writes the record once for all its jobs, which makes
`take and finish` of a single group cheaper than that of several.

A larger backlog is more memory, which is farther from the processor for every command, ours or not. So each point
also measures a bare script on hashes like a job's (`CONTROL`), and flatness is judged against that.
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
from glidemq_py._core.calls import working
from glidemq_py._core.calls.adding import Row, add
from tests.bench.flow_scale import flows
from tests.bench.gauge import DATA, JOBS, Gauge
from tests.bench.server import BenchServer, running_server

TURNS = 8
OPERATIONS = 3
"""Turns of what an operator can do again."""
CHUNK = 100
"""Jobs a call, added and taken alike: what a worker asks for."""

FLAT = 1.20
LONGEST_MS = 5.0

OPTIONS = '{"removeOnComplete":true}'


@dataclass(frozen=True, slots=True)
class Point:
    """One situation at one size: microseconds of the server per job, and the longest call in ms."""

    size: int
    add: float
    work: float
    control: float
    typical: float
    longest: float
    what: str

    @property
    def whole(self) -> float:
        """What one job costs the server, from its add to its end."""
        return self.add + self.work

    def relative(self, name: str) -> float:
        """Cost in units of the control's."""
        return float(getattr(self, name)) / self.control


class Site:
    """One queue on one server, and the calls of a producer and a worker upon it."""

    def __init__(self, server: BenchServer, queue: Queue[Any, Any], transport: Any) -> None:
        self.gauge = Gauge(server)
        self.queue = queue
        self.server = server
        self._transport = transport
        self._meta = queue._keys.meta

    async def add(self, rows: list[Row]) -> None:
        for start in range(0, len(rows), CHUNK):
            await self._transport.call(add(self._meta, rows[start : start + CHUNK], False))

    async def work(self, jobs: int, *, fail: bool = False) -> None:
        """Take and finish so many, as a worker does."""
        finished: list[list[object]] = []
        left = jobs
        while left > 0 or finished:
            want = min(CHUNK, left)
            call = working.exchange(self._meta, "py-bench", want, finished, False, False)
            reply = await self._transport.call(call)
            if not reply.jobs and not finished:
                raise RuntimeError(f"{left} jobs are not there")
            left -= len(reply.jobs)
            finished = [_finished(job, reply.now, fail) for job in reply.jobs]


def _finished(job: Any, now: int, fail: bool) -> list[object]:
    if fail:
        return working.failed(job[0], job[1], job[2], now, "broken", "ValueError", "[]", 0, 0)
    keep = 1 if "removeOnComplete" in job[4 + 1] else 0
    return working.completed(job[0], job[1], job[2], now, "null", keep)


def plain(options: str = OPTIONS) -> Row:
    return ["noop", DATA, options]


def delayed() -> Row:
    return ["noop", DATA, OPTIONS, "", 86_400_000, 0, 0, 0, 0]


def prioritized(number: int) -> Row:
    return ["noop", DATA, OPTIONS, "", 0, 0, 1 + number % 5, 0, 0]


def grouped(number: int, groups: int) -> Row:
    return ["noop", DATA, OPTIONS, "", False, 0, False, 0, 0, False, [f"group-{number % groups}", CHUNK, 0, 0, 0, 0, 0]]


@asynccontextmanager
async def _site(server: BenchServer) -> AsyncGenerator[Site]:
    server.empty()
    async with Queue[Any, Any]("scale", server.url.replace("redis://", "valkey://", 1)) as queue:
        await queue.add("first")
        await queue.obliterate(force=True)
        link = queue._link
        assert link is not None
        yield Site(server, queue, link.transport)


async def _measured(site: Site, size: int, row: Callable[[int], Row]) -> Point:
    """The same jobs again and again on top of what is there; the cheapest turn counts."""
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


async def _filled(site: Site, size: int, row: Callable[[int], Row]) -> None:
    for start in range(0, size, 10_000):
        await site.add([row(number) for number in range(start, min(size, start + 10_000))])


async def waiting(site: Site, size: int) -> Point:
    """So many jobs wait."""
    await _filled(site, size, lambda _: plain())
    return await _measured(site, size, lambda _: plain())


async def far_delayed(site: Site, size: int) -> Point:
    """So many jobs are due tomorrow; plain ones pass by."""
    await _filled(site, size, lambda _: delayed())
    return await _measured(site, size, lambda _: plain())


async def waiting_prioritized(site: Site, size: int) -> Point:
    """So many jobs of five priorities wait."""
    await _filled(site, size, prioritized)
    return await _measured(site, size, prioritized)


async def completed(site: Site, size: int) -> Point:
    """So many jobs are completed and kept."""
    await _filled(site, size, lambda _: plain("{}"))
    await site.work(size)
    return await _measured(site, size, lambda _: plain())


def in_groups(backlog: int) -> Callable[[Site, int], Awaitable[Point]]:
    """A backlog in so many groups."""

    async def measure(site: Site, size: int) -> Point:
        await _filled(site, backlog, lambda number: grouped(number, size))
        return await _measured(site, size, lambda number: grouped(number, size))

    return measure


@dataclass(frozen=True, slots=True)
class Operation:
    """What an operator does; its calls in ms: typical ones, and the longest of all, with its function."""

    name: str
    typical: float
    longest: float
    what: str


async def operators(site: Site, size: int) -> list[Operation]:
    """Every call of an operator on a queue with so many waiting, delayed, completed and failed jobs in all.

    A turn's longest call is the longest but for one in a hundred: who makes thousands of calls meets a stall of the
    machine. What can be done again is, and the median of its turns is typical.
    """
    part = size // 4
    await _filled(site, part, lambda _: plain("{}"))
    await site.work(part)
    await _filled(site, part, lambda _: plain("{}"))
    await site.work(part, fail=True)
    await _filled(site, part, lambda _: delayed())
    await _filled(site, part, lambda _: plain("{}"))
    queue = site.queue

    async def some(state: str) -> None:
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
        ("drain, delayed too", lambda: queue.drain(delayed=True)),
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
        "| size | add, us a job | take and finish, us a job | both | control, us | longest of a turn, ms | of all |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for p in points:
        costs = f"{p.add:.2f} | {p.work:.2f} | {p.whole:.2f} | {p.control:.2f}"
        lines.append(f"| {p.size:,} | {costs} | {p.typical:.2f} | {p.longest:.2f} {p.what} |")
    spread = ", ".join(f"{words} {_spread(points, name):.2f}" for name, words in COSTS.items())
    return [*lines, "", f"Largest to smallest, in units of the control: {spread}", ""]


COSTS = {"add": "add", "work": "take and finish", "whole": "the whole job"}
JUDGED = "whole"


def _spread(points: list[Point], name: str) -> float:
    costs = [point.relative(name) for point in points]
    return max(costs) / min(costs)


async def run(most: int, most_groups: int, only: str) -> tuple[str, list[str]]:
    """Measure; returns the report and what is beyond the bounds."""
    sizes = [10**power for power in range(3, 7) if 10**power <= most]
    groups = [size for size in (1, 10, 100, 1_000, 10_000, 100_000) if size <= most_groups]
    situations: list[tuple[str, list[int], Callable[[Site, int], Awaitable[Point]]]] = [
        ("Waiting jobs", sizes, waiting),
        ("Delayed jobs, beside plain ones", sizes, far_delayed),
        ("Prioritized jobs", sizes, waiting_prioritized),
        ("Completed jobs, beside plain ones", sizes, completed),
        (f"Groups of a backlog of {most_groups:,}", groups, in_groups(most_groups)),
    ]
    lines, beyond = [""], list[str]()
    with running_server() as server:
        for title, at, measure in situations:
            if only and not title.lower().startswith(only.lower()):
                continue
            points: list[Point] = []
            for size in at:
                async with _site(server) as site:
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
            lines += [f"### Calls of each operation, {most:,} jobs", ""]
            lines += ["| operation | longest call of a turn, ms | of all |", "| --- | ---: | ---: |"]
            lines += [*(f"| {each.name} | {each.typical:.2f} | {each.longest:.2f} {each.what} |" for each in found), ""]
            beyond += [f"{o.name}: {o.what} {o.typical:.1f} ms" for o in found if o.typical > LONGEST_MS]
    return "\n".join(lines), beyond


_HEAD = """# Cost by size

Written by `python -m tests.bench.scale`, on one Valkey beside which nothing else runs. What a job costs the server,
from its add to its end, is to stay within 20 % from a thousand jobs to a million and from one group to 100,000; no call
is to hold the server for more than 5 ms.

A job's cost is the least of eight turns of 2,000 jobs, in calls of 100. The more memory there is, the farther it is
from the processor, whoever asks for it: the control is a bare script that writes, reads, changes and removes hashes
like a job's beside the same backlog, and costs are compared in its units. The longest call of a turn is the median of
the turns' longest; the last column is the longest of all, stalls of the machine included.
"""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description="Cost by size.")
    parser.add_argument("--most", type=int, default=1_000_000, help="jobs at the largest size (default 1000000)")
    parser.add_argument("--most-groups", type=int, default=100_000, help="groups at the largest size")
    parser.add_argument("--only", default="", help="the start of one table's title, `flows` or `operators`")
    parser.add_argument("--write", metavar="FILE", help="also write the tables to FILE")
    args = parser.parse_args()
    report, beyond = asyncio.run(run(args.most, args.most_groups, args.only))
    print(report)
    if args.write:
        Path(args.write).write_text(_HEAD + report)
    print("\n".join(["Beyond the bounds:", *beyond] if beyond else ["All within the bounds."]))


if __name__ == "__main__":
    main()
