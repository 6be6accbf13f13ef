"""Spark programs that write to three queues: 20 SIGKILLs of the driver, its JVM, a Python worker, or all of them."""

import sys
import time
from functools import partial

from glidemq_py.spark import environment
from tests.chaos.run import ChaosRun
from tests.spark.kills import Kills

NUMBER = 18
TITLE = "Spark program killed (driver, JVM, Python worker, all) while it writes; restarted until it succeeds"
LONG_ONLY = True
"""The short form, four kills, is tests/spark/test_random_kills.py."""
KILLS = 20


def missing(_: str) -> str:
    if sys.platform != "linux":
        return "processes are found in /proc"
    return "; ".join(environment.missing(workers=False))


def play(run: ChaosRun):
    server = run.start_server()
    kills = Kills(server.url, run.client, run.seed, run.folder, report=partial(print, flush=True))
    kills.run(KILLS, time.monotonic() + (run.seconds or 0))
    for problem in kills.problems:
        run.problem(problem)
    victims = ", ".join(f"{victim} {count}" for victim, count in sorted(kills.killed.items()))
    run.note(f"{kills.killed.total()} kills ({victims}) in {kills.writes} writes")
