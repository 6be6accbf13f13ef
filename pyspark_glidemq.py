"""Discovery by PySpark: it imports every top-level module ``pyspark_*`` and registers its `DefaultSource`.

This module imports only PySpark's base class: an import error would prevent Spark from finding any data source. The
methods import their implementation from `glidemq_py.spark` when they are called.
"""

from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):  # type: ignore[misc, unused-ignore]  # PySpark may be missing
    """The format ``glidemq``: write DataFrames to queues, read jobs and events from them."""

    @classmethod
    def name(cls) -> str:
        """Return ``glidemq``."""
        return "glidemq"

    def schema(self) -> str:
        """Return the columns of a read without a schema."""
        from glidemq_py.spark.source import default_schema

        return default_schema(self.options)

    def reader(self, schema: Any) -> Any:
        """Return a reader of the jobs of a queue."""
        from glidemq_py.spark.source import make_reader

        return make_reader(self.options, schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Return a writer of a DataFrame."""
        from glidemq_py.spark.source import make_writer

        return make_writer(self.options, schema, overwrite)

    def streamReader(self, schema: Any) -> Any:  # noqa: N802  # PySpark's name
        """Return a reader of the finished jobs or the events of a queue."""
        from glidemq_py.spark.source import make_stream_reader

        return make_stream_reader(self.options, schema)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802  # PySpark's name
        """Return a writer of a query's micro-batches."""
        from glidemq_py.spark.source import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)
