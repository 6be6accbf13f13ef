"""Hostile data in every key, and the state machine: the long forms of the random tests of the server functions."""

import os
import re
import subprocess
import sys
import time

from tests.chaos.fleet import ROOT
from tests.chaos.run import ChaosRun

NUMBER = 12
TITLE = "hostile data in every key; random steps of producers, workers, operators and peers"
LONG_ONLY = True
"""The short forms are tests of their own."""
TESTS = ("tests/lua/test_hostile_data.py", "tests/lua/test_state_machine.py")
ROUNDS = ("5", "20")


def play(run: ChaosRun) -> None:
    run.start_server()
    until = time.monotonic() + (run.seconds or 0)
    tests = 0
    while time.monotonic() < until or not tests:
        for path, rounds in zip(TESTS, ROUNDS, strict=True):
            ended = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", path],
                cwd=ROOT, env={**os.environ, "GLIDEMQ_CHAOS": rounds}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            run.expect(ended.returncode == 0, f"{path}: {ended.stdout[-3_000:]}")
            passed = re.search(r"(\d+) passed", ended.stdout)
            tests += int(passed[1]) if passed else 1
            if ended.returncode:
                return
    run.note(f"{tests} tests of many rounds each")
