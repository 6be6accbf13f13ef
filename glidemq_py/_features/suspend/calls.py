"""Calls about suspended jobs: the row that suspends one, signals, time-outs."""

from __future__ import annotations

from typing import NamedTuple

from glidemq_py._core.calls.packing import Call, pack, unpack
from glidemq_py._core.calls.working import Finished, Keep

__all__ = ["SUSPENDED_ROW", "Swept", "signal", "suspended", "sweep"]

SUSPENDED_ROW = 7
"""Kind of the finished row."""


class Swept(NamedTuple):
    """Reply of `sweep`."""

    failed: list[str]
    """Jobs whose time was over."""
    next_due: int
    """Milliseconds until the next deadline; -1 = none is set."""
    more: int
    """1: others may be overdue too."""
    held: int
    """0: a peer is at it, nothing was done."""


def suspended(
    job_id: str, entry: str, fence: int, processed_on: int, reason: str, timeout: int, keep: Keep = 0
) -> Finished:
    """A finished row: the job waits for a signal, ``timeout`` ms at most (0 = for ever)."""
    head: Finished = [SUSPENDED_ROW, job_id, entry, fence, processed_on, reason, timeout]
    if keep:
        head.append(keep)
    return head


def signal(meta: str, job_id: str, name: str, data: str) -> Call[str]:
    """Send a signal: 'resumed', 'kept', 'full', 'ended' or 'gone'. ``data`` is JSON text, '' = none."""
    return Call("signal", meta, (pack((job_id, name, data)),), bytes.decode)


def sweep(meta: str) -> Call[Swept]:
    """Fail suspended jobs whose time is over, a hundred at most."""
    return Call("sweep_suspended", meta, (), _swept, repeatable=True)


def _swept(reply: bytes) -> Swept:
    return Swept(*unpack(reply))
