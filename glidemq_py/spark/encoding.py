"""From Arrow batches to the rows of an add. What a row is, is the library's business (`queue/rows.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

from glidemq_py.errors import ColumnError, GlideMQValidationError
from glidemq_py.options.job import NO_OPTIONS, JobOptions
from glidemq_py.options.names import validate_job_name, validate_queue_name
from glidemq_py.options.stored import stored_names
from glidemq_py.queue.rows import stored_row
from glidemq_py.spark.api import pa
from glidemq_py.spark.write_options import WriteOptions, job_options, renamed
from glidemq_py.spark.write_schema import WritePlan
from glidemq_py.wire import json
from glidemq_py.wire.calls.adding import Row
from glidemq_py.wire.payload import PAYLOAD_LIMIT, encode_text

__all__ = ["RowEncoder"]

_REMEMBERED: Final = 4_096
_SURELY_SMALL: Final = PAYLOAD_LIMIT // 4
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

    def encode(self, batch: Any) -> Iterator[tuple[str | None, list[Row]]]:
        """Queue (None = the write's own) and rows of the jobs of an Arrow batch, in order for each queue.

        Raises:
            GlideMQValidationError: names the column, the row in its partition, and the value.
        """
        texts = self._texts(batch)
        names = self._names(batch)
        queues = self._queues(batch)
        if names is None:
            names = [self._write.job_name or ""] * len(texts)
        rows: list[Row]
        if not self._columns:
            tail = self._constant
            rows = [[name, text, *tail] for name, text in zip(names, texts, strict=True)]
        else:
            columns = [_values(batch.column(self._plan.columns[name])) for name in self._columns]
            rows = [
                [names[i], texts[i], *self._options_tail(values, i)]
                for i, values in enumerate(zip(*columns, strict=True))
            ]
        self._row += batch.num_rows
        if queues is None:
            yield None, rows
            return
        by_queue: dict[str | None, list[Row]] = {}
        for queue, row in zip(queues, rows, strict=True):
            by_queue.setdefault(queue, []).append(row)
        yield from by_queue.items()

    # -- data ---------------------------------------------------------------------------------------------------

    def _texts(self, batch: Any) -> list[str]:
        plan, write = self._plan, self._write
        if plan.data_kind == "none":
            return ["null"] * batch.num_rows
        where = plan.data_columns[0][1] if plan.data_kind != "object" else "data"
        if plan.data_kind == "json":
            return self._json_texts(_values(batch.column(plan.data_columns[0][0])), where)
        if plan.data_kind == "object":
            positions = [position for position, _ in plan.data_columns]
            values = batch.select(positions).to_pylist(maps_as_pydicts="strict")
        else:
            values = batch.column(plan.data_columns[0][0]).to_pylist(maps_as_pydicts="strict")
        return self._each(
            values, where, lambda value: encode_text(json.dumps(value, where), write.compression, option=where)
        )

    def _json_texts(self, values: list[Any], where: str) -> list[str]:
        """Texts that are JSON: looked at all together, and one by one only where that says no."""
        texts: list[str] = ["null" if value is None else value for value in values]
        compression = self._write.compression
        if compression == "none" and json.are_texts(texts) and len(max(texts, key=len, default="")) <= _SURELY_SMALL:
            return texts

        def check(text: str) -> str:
            json.loads(text, where)  # a job whose data nobody can read must not be added
            return encode_text(text, compression, option=where)

        return self._each(texts, where, check)

    def _each(self, values: list[Any], where: str, encode: Callable[[Any], str]) -> list[str]:
        texts: list[str] = []
        try:
            texts.extend(map(encode, values))
        except GlideMQValidationError as error:
            raise self._at(error, where, len(texts)) from None
        return texts

    # -- names and queues ----------------------------------------------------------------------------------------

    def _names(self, batch: Any) -> list[str] | None:
        position = self._plan.columns.get("name")
        if position is None:
            return None
        names: list[Any] = _values(batch.column(position))
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
        queues: list[str | None] = _values(batch.column(position))
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
        return JobOptions.of_job(self._write.defaults, options)

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


def _values(column: Any) -> list[Any]:
    """Values of a column of texts, numbers or booleans. (For texts, five times as fast as `to_pylist`.)"""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return cast("list[Any]", column.to_numpy(zero_copy_only=False).tolist())
    return cast("list[Any]", column.to_pylist())


def _remember(known: set[str], text: str) -> None:
    if len(known) < _REMEMBERED:
        known.add(text)


def _read_opts(text: str) -> JobOptions:
    """Options from the JSON of a column: named as they are stored, or as Python names them."""
    given = json.loads(text, "opts")
    if not isinstance(given, dict):
        raise GlideMQValidationError("opts", text, 'must be a JSON object such as {"attempts": 3}')
    return JobOptions.parse(stored_names(cast("dict[str, Any]", given)))
