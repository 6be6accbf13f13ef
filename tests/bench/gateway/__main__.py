"""Compare one gateway process with bunqueue: ``python -m tests.bench.gateway [--quick] [--only work,add]``.

Real bunqueue (npm) with SQLite and in memory, and one gateway on a Valkey with an append-only file, serve the same
client program in turns. Figures are medians.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from glidemq_py.testing import ServerProcess, server_binary
from tests.bench.bunqueue import BUN_VERSION, VERSION, BunqueuePackages, find_bunqueue
from tests.bench.install import PeerMissingError

CLIENT: Final = Path(__file__).with_name("client.mjs")
ROOT: Final = Path(__file__).resolve().parents[3]
START_S: Final = 20.0
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
        limit: What limits our figure.
    """

    key: str
    label: str
    role: str
    params: dict[str, Any]
    peers: tuple[str, ...]
    bars: dict[str, float]
    limit: str


_ADDING: Final = "the gateway's event loop: about 70 us per `PUSH`"
_UNKNOWN: Final = "not known yet; the same client is faster with bunqueue in memory"
_LONE: Final = "round trips: 0.1 ms to the gateway, and 0.4 ms for its call to Valkey"
_THREE, _TWO = (OURS, SQLITE, MEMORY), (OURS, SQLITE)

MEASURES: Final = (
    Measure(
        "work-50", "worker, concurrency 50", "work", {"concurrency": 50, "jobs": 6_000}, _THREE,
        {SQLITE: 2.0, MEMORY: 0.7}, _UNKNOWN,
    ),
    Measure(
        "work-10", "worker, concurrency 10", "work", {"concurrency": 10, "jobs": 4_000}, _TWO, {SQLITE: 1.5},
        _UNKNOWN,
    ),
    Measure("work-1", "worker, concurrency 1", "work", {"concurrency": 1, "jobs": 1_500}, _TWO, {SQLITE: 1.0}, _LONE),
    Measure(
        "add-100", "100 adds in flight, plain", "add", {"inFlight": 100, "autoBatch": False}, _TWO, {SQLITE: 1.5},
        _ADDING,
    ),
    Measure(
        "add-100-batched", "100 adds in flight, auto-batched", "add", {"inFlight": 100}, _TWO, {SQLITE: 1.0},
        "the gateway's event loop",
    ),
    Measure(
        "add-bulk", "addBulk of 1,000", "addBulk", {"size": 1_000}, _TWO, {SQLITE: 0.8},
        "the gateway's event loop (21 us per job) and Valkey (19 us), one after the other",
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _process(command: list[str], port: int, **environment: str) -> Generator[int]:
    """Run a server until the block ends; yield its port when it accepts connections."""
    running = subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if time.monotonic() > until or running.poll() is not None:
                    raise
                time.sleep(0.05)
        yield port
    finally:
        running.terminate()
        running.wait()


@contextlib.contextmanager
def bunqueue(packages: BunqueuePackages, *, in_memory: bool) -> Generator[int]:
    """Run real bunqueue; yield its port."""
    folder, port = Path(tempfile.mkdtemp(prefix="glidemq-bench-")), _free_port()
    command = [str(packages.bun), str(packages.server), "start"]
    environment = {
        "TCP_PORT": str(port), "HTTP_PORT": str(_free_port()), "HOST": "127.0.0.1",
        "RATE_LIMIT_MAX_REQUESTS": "1000000000", "LOG_LEVEL": "error",
    }  # fmt: skip
    if not in_memory:
        environment["DATA_PATH"] = str(folder / "bunqueue.db")
    try:
        with _process(command, port, **environment):
            yield port
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def gateway(fsync: str) -> Generator[int]:
    """Run one gateway on a Valkey of its own; yield its port."""
    port = _free_port()
    server = ServerProcess(server_binary("valkey-9.1"), config={"appendonly": "yes", "appendfsync": fsync, "save": ""})
    with server:
        command = [sys.executable, "-m", "glidemq_py.gateway", "--url", server.url, "--port", str(port)]
        with _process(command, port):
            yield port


def run_client(packages: BunqueuePackages, port: int, measure: Measure, params: dict[str, Any]) -> dict[str, float]:
    """Run the client program once; return its figures."""
    words = [
        str(packages.bun), str(CLIENT), measure.role, str(port), f"bench-{secrets.token_hex(4)}", json.dumps(params)
    ]  # fmt: skip
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=RUN_S,
        env={**os.environ, "BUNQUEUE_CLIENT": str(packages.client)},
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{measure.key}: {done.stderr.strip()[-500:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


Figures = dict[str, dict[str, float]]
"""Medians by peer and figure."""


def measured(packages: BunqueuePackages, ports: dict[str, int], measure: Measure, rounds: int, scale: float) -> Figures:
    """Run one measure in turns."""
    params = {"seconds": 2.0 * scale, **measure.params}
    if "jobs" in params:
        params["jobs"] = max(20, int(params["jobs"] * scale))
    runs: dict[str, list[dict[str, float]]] = {peer: [] for peer in measure.peers}
    for _ in range(rounds):
        for peer in measure.peers:
            try:
                runs[peer].append(run_client(packages, ports[peer], measure, params))
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
    columns = [measure.label, _shown(ours), *shown, "; ".join(against), "yes" if is_met else "**no**", measure.limit]
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
figures vary with the machine and its load: compare the ratios.

{table}"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.gateway", description="Compare one gateway process with bunqueue."
    )
    parser.add_argument("--quick", action="store_true", help="short runs, once each")
    parser.add_argument("--only", default="", help=f"comma-separated prefixes of: {', '.join(m.key for m in MEASURES)}")
    parser.add_argument("--rounds", type=int, help="runs per figure (3; quick: 1)")
    parser.add_argument("--write", metavar="FILE", help="also write the table to FILE")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 if a bar is missed. Without npm nothing is measured."""
    options = _parser().parse_args(arguments)
    try:
        packages = find_bunqueue()
    except PeerMissingError as reason:
        print(f"skipped: {reason}", file=sys.stderr)
        return 0
    prefixes = tuple(options.only.split(","))
    chosen = [each for each in MEASURES if each.key.startswith(prefixes)]
    rounds, scale = options.rounds or (1 if options.quick else 3), 0.25 if options.quick else 1.0
    wanted = {peer for each in chosen for peer in each.peers}
    starting = {
        OURS: lambda: gateway("everysec"), OURS_ALWAYS: lambda: gateway("always"),
        SQLITE: lambda: bunqueue(packages, in_memory=False), MEMORY: lambda: bunqueue(packages, in_memory=True),
    }  # fmt: skip
    print(HEADER, end="", flush=True)
    lines: list[str] = []
    missed = 0
    with contextlib.ExitStack() as stack:
        ports = {peer: stack.enter_context(start()) for peer, start in starting.items() if peer in wanted}
        for measure in chosen:
            text, is_met = line_of(measure, measured(packages, ports, measure, rounds, scale))
            print(text, flush=True)
            lines.append(text)
            missed += is_met is not True
    if options.write:
        page = PAGE.format(
            day=datetime.datetime.now(datetime.UTC).date(), cpus=os.cpu_count(), machine=platform.machine(),
            python=platform.python_version(), bunqueue=VERSION, bun=BUN_VERSION, rounds=rounds,
            table=HEADER + "\n".join(lines) + "\n",
        )  # fmt: skip
        Path(options.write).write_text(page, encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
