"""Options of sandboxes: a value that validates itself."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final, Literal, TypedDict, cast

from glidemq_py._core.checks import check_choice, check_int
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import UnsupportedOptionError

__all__ = ["SandboxDict", "SandboxOptions", "StartMethod"]

StartMethod = Literal["spawn", "forkserver"]

_METHODS: Final = ("spawn", "forkserver")
_MAX_WORKERS: Final = 1_000
_LEAST_MEMORY: Final = 64 * 1024**2
_MOST_MEMORY: Final = 2**62
_MAX_JOBS: Final = 10**9
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_LEAST_START_MS: Final = 100


class SandboxDict(TypedDict, total=False):
    """`SandboxOptions` as a mapping."""

    max_workers: int | None
    memory_limit: int | None
    start_method: StartMethod
    recycle_after: int | None
    kill_after: Milliseconds
    start_timeout: Milliseconds


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class SandboxOptions:
    """Options of a handler that runs in child processes. A process runs one job at a time and is reused.

    Args:
        max_workers: Maximum number of processes, 1..1_000; None: the worker's ``concurrency``.
        memory_limit: Bytes that a process may allocate, at least 64 MiB; a job that needs more fails with MemoryError.
            None: no limit.
        start_method: "spawn" starts a new interpreter per process. "forkserver" forks an interpreter that has imported
            the handler, which takes milliseconds; for modules that start no threads when imported.
        recycle_after: Replace a process after so many jobs, 1..1_000_000_000; None: never.
        kill_after: Grace period of a handler that must stop (timeout, cancellation, close) before its process is
            killed, milliseconds or a timedelta, up to one minute; 0 kills at once.
        start_timeout: Maximum time for importing the handler, milliseconds or a timedelta, 100 ms to one hour; then the
            process is killed, and its job or the start of the worker fails with SandboxStartError.

    Raises:
        GlideMQValidationError: If an option is invalid. The error names the option and its value.
        UnsupportedOptionError: On Windows.
    """

    max_workers: int | None
    memory_limit: int | None
    start_method: StartMethod
    recycle_after: int | None
    kill_after: int
    start_timeout: int

    def __init__(
        self,
        *,
        max_workers: int | None = None,
        memory_limit: int | None = None,
        start_method: StartMethod = "spawn",
        recycle_after: int | None = None,
        kill_after: Milliseconds = 1_000,
        start_timeout: Milliseconds = _MINUTE_MS,
    ) -> None:
        if sys.platform == "win32":
            raise UnsupportedOptionError("sandbox", "win32", "sandboxes need a POSIX system")
        keep = object.__setattr__
        keep(
            self, "max_workers", None if max_workers is None else check_int("max_workers", max_workers, 1, _MAX_WORKERS)
        )
        memory = None if memory_limit is None else check_int("memory_limit", memory_limit, _LEAST_MEMORY, _MOST_MEMORY)
        keep(self, "memory_limit", memory)
        keep(self, "start_method", cast("StartMethod", check_choice("start_method", start_method, _METHODS)))
        after = None if recycle_after is None else check_int("recycle_after", recycle_after, 1, _MAX_JOBS)
        keep(self, "recycle_after", after)
        keep(self, "kill_after", to_ms("kill_after", kill_after, maximum=_MINUTE_MS))
        timeout = to_ms("start_timeout", start_timeout, minimum=_LEAST_START_MS, maximum=_HOUR_MS)
        keep(self, "start_timeout", timeout)
