"""Spark writes and reads without a JVM: what a driver and its tasks call, in this process, on a real server."""

from __future__ import annotations

from typing import Any
from unittest import mock

from pyspark.sql.types import StringType, StructField, StructType

from glidemq_py.spark import writer as writing
from glidemq_py.spark.api import TaskFacts, pa
from glidemq_py.spark.source import make_reader, make_stream_reader, make_writer

__all__ = ["read", "read_events", "write"]

_ROWS = 5


def _strings(*names: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in names])


def write(options: dict[str, str], *, overwrite: bool = False) -> None:
    """Write a frame of one partition; then write another one and abort it."""
    given = {"jobName": "n", **options}
    batch = pa.RecordBatch.from_pydict({"data": [f"{n}" for n in range(_ROWS)]})
    with mock.patch.object(writing, "task_context", return_value=TaskFacts(0, 1, "", -1)):
        writer = make_writer(given, _strings("data"), overwrite)
        writer.commit([writer.write(iter([batch]))])
        aborted = make_writer(given, _strings("data"), overwrite)
        aborted.abort([aborted.write(iter([batch]))])


def read(options: dict[str, str], view: str) -> int:
    """Return the number of rows of a view: jobs or writes."""
    columns = {"jobs": ("id", "data"), "writes": ("writeId", "state")}[view]
    reader: Any = make_reader({**options, "view": view}, _strings(*columns))
    return sum(batch.num_rows for each in reader.partitions() for batch in reader.read(each))


def read_events(options: dict[str, str]) -> int:
    """Return the number of events, read as one micro-batch."""
    reader = make_stream_reader(
        {**options, "view": "events", "startingOffsets": "earliest"}, _strings("event", "jobId")
    )
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start))
    return sum(batch.num_rows for each in parts for batch in reader.read(each))
