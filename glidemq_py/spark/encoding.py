"""Encode Arrow batches as the rows of an add, packed by column; `_core/calls/adding.py` defines a row.

Arrow concatenates the parts of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from glidemq_py._core import json_text as json
from glidemq_py._core.calls import TEXT_MARK, array_head, pack
from glidemq_py._core.calls.adding import NEW_JOB, stored_row
from glidemq_py._core.job_options import JobOptions
from glidemq_py._core.keys import validate_job_name, validate_queue_name
from glidemq_py._core.payload import PAYLOAD_LIMIT, encode_text
from glidemq_py._partitions.routing import routing_key
from glidemq_py.errors import ColumnError, GlideMQValidationError
from glidemq_py.spark.api import np, pa, pc
from glidemq_py.spark.json_columns import JsonColumns, NonFiniteError
from glidemq_py.spark.options import PYTHON_NAMES, WriteOptions, job_options, renamed
from glidemq_py.spark.placing import KeySources, Placer
from glidemq_py.spark.serializers import JSON, stored_data
from glidemq_py.spark.templates import TemplatePacker
from glidemq_py.spark.write_schema import WritePlan

__all__ = ["PackedRows", "RowEncoder", "by_key", "join_texts", "longest", "pack_rows", "packed_texts"]

_HEAD: Any = np.dtype([("mark", "u1"), ("length", ">u4")])
# An empty scalar from buffers: `pa.scalar` imports pandas, which planning does not need.
_NOTHING: Any = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(bytes(8)), pa.py_buffer(b"")])[0]
_OPTS = NEW_JOB.index("opts")


class PackedRows:
    """Rows of one queue, in order.

    Args:
        data: concatenated rows; may contain other rows too.
        offsets: start of each row and end of the last one, a NumPy array.
    """

    __slots__ = ("_data", "_offsets")

    def __init__(self, data: memoryview, offsets: Any) -> None:
        self._data = data
        self._offsets = offsets

    @classmethod
    def of(cls, array: Any) -> PackedRows:
        """Return the rows of an Arrow binary array without nulls, one packed row per element."""
        _, offsets, data = array.buffers()
        found: Any = np.frombuffer(offsets, np.int32)
        return cls(memoryview(data), found[array.offset : array.offset + len(array) + 1])

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def part(self, first: int, end: int) -> PackedRows:
        """Return a range of the rows."""
        return PackedRows(self._data, self._offsets[first : end + 1])

    def size(self, first: int, end: int) -> int:
        """Return the size of a range of the rows, bytes."""
        return int(self._offsets[end]) - int(self._offsets[first])

    def fitting(self, first: int, room: int) -> int:
        """Return the end of the longest range from ``first`` on that fits into ``room`` bytes."""
        if self.size(first, len(self)) <= room:
            return len(self)
        end = np.searchsorted(self._offsets, int(self._offsets[first]) + room, side="right")
        return max(first, int(end) - 1)

    def copy(self, first: int, end: int) -> bytes:
        """Return a range of the rows, concatenated."""
        return bytes(self._data[self._offsets[first] : self._offsets[end]])


def pack_rows(parts: Sequence[Any]) -> Any:
    """Return the rows made of these parts; bytes are the same in every row, and at least one part is an array."""
    given = [pa.scalar(part) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*given, _NOTHING)


def packed_texts(texts: Any) -> tuple[Any, Any]:
    """Return the two parts of the packed form of each string of an array without nulls."""
    count = len(texts)
    heads = np.empty(count, _HEAD)
    heads["mark"] = TEXT_MARK
    heads["length"] = pc.binary_length(texts).to_numpy(zero_copy_only=False)
    ends = np.arange(0, (count + 1) * _HEAD.itemsize, _HEAD.itemsize, np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(heads)]
    return pa.Array.from_buffers(pa.binary(), count, buffers), texts.cast(pa.binary())


def longest(texts: Any) -> int:
    """Return the size of the longest string of an array, bytes; 0 if it is empty."""
    return int(pc.max(pc.binary_length(texts)).as_py() or 0)


def join_texts(texts: Any, separator: str) -> bytes:
    """Return the joined strings of an array; they must fit into one buffer."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    return bytes(pc.binary_join(whole, pa.scalar(separator, texts.type))[0].as_buffer())


