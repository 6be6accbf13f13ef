"""Tests of drivers that save in several threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.spark.conftest import Written


def test_threads_save_at_once(spark: Any, sink: Callable[..., Any], written: Written):
    """A thread needs an active session, as docs/learn/spark.md says."""
    frame = spark.range(3).selectExpr("cast(id as string) as data")

    def save(number: int) -> None:
        spark.createDataFrame([], "a int")
        sink(frame, writeId=f"w{number}").save()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(4)))
    assert sorted(written.data) == sorted(["0", "1", "2"] * 4)
