"""Rows of an add, packed by column: Arrow concatenates the parts of all rows; Python touches no row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from glidemq_py._core.calls.packing import TEXT_MARK
from glidemq_py.spark.api import np, pa, pc

__all__ = ["PackedRows", "by_key", "join_texts", "longest", "pack_rows", "packed_texts"]

_HEAD: Any = np.dtype([("mark", "u1"), ("length", ">u4")])
_NOTHING: Any = pa.scalar(b"")


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
    """Yield the rows of each key in order; ``keys`` is an Arrow array of strings without nulls."""
    encoded = keys.dictionary_encode()
    names: list[str] = encoded.dictionary.to_pylist()
    if len(names) > 1:
        codes = encoded.indices.to_numpy()
        rows = rows.take(pa.array(np.argsort(codes, kind="stable")))
        counts = np.bincount(codes).tolist()
    else:
        counts = [len(rows)]
    packed, first = PackedRows.of(rows), 0
    for name, count in zip(names, counts, strict=True):
        yield name, packed.part(first, first + count)
        first += count
