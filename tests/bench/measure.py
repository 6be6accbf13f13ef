"""Runs one measure for one library, and all of them in turns.

Turns: within a measure the libraries alternate (A B C A B C ...), so that a slow minute of a shared machine
falls on all of them. What must be reached and how it is shown is `tests.bench.report`.
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

Runs = dict[tuple[str, str], list[Figures | None]]
"""Runs by (case key, peer key), in the order of time."""

OURS = "glidemq"
NO_VARIANTS = (OURS, "bullmq", "tarsk", "tarsk-bare", "bullmq-node")
ASYNC = (OURS, "bullmq", "glidemq-uvloop", "bullmq-uvloop", "bullmq-node")
OURS_SYNC = "glidemq-sync"
SINGLE = (*ASYNC, "tarsk")
ALL = (*ASYNC, "tarsk", "tarsk-bare")
"""Who takes part, in the order of turns: those that are compared stand side by side."""

PLAIN = "plain"
KINDS = {
    "ordered": "ordered, 1,000 keys",
    "grouped": "20 groups of 10 at a time",
    "rated": "100 groups with a rate limit that does not limit",
    "limited": "worker with a rate limit that does not limit",
    "prioritized": "five priorities",
    "ranked": "100 ranks above those of priorities",
    "lifo": "LIFO",
    "fair": "1,000 fair keys",
    "flow": "flows of 999 children",
    "broadcast": "messages of a broadcast, one subscription",
}
"""Jobs that only our driver makes, and what they are: the others drain plain ones beside them."""

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
    memory_jobs: int = 20_000
    rates: dict[tuple[str, object], float] = field(default_factory=dict[tuple[str, object], float])

    def start(self, peer: str, role: str, params: dict[str, Any], kind: str = PLAIN) -> subprocess.Popen[str]:
        """Start a driver in one role, with jobs of a kind that the driver knows by that name."""
        chosen = self.peers[peer]
        words = [*chosen.command, role, self.server.url, json.dumps(params)]
        environment = {
            **os.environ,
            **chosen.environment,
            "PYTHONPATH": str(ROOT),
            "BENCH_URL": self.server.url,
            "BENCH_KIND": kind,
        }
        return subprocess.Popen(
            words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def play(self, peer: str, role: str, kind: str = PLAIN, **params: Any) -> dict[str, Any]:
        """Run a driver in one role to its end; returns its result."""
        with _ended(self.start(peer, role, params, kind)) as driver:
            return _result(driver)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measure: its key, its description, its participants, and a function that makes one run."""

    key: str
    label: str
    peers: tuple[str, ...]
    run: Callable[[Bench, str], Figures]
    turns: int = 1
    """Runs per round: more where single round trips count, which depend on how processes are placed."""


def run_cases(bench: Bench, cases: list[Case], rounds: int, say: Callable[[str], None]) -> Runs:
    """Every case for every peer, `rounds` times in turns.

    A run that failed is None in its place, so that the runs of two peers with one index are neighbours in time.
    """
    found: Runs = {}
    for case in cases:
        present = [peer for peer in case.peers if peer in bench.peers]
        for _ in range(rounds * case.turns):
            for peer in present:
                runs = found.setdefault((case.key, peer), [])
                try:
                    runs.append(case.run(bench, peer))
                except RunFailedError as failure:
                    runs.append(None)
                    say(f"{case.key:16} {peer:15} FAILED: {failure}")
        for peer in present:
            say(f"{case.key:16} {peer:15} {_shown(found[case.key, peer])}")
    return found


def median(runs: list[Figures | None], figure: str) -> float | None:
    """Median of one figure over the runs that did not fail; None if all failed."""
    values = [run[figure] for run in runs if run is not None and figure in run]
    return statistics.median(values) if values else None


def drain(concurrency: int, *, threads: bool = False, kind: str = PLAIN) -> Callable[[Bench, str], Figures]:
    """Fill, then drain in a worker process; repeated with more jobs when the run was far too short."""

    def once(bench: Bench, peer: str) -> Figures:
        in_threads = threads and peer == OURS
        ours = kind if peer == OURS else PLAIN
        memo = (peer, (concurrency, in_threads, ours))
        jobs, cpu = 0, 0.0
        for _ in range(3):
            rate = bench.rates.get(memo) or GUESSED_RATES[peer.removesuffix("-uvloop"), concurrency]
            jobs = max(200, int(rate * bench.drain_seconds))
            bench.server.empty()
            bench.play(peer, "fill", ours, jobs=jobs)
            before = bench.server.cpu_seconds()
            result = bench.play(peer, "drain", ours, jobs=jobs, concurrency=concurrency, threads=in_threads)
            cpu = bench.server.cpu_seconds() - before
            if result.get("completed") not in (None, jobs):
                raise RunFailedError(f"{result['completed']} of {jobs} jobs are completed")
            bench.rates[memo] = jobs / result["seconds"]
            if result["seconds"] > 0.6 * bench.drain_seconds:
                break
        return {"rate": bench.rates[memo], "cpu": cpu / jobs * 1e6}

    return once


