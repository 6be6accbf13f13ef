"""The clocks of workers and producers are an hour wrong, each in its direction, and step."""

import os
from pathlib import Path

from tests.chaos.run import ChaosRun

NUMBER = 8
TITLE = "clients' clocks one hour off, both ways, stepping"
PLACES = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/local/lib/faketime/libfaketime.so.1")


def _library() -> str:
    """Return the path of libfaketime: GLIDEMQ_FAKETIME, or Debian's."""
    given = os.environ.get("GLIDEMQ_FAKETIME", "")
    found = [str(path) for place in PLACES for path in Path("/").glob(place[1:])]
    return given or next(iter(found), "")


def missing(_: str) -> str:
    return "" if _library() else "libfaketime is not installed (Debian: faketime)"


def play(run: ChaosRun) -> None:
    run.start_server()
    run.no_stalls = True
    options = {"lock_duration": 10_000, "stalled_interval": 1_000}
    clocks = [run.folder / f"clock{number}" for number in range(3)]
    environments = [
        {
            "LD_PRELOAD": _library(), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1", "FAKETIME_CACHE_DURATION": "1",
        }
        for clock in clocks
    ]  # fmt: skip
    offsets = ["+3600", "-3600", "+3600"]
    for clock, offset in zip(clocks, offsets, strict=True):
        clock.write_text(offset)
    for environment in environments[:2]:
        run.fleet.worker(options=options, environment_changes=environment)
    for worker in run.fleet.workers:
        worker.wait_ready()
    run.fleet.producer(None if run.long else 300, rate=100, environment_changes=environments[2])
    for number in run.faults(3, every=3, progress=60):
        clock = clocks[number % len(clocks)]
        clock.write_text(run.random.choice(("+3600", "-3600", "+0")))
