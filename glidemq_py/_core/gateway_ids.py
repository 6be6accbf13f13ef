"""Ids of jobs that gateways make: UUIDv7 with the number of the queue, which commands that have only the id need.

Layout after the version and variant bits: 48 bits of milliseconds, a counter of 12 bits, the queue's number of 24 bits,
30 random bits, and 8 check bits. The check bits distinguish these ids from UUIDs that clients have chosen. One in 256
of those passes, so a reader looks in the queue first and in the index of chosen ids then.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from typing import Final

COUNTER_BITS: Final = 12
RANDOM_BITS: Final = 30
CHECK_BITS: Final = 8
_LOW, _COUNTER, _CHECK = 2**62 - 1, 2**COUNTER_BITS - 1, 2**CHECK_BITS - 1
_LENGTH: Final = 36
_SHAPE: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.ASCII)


def queue_numbers_key(prefix: str) -> str:
    """Return the key of the numbers of queues and partitions: field ``q:<name>``."""
    return f"{prefix}:gateway:queues"


def check_bits(content: int) -> int:
    """Return the check bits of the 114 bits that stand before them, without version and variant."""
    return zlib.crc32(content.to_bytes(15, "big")) & _CHECK


def is_uuid7(job_id: str) -> bool:
    """Return whether an id is a UUIDv7, made here or by a client."""
    return _SHAPE.fullmatch(job_id) is not None


def queue_number(job_id: str) -> int | None:
    """Return the number of the queue in an id, or None if the id was not made here."""
    return _queue_number(job_id) if len(job_id) == _LENGTH else None


@lru_cache(maxsize=16_384)  # an id is read when its job is fetched, reported, and named by events
def _queue_number(job_id: str) -> int | None:
    if _SHAPE.fullmatch(job_id) is None:
        return None
    value = int(job_id.replace("-", ""), 16)
    high, low = value >> 64, value & _LOW
    moment = (high >> 16) << COUNTER_BITS | (high & _COUNTER)
    rest = low >> CHECK_BITS
    # `check_bits`, without a function of its own.
    if (zlib.crc32((moment << 54 | rest).to_bytes(15, "big")) ^ low) & _CHECK:
        return None
    return rest >> RANDOM_BITS