def add(how: str, *, one_cpu: bool = False) -> Callable[[Bench, str], Figures]:
    """Jobs added per second into an empty queue without a worker; "single" in short runs, since it has many."""

    def once(bench: Bench, peer: str) -> Figures:
        seconds = bench.add_seconds * (0.4 if how == "single" else 1)
        bench.server.empty()
        with bench.server.on_one_cpu() if one_cpu else contextlib.nullcontext():
            result = bench.play(peer, "add", how=how, seconds=seconds)
        return {"rate": result["jobs"] / result["seconds"]}

    return once


def lateness(*, delayed: bool = False, kind: str = PLAIN) -> Callable[[Bench, str], Figures]:
    """Milliseconds from add (or from the due time) to start, on an idle worker of concurrency 10."""

    def once(bench: Bench, peer: str) -> Figures:
        jobs = bench.delayed_jobs if delayed else bench.idle_jobs
        bench.server.empty()
        with _ended(bench.start(peer, "listen", {"jobs": jobs, "concurrency": 10})) as listener:
            _next(listener, "ready")
            if delayed:
                bench.play(peer, "pace", jobs=jobs, gap=20, delay=[20, 80])
            else:
                bench.play(peer, "pace", kind, jobs=jobs, gap=8)
            result = _result(listener)
        return {"p50": result["p50"], "p99": result["p99"]}

    return once


def memory(bench: Bench, peer: str) -> Figures:
    """Bytes that the server needs for one waiting job."""
    bench.play(peer, "fill", jobs=100)  # one-time allocations (functions, metadata) do not belong to the jobs
    bench.server.empty()
    before = bench.server.used_memory()
    bench.play(peer, "fill", jobs=bench.memory_jobs)
    return {"bytes": (bench.server.used_memory() - before) / bench.memory_jobs}


CASES = [
    Case(key="drain-100", label="drain, async, concurrency 100", peers=ALL, run=drain(100)),
    Case(key="drain-10", label="drain, async, concurrency 10", peers=NO_VARIANTS, run=drain(10)),
    Case(key="drain-1", label="drain, async, concurrency 1", peers=NO_VARIANTS, run=drain(1)),
    Case(
        key="drain-threads",
        label="drain, plain def in threads, 100",
        peers=(OURS, "bullmq"),  # bullmq has async handlers only, and runs these
        run=drain(100, threads=True),
    ),
    *(
        Case(
            key=f"kind-{kind}",
            label=f"drain, async, 100: {what}",
            peers=(OURS, "bullmq"),  # which drains plain jobs
            run=drain(100, kind=kind),
        )
        for kind, what in KINDS.items()
    ),
    Case(key="add-single", label="add, one by one, one CPU", peers=SINGLE, run=add("single", one_cpu=True), turns=2),
    Case(key="add-single-free", label="add, one by one, placed freely", peers=SINGLE, run=add("single"), turns=2),
    Case(
        key="add-single-sync",
        label="add, one by one, ours blocking, one CPU",
        peers=(OURS_SYNC, "bullmq"),  # bullmq is asynchronous only
        run=add("single", one_cpu=True),
        turns=2,
    ),
    Case(
        key="add-single-sync-free",
        label="add, one by one, ours blocking, placed freely",
        peers=(OURS_SYNC, "bullmq"),
        run=add("single"),
        turns=2,
    ),
    Case(key="add-together", label="add, 100 awaited together", peers=ASYNC, run=add("together")),
    Case(key="add-bulk", label="add_bulk of 1000", peers=ASYNC, run=add("bulk")),
    Case(key="idle", label="idle worker, add to start", peers=NO_VARIANTS, run=lateness(), turns=2),
    *(
        Case(
            key=f"idle-{kind}",
            label=f"idle worker, add to start: {KINDS[kind]}",
            peers=(OURS,),
            run=lateness(kind=kind),
        )
        for kind in ("prioritized", "ranked", "lifo")
    ),
    Case(
        key="delayed",
        label="idle worker, lateness of a delayed job",
        peers=(OURS, "bullmq", "bullmq-node"),
        run=lateness(delayed=True),
    ),
    Case(key="memory", label="memory of a waiting job", peers=NO_VARIANTS, run=memory),
]


@contextlib.contextmanager
def _ended(driver: subprocess.Popen[str]) -> Generator[subprocess.Popen[str]]:
    """The driver, ended at exit; killed if it exceeds the timeout."""
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


def _shown(runs: list[Figures | None]) -> str:
    """Medians of every figure, and the first figure of each run."""
    done = [run for run in runs if run is not None]
    if not done:
        return "no run"
    parts = [f"{name} {median(runs, name):,.6g}" for name in done[0]]
    first = next(iter(done[0]))
    return f"{'  '.join(parts)}   ({first}: {', '.join(f'{run[first]:,.5g}' for run in done)})"
