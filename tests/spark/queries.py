"""Queries that read a queue as a stream: those of Spark, and readers that are called as Spark calls them."""

import json
from pathlib import Path
from typing import Any

COLUMNS = {"jobs": "id", "events": "jobId"}
"""What a `Driver` reads of a view."""


def forget_commit(checkpoint: Path):
    """Delete Spark's record of the last batch: as if the driver had died after the sink's commit and before Spark's."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


class Driver:
    """Calls a reader as Spark does, without Spark: a restarted query for each micro-batch."""

    def __init__(self, url: str, queue: str, view: str = "jobs"):
        self._options = {"url": url, "queue": queue, "view": view, "startingOffsets": "earliest", "fetchSize": "7"}
        self._view = view
        self._batch: Any = None
        """Start and end of the micro-batch that failed; Spark repeats it."""
        self.offset: Any = None

    def reader(self, **options: str | None) -> Any:
        from pyspark.sql.types import StringType, StructField, StructType

        from glidemq_py.spark.source import make_stream_reader

        given = self._options | options
        if given.get("startingTimestamp") is not None:
            del given["startingOffsets"]
        schema = StructType([StructField(COLUMNS[self._view], StringType())])
        return make_stream_reader({name: text for name, text in given.items() if text is not None}, schema)

    def batch(self, reader: Any = None, **options: str) -> list[str]:
        """Read one micro-batch with a restarted query, or with this reader; return the ids of its jobs."""
        reader = reader or self.reader(**options)
        if self._batch is None:
            start = self.offset or json.loads(json.dumps(reader.initialOffset()))
            end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
            self._batch = start, end
        found = self.read(reader, *self._batch)
        (_, self.offset), self._batch = self._batch, None
        return found

    def read(self, reader: Any, start: Any, end: Any) -> list[str]:
        parts = reader.partitions(start, end)
        return [job for part in parts for batch in reader.read(part) for job in batch.column(0).to_pylist()]


class Query:
    """A query of Spark that reads a queue into files, a run at a time.

    Args:
        spark: the session.
        folder: for the files and the checkpoint.
        schema: columns to read.
        options: options of the read.
    """

    def __init__(self, spark: Any, folder: Path, schema: str, **options: Any):
        self._spark, self._folder, self._schema = spark, folder, schema
        self._options = {"startingOffsets": "earliest"} | options

    def start(self, *, available_now: bool = True, **options: Any) -> Any:
        reader = self._spark.readStream.format("glidemq").options(**self._options | options).schema(self._schema).load()
        writer = reader.writeStream.format("json").option("checkpointLocation", str(self._folder / "checkpoint"))
        if available_now:
            writer = writer.trigger(availableNow=True)
        return writer.start(str(self._folder / "out"))

    def run(self, **options: Any) -> list[int]:
        """Return the number of rows of each micro-batch of this run."""
        query = self.start(**options)
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def forget_commit(self):
        forget_commit(self._folder / "checkpoint")

    def rows(self) -> list[Any]:
        return list(self._spark.read.schema(self._schema).json(str(self._folder / "out")).collect())