def by_key(keys: Any, rows: Any) -> Iterator[tuple[str, PackedRows]]:
    """Yield the rows of each key in order, in one or more parts; ``keys`` is a dictionary array without nulls."""
    names: list[str] = keys.dictionary.to_pylist()
    codes = keys.indices.to_numpy()
    ends = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    if len(ends) > _FEW_RUNS:
        order = np.argsort(codes, kind="stable")
        rows, codes = rows.take(pa.array(order)), codes[order]
        ends = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    packed, first = PackedRows.of(rows), 0
    for end in [*ends.tolist(), len(codes)]:
        yield names[codes[first]], packed.part(first, end)
        first = end


_QUEUES_MAX: Final = 1_000
"""Queues of one write besides that of the option; S.QUEUES_MAX of the server."""
_FEW_RUNS: Final = 16
"""Rows of one key after another, which need not be sorted: those without a key go to partitions in blocks."""
_CACHE_SIZE: Final = 4_096
_PART_ROWS: Final = 1_000
_OPTIONS_ROWS: Final = 4_000  # the options of a part are packed in several steps, for any size
_FANNED_ROWS: Final = 10_000  # many queues, or shapes of options: each should get several rows of a part
_MANY_SHAPES: Final = 16
_PART_BYTES: Final = 2 * 1024 * 1024
_SURELY_SMALL: Final = PAYLOAD_LIMIT // 4
_Tail = tuple[bytes, bytes]
"""The parts of a packed row before its name and after its data."""


