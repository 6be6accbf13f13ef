"""Every row is one job after random SIGKILLs of drivers, JVMs and Python workers. The long form is a chaos row."""

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from glidemq_py.testing import RespClient, ServerProcess
from tests.spark.conftest import missing
from tests.spark.kills import Kills

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]


def test_rows_survive_random_kills(private_server: Callable[..., ServerProcess], tmp_path: Path):
    """`GLIDEMQ_FUZZ_SEED` selects the seed, `GLIDEMQ_FUZZ_RUNS` the number of kills."""
    if problem := missing():
        pytest.skip(problem)
    if sys.platform != "linux":
        pytest.skip("processes are found in /proc")
    seed = int(os.environ.get("GLIDEMQ_FUZZ_SEED", random.SystemRandom().randrange(1_000_000)))
    server = private_server()
    with server.client(timeout=60) as client:
        assert isinstance(client, RespClient)
        kills = Kills(server.url, client, seed, tmp_path)
        kills.run(int(os.environ.get("GLIDEMQ_FUZZ_RUNS", "4")))
    assert not kills.problems, f"seed {seed}: {kills.problems}"
    assert kills.killed.total() >= 4
    assert kills.writes
