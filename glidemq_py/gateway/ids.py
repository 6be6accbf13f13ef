"""Making the ids of jobs; see `glidemq_py._core.names`."""

from __future__ import annotations

import hashlib
import secrets
import struct
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from glidemq_py._core.names import CHECK_BITS, COUNTER_BITS, RANDOM_BITS, check_bits, is_uuid7, queue_number

__all__ = ["MAX_QUEUES", "IdMaker", "is_uuid7", "queue_number", "usual_number"]

MAX_QUEUES: Final = 2**24
"""Queue numbers are below this."""

_RANDOM_KEPT: Final = 1_024
"""Random numbers that are got at a time."""


@lru_cache(maxsize=16_384)
def usual_number(queue: str) -> int:
    """Return the number that a queue or partition has, unless another one has it already.

    It is a hash of the name, so that a number which the server has lost becomes that of the same queue again.
    """
    digest = hashlib.blake2b(queue.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return int.from_bytes(digest, "big") % (MAX_QUEUES - 1) + 1


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
        self._last = moment = max(self._now() << COUNTER_BITS, self._last + 1)
        if not self._random:
            self._random = list(struct.unpack(f"{_RANDOM_KEPT}I", secrets.token_bytes(4 * _RANDOM_KEPT)))
        rest = queue << RANDOM_BITS | self._random.pop() & (2**RANDOM_BITS - 1)
        content = moment << 54 | rest
        low = rest << CHECK_BITS | check_bits(content)
        high = (moment >> COUNTER_BITS) << 16 | 0x7000 | (moment & (2**COUNTER_BITS - 1))
        text = f"{high:016x}{1 << 63 | low:016x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
