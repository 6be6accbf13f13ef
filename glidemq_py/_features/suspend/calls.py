"""Calls for suspended jobs, and the values that they return: signals and suspension info.

``docs/reference/data-model.md`` describes the stored format. Malformed stored values are skipped, never raised.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from glidemq_py._core.calls.packing import Call, pack, unpack
from glidemq_py._core.calls.working import Finished, Keep

__all__ = [
    "SUSPENDED_ROW",
    "Signal",
    "SuspendInfo",
    "Swept",
    "parse_signals",
    "parse_signals_field",
    "signal",
    "suspended",
    "sweep",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A signal that a job received.

    Attributes:
        name: name of the signal.
        data: its payload, or None.
        received_at: time of arrival, epoch ms.
    """

    name: str
    data: Any = None
    received_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendInfo:
    """Details of a suspended job.

    Attributes:
        reason: the reason that the handler gave, or None.
        suspended_at: start of the suspension, epoch ms.
        timeout: ms until the job fails if no signal comes; None = no limit.
        signals: all signals received so far, oldest first.
    """

    reason: str | None
    suspended_at: int
    timeout: int | None
    signals: tuple[Signal, ...]


def parse_signals_field(text: str | None) -> tuple[Signal, ...]:
    """Parse the field ``signals`` of a job hash, a JSON array."""
    if not text:
        return ()
    parsed = _parse(text)
    if not isinstance(parsed, list):
        return ()
    return tuple(signal for item in cast("list[object]", parsed) if (signal := _signal(item)) is not None)


def parse_signals(entries: Iterable[str]) -> tuple[Signal, ...]:
    """Parse the entries of the list ``signals:<id>``, one signal per entry."""
    return tuple(signal for entry in entries if (signal := _signal(_parse(entry))) is not None)


def _signal(item: object) -> Signal | None:
    if not isinstance(item, dict):
        return None
    entry = cast("dict[str, Any]", item)
    data, at = entry.get("data"), entry.get("receivedAt")
    if isinstance(data, str):
        # The payload is JSON within JSON; other text is kept as it is.
        read = _parse(data) if data else None
        data = data if read is _NO_JSON else read
    whole = isinstance(at, int | float) and 0 <= at < 2**53
    return Signal(name=str(entry.get("name", "")), data=data, received_at=int(at) if whole and at else 0)


_NO_JSON: Any = object()


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NO_JSON


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
