"""The Spark data source ``glidemq``: write DataFrames as jobs, read jobs and events as DataFrames.

PySpark discovers it through ``pyspark_glidemq``. If a broken ``pyspark_*`` module of another package prevents this,
call ``spark.dataSource.register(GlideMQDataSource)``.

It needs the extra ``spark``, and Java 17 or later for Spark itself. Jobs are added by the same server functions as
everywhere else; this package implements Spark's interfaces only.
"""

from __future__ import annotations

from typing import Any

__all__ = ["GlideMQDataSource", "WriteReport", "last_report", "save"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    # Importing a submodule must not import PySpark; accessing the class does.
    if name == "GlideMQDataSource":
        try:
            from pyspark_glidemq import DefaultSource
        except ImportError as error:
            raise ImportError('the data source requires PySpark: pip install "glidemq-py[spark]"') from error

        return DefaultSource
    if name in ("WriteReport", "last_report", "save"):
        from glidemq_py.spark import reports

        return getattr(reports, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
