"""Tests that a restarted query writes each row once after its driver was killed at the dangerous points.

Kills at random moments are in test_random_kills.py.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from glidemq_py.testing import RespClient
from tests.spark.conftest import LIMIT_S, ROOT, Written, environment, missing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]

ROWS = 60


def test_driver_killed_between_prepare_and_decision(url: str, resp: RespClient, queue_name: str, tmp_path: Path):
    """Kill driver, JVM and Python when one queue is prepared; when all are; and when the write is just decided."""
    if problem := missing():
        pytest.skip(problem)
    queues = [queue_name, f"{queue_name}-b", f"{queue_name}-c"]
    (tmp_path / "in").mkdir()
    for n in range(3):
        rows = [{"data": str(i), "queue": queues[i % 3]} for i in range(n * ROWS, n * ROWS + ROWS)]
        (tmp_path / "in" / f"{n:05}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(calls: str) -> int:
        for note in [*tmp_path.glob("crashed-*"), *tmp_path.glob("killed-*")]:
            note.unlink()
        given = {"url": url, "queues": queues, "stream": True, "victim": "all", "calls": calls or None}
        command = [sys.executable, "-m", "tests.spark.killed_driver", str(tmp_path), json.dumps(given)]
        log = (tmp_path / "log").open("ab")
        return subprocess.Popen(
            command, cwd=ROOT, env=os.environ | environment(), start_new_session=True, stdout=log, stderr=log
        ).wait(LIMIT_S)

    def states() -> list[str]:
        found = [Written(resp, queue).staged for queue in queues]
        return [next((s for name, s in each.items() if name.count(":") == 1 and "." in name), "") for each in found]

    # A ballot, two queues prepared, the decision.
    for calls, expected in (("2", ["open", "prepared", "open"]), ("3", ["open", "prepared", "prepared"])):
        assert run(calls) == -signal.SIGKILL, (tmp_path / "log").read_text()
        assert states() == expected
        assert [Written(resp, queue).data for queue in queues] == [[], [], []]
    assert run("4") == -signal.SIGKILL
    assert states() == ["committed", "prepared", "prepared"]
    assert run("") == 0, (tmp_path / "log").read_text()
    for n, queue in enumerate(queues):
        assert sorted(map(int, Written(resp, queue).data)) == list(range(n, 3 * ROWS, 3))
        assert not Written(resp, queue).run("ZCARD", "writes")
