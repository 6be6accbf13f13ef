"""Reports of saves: stored on the server with the write, by any process that completes it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from glidemq_py._core import json_text as json
from glidemq_py._core.keys import QueueKeys
from glidemq_py._core.times import DAY_MS
from glidemq_py._features import staged_writes as staging
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.spark.api import DataSourceReader, InputPartition
from glidemq_py.spark.columns import Columns, Frame, ours
from glidemq_py.spark.options import Given, transport_of
from glidemq_py.spark.placing import by_whole_queue
from glidemq_py.spark.read_options import ReadOptions

__all__ = ["WriteReport", "WritesReader", "facts_of", "last_report", "report_of", "save"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReport:
    """The result of one save, or of one micro-batch of a stream.

    Attributes:
        write_id: its `writeId`, random if none was given; for a micro-batch ``<query id>.<number>``.
        query: id of the streaming query, or ''.
        finished_at: when all its jobs were added.
        jobs: number of jobs added.
        skipped: number of rows that added no job: their `jobId` exists, or they cost too much for their ordering group.
        rows: number of rows of the DataFrame; 0 for a repetition, as are the next two.
        null_rows: number of rows whose data was null; their jobs have the data null.
        bytes: size of the packed rows.
        repeated: True if the write was saved before, so that this save added nothing.
        repetitions: how often the write had been repeated, this save included.
        queues: jobs added and rows skipped per queue; at most 101 queues.
    """

    write_id: str
    query: str = ""
    finished_at: datetime
    jobs: int
    skipped: int
    rows: int = 0
    null_rows: int = 0
    bytes: int = 0
    repeated: bool = False
    repetitions: int = 0
    queues: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])


def facts_of(messages: Sequence[Any]) -> str:
    """Return the counts of the tasks, as text of a report."""
    counts = [message for message in messages if message is not None]
    facts: dict[str, Any] = {name: sum(getattr(each, name) for each in counts) for name in ("rows", "nulls", "bytes")}
    return json.dumps(facts)


def report_of(row: staging.WriteReport) -> WriteReport:
    """Return a report as users see it."""
    facts: Any = {}
    if row.facts:
        facts = json.loads(row.facts, "facts")
    return WriteReport(
        write_id=row.id,
        query=row.query,
        finished_at=datetime.fromtimestamp(row.at / 1_000, UTC),
        jobs=row.jobs,
        skipped=row.others,
        rows=int(facts.get("rows", 0)),
        null_rows=int(facts.get("nulls", 0)),
        bytes=int(facts.get("bytes", 0)),
        repeated=row.repeats > 0,
        repetitions=row.repeats,
        queues=by_whole_queue(row.queues),
    )


def last_report(queue: str, *, write_id: str | None = None, **options: Any) -> WriteReport | None:
    """Return the report of the last save to a queue, or None if no save has been completed in the last 30 days.

    Reports are stored on the server, so this works in the driver program, in another process, and with Spark Connect.

    Args:
        queue: the option `queue` of the save.
        write_id: return the last report of this write.
        **options: options of the server as for the save: ``url``, ``prefix``, ``addresses``, ...

    Raises:
        GlideMQValidationError: if an option is invalid.
        GlideMQConnectionError: if the server cannot be reached.
    """
    given = Given({name: str(value) for name, value in {"queue": queue, **options}.items() if value is not None})
    if write_id is not None and not write_id:
        raise GlideMQValidationError("write_id", write_id, "must not be empty")
    keys, transport, first = QueueKeys(given.prefix, given.queue), transport_of(given.place), 0
    while True:
        rows = transport.call(staging.write_reports(keys, first))
        for row in rows:
            if write_id is None or row.id == write_id:
                return report_of(row)
        if not rows or write_id is None:
            return None
        first += len(rows)


def save(frame: Any, queue: str, **options: Any) -> Any:
    """Append a DataFrame to a queue, in any thread, and return the newest report of the write.

    Spark finds Python data sources only in threads with an active session. Repetitions of a `writeId` (state
    ``repeated``) are shown with Spark Connect too, where warnings are in the log of the server.

    Args:
        frame: the DataFrame.
        queue: the option `queue`.
        **options: further options of the save. Without `writeId`, or with ``guarantee="append"``, it has a random id.

    Returns:
        A row of the view ``writes``; its columns are described in docs/reference/spark.md.
    """
    session = frame.sparkSession
    session.createDataFrame([], "a int")  # makes the session active, and runs nothing
    given: dict[str, Any] = {"queue": queue, **options}
    if given.get("guarantee") != "append" and "writeId" not in given:
        given = {"rememberWrites": DAY_MS, **given, "writeId": secrets.token_hex(16)}
    frame.write.format("glidemq").mode("append").options(**given).save()
    rows = session.read.format("glidemq").options(**{**given, "view": "writes"}).load().where("finishedAt is not null")
    return (rows.where(rows.writeId == given["writeId"]) if "writeId" in given else rows).first()


_FINISHED_STATES: Any = {False: "done", True: "repeated"}


class WritesReader(DataSourceReader):
    """Reads the unfinished writes of a queue and the reports of the finished ones, in one partition.

    Args:
        options: options of the read.
        columns: the requested columns.
    """

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """Return the only partition."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the writes as Arrow batches."""
        transport, keys = transport_of(self._options.place), self._options.keys
        frame, names = Frame(self._columns), [ours(name, "writes") for name, _ in self._columns]
        unfinished = [
            {"writeId": each.id, "state": each.state, "query": each.query, "home": each.home, "idle": str(each.idle)}
            for each in transport.call(staging.writes(keys.meta))
        ]
        first, page = 0, unfinished
        while True:
            if page:
                values: list[list[Any]] = [
                    [row.get(name, [] if name == "queues" else None) for row in page] for name in names
                ]
                yield frame.batch(values, len(page))
            rows = transport.call(staging.write_reports(keys, first))
            if not rows:
                return
            first += len(rows)
            page = [self._row(report_of(row)) for row in rows]

    def _row(self, report: WriteReport) -> dict[str, Any]:
        numbers = {
            "finishedAt": int(report.finished_at.timestamp() * 1_000), "jobs": report.jobs, "skipped": report.skipped,
            "rows": report.rows, "nullRows": report.null_rows, "bytes": report.bytes,
            "repetitions": report.repetitions,
        }  # fmt: skip
        return {
            "writeId": report.write_id,
            "state": _FINISHED_STATES[report.repeated],
            "query": report.query,
            "home": self._options.keys.name,
            "queues": [(queue, str(jobs)) for queue, (jobs, _) in report.queues.items()],
            **{name: str(number) for name, number in numbers.items()},
        }
