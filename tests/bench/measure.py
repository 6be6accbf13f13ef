"""Runs one measure for one library, and all of them in turns.

Turns: within a measure the libraries alternate (A B C A B C ...), so that a slow minute of a shared machine
falls on all of them; figures are medians. What must be reached and how it is shown is `tests.bench.report`.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from tests.bench.install import ROOT, Peer
from tests.bench.server import BenchServer

Figures = dict[str, float]
"""Of one run, by name: jobs per second "rate", server microseconds per job "cpu", "p50", "p99", "bytes"."""

OURS = "glidemq"
ALL = (OURS, "bullmq", "tarsk", "tarsk-bare", "bullmq-node")
PYTHON_PAIR = (OURS, "bullmq")
MEMORY_JOBS = 20_000
TIMEOUT_SECONDS = 120

GUESSED_RATES = {
    (OURS, 100): 35_000, (OURS, 10): 20_000, (OURS, 1): 6_000,
    ("bullmq", 100): 3_000, ("bullmq", 10): 3_500, ("bullmq", 1): 3_300,
    ("tarsk", 100): 12_000, ("tarsk", 10): 9_000, ("tarsk", 1): 4_500,
    ("tarsk-bare", 100): 14_000, ("tarsk-bare", 10): 12_000, ("tarsk-bare", 1): 5_500,
    ("bullmq-node", 100): 20_000, ("bullmq-node", 10): 18_000, ("bullmq-node", 1): 7_000,
}  # fmt: skip
"""Jobs per second, for the size of the first drain only; later ones take the last rate measured."""


class RunFailedError(Exception):
    """A driver ended without a result, or did not do all the work."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """What every measure needs: the server, the peers found here, and how long a run may be."""

    server: BenchServer
    peers: dict[str, Peer]
    drain_seconds: float = 2.0
    add_seconds: float = 1.5
    idle_jobs: int = 400
    delayed_jobs: int = 110
    rates: dict[tuple[str, object], float] = field(default_factory=dict[tuple[str, object], float])

    def start(self, peer: str, role: str, params: dict[str, Any]) -> subprocess.Popen[str]:
        """Start a driver in one role."""
        chosen = self.peers[peer]
        words = [*chosen.command, role, self.server.url, json.dumps(params)]
        environment = {
            **os.environ,
            **chosen.environment,
            "PYTHONPATH": str(ROOT),
            "BENCH_URL": self.server.url,
        }
        return subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def play(self, peer: str, role: str, **params: Any) -> dict[str, Any]:
        """Run a driver in one role to its end; returns its result."""
        with _ended(self.start(peer, role, params)) as driver:
            return _result(driver)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measure: its key, what it is, who takes part, and how one run is made."""

    key: str
    label: str
    peers: tuple[str, ...]
    run: Callable[[Bench, str], Figures]
    turns: int = 1
    """Runs per round: more where single round trips count, which depend on how processes are placed."""


def run_cases(
    bench: Bench, cases: list[Case], rounds: int, say: Callable[[str], None]
) -> dict[tuple[str, str], Figures]:
    """Every case for every peer, `rounds` times in turns.

    Returns medians by (case key, peer key), empty where every run failed.
    """
    medians: dict[tuple[str, str], Figures] = {}
    for case in cases:
        runs: dict[str, list[Figures]] = {}
        for _ in range(rounds * case.turns):
            for peer in case.peers:
                if peer not in bench.peers:
                    continue
                runs.setdefault(peer, [])
                try:
                    runs[peer].append(case.run(bench, peer))
                except RunFailedError as failure:
                    say(f"{case.key:18} {peer:12} FAILED: {failure}")
        for peer, figures in runs.items():
            names = figures[0] if figures else ()
            medians[case.key, peer] = {
                name: statistics.median(run[name] for run in figures) for name in names
            }
            if figures:
                first = next(iter(names))
                spread = ", ".join(f"{run[first]:,.6g}" for run in figures)
                say(f"{case.key:19} {peer:12} {_shown(medians[case.key, peer])}   ({first}: {spread})")
    return medians


def drain(
    concurrency: int, *, threads: bool = False, uvloop: bool = False
) -> Callable[[Bench, str], Figures]:
    """Fill, then drain in a worker process; repeated with more jobs when the run was far too short."""

    def once(bench: Bench, peer: str) -> Figures:
        memo = (peer, (concurrency, threads, uvloop))
        jobs, cpu = 0, 0.0
        for _ in range(3):
            rate = bench.rates.get(memo) or GUESSED_RATES[peer, concurrency]
            jobs = max(200, int(rate * bench.drain_seconds))
            bench.server.empty()
            bench.play(peer, "fill", jobs=jobs)
            before = bench.server.cpu_seconds()
            result = bench.play(
                peer, "drain", jobs=jobs, concurrency=concurrency, threads=threads, uvloop=uvloop
            )
            cpu = bench.server.cpu_seconds() - before
            if result.get("completed") not in (None, jobs):
                raise RunFailedError(f"{result['completed']} of {jobs} jobs are completed")
            bench.rates[memo] = jobs / result["seconds"]
            if result["seconds"] > 0.6 * bench.drain_seconds:
                break
        return {"rate": bench.rates[memo], "cpu": cpu / jobs * 1e6}

    return once


