"""Durations, times and lists as text."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

__all__ = ["age", "clock", "joined", "json_line", "size_text", "span"]


def span(ms: float) -> str:
    """Return a duration in at most two units: ``850ms``, ``12s``, ``3m 20s``, ``2d 4h``."""
    if ms < 1_000:
        return f"{round(ms)}ms"
    left, parts = int(ms // 1_000), list[str]()
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if left >= size and len(parts) < 2:
            parts.append(f"{left // size}{unit}")
            left %= size
        elif parts:
            break
    return " ".join(parts)


def json_line(value: Any) -> str:
    """Return a stored value as JSON in one line; a text as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def age(at: int | None) -> str:
    """Return how long ago or ahead a time (epoch ms) is, by this machine's clock; '' for None or 0."""
    if not at:
        return ""
    passed = time.time() * 1_000 - at
    if abs(passed) < 1_000:
        return "now"
    return f"{span(passed)} ago" if passed > 0 else f"in {span(-passed)}"


def clock(at: int | None) -> str:
    """Return a time (epoch ms) as local date and time with offset; '' for None or 0."""
    if not at:
        return ""
    try:
        return datetime.fromtimestamp(at / 1_000).astimezone().isoformat(sep=" ", timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return str(at)


def size_text(size: int | None) -> str:
    """Return a number of bytes in MiB; '' for None."""
    return "" if size is None else f"{size / 2**20:,.0f} MiB"


def joined(texts: Iterable[str]) -> str:
    """Return the texts separated by commas."""
    return ", ".join(texts)