class RowEncoder:
    """Encodes the batches of one task.

    Args:
        plan: assignment of the columns.
        options: options of the write.
        placer: chooses the partitions of partitioned queues; None = there are none.
    """

    def __init__(self, plan: WritePlan, options: WriteOptions, placer: Placer | None = None) -> None:
        self._plan = plan
        self._write = options
        self._placer = placer
        self._columns = plan.options
        self._known_names: dict[str, None] = {}
        self._known_queues: dict[str, None] = {options.keys.name: None}
        self._json = JsonColumns(options.non_finite)
        self._packer = TemplatePacker(self._columns, self._options, packed_texts)
        self._row = 0
        self.nulls = 0
        self._name = None if options.job_name is None else pack(options.job_name)
        self._constant = self._tail(options.defaults)

    def encode(self, batch: Any) -> Iterator[tuple[str, PackedRows]]:
        """Yield queue, or partition, and rows of the jobs of an Arrow batch, in order per queue.

        Raises:
            GlideMQValidationError: if a value is invalid; names the column, the row in its partition, and the value.
        """
        # In small parts: the server gets work sooner, and the data of a part fits into the CPU cache.
        small = batch.num_rows * _PART_BYTES // max(1, batch.nbytes)
        first = 0
        while first < batch.num_rows:
            part = batch.slice(first, max(1, min(self._part_rows(), small)))
            first += part.num_rows
            try:
                part.validate(full=True)
            except pa.ArrowInvalid:
                raise self._not_utf8(part) from None
            yield from self._encode(part)
            self._row += part.num_rows

    def _part_rows(self) -> int:
        if "queue" in self._plan.columns or self._packer.shapes > _MANY_SHAPES:
            return _FANNED_ROWS
        rows = _OPTIONS_ROWS if self._columns else _PART_ROWS
        return rows if self._row else rows // 4

    def _encode(self, batch: Any) -> Iterator[tuple[str, PackedRows]]:
        texts = packed_texts(self._texts(batch))
        if len(self._plan.data_columns) == 1 and self._plan.data_kind != "object":
            self.nulls += batch.column(self._plan.data_columns[0][0]).null_count
        self._check_unused(batch)
        names = self._names(batch)
        queues = self._queues(batch)
        arrays = self._given(batch)
        head, tail = self._constant if not self._columns else self._tails(arrays)
        rows = pack_rows((head, *names, *texts, tail))
        queues = self._placed(batch, queues, arrays)
        if queues is None:
            yield self._write.keys.name, PackedRows.of(rows)
        else:
            yield from by_key(queues, rows)

    def _check_unused(self, batch: Any) -> None:
        """Reject values of columns that a job gets from the queue."""
        for position, name in self._plan.unused:
            column = batch.column(position)
            if column.null_count < len(column):
                i = pc.index(column.is_valid(), True).as_py()
                problem = "must be null: the queue sets it. Name the columns to insert, such as (name, data)"
                raise self._at(GlideMQValidationError(name, column[i].as_py(), problem), name, i)

    # -- data ---------------------------------------------------------------------------------------------------

    def _texts(self, batch: Any) -> Any:
        plan = self._plan
        if plan.data_kind == "none":
            return pa.array(["null"] * batch.num_rows)
        names = [name for _, name in plan.data_columns]
        columns = [batch.column(position) for position, _ in plan.data_columns]
        if plan.data_kind == "json":
            return self._json_texts(columns[0].fill_null("null"), names[0])
        try:
            if plan.data_kind != "object":
                return self._stored(self._json.texts(columns[0]), names[0])
            return self._stored(self._json.objects(names, columns, batch.num_rows), "data")
        except NonFiniteError:
            raise self._not_finite(names, columns) from None

    def _json_texts(self, texts: Any, where: str) -> Any:
        """Return validated JSON strings: checked all at once, and one by one only if that fails."""
        compression = self._write.compression
        if self._write.serializer != JSON:
            return self._stored(texts, where)
        plain = compression == "none" and longest(texts) <= _SURELY_SMALL
        if plain and json.are_texts(len(texts), lambda separator: join_texts(texts, separator)):
            return texts

        def check(text: str) -> str:
            json.loads(text, where)  # reject data that no reader can decode
            return encode_text(text, compression, option=where)

        return self._each(texts.to_pylist(), where, check)

    def _stored(self, texts: Any, where: str) -> Any:
        """Return valid JSON texts as stored."""
        compression, serializer = self._write.compression, self._write.serializer
        if serializer != JSON:
            return self._each(texts.to_pylist(), where, lambda text: stored_data(text, serializer, compression, where))
        if compression == "none" and longest(texts) <= PAYLOAD_LIMIT:
            return texts
        return self._each(texts.to_pylist(), where, lambda text: encode_text(text, compression, option=where))

    def _each(self, values: list[Any], where: str, encode: Callable[[Any], str]) -> Any:
        texts: list[str] = []
        try:
            texts.extend(map(encode, values))
        except GlideMQValidationError as error:
            raise self._at(error, where, len(texts)) from None
        return pa.array(texts, pa.string())

    # -- names and queues ----------------------------------------------------------------------------------------

    def _names(self, batch: Any) -> tuple[Any, ...]:
        position = self._plan.columns.get("name")
        if position is None:
            return (self._name,)
        column, default = batch.column(position), self._write.job_name
        if column.null_count:
            if default is None:
                error = GlideMQValidationError("name", None, "is null, and there is no 'jobName'")
                raise self._at(error, "name", pc.index(column.is_null(), True).as_py())
            column = column.fill_null(default)
        self._check("name", column, self._known_names, validate_job_name)
        return packed_texts(column)

    def _queues(self, batch: Any) -> Any:
        position = self._plan.columns.get("queue")
        if position is None:
            return None
        column = batch.column(position).fill_null(self._write.keys.name)
        self._check("queue", column, self._known_queues, validate_queue_name)
        if len(self._known_queues) > _QUEUES_MAX + 1:
            # Before any row of this batch is sent. The server counts the queues of all tasks.
            problem = f"is one too many: a write can use {_QUEUES_MAX:,} queues; divide the rows among several saves"
            first = list(self._known_queues)[_QUEUES_MAX + 1]
            raise self._at(GlideMQValidationError("queue", first, problem), "queue", pc.index(column, first).as_py())
        return column.dictionary_encode()

    def _check(self, name: str, column: Any, known: dict[str, None], check: Callable[[str, str], object]) -> None:
        for value in column.unique().to_pylist():
            if value in known:
                continue
            try:
                check(value, name)
            except GlideMQValidationError as error:
                raise self._at(error, name, pc.index(column, value).as_py()) from None
            if len(known) < _CACHE_SIZE:
                known[value] = None

    def _placed(self, batch: Any, queues: Any, arrays: Sequence[Any]) -> Any:
        """Return the queues with the partitions of rows in place of partitioned ones."""
        placer, home = self._placer, self._write.keys.name
        if placer is None:
            return queues
        given = queues
        if queues is None:
            given = pa.DictionaryArray.from_arrays(pa.array(np.zeros(batch.num_rows, np.int32)), pa.array([home]))
        part = placer.part(given)
        if part is None:
            return queues
        sources = self._key_sources(batch.num_rows, arrays)
        misfits = sources.misfits()
        if misfits is not None and (misfits & part.partitioned).any():
            raise self._misfit(arrays, int(np.argmax(misfits & part.partitioned)))
        return part.place(sources)

    def _key_sources(self, rows: int, arrays: Sequence[Any]) -> KeySources:
        """Return the options that choose the partitions of rows, whose options are valid."""
        default = self._write.defaults
        columns = dict(zip(self._columns, arrays, strict=True))
        found: list[Any] = []
        for name, value in (
            ("orderingKey", default.ordering and default.ordering.key),
            ("fairKey", default.fair_key),
            ("deduplicationId", None),
            ("jobId", None),
        ):
            column: Any = columns.get(name, None if value is None else pa.nulls(rows))
            if column is not None:
                text = column.cast(pa.string())
                column = text if value is None else text.fill_null(value)
            found.append(column)
        return KeySources(*found)

    def _misfit(self, arrays: Sequence[Any], i: int) -> ColumnError:
        """Return the error of a row that has no partition."""
        values = [column[i].as_py() for column in arrays]
        try:
            routing_key(self._options(values))
        except GlideMQValidationError as error:
            for column, name in PYTHON_NAMES.items():
                error.problem = error.problem.replace(f"must equal {name} ", f"must equal {column} ")
            return self._at(renamed(error), "", i)
        raise AssertionError(values)

    # -- options ------------------------------------------------------------------------------------------------

    def _given(self, batch: Any) -> list[Any]:
        """Return the columns of options; times as epoch ms, rounded up."""
        columns = dict(
            zip(self._columns, (batch.column(self._plan.columns[name]) for name in self._columns), strict=True)
        )
        if "runAt" in columns:
            us = columns["runAt"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            columns["runAt"] = pc.divide(pc.add(us, 999), 1_000)
        return list(columns.values())

    def _tails(self, arrays: Sequence[Any]) -> tuple[Any, Any]:
        packed = self._packer.pack(arrays)
        if packed is not None:
            return packed
        columns = [column.to_pylist() for column in arrays]
        found = [self._tail_of(values, i) for i, values in enumerate(zip(*columns, strict=True))]
        return pa.array([head for head, _ in found], pa.binary()), pa.array([tail for _, tail in found], pa.binary())

    def _tail_of(self, values: Sequence[Any], i: int) -> _Tail:
        """Return the parts of a row before its name and after its data."""
        try:
            return self._tail(self._options(values))
        except GlideMQValidationError as error:
            raise self._at(renamed(error), "", i) from None

    def _options(self, values: Sequence[Any]) -> JobOptions:
        """Return the options of a row, given the values of its columns."""
        given = zip(self._columns, values, strict=True)
        chosen = {name: value for name, value in given if value is not None}
        return JobOptions.of_job(self._write.defaults, job_options(chosen))

    def _tail(self, options: JobOptions) -> _Tail:
        row = stored_row("", "", options.to_wire_json(), options)
        return array_head(len(row)), b"".join(map(pack, row[_OPTS:]))

    # -- errors -------------------------------------------------------------------------------------------------

    def _at(self, error: GlideMQValidationError, column: str, i: int) -> ColumnError:
        return ColumnError(column or error.option, error.value, error.problem, self._row + i + 1)

    def _not_finite(self, names: Sequence[str], columns: Sequence[Any]) -> ColumnError:
        """Return the error of the first number that is not finite."""
        for i in range(len(columns[0])):
            for name, column in zip(names, columns, strict=True):
                try:
                    self._json.texts(column.slice(i, 1))
                except NonFiniteError:
                    problem = "NaN and infinities are rejected by the option nonFinite=reject"
                    return ColumnError(name, column[i].as_py(), problem, self._row + i + 1)
        raise AssertionError(names)

    def _not_utf8(self, batch: Any) -> ColumnError:
        """Return the error of the first string that is not valid UTF-8; Spark does not check its strings."""
        for i in range(batch.num_rows):
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                try:
                    pa.concat_arrays([column.slice(i, 1)]).validate(full=True)
                except pa.ArrowInvalid:
                    problem = "is not valid UTF-8; write bytes as binary, not as string"
                    return ColumnError(name, "<bytes>", problem, self._row + i + 1)
        raise AssertionError(batch.schema)
