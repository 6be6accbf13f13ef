"""What a suspended job waits for, and what it got: values read from its hash and its list of signals.

Format: spec/data-model section 4.3. Reading never raises.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

__all__ = ["Signal", "SuspendInfo", "parse_signals", "parse_signals_field"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A signal that a job got.

    Attributes:
        name: what happened.
        data: what came with it; None where nothing did.
        received_at: when, epoch ms.
    """

    name: str
    data: Any = None
    received_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendInfo:
    """A suspended job.

    Attributes:
        reason: what it gave as the reason; None where it gave none.
        suspended_at: since when, epoch ms.
        timeout: how long it waits before it fails, ms; None = for ever.
        signals: all that it has got so far.
    """

    reason: str | None
    suspended_at: int
    timeout: int | None
    signals: tuple[Signal, ...]


def parse_signals_field(text: str | None) -> tuple[Signal, ...]:
    """Signals of the field ``signals``, a JSON array."""
    if not text:
        return ()
    parsed = _parse(text)
    if not isinstance(parsed, list):
        return ()
    return tuple(signal for item in cast("list[object]", parsed) if (signal := _signal(item)) is not None)


def parse_signals(entries: Iterable[str]) -> tuple[Signal, ...]:
    """Signals of the list ``signals:<id>``, an entry each."""
    return tuple(signal for entry in entries if (signal := _signal(_parse(entry))) is not None)


def _signal(item: object) -> Signal | None:
    if not isinstance(item, dict):
        return None
    entry = cast("dict[str, Any]", item)
    data, at = entry.get("data"), entry.get("receivedAt")
    if isinstance(data, str):
        # The payload's own JSON text; what is none stays text.
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
