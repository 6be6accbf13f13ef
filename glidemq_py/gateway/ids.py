"""Ids of jobs: UUIDv7 with the number of the queue, so that a command that has only the id finds the queue.

Layout after the version and variant bits: 48 bits of milliseconds, a counter of 12 bits, the queue's number of 24 bits,
30 random bits, and 8 check bits. The check bits distinguish these ids from UUIDs that clients have chosen. One in 256
of those passes, so a reader looks in the queue first and in the index of chosen ids then.
"""

from __future__ import annotations

import re
import secrets
import struct
import time
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Final

__all__ = ["MAX_QUEUES", "IdMaker", "is_uuid7", "queue_number"]

MAX_QUEUES: Final = 2**24
"""Queue numbers are below this."""

_COUNTER_BITS: Final = 12
_RANDOM_BITS: Final = 30
_CHECK_BITS: Final = 8
_RANDOM_KEPT: Final = 1_024
"""Random numbers that are got at a time."""
_LENGTH: Final = 36
_SHAPE: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)


def _check_bits(content: int) -> int:
    """Return the check bits of the 114 bits that stand before them, without version and variant."""
    return zlib.crc32(content.to_bytes(15, "big")) & (2**_CHECK_BITS - 1)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class IdMaker:
    """Makes ids that ascend, also if the clock is set back.

    Args:
        now: Returns the time, epoch ms.
    """

    __slots__ = ("_last", "_now", "_random")

    def __init__(self, now: Callable[[], int] = _now_ms) -> None:
        self._now = now
        self._last = 0
        self._random: list[int] = []

    def make(self, queue: int) -> str:
        """Return a new id of a job of the queue with this number."""
        # Time and counter in one number: a counter that overflows moves on to the next millisecond.
        self._last = moment = max(self._now() << _COUNTER_BITS, self._last + 1)
        if not self._random:
            self._random = list(struct.unpack(f"{_RANDOM_KEPT}I", secrets.token_bytes(4 * _RANDOM_KEPT)))
        rest = queue << _RANDOM_BITS | self._random.pop() & (2**_RANDOM_BITS - 1)
        content = moment << 54 | rest
        low = rest << _CHECK_BITS | _check_bits(content)
        high = (moment >> _COUNTER_BITS) << 16 | 0x7000 | (moment & (2**_COUNTER_BITS - 1))
        text = f"{high:016x}{1 << 63 | low:016x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_uuid7(job_id: str) -> bool:
    """Return whether an id is a UUIDv7, made here or by a client."""
    return _SHAPE.fullmatch(job_id) is not None


def queue_number(job_id: str) -> int | None:
    """Return the number of the queue in an id, or None if the id was not made here."""
    return _queue_number(job_id) if len(job_id) == _LENGTH else None


@lru_cache(maxsize=4_096)  # an id is read when its job is fetched, reported, and named by events
def _queue_number(job_id: str) -> int | None:
    if _SHAPE.fullmatch(job_id) is None:
        return None
    value = int(job_id.replace("-", ""), 16)
    high, low = value >> 64, value & (2**62 - 1)
    moment = (high >> 16) << _COUNTER_BITS | (high & (2**_COUNTER_BITS - 1))
    rest = low >> _CHECK_BITS
    if _check_bits(moment << 54 | rest) != low & (2**_CHECK_BITS - 1):
        return None
    return rest >> _RANDOM_BITS
