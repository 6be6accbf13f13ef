"""Entry points of the data source: columns, readers and writers. Options and columns are validated on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glidemq_py.errors import GlideMQValidationError
from glidemq_py.spark.options import WriteOptions
from glidemq_py.spark.write_schema import plan_write
from glidemq_py.spark.writer import FrameWriter, StreamWriter

__all__ = ["default_schema", "make_reader", "make_stream_reader", "make_stream_writer", "make_writer"]

Options = Mapping[str, str]


def make_writer(options: Options, schema: Any, overwrite: bool) -> FrameWriter:
    """Return the writer of a DataFrame."""
    chosen = WriteOptions.parse(options, streaming=False)
    if overwrite and not chosen.drain:
        problem = (
            'is not supported: use .mode("append"), or .option("overwrite", "drain"), which deletes the waiting jobs'
        )
        raise GlideMQValidationError("mode", "overwrite", problem)
    return FrameWriter(chosen, plan_write(schema, chosen), overwrite)


def make_stream_writer(options: Options, schema: Any, overwrite: bool) -> StreamWriter:
    """Return the writer of a streaming query."""
    if overwrite:
        raise GlideMQValidationError("outputMode", "complete", "is not supported: jobs can only be appended")
    chosen = WriteOptions.parse(options, streaming=True)
    return StreamWriter(chosen, plan_write(schema, chosen))


def default_schema(options: Options) -> str:
    """Return the columns of a read without a schema."""
    from glidemq_py.spark.columns import schema_of

    return schema_of(options)


def make_reader(options: Options, schema: Any) -> Any:
    """Return the reader of jobs, of their counts, or of reports of saves."""
    from glidemq_py.spark.columns import read_columns
    from glidemq_py.spark.counts_reader import CountsReader
    from glidemq_py.spark.read_options import ReadOptions
    from glidemq_py.spark.reader import JobsReader
    from glidemq_py.spark.reports import WritesReader

    chosen, columns = ReadOptions.parse(options, streaming=False), read_columns(schema, options)
    if chosen.view == "writes":
        return WritesReader(chosen, columns)
    if chosen.view == "counts":
        return CountsReader(chosen, columns)
    return JobsReader(chosen, columns)


def make_stream_reader(options: Options, schema: Any) -> Any:
    """Return the reader of finished jobs, or of events."""
    from glidemq_py.spark import api
    from glidemq_py.spark.columns import read_columns
    from glidemq_py.spark.events_reader import EventsReader
    from glidemq_py.spark.read_options import ReadOptions
    from glidemq_py.spark.results_reader import ResultsReader

    chosen = ReadOptions.parse(options, streaming=True)
    if chosen.max_offsets is not None and not api.ADMISSION:
        # Older versions do not pass the start offset of a restarted query, and run availableNow as one batch.
        raise GlideMQValidationError("maxOffsetsPerTrigger", chosen.max_offsets, "requires PySpark 4.2 or later")
    columns = read_columns(schema, options)
    return ResultsReader(chosen, columns) if chosen.view == "jobs" else EventsReader(chosen, columns)
