"""Compare one gateway process with bunqueue: ``python -m tests.bench.gateway [--quick] [--only work,add]``.

Real bunqueue (npm) with SQLite and in memory, and one gateway on a Valkey with an append-only file, serve the same
client program in turns. Figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import platform
import resource
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.bunqueue import BUN_VERSION, VERSION, BunqueuePackages, find_bunqueue
from tests.bench.gateway.crowds import CLIENT, cpu_of_two, idle_connections, idle_workers
from tests.bench.gateway.servers import Served, bunqueue, gateways
from tests.bench.install import PeerMissingError

RUN_S: Final = 120.0
OURS, SQLITE, MEMORY = "gateway", "bunqueue, SQLite", "bunqueue, in memory"
OURS_ALWAYS: Final = "gateway, AOF always"


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of the table.

    Attributes:
        key: Name for ``--only``.
        label: Its description.
        role: The function of the client program.
        params: Its arguments.
        peers: What is compared.
        bars: Least ratio of our figure to the peer's, per peer; or largest figure in ms, per figure.
        limit: What limits our figure, besides the processor time per job that is measured.
    """

    key: str
    label: str
    role: str
    params: dict[str, Any]
    peers: tuple[str, ...]
    bars: dict[str, float]
    limit: str


_BUSY: Final = "three busy processes share two processors; bunqueue in memory has two, and stores nothing"
_TURNS: Final = "the client, the gateway and Valkey take turns"
_LONE: Final = f"{_TURNS}: two round trips of processes that sleep"
_THREE, _TWO = (OURS, SQLITE, MEMORY), (OURS, SQLITE)

MEASURES: Final = (
    Measure(
        "work-50", "worker, concurrency 50", "work", {"concurrency": 50, "jobs": 20_000}, _THREE,
        {SQLITE: 2.0, MEMORY: 0.7}, _BUSY,
    ),
    Measure(
        "work-10", "worker, concurrency 10", "work", {"concurrency": 10, "jobs": 12_000}, _TWO, {SQLITE: 1.5}, "",
    ),
    Measure("work-1", "worker, concurrency 1", "work", {"concurrency": 1, "jobs": 3_000}, _TWO, {SQLITE: 1.0}, _TURNS),
    Measure(
        "add-100", "100 adds in flight, plain", "add", {"inFlight": 100, "autoBatch": False}, _TWO, {SQLITE: 1.5},
        "",
    ),
    Measure(
        "add-100-batched", "100 adds in flight, auto-batched", "add", {"inFlight": 100}, _TWO, {SQLITE: 1.0},
        "",
    ),
    Measure(
        "add-bulk", "addBulk of 1,000", "addBulk", {"size": 1_000}, _TWO, {SQLITE: 0.8},
        _TURNS,
    ),
    Measure(
        "add-1", "add one by one, plain", "add", {"inFlight": 1, "autoBatch": False}, _TWO, {SQLITE: 0.6}, _LONE
    ),
    Measure("add-1-batched", "add one by one, auto-batched", "add", {"inFlight": 1}, _TWO, {SQLITE: 0.5}, _LONE),
    Measure(
        "durable", "100 durable adds in flight", "add", {"inFlight": 100, "autoBatch": False, "durable": True},
        (OURS_ALWAYS, SQLITE), {SQLITE: 1.0}, "fsync: one per group of adds",
    ),
    Measure(
        "pick-up", "long-poll pick-up", "pickUp", {"jobs": 200}, _THREE, {"p50": 1.5, "p99": 6.0},
        "round trips of processes that were idle: add, fetch, report",
    ),
)  # fmt: skip


