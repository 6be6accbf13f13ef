"""Tests of drivers that save in several threads."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.spark.conftest import Written


@pytest.mark.parametrize(
    ("options", "states"),
    [
        ({}, ["done"] * 4),
        ({"writeId": "same"}, ["done", "repeated", "repeated", "repeated"]),
        ({"guarantee": "append"}, ["done"] * 4),
    ],
)
def test_threads_save_at_once(spark: Any, url: str, written: Written, options: dict[str, str], states: list[str]):
    """New threads have no active session, in which Spark finds the data source."""
    from glidemq_py.spark import save

    frame = spark.range(3).selectExpr("cast(id as string) as data")

    def save_one(_: int) -> Any:
        return save(frame, written.queue, url=url, jobName="n", **options)

    with ThreadPoolExecutor(1 if "writeId" in options else 4) as pool:
        rows = list(pool.map(save_one, range(4)))
    assert [row.state for row in rows] == states
    assert sum(row.jobs for row in rows) == len(written.data) == 3 * states.count("done")
