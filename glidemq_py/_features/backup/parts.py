"""Read the parts of a backup from files."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgpack

from glidemq_py._features.backup.calls import BackedUpJob, BackedUpKey
from glidemq_py.errors import BackupError

PART_BYTES_MOST: Final = 512 * 1024 * 1024
"""Size of a part after decompression that no backup reaches."""
LARGE: Final = b"job:"
"""Beginning of the keys of records with very many fields, which are read as other keys."""
_GZIP: Final = 31
_msgpack: Any = msgpack  # it has no type annotations
_ROWS: Final[dict[bytes, Any]] = {b"jobs": BackedUpJob, b"keys": BackedUpKey}


def chunks(path: Path, backup: str) -> Iterator[tuple[bytes, list[Any]]]:
    """Yield the rows of a part in pieces, each with its kind: ``jobs`` or ``keys``. Raises BackupError."""
    try:
        inflating = zlib.decompressobj(wbits=_GZIP)
        content = inflating.decompress(path.read_bytes(), PART_BYTES_MOST)
        if not inflating.eof:
            raise ValueError(f"it is truncated, or larger than {PART_BYTES_MOST:,} bytes")
        unpacker = _msgpack.Unpacker(
            io.BytesIO(content), raw=True, strict_map_key=False, max_buffer_size=PART_BYTES_MOST
        )
        for kind, rows in unpacker:
            yield kind, [_ROWS[kind](*row) for row in rows if kind in _ROWS]
    except (ValueError, TypeError, zlib.error, msgpack.UnpackException) as error:
        raise BackupError(f"part {path.name} of backup {backup!r} is damaged: {error}") from error


def number_of(text: bytes | None) -> float:
    """Return the number in a field; 0 if it has none."""
    try:
        return float(text or 0)
    except ValueError:
        return 0.0