def run_client(packages: BunqueuePackages, port: int, measure: Measure, params: dict[str, Any]) -> dict[str, float]:
    """Run the client program once; return its figures."""
    words = [
        str(packages.bun), str(CLIENT), measure.role, str(port), f"bench-{secrets.token_hex(4)}", json.dumps(params)
    ]  # fmt: skip
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=RUN_S,
        env={**os.environ, "BUNQUEUE_CLIENT": str(packages.client)},
    )  # fmt: skip
    if done.returncode != 0 or "acks lost" in done.stderr:  # the client goes on if a report is rejected
        raise RuntimeError(f"{measure.key}: {done.stderr.strip()[-500:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


Figures = dict[str, dict[str, float]]
"""Medians by peer and figure; `client`, `server` and `store` are processor time per job, us."""


def timed_run(packages: BunqueuePackages, served: Served, measure: Measure, params: dict[str, Any]) -> dict[str, float]:
    """Run the client program once; return its figures, and the processor time per job of all processes.

    That of a worker contains the adds of its jobs, and all contain the start of the client.
    """
    cpu, client = served.cpu(), _children_us()
    found = run_client(packages, served.port, measure, params)
    server, store = (after - before for after, before in zip(served.cpu(), cpu, strict=True))
    count = found.pop("count")
    return {**found, "client": (_children_us() - client) / count, "server": server / count, "store": store / count}


def _children_us() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1e6


def measured(
    packages: BunqueuePackages, peers: dict[str, Served], measure: Measure, rounds: int, scale: float
) -> Figures:  # fmt: skip
    """Run one measure in turns."""
    params = {"seconds": 2.0 * scale, **measure.params}
    if "jobs" in params:
        params["jobs"] = max(20, int(params["jobs"] * scale))
    runs: dict[str, list[dict[str, float]]] = {peer: [] for peer in measure.peers}
    for _ in range(rounds):
        for peer in measure.peers:
            try:
                runs[peer].append(timed_run(packages, peers[peer], measure, params))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{peer}: {error}", file=sys.stderr, flush=True)
    return {
        peer: {figure: statistics.median(run[figure] for run in of_peer) for figure in of_peer[0]}
        for peer, of_peer in runs.items()
        if of_peer
    }


def line_of(measure: Measure, figures: Figures) -> tuple[str, bool | None]:
    """Return the line of the table, and whether the bars are met (None = not measured)."""
    ours = figures.get(measure.peers[0])
    if ours is None:
        return f"| {measure.label} | failed | | | | **no** | |", None
    shown, verdicts = [], []
    for peer in (SQLITE, MEMORY):
        theirs = figures.get(peer)
        shown.append("" if theirs is None else _shown(theirs))
    against = []
    for name, bar in measure.bars.items():
        if name in ours:
            verdicts.append(ours[name] <= bar)
            against.append(f"{name} {ours[name]:.2f} ms (at most {bar:g})")
        elif name in figures:
            ratio = ours["rate"] / figures[name]["rate"]
            verdicts.append(ratio >= bar)
            against.append(f"{ratio:.2f} x {name.removeprefix('bunqueue, ')} (at least {bar:g})")
    is_met = bool(verdicts) and all(verdicts)
    limit = "; ".join(filter(None, (_processor_time(figures, measure), measure.limit)))
    columns = [measure.label, _shown(ours), *shown, "; ".join(against), "yes" if is_met else "**no**", limit]
    return f"| {' | '.join(columns)} |", is_met


def _processor_time(figures: Figures, measure: Measure) -> str:
    ours, theirs = figures[measure.peers[0]], figures.get(SQLITE, {})
    if "server" not in ours:
        return ""
    text = f"CPU per job: client {ours['client']:.0f}, gateway {ours['server']:.0f}, Valkey {ours['store']:.0f} us"
    if "server" in theirs:
        text += f" (SQLite mode: client {theirs['client']:.0f}, server {theirs['server']:.0f} us)"
    return text


@dataclass(frozen=True, slots=True)
class Crowd:
    """One line of the table that compares the gateway with a limit.

    Attributes:
        key: Name for ``--only``.
        label: Its description.
        run: Returns its figures; arguments: the packages, and the scale of a run.
        figure: The one that is compared.
        limit: Its maximum.
        shown: Format of the figures.
        wanted: Format of the comparison.
        reason: What limits the figure.
    """

    key: str
    label: str
    run: Callable[[BunqueuePackages, float], dict[str, float]]
    figure: str
    limit: float
    shown: str
    wanted: str
    reason: str = ""


def _idle_connections(_: BunqueuePackages, scale: float) -> dict[str, float]:
    with gateways("everysec") as served:
        return asyncio.run(idle_connections(served, int(10_000 * scale)))


def _idle_workers(_: BunqueuePackages, scale: float) -> dict[str, float]:
    with gateways("everysec") as served:
        return asyncio.run(idle_workers(served, int(1_000 * scale), 20 * scale))


CROWDS: Final = (
    Crowd(
        "idle-connections", "10,000 idle connections", _idle_connections, "memory", 512,
        "{memory:.0f} MiB ({before:.0f} MiB without); {gateway:.1f} % of a core", "at most 512 MiB",
    ),
    Crowd(
        "idle-workers", "1,000 idle default workers on 1,000 queues", _idle_workers, "store", 5,
        "Valkey {store:.1f} %, gateway {gateway:.0f} % of a core; {rate:,.0f} polls/s", "Valkey at most 5 % of a core",
    ),
    Crowd(
        "two-gateways", "two gateways, each with a worker of one queue",
        lambda packages, scale: cpu_of_two(packages, int(20_000 * scale), 7), "ratio", 1.1,
        "{ratio:.2f} x ({low:.2f} to {high:.2f}) the CPU per job of one gateway with one worker; {merged:.2f} x that "
        "of one with both workers; no job lost or completed twice",
        "at most 1.1 x of one with one worker",
        "five busy processes share the caches of two processors; the commands of two workers leave in common calls if "
        "they have one gateway",
    ),
)  # fmt: skip


def crowd_line(crowd: Crowd, figures: dict[str, float]) -> tuple[str, bool]:
    """Return the line of the table, and whether the limit is met."""
    is_met = figures[crowd.figure] <= crowd.limit
    met = "yes" if is_met else "**no**"
    columns = [crowd.label, crowd.shown.format(**figures), "", "", crowd.wanted, met, crowd.reason]
    return f"| {' | '.join(columns)} |", is_met


def _shown(figures: dict[str, float]) -> str:
    if "rate" in figures:
        return f"{figures['rate']:,.0f}/s"
    return f"{figures['p50']:.2f} / {figures['p99']:.2f} ms"


HEADER: Final = """\
| measure | gateway | bunqueue, SQLite | bunqueue, in memory | ratio (required) | met | limited by |
| --- | ---: | ---: | ---: | --- | --- | --- |
"""
PAGE: Final = """\
# Speed of the gateway

Written by `python -m tests.bench.gateway --write docs/operate/gateway-speed.md` (`python3 noxfile.py bench_gateway`).

{day}; {cpus} CPUs ({machine}), Python {python}, bunqueue {bunqueue} under bun {bun}, Valkey 9.1 with an append-only
file (`everysec`; `always` for durable adds). One gateway process and bunqueue serve the same program, written with the
unmodified npm client, in turns; figures are medians of {rounds} runs. bunqueue's rate limit is switched off. Absolute
figures vary with the machine and its load: compare the ratios. The run took {seconds} s; the load average at its end
was {load} (the benchmark has three busy processes, so more than 3 means that other programs used the processors too).
The processor time is that of all processes per job, the adds of a worker's jobs and the client's start included.

{table}"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.gateway", description="Compare one gateway process with bunqueue."
    )
    parser.add_argument("--quick", action="store_true", help="short runs, once each")
    parser.add_argument(
        "--only", default="", help=f"comma-separated prefixes of: {', '.join(m.key for m in (*MEASURES, *CROWDS))}"
    )
    parser.add_argument("--rounds", type=int, help="runs per figure (3; quick: 1)")
    parser.add_argument("--write", metavar="FILE", help="also write the table to FILE")
    return parser


def _started(stack: contextlib.ExitStack, packages: BunqueuePackages, wanted: set[str]) -> dict[str, Served]:
    starting = {
        OURS: lambda: gateways("everysec"), OURS_ALWAYS: lambda: gateways("always"),
        SQLITE: lambda: bunqueue(packages, in_memory=False), MEMORY: lambda: bunqueue(packages, in_memory=True),
    }  # fmt: skip
    return {peer: stack.enter_context(start()) for peer, start in starting.items() if peer in wanted}


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 if a bar is missed. Without npm nothing is measured."""
    options, began = _parser().parse_args(arguments), time.monotonic()
    try:
        packages = find_bunqueue()
    except PeerMissingError as reason:
        print(f"skipped: {reason}", file=sys.stderr)
        return 0
    prefixes = tuple(options.only.split(","))
    rounds, scale = options.rounds or (1 if options.quick else 3), 0.25 if options.quick else 1.0
    print(HEADER, end="", flush=True)
    lines: list[str] = []
    missed = 0
    with contextlib.ExitStack() as stack:
        chosen = [each for each in MEASURES if each.key.startswith(prefixes)]
        peers = _started(stack, packages, {peer for each in chosen for peer in each.peers})
        for measure in chosen:
            text, is_met = line_of(measure, measured(packages, peers, measure, rounds, scale))
            print(text, flush=True)
            lines.append(text)
            missed += is_met is not True
    for crowd in CROWDS:
        if crowd.key.startswith(prefixes):
            text, is_met = crowd_line(crowd, crowd.run(packages, scale))
            print(text, flush=True)
            lines.append(text)
            missed += is_met is not True
    if options.write:
        page = PAGE.format(
            day=datetime.datetime.now(datetime.UTC).date(), cpus=os.cpu_count(), machine=platform.machine(),
            python=platform.python_version(), bunqueue=VERSION, bun=BUN_VERSION, rounds=rounds,
            load=f"{os.getloadavg()[0]:.0f}", seconds=f"{time.monotonic() - began:.0f}",
            table=HEADER + "\n".join(lines) + "\n",
        )  # fmt: skip
        Path(options.write).write_text(page, encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
