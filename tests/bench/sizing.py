"""What a job costs, and what a rate of jobs needs: ``python -m tests.bench.sizing [--write | --recompute]``.

Measures jobs of 200 bytes that do nothing, with and without the append-only file: server CPU, network and log bytes of
adds in bulk and of a drain at concurrency 100, CPU of the client processes, memory of waiting and completed jobs. From
these, as they are printed, it computes the table and the plot of docs/operate/sizing.md, which ``--write`` replaces.
``--recompute`` does so from the costs on the page, without measuring.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import re
import resource
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final

from glidemq_py import Job, Queue, Worker
from glidemq_py.testing import RespClient, ServerProcess, server_binary

PAGE: Final = Path(__file__).parents[2] / "docs" / "operate" / "sizing.md"
PLOT: Final = PAGE.parent / "images" / "sizing.svg"
RATES: Final = (10_000, 50_000, 100_000, 250_000, 500_000, 1_000_000)
SHARE: Final = 0.6
"""Share of a core that is planned for: the rest is for peaks, failovers and the work of clients and operators."""
DRAIN_CPU: Final = 15.0
"""Server CPU of fetching and completing a job in docs/benchmarks.md, us. All CPU times are scaled to it: other programs
may use the machine during this measurement.
"""
MOST_PARTITIONS: Final = 256
PARTITION: Final = 1.05
"""Server CPU of a job in a partitioned queue, compared with a plain one (tests/bench/partitions.py)."""
_FIELDS: Final = (
    ("used_cpu_user", "cpu", 1_000_000), ("used_cpu_sys", "cpu", 1_000_000),
    ("total_net_input_bytes", "received", 1), ("total_net_output_bytes", "sent", 1), ("aof_current_size", "log", 1),
)  # fmt: skip


_CPU_TIMES: Final = ("add_cpu", "drain_cpu", "producer_cpu", "worker_cpu")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one job costs: microseconds of CPU, and bytes."""

    add_cpu: float
    drain_cpu: float
    producer_cpu: float
    worker_cpu: float
    received: float
    sent: float
    log: float
    waiting: float
    completed: float

    @property
    def server_cpu(self) -> float:
        return self.add_cpu + self.drain_cpu

    def scaled(self, factor: float) -> Cost:
        """Return the cost on a machine whose processors take so many times as long."""
        return replace(self, **{name: factor * getattr(self, name) for name in _CPU_TIMES})


@dataclass(frozen=True, slots=True)
class Need:
    """What a rate of jobs needs."""

    rate: int
    primaries: int
    partitions: int
    producers: int
    workers: int
    network: float
    log: float
    backlog: float

    @classmethod
    def of(cls, rate: int, cost: Cost) -> Need:
        primaries = math.ceil(rate * cost.server_cpu * (PARTITION if rate * cost.server_cpu > SHARE * 1e6 else 1)
                              / (SHARE * 1e6))  # fmt: skip
        return cls(
            rate=rate, primaries=primaries, partitions=1 if primaries == 1 else min(4 * primaries, MOST_PARTITIONS),
            producers=math.ceil(rate * cost.producer_cpu / (SHARE * 1e6)),
            workers=math.ceil(rate * cost.worker_cpu / (SHARE * 1e6)),
            network=rate * (cost.received + cost.sent) * 8 / 1e9, log=rate * cost.log / 1e6,
            backlog=rate * 60 * cost.waiting / 2**30,
        )  # fmt: skip


def _state(resp: RespClient) -> dict[str, float]:
    found = dict.fromkeys(("cpu", "received", "sent", "log"), 0.0)
    for line in str(resp.execute("INFO", "everything")).splitlines():
        for name, key, factor in _FIELDS:
            if line.startswith(f"{name}:"):
                found[key] += float(line.partition(":")[2]) * factor
    return found


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1_000_000


