"""Hours of mixed jobs: memory, latency and logs stay flat."""

import statistics
from typing import Any

from tests.chaos.run import ChaosRun

NUMBER = 16
TITLE = "soak: 1,000 mixed jobs per second"
SAMPLES = 8
GROWTH = 1.15


def play(run: ChaosRun) -> None:
    run.start_server(retain_events=False)
    run.ledger.forgets = True
    options: dict[str, Any] = {"concurrency": 50}
    workers, producers = (4, 4) if run.long else (2, 1)
    for _ in range(workers):
        run.fleet.worker(options=options)
    for worker in run.fleet.workers:
        worker.wait_ready()
    retention = {"remove_on_complete": 1_000, "remove_on_fail": 1_000}
    for _ in range(producers):
        run.fleet.producer(rate=1_000 / 1.6 / producers if run.long else 150, retention=retention)
    run.progress(1_500, 60)  # retention is in effect
    memory: list[float] = []
    latency: list[float] = []
    for _ in run.faults(SAMPLES, every=(run.seconds or 0) / 100 or 1.0, progress=150):
        memory.append(_memory(run))
        latency.append(run.ledger.take_latency())
    run.fleet.finish_producers(stop=True)
    quarter = max(1, len(memory) // 4)
    run.bound("memory, last quarter to first", _ratio(memory, quarter), GROWTH, "x")
    run.bound("median latency, last quarter to first", _ratio(latency, quarter), 2.0, "x")
    lines = sum(len(party.lines()) for party in (*run.fleet.workers, *run.fleet.producers))
    run.bound("log lines per process", lines / (workers + producers), 5, "")


def _ratio(samples: list[float], quarter: int) -> float:
    return statistics.median(samples[-quarter:]) / max(1e-9, statistics.median(samples[:quarter]))


def _memory(run: ChaosRun) -> float:
    """Return the memory of the server and the workers in bytes."""
    total = float(run.client.info("memory")["used_memory"])
    for worker in run.fleet.workers:
        with open(f"/proc/{worker.process.pid}/statm") as file:
            total += int(file.read().split()[1]) * 4096
    return total
