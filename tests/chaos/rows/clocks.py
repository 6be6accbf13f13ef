"""Clocks are an hour wrong and step: those of workers and producers, each in its direction, or the server's."""

import os
import time
from pathlib import Path

from tests.chaos.run import ChaosRun

NUMBER = 8
TITLE = "clocks one hour off, both ways, stepping:"
VARIANTS = ("clients", "server")
PLACES = ("usr/lib/*/faketime/libfaketime.so.1", "usr/local/lib/faketime/libfaketime.so.1")
SINGLE_RUNS = ("plain", "priority", "lifo", "delay", "ordered", "bulk")


def _library() -> str:
    """Return the path of libfaketime: GLIDEMQ_FAKETIME, or Debian's."""
    given = os.environ.get("GLIDEMQ_FAKETIME", "")
    found = [str(path) for place in PLACES for path in Path("/").glob(place)]
    return given or next(iter(found), "")


def missing(_: str) -> str:
    return "" if _library() else "libfaketime is not installed (Debian: faketime)"


def _follow(clock: Path) -> dict[str, str]:
    """Return environment variables with which a process reads its clock's offset from a file, every second."""
    return {
        "LD_PRELOAD": _library(), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip


def play(run: ChaosRun, variant: str) -> None:
    (_clients if variant == "clients" else _server)(run)


def _clients(run: ChaosRun) -> None:
    run.start_server()
    run.no_stalls = True
    options = {"lock_duration": 10_000, "stalled_interval": 1_000}
    clocks = [run.folder / f"clock{number}" for number in range(3)]
    for clock, offset in zip(clocks, ("+3600", "-3600", "+3600"), strict=True):
        clock.write_text(offset)
    for clock in clocks[:2]:
        run.fleet.worker(options=options, environment_changes=_follow(clock))
    for worker in run.fleet.workers:
        worker.wait_ready()
    run.fleet.producer(rate=100, environment_changes=_follow(clocks[2]))
    for number in run.faults(3, every=3, progress=60):
        clocks[number % len(clocks)].write_text(run.random.choice(("+3600", "-3600", "+0")))


def _server(run: ChaosRun) -> None:
    clock = run.folder / "clock"
    clock.write_text("+0")
    before = dict(os.environ)
    os.environ.update(_follow(clock))
    try:
        run.start_server()
    finally:
        os.environ.clear()
        os.environ.update(before)
    run.fleet_of(2, jobs=400, rate=80, options={"lock_duration": 5_000, "stalled_interval": 1_000}, work_ms=20)
    steps = ("-3600", "+0", "+3600")
    for number in run.faults(len(steps), every=3, progress=60):
        clock.write_text(steps[number % len(steps)])
    # What was delayed while the clock was ahead is due only then.
    clock.write_text("+7200")

    def check() -> None:
        runs = [
            len(started)
            for job_id, started in run.ledger.started.items()
            if run.ledger.attempted.get(job_id) in SINGLE_RUNS
        ]
        run.bound("runs of a job", max(runs, default=0), 2, "")
        server = int(run.client.execute("TIME")[0])
        run.note(f"the server's clock is {server - time.time():.0f} s ahead")

    run.checks.append(check)
