"""Spark's writers without a JVM: the random failures of tests/memory/test_staged_write_fuzz.py, with new seeds."""

import importlib.util
import os
import re
import subprocess
import sys
import time

from tests.chaos.fleet import ROOT
from tests.chaos.run import ChaosRun

NUMBER = 17
TITLE = "Spark writers: any call dies, loses its reply or arrives late; zombies, speculation, replays, two drivers"
LONG_ONLY = True
"""The short form is a test of its own."""
TEST = "tests/memory/test_staged_write_fuzz.py"
RUNS = 200


def missing(_: str) -> str:
    return "" if importlib.util.find_spec("pyspark") and importlib.util.find_spec("pyarrow") else "PySpark is missing"


def play(run: ChaosRun):
    run.start_server()
    until = time.monotonic() + (run.seconds or 0)
    writes = rounds = 0
    while time.monotonic() < until or not rounds:
        seed = run.random.randrange(10_000_000)
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "--show-capture=no", "-p", "no:cacheprovider", TEST],
            cwd=ROOT, env={**os.environ, "GLIDEMQ_FUZZ_RUNS": str(RUNS), "GLIDEMQ_FUZZ_SEED": str(seed)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        rounds += 1
        run.expect(ended.returncode == 0, f"GLIDEMQ_FUZZ_SEED={seed} {TEST}: {ended.stdout[-3_000:]}")
        passed = re.search(r"(\d+) passed", ended.stdout)
        writes += RUNS * int(passed[1]) if passed else 0
        if ended.returncode:
            return
    run.note(f"{writes:,} random runs in {rounds} rounds")