def add(how: str, *, uvloop: bool = False) -> Callable[[Bench, str], Figures]:
    """Jobs added per second into an empty queue without a worker."""

    def once(bench: Bench, peer: str) -> Figures:
        bench.server.empty()
        result = bench.play(peer, "add", how=how, seconds=bench.add_seconds, uvloop=uvloop)
        return {"rate": result["jobs"] / result["seconds"]}

    return once


def lateness(*, delayed: bool = False) -> Callable[[Bench, str], Figures]:
    """Milliseconds from add (or from the due time) to start, on an idle worker of concurrency 10."""

    def once(bench: Bench, peer: str) -> Figures:
        jobs = bench.delayed_jobs if delayed else bench.idle_jobs
        bench.server.empty()
        with _ended(bench.start(peer, "listen", {"jobs": jobs, "concurrency": 10})) as listener:
            _next(listener, "ready")
            if delayed:
                bench.play(peer, "pace", jobs=jobs, gap=20, delay=[20, 80])
            else:
                bench.play(peer, "pace", jobs=jobs, gap=8)
            result = _result(listener)
        return {"p50": result["p50"], "p99": result["p99"]}

    return once


def memory(bench: Bench, peer: str) -> Figures:
    """Bytes that the server needs for one waiting job."""
    bench.play(peer, "fill", jobs=100)  # what is allocated once (functions, metadata) is not the jobs'
    bench.server.empty()
    before = bench.server.used_memory()
    bench.play(peer, "fill", jobs=MEMORY_JOBS)
    return {"bytes": (bench.server.used_memory() - before) / MEMORY_JOBS}


CASES = [
    Case(key="drain-100", label="drain, async, concurrency 100 (jobs/s)", peers=ALL, run=drain(100)),
    Case(key="drain-10", label="drain, async, concurrency 10 (jobs/s)", peers=ALL, run=drain(10)),
    Case(key="drain-1", label="drain, async, concurrency 1 (jobs/s)", peers=ALL, run=drain(1)),
    Case(
        key="drain-threads",
        label="drain, plain def in threads, 100 (jobs/s)",
        peers=(OURS,),
        run=drain(100, threads=True),
    ),
    Case(
        key="drain-uvloop",
        label="drain, async, 100, uvloop (jobs/s)",
        peers=PYTHON_PAIR,
        run=drain(100, uvloop=True),
    ),
    Case(key="add-single", label="add, one by one (jobs/s)", peers=ALL, run=add("single"), turns=2),
    Case(
        key="add-single-uvloop",
        label="add, one by one, uvloop (jobs/s)",
        peers=PYTHON_PAIR,
        run=add("single", uvloop=True),
        turns=2,
    ),
    Case(
        key="add-together",
        label="add, 100 awaited together (jobs/s)",
        peers=(*PYTHON_PAIR, "bullmq-node"),
        run=add("together"),
    ),
    Case(
        key="add-together-uvloop",
        label="add, 100 awaited together, uvloop (jobs/s)",
        peers=PYTHON_PAIR,
        run=add("together", uvloop=True),
    ),
    Case(
        key="add-bulk",
        label="add_bulk of 1000 (jobs/s)",
        peers=(*PYTHON_PAIR, "bullmq-node"),
        run=add("bulk"),
    ),
    Case(
        key="add-bulk-uvloop",
        label="add_bulk of 1000, uvloop (jobs/s)",
        peers=PYTHON_PAIR,
        run=add("bulk", uvloop=True),
    ),
    Case(key="idle", label="idle worker, add to start (ms)", peers=ALL, run=lateness()),
    Case(
        key="delayed",
        label="idle worker, lateness of a delayed job (ms)",
        peers=(*PYTHON_PAIR, "bullmq-node"),
        run=lateness(delayed=True),
    ),
    Case(key="memory", label="memory of a waiting job (bytes)", peers=ALL, run=memory),
]


@contextlib.contextmanager
def _ended(driver: subprocess.Popen[str]) -> Generator[subprocess.Popen[str]]:
    """The driver, ended on the way out: by itself, or killed when it outlives the time-out."""
    guard = threading.Timer(TIMEOUT_SECONDS, driver.kill)
    guard.start()
    try:
        yield driver
    except BaseException:
        driver.kill()
        raise
    finally:
        driver.communicate()
        guard.cancel()


def _result(driver: subprocess.Popen[str]) -> dict[str, Any]:
    result: dict[str, Any] = _next(driver, "result")
    driver.wait()  # its last calls are part of the work
    return result


def _next(driver: subprocess.Popen[str], key: str) -> Any:
    """Value of the next message that has `key`; a driver's other output goes to our stderr."""
    assert driver.stdout is not None
    for line in driver.stdout:
        try:
            message: Any = json.loads(line)
        except ValueError:
            print(line, end="", file=sys.stderr)
            continue
        if key in message:
            return message[key]
    _, errors = driver.communicate()
    last_words = "\n".join(errors.strip().splitlines()[-12:])
    raise RunFailedError(f"no {key} (exit code {driver.returncode}): {last_words}")


def _shown(figures: Figures) -> str:
    return "  ".join(
        f"{name} {value:,.2f}" if value < 100 else f"{name} {value:,.0f}" for name, value in figures.items()
    )
