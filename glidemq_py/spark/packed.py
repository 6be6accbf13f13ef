"""Rows of an add, packed by the column: Arrow lays the parts of all rows end to end, none is touched in Python."""

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
        data: all of them, end to end, and maybe others.
        offsets: where each begins, and where the last one ends: an array of NumPy.
    """

    __slots__ = ("_data", "_offsets")

    def __init__(self, data: memoryview, offsets: Any) -> None:
        self._data = data
        self._offsets = offsets

    @classmethod
    def of(cls, array: Any) -> PackedRows:
        """Of an Arrow array of type binary without nulls: a packed row each."""
        _, offsets, data = array.buffers()
        found: Any = np.frombuffer(offsets, np.int32)
        return cls(memoryview(data), found[array.offset : array.offset + len(array) + 1])

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def part(self, first: int, end: int) -> PackedRows:
        """Some of them."""
        return PackedRows(self._data, self._offsets[first : end + 1])

    def size(self, first: int, end: int) -> int:
        """Bytes of some of them."""
        return int(self._offsets[end]) - int(self._offsets[first])

    def fitting(self, first: int, room: int) -> int:
        """The end of those from ``first`` on that fit into so many bytes together."""
        if self.size(first, len(self)) <= room:
            return len(self)
        end = np.searchsorted(self._offsets, int(self._offsets[first]) + room, side="right")
        return max(first, int(end) - 1)

    def copy(self, first: int, end: int) -> bytes:
        """Some of them, end to end."""
        return bytes(self._data[self._offsets[first] : self._offsets[end]])


def pack_rows(parts: Sequence[Any]) -> Any:
    """The rows whose parts these are: bytes are the same in each; at least one part is an array."""
    given = [pa.scalar(part) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*given, _NOTHING)


def packed_texts(texts: Any) -> tuple[Any, Any]:
    """The two parts that make a packed text of each text of an array without nulls."""
    count = len(texts)
    heads = np.empty(count, _HEAD)
    heads["mark"] = TEXT_MARK
    heads["length"] = pc.binary_length(texts).to_numpy(zero_copy_only=False)
    ends = np.arange(0, (count + 1) * _HEAD.itemsize, _HEAD.itemsize, np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(heads)]
    return pa.Array.from_buffers(pa.binary(), count, buffers), texts.cast(pa.binary())


def longest(texts: Any) -> int:
    """Bytes of the longest text of an array; 0 of none."""
    return int(pc.max(pc.binary_length(texts)).as_py() or 0)


def join_texts(texts: Any, separator: str) -> bytes:
    """All of an array's texts, which fit into one."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    return bytes(pc.binary_join(whole, pa.scalar(separator, texts.type))[0].as_buffer())


def by_key(keys: Any, rows: Any) -> Iterator[tuple[str, PackedRows]]:
    """The rows of each key, in their order; keys: an Arrow array of texts without nulls."""
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
