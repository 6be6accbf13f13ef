"""Calls for suspended jobs: the row that suspends a job, signals, timeouts."""

from __future__ import annotations

from typing import NamedTuple

from glidemq_py._core.calls.packing import Call, pack, unpack
from glidemq_py._core.calls.working import Finished, Keep

__all__ = ["SUSPENDED_ROW", "Swept", "signal", "suspended", "sweep"]

SUSPENDED_ROW = 7
"""Kind of the result row that suspends a job."""


class Swept(NamedTuple):
    """Reply of `sweep`."""

    failed: list[str]
    """Jobs whose timeout has expired."""
    next_due: int
    """Milliseconds until the next deadline; -1 = none."""
    more: int
    """1 = more jobs may be overdue."""
    held: int
    """0 = another client holds the lock of this task; nothing was done."""


def suspended(
    job_id: str, entry: str, fence: int, processed_on: int, reason: str, timeout: int, keep: Keep = 0
) -> Finished:
    """Return the result row that suspends a job until a signal, for at most ``timeout`` ms (0 = no limit)."""
    head: Finished = [SUSPENDED_ROW, job_id, entry, fence, processed_on, reason, timeout]
    if keep:
        head.append(keep)
    return head


def signal(meta: str, job_id: str, name: str, data: str) -> Call[str]:
    """Send a signal and return 'resumed', 'kept', 'full', 'ended' or 'gone'. ``data`` is JSON text, '' = none."""
    return Call("signal", meta, (pack((job_id, name, data)),), bytes.decode)


def sweep(meta: str) -> Call[Swept]:
    """Fail up to 100 suspended jobs whose timeout has expired."""
    return Call("sweep_suspended", meta, (), _swept, repeatable=True)


def _swept(reply: bytes) -> Swept:
    return Swept(*unpack(reply))
