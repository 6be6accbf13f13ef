"""The Spark data source ``glidemq``: frames become jobs, jobs and events become frames.

PySpark finds it without being told (``pyspark_glidemq``). Where another package's broken ``pyspark_*`` module keeps it
from looking: ``spark.dataSource.register(GlideMQDataSource)``.

Needs the extra ``spark``, and Java 17 or later for Spark itself. Adding jobs is the library's and the wire's business
as everywhere else; here is only what Spark asks for.
"""

from __future__ import annotations

from typing import Any

__all__ = ["GlideMQDataSource"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    # PySpark is imported by whoever asks for the class, not by whoever looks at a submodule.
    if name == "GlideMQDataSource":
        try:
            from pyspark_glidemq import DefaultSource
        except ImportError as error:
            raise ImportError('the data source needs PySpark: pip install "glidemq-py[spark]"') from error

        return DefaultSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
