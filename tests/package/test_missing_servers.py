"""Tests of a server that is not installed take one line of the report, not one each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLUGIN = """
from glidemq_py.testing.servers import SERVER_BINARIES

SERVER_BINARIES["redis"] = ("redis-server", lambda: None)
"""


@pytest.mark.slow
def test_tests_of_a_missing_server_are_deselected_with_one_line(tmp_path: Path):
    (tmp_path / "without_redis.py").write_text(PLUGIN)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-m", "pytest", "-p", "without_redis", "-p", "no:cacheprovider", "-q", "--collect-only"]
    done = subprocess.run(
        [*command, "tests/lua/test_library_assembly.py"], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[valkey-9.1]" in done.stdout
    assert "redis]" not in done.stdout
    assert done.stdout.count("redis is not installed: install redis-server: ") == 1
    assert "tests not run" in done.stdout
