"""How a worker's jobs are gathered into batches. A value that checks itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypedDict

from glidemq_py._core.checks import check_int
from glidemq_py._core.times import Milliseconds, to_ms

__all__ = ["BatchDict", "BatchOptions"]

MAX_SIZE: Final = 1_000
MAX_WAIT_MS: Final = 3_600_000


class _Needed(TypedDict):
    size: int


class BatchDict(_Needed, total=False):
    """`BatchOptions` written as a mapping; ``timeout`` may be left out."""

    timeout: Milliseconds


@dataclass(frozen=True, slots=True, init=False)
class BatchOptions:
    """The handler takes a list of jobs.

    Args:
        size: most jobs of a batch, 1..1_000.
        timeout: how long the first job of a batch waits for others, milliseconds or a timedelta, up to an hour.
            0 (the default): a batch is what is ready when it begins.
    """

    size: int
    timeout: int

    def __init__(self, size: int, timeout: Milliseconds = 0) -> None:
        keep = object.__setattr__
        keep(self, "size", check_int("size", size, 1, MAX_SIZE))
        keep(self, "timeout", to_ms("timeout", timeout, maximum=MAX_WAIT_MS))
