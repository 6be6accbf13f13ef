"""The names used from PySpark and PyArrow: stubs for type checkers, the real classes at run time.

Names of later PySpark versions have a substitute if they are missing.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

__all__ = [
    "ADMISSION",
    "DataSourceArrowWriter",
    "DataSourceReader",
    "DataSourceStreamArrowWriter",
    "DataSourceStreamReader",
    "InputPartition",
    "ReadAllAvailable",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "TaskFacts",
    "WriterCommitMessage",
    "arrow_types",
    "np",
    "pa",
    "pc",
    "task_context",
]  # fmt: skip

# None of them has type stubs for the names used here.
pa: Any = importlib.import_module("pyarrow")
np: Any = importlib.import_module("numpy")
pc: Any = importlib.import_module("pyarrow.compute")

ADMISSION = True
"""True if PySpark passes a stream reader the start and the limit of its micro-batch (4.2 and later)."""

if TYPE_CHECKING:

    class DataSourceReader:
        """Reads a frame."""

    class DataSourceStreamReader:
        """Reads a stream."""

    class DataSourceArrowWriter:
        """Writes a frame."""

    class DataSourceStreamArrowWriter:
        """Writes a stream."""

    class SupportsTriggerAvailableNow:
        """Marker of stream readers."""

    class WriterCommitMessage:
        """Message of a task to the driver."""

    class InputPartition:
        """The part of a queue that one task reads."""

        def __init__(self, value: Any) -> None: ...

    class ReadAllAvailable:
        """No limit."""

    class ReadMaxRows:
        """A limit."""

        max_rows: int

        def __init__(self, max_rows: int) -> None: ...

else:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        InputPartition,
        WriterCommitMessage,
    )

    try:  # since 4.2
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
    except ImportError:
        ADMISSION = False

        @dataclass
        class ReadAllAvailable:
            """No limit."""

        @dataclass
        class ReadMaxRows:
            """A limit in rows."""

            max_rows: int

        class SupportsTriggerAvailableNow:
            """PySpark before 4.2 runs availableNow by itself, as one batch."""


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """Facts about the running task."""

    partition: int
    attempt: int
    query: str
    batch: int


def task_context() -> TaskFacts:
    """Return the running task's partition, attempt, streaming query and micro-batch."""
    context: Any = cast("Any", importlib.import_module("pyspark")).TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") or ""
    batch = context.getLocalProperty("streaming.sql.batchId") or "-1"
    return TaskFacts(context.partitionId(), context.taskAttemptId(), query, int(batch))


def arrow_types(fields: Sequence[tuple[str, str]]) -> Any:
    """Return the Arrow schema of columns given with Spark's type names."""
    return pa.schema([pa.field(name, _arrow_type(kind)) for name, kind in fields])


def _arrow_type(kind: str) -> Any:
    if kind == "map":
        return pa.map_(pa.string(), pa.string())
    if kind == "timestamp":
        return pa.timestamp("us", tz="UTC")
    return {"string": pa.string(), "integer": pa.int32(), "long": pa.int64()}[kind]
