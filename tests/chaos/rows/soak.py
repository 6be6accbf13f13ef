"""Hours of mixed jobs: memory, latency and logs stay flat."""

import statistics
import time
from collections import defaultdict
from typing import Any

from tests.chaos.run import ChaosRun
from tests.chaos.settings import KINDS

NUMBER = 16
TITLE = "soak: up to 1,000 mixed jobs per second"
RATE = 1_000
JOBS_PER_ADD = 1.46
"""Mean of the kinds: a bulk adds 5 jobs, a flow 3."""
SAMPLES = 8
KEPT = 100
IDS_FLAT_S = 4 * 3_600.0
GROWTH = 1.15
LATENCY_GROWTH = 2.0
LOG_LINES = 5


def play(run: ChaosRun):
    run.start_server(retain_events=False)
    run.ledger.forgets = True
    options: dict[str, Any] = {"concurrency": 50}
    workers, producers = (3, 3) if run.long else (2, 1)
    for _ in range(workers):
        run.fleet.worker(options=options)
    for worker in run.fleet.workers:
        worker.wait_ready()
    retention = {"remove_on_complete": KEPT, "remove_on_fail": KEPT}
    # A deduplication id is deleted an hour after its job has ended (P:dedup-expiry): until then memory must grow.
    kinds = KINDS if (run.seconds or 0) >= IDS_FLAT_S else tuple(kind for kind in KINDS if kind != "unique")
    for _ in range(producers):
        run.fleet.producer(rate=RATE / JOBS_PER_ADD / producers if run.long else 150, retention=retention, kinds=kinds)
    deadline = time.monotonic() + 120
    while not _retention_works(run):
        assert time.monotonic() < deadline, f"{KEPT} completed and failed jobs expected within two minutes"
        run.progress(100, 1)
    begin, done = time.monotonic(), run.ledger.completions
    memory: defaultdict[str, list[float]] = defaultdict(list)
    latency: list[float] = []
    run.ledger.take_latency()
    for _ in run.faults(SAMPLES, every=(run.seconds or 0) / 100 or 1.0, progress=150):
        for party, size in _memory(run).items():
            memory[party].append(size)
        if found := run.ledger.take_latency():
            latency.append(found)
    seconds, done = time.monotonic() - begin, run.ledger.completions - done
    run.fleet.finish_producers(stop=True)
    for party, samples in memory.items():
        # Of several processes of a role, that which has grown most.
        role = party.rstrip("0123456789")
        run.bound(f"memory of {role}, last quarter to first", _growth(samples), GROWTH, "x")
    quarter = seconds / 4
    early = run.control.slowdown(begin, begin + quarter)
    late = run.control.slowdown(begin + seconds - quarter, begin + seconds)
    slower = max(1.0, late / early)
    if latency or run.long:
        run.bound("median latency, last quarter to first", _growth(latency), LATENCY_GROWTH, "x", slowdown=slower)
    lines = [len(party.lines()) for party in (*run.fleet.workers, *run.fleet.producers)]
    run.bound("log lines of a process", max(lines), LOG_LINES, "")
    # On a loaded machine the ledger may read of every start before it reads of the add.
    median = f"{statistics.median(latency) * 1e3:.0f} ms" if latency else "not measured"
    run.note(f"{done / seconds:.0f} completed jobs per second, median latency {median}")
    run.note(", ".join(f"{party} {samples[-1] / 1e6:.0f} MB" for party, samples in memory.items()))


def _retention_works(run: ChaosRun) -> bool:
    """Whether retention has begun to delete completed and failed jobs: from then on the server's memory is flat."""
    return all(int(run.client.execute("ZCARD", run.key(end))) >= KEPT for end in ("completed", "failed"))


def _growth(samples: list[float]) -> float:
    quarter = max(1, len(samples) // 4)
    return statistics.median(samples[-quarter:]) / max(1e-9, statistics.median(samples[:quarter]))


def _memory(run: ChaosRun) -> dict[str, float]:
    """Return the memory of the server, and the resident memory of each worker and producer, in bytes."""
    found = {"server": float(run.client.info("memory")["used_memory"])}
    for party in (*run.fleet.workers, *run.fleet.producers):
        with open(f"/proc/{party.process.pid}/statm") as file:
            found[party.name] = int(file.read().split()[1]) * 4096.0
    return found
