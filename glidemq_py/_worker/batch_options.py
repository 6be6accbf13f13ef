"""Options of batches: a value that validates itself."""

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
    """`BatchOptions` as a mapping; ``timeout`` is optional."""

    timeout: Milliseconds


@dataclass(frozen=True, slots=True, init=False)
class BatchOptions:
    """Options of a worker whose handler takes a list of jobs.

    Args:
        size: Maximum number of jobs per batch, 1..1_000.
        timeout: Maximum time that the first job of a batch waits for more, milliseconds or a timedelta, up to one
            hour. 0 (the default) starts a batch with the jobs that are ready.

    Raises:
        GlideMQValidationError: If an option is invalid. The error names the option and its value.
    """

    size: int
    timeout: int

    def __init__(self, size: int, timeout: Milliseconds = 0) -> None:
        keep = object.__setattr__
        keep(self, "size", check_int("size", size, 1, MAX_SIZE))
        keep(self, "timeout", to_ms("timeout", timeout, maximum=MAX_WAIT_MS))
