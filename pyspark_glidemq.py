"""What PySpark finds by itself: it imports every top-level module ``pyspark_*`` and registers its `DefaultSource`.

So nothing is imported here but PySpark's own base class: an error would keep Spark from finding any data source. What
the methods do is in `glidemq_py.spark`, and imported when they are called.
"""

from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):  # type: ignore[misc, unused-ignore]  # where PySpark is not installed
    """The format ``glidemq``: queues as something to write frames to, and to read jobs and events from."""

    @classmethod
    def name(cls) -> str:
        """``glidemq``."""
        return "glidemq"

    def schema(self) -> str:
        """Columns of a read without a schema of its own."""
        from glidemq_py.spark.source import default_schema

        return default_schema(self.options)

    def reader(self, schema: Any) -> Any:
        """Jobs of a queue."""
        from glidemq_py.spark.source import make_reader

        return make_reader(self.options, schema)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Jobs from a frame."""
        from glidemq_py.spark.source import make_writer

        return make_writer(self.options, schema, overwrite)

    def streamReader(self, schema: Any) -> Any:  # noqa: N802  # PySpark's name
        """Events of a queue."""
        from glidemq_py.spark.source import make_stream_reader

        return make_stream_reader(self.options, schema)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802  # PySpark's name
        """Jobs from the micro-batches of a query."""
        from glidemq_py.spark.source import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)
