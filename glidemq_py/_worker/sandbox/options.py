"""How a worker's handler is kept in processes of its own. A value that checks itself."""

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


class SandboxDict(TypedDict, total=False):
    """`SandboxOptions` written as a mapping."""

    max_workers: int | None
    memory_limit: int | None
    start_method: StartMethod
    recycle_after: int | None
    kill_after: Milliseconds


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class SandboxOptions:
    """The handler runs in child processes; each runs one job at a time and is kept for the next.

    Args:
        max_workers: most processes, 1..1_000; None: as many as the worker's ``concurrency``.
        memory_limit: bytes that a process may allocate, at least 64 MiB; a job that needs more fails with MemoryError.
            None: no limit.
        start_method: "spawn": a fresh interpreter each. "forkserver": copies of one that has imported the handler,
            which start within milliseconds; for modules that start no threads when they are imported.
        recycle_after: replace a process after so many jobs; None: never.
        kill_after: how long a handler that is to stop (time-out, revocation, close) has to end by itself before its
            process is killed, milliseconds or a timedelta, up to a minute; 0 kills at once.
    """

    max_workers: int | None
    memory_limit: int | None
    start_method: StartMethod
    recycle_after: int | None
    kill_after: int

    def __init__(
        self,
        *,
        max_workers: int | None = None,
        memory_limit: int | None = None,
        start_method: StartMethod = "spawn",
        recycle_after: int | None = None,
        kill_after: Milliseconds = 1_000,
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
