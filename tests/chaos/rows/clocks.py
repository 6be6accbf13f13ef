"""Clocks are an hour wrong and step: those of workers and producers, each in its direction, or the server's."""

import os
import statistics
import time
from bisect import bisect_left
from itertools import accumulate
from pathlib import Path

from tests.chaos.run import ChaosRun

NUMBER = 8
TITLE = "clocks one hour off, both ways, stepping:"
VARIANTS = ("clients", "server")
PLACES = ("usr/lib/*/faketime/libfaketime.so.1", "usr/local/lib/faketime/libfaketime.so.1")
SINGLE_RUNS = ("plain", "priority", "lifo", "delay", "ordered", "bulk")
LOCK_MS = 5_000
CONCURRENCY = 8
RATE = (100, 500)
"""Limits of the queue: jobs per window, and the window, ms of the server's clock."""


def faketime_library() -> str:
    """Return the path of libfaketime: GLIDEMQ_FAKETIME, or Debian's."""
    given = os.environ.get("GLIDEMQ_FAKETIME", "")
    found = [str(path) for place in PLACES for path in Path("/").glob(place)]
    return given or next(iter(found), "")


def missing(_: str) -> str:
    return "" if faketime_library() else "libfaketime is not installed (Debian: faketime)"


def follow(clock: Path) -> dict[str, str]:
    """Return environment variables with which a process reads its clock's offset from a file, every second."""
    return {
        "LD_PRELOAD": faketime_library(), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip


def play(run: ChaosRun, variant: str):
    (_clients if variant == "clients" else _server)(run)


def _clients(run: ChaosRun):
    run.start_server()
    run.no_stalls = True
    with run.queue() as queue:
        queue.limits.set_concurrency(CONCURRENCY)
        queue.limits.set_rate_limit(*RATE)
    options = {"lock_duration": 10_000, "stalled_interval": 1_000}
    clocks = [run.folder / f"clock{number}" for number in range(3)]
    for clock, offset in zip(clocks, ("+3600", "-3600", "+3600"), strict=True):
        clock.write_text(offset)
    for clock in clocks[:2]:
        run.fleet.worker(options=options, environment_changes=follow(clock))
    for worker in run.fleet.workers:
        worker.wait_ready()
    run.fleet.producer(rate=100, environment_changes=follow(clocks[2]))
    run.progress(200)
    for number in run.faults(3, every=3, progress=60):
        clocks[number % len(clocks)].write_text(run.random.choice(("+3600", "-3600", "+0")))
    run.checks.append(lambda: _check_clients(run))


def _check_clients(run: ChaosRun):
    """Delayed jobs started when they were due, and the limits held, both by the server's clock."""
    late: list[int] = []
    begun: list[int] = []
    for key in run.client.keys(run.key("job:*")):
        record = run.client.hash(key)
        if run.ledger.attempted.get(key.rpartition(":")[2]) in SINGLE_RUNS and "processedOn" in record:
            begun.append(int(float(record["processedOn"])))
            if record["name"] == "delay":
                late.append(begun[-1] - int(float(record["timestamp"])) - int(float(record["delay"])))
    run.expect(late, "no delayed job")
    run.expect(min(late, default=0) >= -1, f"a delayed job started {-min(late, default=0)} ms early")
    # A job that is due still waits for its turn under the limits; the median shows the clocks.
    run.bound("delayed jobs started late by", statistics.median(late or [0]) / 1000, 1)
    begun.sort()
    most = max((bisect_left(begun, at + RATE[1]) - index for index, at in enumerate(begun)), default=0)
    run.expect(most <= 2 * RATE[0], f"{most} jobs started in {RATE[1]} ms, which touches two windows of {RATE[0]}")
    steps = [(step.at, 1) for steps in run.ledger.started.values() for step in steps]
    steps += [(step.at, -1) for steps in run.ledger.ended.values() for step in steps]
    active = max(accumulate(change for _, change in sorted(steps)), default=0)
    run.expect(active <= CONCURRENCY, f"{active} jobs were active at a time, more than {CONCURRENCY}")
    run.note(
        f"{len(late)} delayed jobs, late by {max(late, default=0)} ms at most; {most} jobs in {RATE[1]} ms at most"
    )


def start_server_with_clock(run: ChaosRun) -> Path:
    """Start the server under test, whose clock follows the offset in a file; return the file."""
    clock = run.folder / "clock"
    clock.write_text("+0")
    before = dict(os.environ)
    os.environ.update(follow(clock))
    try:
        run.start_server()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return clock


def _server(run: ChaosRun):
    clock = start_server_with_clock(run)
    run.fleet_of(2, jobs=400, rate=80, options={"lock_duration": LOCK_MS, "stalled_interval": 1_000}, work_ms=20)
    steps = ("-3600", "+0", "+3600")
    for number in run.faults(len(steps), every=3, progress=60):
        clock.write_text(steps[number % len(steps)])
        run.serving("served again after a step of the clock", time.monotonic(), LOCK_MS / 1000)
    # What was delayed while the clock was ahead is due only then.
    clock.write_text("+7200")

    def check():
        runs = [
            len(started)
            for job_id, started in run.ledger.started.items()
            if run.ledger.attempted.get(job_id) in SINGLE_RUNS
        ]
        run.bound("runs of a job", max(runs, default=0), 2, "")
        server = int(run.client.execute("TIME")[0])
        run.note(f"the server's clock is {server - time.time():.0f} s ahead")

    run.checks.append(check)
