"""Tests of the connections of Spark's processes."""

import gc
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glidemq_py import ConnectionOptions
from glidemq_py.errors import ConnectionRejectedError
from glidemq_py.spark.options import Place, forget, transport_of
from glidemq_py.testing import ServerProcess
from tests.inside import async_client


def test_only_planning_checks_the_server(
    restartable_server: Callable[..., ServerProcess], caplog: pytest.LogCaptureFixture
):
    """Otherwise every process of a save would log the same warning."""
    caplog.set_level(logging.WARNING, async_client.__name__)
    server = restartable_server()
    with server.client() as resp:
        resp.execute("CONFIG", "SET", "appendonly", "no")
    place = Place(options=ConnectionOptions.from_url(server.url))
    try:
        task = transport_of(place)
        assert not caplog.records
        assert [transport_of(place, check=True) for _ in range(2)] == [task, task]
        (line,) = caplog.messages
        assert "append-only file is off" in line
    finally:
        forget(place)


def test_planning_rejects_a_server_that_evicts(private_server: Callable[..., ServerProcess]):
    """Although a task of the same process is connected to it."""
    place = Place(options=ConnectionOptions.from_url(private_server(maxmemory_policy="allkeys-lru").url))
    try:
        transport_of(place)
        for _ in range(2):
            with pytest.raises(ConnectionRejectedError, match="maxmemory-policy is allkeys"):
                transport_of(place, check=True)
    finally:
        forget(place)


def test_spark_collects_no_modules_after_each_step(spark: Any, sink: Callable[..., Any], tmp_path: Path):
    """A full collection follows each task, and each step of planning; it would take longer than small tasks do."""
    from tests.spark.frozen import FrozenSource

    spark.dataSource.register(FrozenSource)
    sink(spark.range(0, 4, numPartitions=2).selectExpr("id"), "frozen", folder=tmp_path).save()
    found = {path.name.partition("-")[0]: int(path.read_text()) for path in tmp_path.iterdir()}
    assert set(found) == {"plan", "task", "commit"}
    assert min(found.values()) > 10_000, found


def test_other_processes_keep_their_collector(restartable_server: Callable[..., ServerProcess]):
    before = gc.get_freeze_count()
    place = Place(options=ConnectionOptions.from_url(restartable_server().url))
    try:
        transport_of(place)
        assert gc.get_freeze_count() <= before
    finally:
        forget(place)