async def measure(server: ServerProcess, jobs: int) -> Cost:
    """Add and drain so many jobs."""
    left, done = jobs, asyncio.Event()

    async def handle(_: Job):
        nonlocal left
        left -= 1
        if not left:
            done.set()

    with server.client() as resp:
        resp.execute("FLUSHALL", "SYNC")
        async with Queue("q", server.url) as queue:
            await queue.add("n", {"payload": "x" * 180})
            await queue.obliterate(force=True)
            memory, before, own = float(resp.info("memory")["used_memory"]), _state(resp), _own_cpu()
            for start in range(0, jobs, 1_000):
                await queue.add_bulk([("n", {"payload": "x" * 180, "n": at}) for at in range(start, start + 1_000)])
            added, producer = _state(resp), _own_cpu() - own
            waiting = float(resp.info("memory")["used_memory"]) - memory
            own = _own_cpu()
            async with Worker("q", handle, server.url, concurrency=100) as worker:
                await done.wait()
                await worker.drain()
            drained, used = _state(resp), _own_cpu() - own
            completed = float(resp.info("memory")["used_memory"]) - memory

    def of(key: str, later: dict[str, float], earlier: dict[str, float]) -> float:
        return (later[key] - earlier[key]) / jobs

    return Cost(
        add_cpu=of("cpu", added, before), drain_cpu=of("cpu", drained, added), producer_cpu=producer / jobs,
        worker_cpu=used / jobs, received=of("received", drained, before), sent=of("sent", drained, before),
        log=of("log", drained, before), waiting=waiting / jobs, completed=completed / jobs,
    )  # fmt: skip


def _median(costs: list[Cost]) -> Cost:
    return Cost(**{each.name: statistics.median(getattr(cost, each.name) for cost in costs) for each in fields(Cost)})


async def main(jobs: int = 50_000, rounds: int = 3) -> tuple[Cost, Cost]:
    """Return the cost of a job without and with the append-only file, synced every second."""
    logged = {"appendonly": "yes", "appendfsync": "everysec", "auto-aof-rewrite-percentage": "0"}
    rounds_of: tuple[list[Cost], list[Cost]] = [], []
    with (
        ServerProcess(server_binary("valkey-9.1")) as plain,
        ServerProcess(server_binary("valkey-9.1"), config=logged) as durable,
    ):
        for server in (plain, durable):
            await measure(server, jobs // 10)
        for _ in range(rounds):  # in turns, since other programs may use the machine
            for server, costs in zip((plain, durable), rounds_of, strict=True):
                costs.append(await measure(server, jobs))
    found = [_median(costs) for costs in rounds_of]
    scale = DRAIN_CPU / found[0].drain_cpu
    print(f"CPU times are scaled by {scale:.2f}")
    return found[0].scaled(scale), found[1].scaled(scale)


# -- the page ----------------------------------------------------------------------------------------------------


def cost_table(plain: Cost, logged: Cost) -> str:
    """Return the table of costs."""
    rows = [
        ("server CPU of an add in bulk", f"{plain.add_cpu:.1f} us", f"{logged.add_cpu:.1f} us"),
        ("server CPU of fetching and completing", f"{plain.drain_cpu:.1f} us", f"{logged.drain_cpu:.1f} us"),
        ("CPU of the producer", f"{plain.producer_cpu:.1f} us", ""),
        ("CPU of the worker", f"{plain.worker_cpu:.1f} us", ""),
        ("bytes to the server", f"{plain.received:.0f}", ""), ("bytes from the server", f"{plain.sent:.0f}", ""),
        ("bytes of the append-only file", "0", f"{logged.log:.0f}"),
        ("memory while waiting, with its event", f"{plain.waiting:.0f} bytes", ""),
        ("memory when completed, with its events", f"{plain.completed:.0f} bytes", ""),
    ]  # fmt: skip
    return _table(("one job", "no persistence", "append-only file, synced every second"), rows)


def planned(costs: str) -> Cost:
    """Return the cost to plan for, as a table of costs prints it: on the server, that with the append-only file.

    Readers compute with the printed figures, so the page does, too.
    """
    rows = [[cell.strip() for cell in line.split("|")[2:4]] for line in costs.strip().splitlines()[2:]]
    add, drain, producer, worker, received, sent, log, waiting, completed = (
        float((logged or plain).split()[0]) for plain, logged in rows
    )
    return Cost(add, drain, producer, worker, received, sent, log, waiting, completed)


def need_table(cost: Cost) -> str:
    """Return the table of needs."""
    rows = [
        (f"{need.rate:,}", str(need.primaries), str(need.partitions), str(need.producers), str(need.workers),
         f"{need.network:.2f}", f"{need.log:.0f}", f"{need.backlog:.1f}")
        for need in (Need.of(rate, cost) for rate in RATES)
    ]  # fmt: skip
    head = (
        "jobs per second", "primaries", "partitions", "cores of producers", "cores of workers",
        "network, Gbit/s", "append-only file, MB/s", "a minute of backlog, GiB",
    )  # fmt: skip
    return _table(head, rows)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ("---", *["---:"] * (len(head) - 1)), *rows])


WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 400, 60, 20, 190, 50
SERIES: Final = (("primaries", "#1b6ca8"), ("workers", "#c0392b"), ("producers", "#2e7d32"))
LABELS: Final = {"primaries": "primaries (cores)", "workers": "worker cores", "producers": "producer cores"}


def plot(cost: Cost) -> str:
    """Return an SVG with the numbers of primaries, workers and producers over the rate, both logarithmic."""
    low, high = math.log10(RATES[0]), math.log10(RATES[-1])
    most = math.log10(100)

    def x(rate: float) -> float:
        return LEFT + (math.log10(rate) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(count: float) -> float:
        return HEIGHT - BOTTOM - math.log10(count) / most * (HEIGHT - TOP - BOTTOM)

    def lines() -> Iterator[str]:
        yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        yield 'font-size="12" role="img"><title>Cores by jobs per second</title>'
        yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
        for count in (1, 2, 5, 10, 20, 50, 100):
            yield f'<path d="M{LEFT} {y(count):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
            yield f'<text x="{LEFT - 8}" y="{y(count) + 4:.1f}" text-anchor="end" fill="#444">{count}</text>'
        for rate in RATES:
            text = f"{rate // 1_000}k" if rate < 1_000_000 else "1M"
            yield f'<path d="M{x(rate):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>'
            yield f'<text x="{x(rate):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#444">{text}</text>'
        middle = (LEFT + WIDTH - RIGHT) / 2
        yield f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle" fill="#222">jobs per second</text>'
        steps = [10 ** (low + (high - low) * step / 200) for step in range(201)]
        for name, color in SERIES:
            points = [f"{x(rate):.1f} {y(getattr(Need.of(round(rate), cost), name)):.1f}" for rate in steps]
            yield f'<path d="M{"L".join(points)}" fill="none" stroke="{color}" stroke-width="2"/>'
        for at, (name, color) in enumerate(SERIES):
            top = TOP + 16 + 20 * at
            yield f'<path d="M{WIDTH - RIGHT + 14} {top - 4}h22" stroke="{color}" stroke-width="2"/>'
            yield f'<text x="{WIDTH - RIGHT + 42}" y="{top}" fill="#222">{LABELS[name]}</text>'
        yield "</svg>"

    return "\n".join(lines()) + "\n"


def _part(name: str) -> re.Pattern[str]:
    """Return the pattern of a table of the page: what is before it, the table, and what is after it."""
    begin, end = f"<!-- {name}: tests/bench/sizing.py -->\n", f"\n<!-- end of {name} -->"
    return re.compile(f"({re.escape(begin)})(.*?)({re.escape(end)})", re.DOTALL)


def table_on_page(name: str) -> str:
    """Return the table "costs" or "needs" of the page."""
    found = _part(name).search(PAGE.read_text(encoding="utf-8"))
    assert found is not None, name
    return found[2]


def write(costs: str):
    """Replace the tables of the page, and the plot, by those for a table of costs."""
    text, cost = PAGE.read_text(encoding="utf-8"), planned(costs)
    for name, table in (("costs", costs), ("needs", need_table(cost))):
        text = _part(name).sub(lambda found, table=table: f"{found[1]}{table}{found[3]}", text)  # type: ignore[misc]
    PAGE.write_text(text, encoding="utf-8")
    PLOT.write_text(plot(cost), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--write", action="store_true", help="replace the tables and the plot of the page")
    chosen.add_argument("--recompute", action="store_true", help="the same, from the costs on the page")
    parser.add_argument("--jobs", type=int, default=50_000)
    arguments = parser.parse_args()
    table = table_on_page("costs") if arguments.recompute else cost_table(*asyncio.run(main(arguments.jobs)))
    print(table, need_table(planned(table)), sep="\n\n")
    if arguments.write or arguments.recompute:
        write(table)
