"""The common part of the streams of a queue: Spark's protocol of offsets, limits and losses."""

from __future__ import annotations

from typing import Any

from glidemq_py._core.logs import get_logger
from glidemq_py.errors import GlideMQError
from glidemq_py.spark.api import DataSourceStreamReader, ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
from glidemq_py.spark.columns import Columns
from glidemq_py.spark.read_options import ReadOptions

__all__ = ["Offset", "QueueStreamReader"]

_log = get_logger(__name__)

Offset = dict[str, Any]


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of a queue's entries, which have consecutive numbers. The server trims it, so `commit` does nothing.

    Args:
        options: options of the read.
        columns: requested columns.
    """

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._initial: Offset | None = None
        self._target: Offset | None = None

    def _start(self) -> Offset:
        """Return the offset at which a query without a checkpoint starts."""
        raise NotImplementedError

    def _newest(self) -> Offset:
        """Return the offset of the newest entry."""
        raise NotImplementedError

    def initialOffset(self) -> Offset:  # noqa: N802  # PySpark's name
        """Return the start of a query without a checkpoint; cached, because Spark calls it twice."""
        if self._initial is None:
            self._initial = self._start()
        return self._initial

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  # PySpark's name
        """Return the limit set by `maxOffsetsPerTrigger`."""
        most = self._options.max_offsets
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802  # PySpark's name
        """Return the newest offset, for the query's progress report."""
        return self._newest()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # PySpark's name
        """Stop at the newest entry that exists now."""
        self._target = self._newest()

    def commit(self, end: Offset) -> None:
        """Do nothing: the server trims the entries."""

    def stop(self) -> None:
        """Do nothing."""

    def _most(self, limit: Any) -> int | None:
        """Return how many entries Spark's limit allows, or None for all."""
        if isinstance(limit, ReadAllAvailable):
            return None
        return limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_offsets

    def _report(self, loss: GlideMQError) -> None:
        """Raise the error of a loss, or log it if the user chose to continue."""
        if self._options.fail_on_loss:
            raise loss
        _log.warning("%s", loss)
