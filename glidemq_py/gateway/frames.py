"""Frames of the protocol, without I/O: a length of 4 bytes, big endian, and a MessagePack value of that length."""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_FRAME", "MAX_UNAUTHENTICATED_FRAME", "FrameReader"]

MAX_FRAME: Final = 67_108_864
"""Largest value of a frame, in bytes."""
MAX_UNAUTHENTICATED_FRAME: Final = 65_536
"""The same before `Auth`, so that an unknown client cannot fill the memory."""

_HEADER: Final = 4


class FrameReader:
    """Splits the bytes of one connection into the values of its frames.

    Attributes:
        limit: Largest value, in bytes.
        has_partial: Whether a frame has begun and is incomplete.
        oversized: Length of the first value above the limit, or 0. No frame is read after it, unless `limit` grows:
            then the next `feed` continues with it.
    """

    __slots__ = ("_buffer", "_needed", "has_partial", "limit", "oversized")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._buffer = bytearray()
        self._needed = _HEADER
        self.limit = limit
        self.has_partial = False
        self.oversized = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes; return the values of the frames that are complete."""
        buffer = self._buffer
        if self.oversized > MAX_FRAME:
            return []
        buffer += data
        if self.oversized:
            if self.oversized > self.limit:
                return []
            self.oversized = 0
        if len(buffer) < self._needed:
            self.has_partial = bool(buffer)
            return []
        found: list[bytes] = []
        start, end = 0, len(buffer)
        while True:
            if end - start < _HEADER:
                self._needed = _HEADER
                break
            length = int.from_bytes(buffer[start : start + _HEADER], "big")
            if length > self.limit:
                self.oversized = length
                if length > MAX_FRAME:
                    start = end
                break
            after = start + _HEADER + length
            if after > end:
                self._needed = after - start
                break
            found.append(bytes(buffer[start + _HEADER : after]))
            start = after
        del buffer[:start]
        self.has_partial = start < end and not self.oversized
        return found
