"""What the data source answers to Spark: which columns, and who reads and writes. Everything is checked here, on the
driver, before a task starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glidemq_py.errors import UnsupportedOptionError
from glidemq_py.spark.write_options import WriteOptions
from glidemq_py.spark.write_schema import plan_write
from glidemq_py.spark.writer import FrameWriter, StreamWriter

__all__ = ["default_schema", "make_reader", "make_stream_reader", "make_stream_writer", "make_writer"]

Options = Mapping[str, str]


def make_writer(options: Options, schema: Any, overwrite: bool) -> FrameWriter:
    """The writer of a frame."""
    chosen = WriteOptions.parse(options, streaming=False)
    if overwrite and not chosen.drain:
        problem = (
            'is not supported: a queue is not replaced by a frame. Write .mode("append"); or '
            '.option("overwrite", "drain"), which deletes the jobs that wait'
        )
        raise UnsupportedOptionError("mode", "overwrite", problem)
    return FrameWriter(chosen, plan_write(schema, chosen), overwrite)


def make_stream_writer(options: Options, schema: Any, overwrite: bool) -> StreamWriter:
    """The writer of a streaming query."""
    if overwrite:
        raise UnsupportedOptionError("outputMode", "complete", "is not supported: jobs can only be appended")
    chosen = WriteOptions.parse(options, streaming=True)
    return StreamWriter(chosen, plan_write(schema, chosen))


def default_schema(options: Options) -> str:
    """Columns of a read that names none."""
    from glidemq_py.spark.read_schema import schema_of

    return schema_of(options)


def make_reader(options: Options, schema: Any) -> Any:
    """The reader of jobs."""
    from glidemq_py.spark.read_options import ReadOptions
    from glidemq_py.spark.read_schema import read_columns
    from glidemq_py.spark.reader import JobsReader

    chosen = ReadOptions.parse(options, streaming=False)
    return JobsReader(chosen, read_columns(schema, "jobs"))


def make_stream_reader(options: Options, schema: Any) -> Any:
    """The reader of events."""
    from glidemq_py.spark import api
    from glidemq_py.spark.events_reader import EventsReader
    from glidemq_py.spark.read_options import ReadOptions
    from glidemq_py.spark.read_schema import read_columns

    chosen = ReadOptions.parse(options, streaming=True)
    if chosen.max_offsets is not None and not api.ADMISSION:
        # Without it the reader is not told where a query that is restarted goes on, and availableNow is one batch.
        raise UnsupportedOptionError("maxOffsetsPerTrigger", chosen.max_offsets, "needs PySpark 4.2 or later")
    return EventsReader(chosen, read_columns(schema, "events"))
