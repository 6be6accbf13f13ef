"""Pack the options of many rows by the column.

Rows with the same *shape* (which of their options are given, and the values of those that have few) differ only in a
delay, an ordering or fair key, an id, a priority or a time to live. Their options are built and checked once, with
placeholders, and Arrow inserts the values of the rows. Values are checked by the column: the extremes of numbers, the
characters of texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from glidemq_py._core import json_text as json
from glidemq_py._core.calls import array_head, pack
from glidemq_py._core.calls.adding import NEW_JOB, stored_row
from glidemq_py._core.job_options import JobOptions
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.spark.api import np, pa, pc
from glidemq_py.spark.options import job_options

__all__ = ["SLOTS", "Template", "TemplatePacker", "joined"]

SLOTS: Final[dict[str, Any]] = {
    "jobId": "glidemq-id-1f9d27c4", "delay": 234_567_891_233, "runAt": 2_345_678_912_339, "priority": 1_777,
    "ttl": 234_567_891_237,
    "orderingKey": "glidemq-key-6b02e8a5", "fairKey": "glidemq-fair-4c7713de",
    "deduplicationId": "glidemq-dup-90d3f2b1",
}  # fmt: skip
"""Placeholders of the columns whose values may differ in every row."""
_ID = NEW_JOB.index("id")
_NESTED: Final = (NEW_JOB.index("ordering"), NEW_JOB.index("deduplication"))
"""Elements of a row that are arrays whose first element may differ."""
_COLUMNS: Final = {
    "id": "jobId", "delay": "delay", "run_at": "runAt", "priority": "priority", "ttl": "ttl", "ordering": "orderingKey",
    "fair": "fairKey", "deduplication": "deduplicationId",
}  # fmt: skip
_PLACES: Final = {NEW_JOB.index(field): column for field, column in _COLUMNS.items()}
"""Elements of a row that hold them (`stored_row`)."""
_STORED: Final = {name: f'"{name}":{value}' for name, value in SLOTS.items() if isinstance(value, int)}
_NUMBER: Final[Any] = np.dtype([("mark", "u1"), ("value", ">u8")])
_UINT64: Final = 0xCF
_PLAIN_TEXT: Final = r"^[ !#-\[\]-~]+$"
"""Needs no escape in JSON."""
_PLAIN_ID: Final = r"^([0-9A-Za-z_\-.@]*[A-Za-z_\-.@][0-9A-Za-z_\-.@]*|[1-9][0-9]{0,12})$"
_LENGTH_MAX: Final = 256
_TEXTS: Final = dict.fromkeys((name for name in SLOTS if name not in _STORED), _PLAIN_TEXT) | {"jobId": _PLAIN_ID}
"""Texts that surely are valid, by column."""
_SHAPES_MAX: Final = 1_024

Part = bytes | str
"""Constant bytes, or the name of a slot."""


def joined(parts: Sequence[Any]) -> Any:
    """Return the concatenated parts: bytes are the same in every row, and at least one part is an array."""
    given = [pa.scalar(part) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*given, pa.scalar(b""))


@dataclass(frozen=True, slots=True)
class Template:
    """The packed parts of all rows of one shape.

    Attributes:
        head: the part before the name.
        options: the stored options.
        behind: the part after the stored options.
    """

    head: bytes
    options: tuple[Part, ...]
    behind: tuple[Part, ...]

    @classmethod
    def of(cls, options: JobOptions, slots: Sequence[str]) -> Template | None:
        """Return the template of options with placeholders; None if a placeholder cannot be found."""
        text = options.to_wire_json()
        patterns = {_STORED.get(name, json.dumps(SLOTS[name])): name for name in slots if name != "runAt"}
        if any(text.count(pattern) != 1 for pattern in patterns):
            return None
        parts: list[Part] = []
        for piece in re.split("(" + "|".join(map(re.escape, patterns)) + ")", text) if patterns else [text]:
            name = patterns.get(piece)
            if name is None:
                parts.append(piece.encode())
            else:
                parts += [f'"{name}":'.encode(), name] if name in _STORED else [name]
        row = stored_row("", "", text, options)
        behind: list[Part] = []
        found: set[str] = set()
        for i, element in enumerate(row[_ID:], _ID):
            name = _PLACES.get(i, "")
            value: Any = cast("list[Any]", element)[0] if i in _NESTED and element else element
            if name not in slots or value != SLOTS[name]:
                behind.append(pack(element))
                continue
            found.add(name)
            if i in _NESTED:
                fields = cast("list[Any]", element)
                behind += [array_head(len(fields)), name, *map(pack, fields[1:])]
            else:
                behind.append(name)
        if found != set(slots):
            return None
        return cls(array_head(len(row)), tuple(parts), tuple(behind))


class _Column:
    """The values of a slot in some rows, in the two forms that a row contains."""

    def __init__(self, name: str, values: Any, packed_texts: Callable[[Any], tuple[Any, Any]]) -> None:
        self._name = name
        self._values = values
        self._packed_texts = packed_texts

    def stored(self) -> Any:
        """Return the values as JSON, binary."""
        if self._name not in _TEXTS:
            return self._values.cast(pa.string()).cast(pa.binary())
        if pc.all(pc.match_substring_regex(self._values, _PLAIN_TEXT)).as_py():
            return joined((b'"', self._values.cast(pa.binary()), b'"'))
        return pa.array([json.dumps(text).encode() for text in self._values.to_pylist()], pa.binary())

    def packed(self) -> tuple[Any, ...]:
        """Return the parts of the values as elements of a packed row."""
        if self._name in _TEXTS:
            return self._packed_texts(self._values)
        count = len(self._values)
        numbers = np.empty(count, _NUMBER)
        numbers["mark"] = _UINT64
        numbers["value"] = self._values.to_numpy(zero_copy_only=False)
        ends = np.arange(0, (count + 1) * _NUMBER.itemsize, _NUMBER.itemsize, np.int32)
        return (pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(numbers)]),)


class TemplatePacker:
    """Packs the options of batches.

    Args:
        columns: the columns that are options, in the order of the values passed to ``build``.
        build: returns the options of a row from the values of these columns.
        packed_texts: returns the parts of packed texts.
    """

    def __init__(
        self,
        columns: Sequence[str],
        build: Callable[[Sequence[Any]], JobOptions],
        packed_texts: Callable[[Any], tuple[Any, Any]],
    ) -> None:
        self._columns = tuple(columns)
        self._build = build
        self._packed_texts = packed_texts
        self._templates: dict[tuple[Any, ...], Template | None] = {}
        self._checked: dict[str, tuple[int, int]] = {}
        self.shapes = 0
        """Number of shapes in the last batch."""

    def pack(self, arrays: Sequence[Any]) -> tuple[Any, Any] | None:
        """Return the parts of each row before its name and after its data; None if a value needs a check by the row."""
        arrays = [
            array.cast(pa.int64()) if name in _STORED else array.cast(pa.string()) if name in _TEXTS else array
            for name, array in zip(self._columns, arrays, strict=True)
        ]
        if not all(map(self._is_valid, self._columns, arrays)):
            return None
        shapes, of_row = self._shapes(arrays)
        self.shapes = len(shapes)
        if len(shapes) > _SHAPES_MAX:
            return None
        templates: list[Template] = []
        for shape in shapes:
            template = self._template(shape)
            if template is None:
                return None
            templates.append(template)
        if len(templates) == 1:
            return templates[0].head, self._tails(templates[0], arrays)
        order = np.argsort(of_row, kind="stable")
        places: list[Any] = np.split(order, np.cumsum(np.bincount(of_row))[:-1])
        tails = [
            self._tails(template, [array.take(pa.array(rows)) for array in arrays])
            for template, rows in zip(templates, places, strict=True)
        ]
        heads = pa.array([template.head for template in templates], pa.binary()).take(pa.array(of_row))
        return heads, pa.concat_arrays(tails).take(pa.array(np.argsort(order)))

    # -- checks ---------------------------------------------------------------------------------------------------

    def _is_valid(self, name: str, array: Any) -> bool:
        if name in _STORED:
            return self._are_numbers_valid(name, array)
        if name in _TEXTS:
            longest = pc.max(pc.binary_length(array)).as_py()
            if longest is not None and longest > _LENGTH_MAX:
                return False
            strange = array.filter(pc.invert(pc.match_substring_regex(array, _TEXTS[name])))
            try:
                for text in (*strange.unique().to_pylist(), *(("__",) if name == "orderingKey" else ())):
                    if text == "__" and not pc.any(pc.equal(array, "__")).as_py():
                        continue
                    job_options({name: text})
            except GlideMQValidationError:
                return False
        return True

    def _are_numbers_valid(self, name: str, array: Any) -> bool:
        extremes = pc.min_max(array).as_py()
        low, high = extremes["min"], extremes["max"]
        if low is None:
            return True
        known = self._checked.get(name)
        if known is not None and known[0] <= low and high <= known[1]:
            return True
        try:
            for value in (low, high):
                job_options({name: value})
        except GlideMQValidationError:
            return False
        self._checked[name] = (low, high) if known is None else (min(low, known[0]), max(high, known[1]))
        return True

    # -- shapes ---------------------------------------------------------------------------------------------------

    def _shapes(self, arrays: Sequence[Any]) -> tuple[list[tuple[Any, ...]], Any]:
        """Return the shapes of the rows, with placeholders, and the number of each row's shape."""
        codes: Any = np.zeros(len(arrays[0]), np.int64)
        values: list[list[Any]] = []
        for name, array in zip(self._columns, arrays, strict=True):
            if name in SLOTS:
                given = array.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
                known: list[Any] = [None, SLOTS[name]]
                if name in _STORED:
                    zero = pc.equal(array, 0).fill_null(False).to_numpy(zero_copy_only=False)
                    given, known = given + zero, [*known, 0]
            else:
                encoded = array.dictionary_encode()
                known = [*encoded.dictionary.to_pylist(), None]
                given = encoded.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False).astype(np.int64)
            codes = codes * len(known) + given
            values.append(known)
        different, of_row = np.unique(codes, return_inverse=True)
        shapes: list[tuple[Any, ...]] = []
        for code in different.tolist()[: _SHAPES_MAX + 1]:
            shape: list[Any] = []
            for known in reversed(values):
                code, at = divmod(code, len(known))  # a number in mixed radix
                shape.append(known[at])
            shapes.append(tuple(reversed(shape)))
        return shapes, of_row

    def _template(self, shape: tuple[Any, ...]) -> Template | None:
        if shape not in self._templates:
            slots = [name for name, value in zip(self._columns, shape, strict=True) if value == SLOTS.get(name, ())]
            try:
                found = Template.of(self._build(shape), slots)
            except GlideMQValidationError:
                found = None  # the row is rejected, with its number, by the check of each row
            if len(self._templates) >= 16 * _SHAPES_MAX:
                self._templates.clear()
            self._templates[shape] = found
        return self._templates[shape]

    def _tails(self, template: Template, arrays: Sequence[Any]) -> Any:
        columns = {
            name: _Column(name, array, self._packed_texts) for name, array in zip(self._columns, arrays, strict=True)
        }
        stored = [part if isinstance(part, bytes) else columns[part].stored() for part in template.options]
        behind: list[Any] = []
        for part in template.behind:
            behind += [part] if isinstance(part, bytes) else columns[part].packed()
        if any(not isinstance(part, bytes) for part in stored):
            options: tuple[Any, ...] = self._packed_texts(joined(stored))
        else:
            options = (pack(b"".join(stored).decode()),)
        parts = [*options, *behind]
        if all(isinstance(part, bytes) for part in parts):
            return pa.array([b"".join(parts)] * len(arrays[0]), pa.binary())
        return joined(parts)
