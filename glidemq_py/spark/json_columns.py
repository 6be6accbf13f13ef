"""Convert Arrow columns to JSON texts by the column: Python touches no row, except for binary values.

The texts are exact: reading them with Spark's ``from_json`` and the type of the column returns the values (of numbers
that are not finite only with ``nonFinite=string``). Null fields are kept.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from glidemq_py._core import json_text as json
from glidemq_py.spark.api import np, pa, pc

__all__ = ["JsonColumns", "NonFinite", "NonFiniteError"]

NonFinite = Literal["null", "string", "reject"]
"""The JSON form of NaN and the infinities."""

_NULL: Final = "null"
_SPECIAL: Final = r'["\\\x00-\x1f]'
_CONTROL: Final = r"[\x00-\x1f]"
_COMMON: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_RARE: Final = {chr(code): json.dumps(chr(code))[1:-1] for code in range(0x20)}
_WHOLE: Final = r"^(-?[0-9]+)$"
_NOT_FINITE: Final = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}

Part = Any
"""An Arrow string array without nulls, or a str that is the same in every row."""


class NonFiniteError(Exception):
    """Raised when a number is NaN or infinite and the option ``nonFinite`` is ``reject``."""


class JsonColumns:
    """Converts Arrow arrays to JSON texts.

    Args:
        non_finite: form of NaN and the infinities: null, the strings "NaN", "Infinity" and "-Infinity", or an error.
    """

    def __init__(self, non_finite: NonFinite = "null") -> None:
        self._non_finite = non_finite

    def texts(self, array: Any) -> Any:
        """Return the JSON text of each value of an array, without nulls.

        Raises:
            NonFiniteError: if a number is not finite and must be.
        """
        return _joined(self._parts(array), len(array))

    def objects(self, names: Sequence[str], arrays: Sequence[Any], count: int) -> Any:
        """Return the text of a JSON object per row, whose members are the values of the arrays.

        Raises:
            NonFiniteError: if a number is not finite and must be.
        """
        return _joined(self._object_parts(names, arrays), count)

    # -- parts ----------------------------------------------------------------------------------------------------

    def _parts(self, array: Any) -> list[Part]:
        """Return the elements that the texts of an array have."""
        convert = self._converter(array.type)
        parts = convert(array)
        if not array.null_count:
            return parts
        return [pc.if_else(array.is_valid(), _joined(parts, len(array)), _NULL)]

    def _converter(self, kind: Any) -> Callable[[Any], list[Part]]:
        """Return the function for a type. It may return any text for null."""
        types = pa.types
        if types.is_string(kind) or types.is_large_string(kind):
            return _strings
        if types.is_floating(kind):
            return self._floats
        if types.is_boolean(kind) or types.is_integer(kind):
            return _plain
        if types.is_decimal(kind) or types.is_date(kind) or types.is_time(kind):
            return _quoted
        if types.is_timestamp(kind):
            return _timestamps
        if types.is_binary(kind) or types.is_large_binary(kind):
            return _binaries
        if types.is_struct(kind):
            return self._structs
        if types.is_map(kind):
            return self._maps
        if types.is_list(kind) or types.is_large_list(kind):
            return self._lists
        if types.is_null(kind):
            return lambda array: [_NULL]
        raise TypeError(f"Arrow type {kind} has no JSON form")

    def _floats(self, array: Any) -> list[Part]:
        """Return the shortest texts that are read as the same numbers, with a fraction or an exponent."""
        texts = array.cast(pa.string())
        finite = pc.is_finite(array).fill_null(True)
        if not pc.all(finite, min_count=0).as_py():
            if self._non_finite == "reject":
                raise NonFiniteError
            if self._non_finite == "string":
                for text, quoted in _NOT_FINITE.items():
                    texts = pc.if_else(pc.equal(texts, text), quoted, texts)
            else:
                texts = pc.if_else(finite, texts, _NULL)
        values: Any = array.fill_null(0.5).to_numpy(zero_copy_only=False)
        if (np.trunc(values) == values).any():
            texts = pc.replace_substring_regex(texts, _WHOLE, r"\1.0")
        return [texts.fill_null("")]

    def _structs(self, array: Any) -> list[Part]:
        fields = [array.type.field(i).name for i in range(array.type.num_fields)]
        return self._object_parts(fields, array.flatten())

    def _object_parts(self, names: Sequence[str], arrays: Sequence[Any]) -> list[Part]:
        parts: list[Part] = []
        separator = "{"
        for name, array in zip(names, arrays, strict=True):
            parts += [f"{separator}{json.dumps(name)}:", *self._parts(array)]
            separator = ","
        return [*parts, "}" if parts else "{}"]

    def _lists(self, array: Any) -> list[Part]:
        offsets, first, count = _range(array)
        return ["[", _joined_lists(offsets, self.texts(array.values.slice(first, count))), "]"]

    def _maps(self, array: Any) -> list[Part]:
        offsets, first, count = _range(array)
        keys, values = array.keys.slice(first, count), array.items.slice(first, count)
        entries = _joined([*_strings(keys), ":", *self._parts(values)], count)
        return ["{", _joined_lists(offsets, entries), "}"]


def _joined(parts: Sequence[Part], count: int) -> Any:
    """Return the concatenated parts of each row."""
    merged: list[Part] = []
    for part in parts:
        if merged and isinstance(part, str) and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    if len(merged) == 1:
        return pa.array(merged * count, pa.string()) if isinstance(merged[0], str) else merged[0]
    return pc.binary_join_element_wise(*merged, "")


def _range(array: Any) -> tuple[Any, int, int]:
    """Return the offsets of lists from 0 on, and the range of their elements."""
    offsets: Any = array.offsets.to_numpy()
    first = int(offsets[0])
    return offsets - first, first, int(offsets[-1]) - first


def _joined_lists(offsets: Any, texts: Any) -> Any:
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), texts)
    return pc.binary_join(lists, ",")


def _plain(array: Any) -> list[Part]:
    return [array.cast(pa.string()).fill_null("")]


def _quoted(array: Any) -> list[Part]:
    return ['"', *_plain(array), '"']


def _timestamps(array: Any) -> list[Part]:
    """Return ISO 8601 texts with microseconds: in UTC with "Z"; without a zone if the type has none."""
    local = array.type.tz is None
    plain = array if local else array.cast(pa.timestamp(array.type.unit, "UTC")).cast(pa.timestamp(array.type.unit))
    texts = pc.replace_substring(plain.cast(pa.string()), " ", "T", max_replacements=1)
    return ['"', texts.fill_null(""), '"' if local else 'Z"']


def _binaries(array: Any) -> list[Part]:
    encode = base64.b64encode
    return ['"', pa.array([encode(value or b"").decode() for value in array.to_pylist()], pa.string()), '"']


def _strings(array: Any) -> list[Part]:
    texts = array.cast(pa.string()).fill_null("")
    if _matches(texts, _SPECIAL):
        for character, escape in _COMMON.items():
            texts = pc.replace_substring(texts, character, escape)
        if _matches(texts, _CONTROL):
            for character, escape in _RARE.items():
                texts = pc.replace_substring(texts, character, escape)
    return ['"', texts, '"']


def _matches(texts: Any, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(texts, pattern)).as_py())
