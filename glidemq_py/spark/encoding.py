"""From Arrow batches to the rows of an add. What a row is, is the library's business (`queue/rows.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, cast

from glidemq_py.errors import ColumnError, GlideMQValidationError
from glidemq_py.options.job import NO_OPTIONS, JobOptions
from glidemq_py.options.names import validate_job_name, validate_queue_name
from glidemq_py.options.stored import stored_names
from glidemq_py.queue.rows import stored_row
from glidemq_py.spark.write_options import WriteOptions, job_options, renamed
from glidemq_py.spark.write_schema import WritePlan
from glidemq_py.wire import json
from glidemq_py.wire.calls.adding import Row
from glidemq_py.wire.payload import encode_text

__all__ = ["RowEncoder"]

_REMEMBERED: Final = 4_096
_OPTION_OF: Final = {"jobId": "job_id", "orderingKey": "ordering"}


class RowEncoder:
    """Encodes the batches of one task.

    Args:
        plan: what the columns are.
        options: of the write.
    """

    def __init__(self, plan: WritePlan, options: WriteOptions) -> None:
        self._plan = plan
        self._write = options
        self._columns = plan.options
        self._known_names: set[str] = set()
        self._known_queues: set[str] = set()
        self._known_options: dict[tuple[Any, ...], tuple[JobOptions, Row]] = {}
        self._row = 0
        self._constant = self._tail(options.defaults)

    def encode(self, batch: Any) -> Iterator[tuple[str | None, Row]]:
        """Queue (None = the write's own) and row of each job of an Arrow batch.

        Raises:
            GlideMQValidationError: names the column, the row in its partition, and the value.
        """
        texts = self._texts(batch)
        names = self._names(batch)
        queues = self._queues(batch)
        if not self._columns:
            tail = self._constant
            for i, text in enumerate(texts):
                yield queues[i] if queues else None, [names[i] if names else self._write.job_name, text, *tail]
        else:
            columns = [batch.column(self._plan.columns[name]).to_pylist() for name in self._columns]
            for i, values in enumerate(zip(*columns, strict=True)):
                tail = self._options_tail(values, i)
                yield queues[i] if queues else None, [names[i] if names else self._write.job_name, texts[i], *tail]
        self._row += batch.num_rows

    # -- data ---------------------------------------------------------------------------------------------------

    def _texts(self, batch: Any) -> list[str]:
        plan, write = self._plan, self._write
        if plan.data_kind == "none":
            return ["null"] * batch.num_rows
        where = plan.data_columns[0][1] if plan.data_kind != "object" else "data"
        if plan.data_kind == "object":
            positions = [position for position, _ in plan.data_columns]
            values = batch.select(positions).to_pylist(maps_as_pydicts="strict")
        else:
            values = batch.column(plan.data_columns[0][0]).to_pylist(maps_as_pydicts="strict")
        texts: list[str] = []
        raw = plan.data_kind == "json"
        dumps, loads, compression = json.dumps, json.loads, write.compression
        try:
            for value in values:
                if raw:
                    text = "null" if value is None else value
                    loads(text, where)  # a job whose data nobody can read must not be added
                else:
                    text = dumps(value, where)
                texts.append(encode_text(text, compression, option=where))
        except GlideMQValidationError as error:
            raise self._at(error, where, len(texts)) from None
        return texts

    # -- names and queues ----------------------------------------------------------------------------------------

    def _names(self, batch: Any) -> list[str] | None:
        position = self._plan.columns.get("name")
        if position is None:
            return None
        names: list[Any] = batch.column(position).to_pylist()
        default, known = self._write.job_name, self._known_names
        for i, name in enumerate(names):
            if name is None:
                if default is None:
                    raise self._at(
                        GlideMQValidationError("name", None, "is null, and there is no 'jobName'"), "name", i
                    )
                names[i] = default
            elif name not in known:
                self._check("name", name, i, validate_job_name)
                _remember(known, name)
        return names

    def _queues(self, batch: Any) -> list[str | None] | None:
        position = self._plan.columns.get("queue")
        if position is None:
            return None
        queues: list[str | None] = batch.column(position).to_pylist()
        for i, queue in enumerate(queues):
            if queue is not None and queue not in self._known_queues:
                self._check("queue", queue, i, validate_queue_name)
                _remember(self._known_queues, queue)
        return queues

    # -- options ------------------------------------------------------------------------------------------------

    def _options_tail(self, values: Sequence[Any], i: int) -> Row:
        """What follows name and data; remembered for the values of all columns but the id."""
        job_id: str | None = None
        key = tuple(values)
        if "jobId" in self._plan.columns:
            at = self._columns.index("jobId")
            job_id = values[at]
            key = (*key[:at], None, *key[at + 1 :])
        found = self._known_options.get(key)
        try:
            if found is None:
                options = self._options(key)
                found = (options, self._tail(options))
                if len(self._known_options) < _REMEMBERED:
                    self._known_options[key] = found
            if job_id is None:
                return found[1]
            return self._tail(JobOptions.merge(found[0], JobOptions(job_id=job_id)))
        except GlideMQValidationError as error:
            raise self._at(renamed(error, ""), "", i) from None

    def _options(self, values: Sequence[Any]) -> JobOptions:
        chosen: dict[str, Any] = {}
        for column, value in zip(self._columns, values, strict=True):
            if value is not None and column != "opts":
                chosen[_OPTION_OF.get(column, column)] = value
        options = job_options(chosen, "") if chosen else NO_OPTIONS
        if "opts" in self._columns:
            text = values[self._columns.index("opts")]
            if text is not None:
                options = JobOptions.merge(_read_opts(text), options)
        return JobOptions.merge(self._write.defaults, options)

    def _tail(self, options: JobOptions) -> Row:
        return stored_row("", "", options.to_wire_json(), options)[2:]

    # -- errors -------------------------------------------------------------------------------------------------

    def _check(self, column: str, value: str, i: int, check: Any) -> None:
        try:
            check(value, column)
        except GlideMQValidationError as error:
            raise self._at(error, column, i) from None

    def _at(self, error: GlideMQValidationError, column: str, i: int) -> ColumnError:
        return ColumnError(column or error.option, error.value, error.problem, self._row + i + 1)


def _remember(known: set[str], text: str) -> None:
    if len(known) < _REMEMBERED:
        known.add(text)


def _read_opts(text: str) -> JobOptions:
    """Options from the JSON of a column: named as they are stored, or as Python names them."""
    given = json.loads(text, "opts")
    if not isinstance(given, dict):
        raise GlideMQValidationError("opts", text, 'must be a JSON object such as {"attempts": 3}')
    return JobOptions.parse(stored_names(cast("dict[str, Any]", given)))
