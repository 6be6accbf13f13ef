"""Values of the texts that people type: durations, times, JSON values, pairs of a key and a value; and `span`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

from glidemq_py.errors import GlideMQValidationError

if TYPE_CHECKING:
    from glidemq_py._core.limits import RateLimit

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SPAN: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|s|m|h|d|w)")


def span_of(option: str, text: str) -> int:
    """Return the milliseconds of a duration with a unit, such as "90s", "5m" or "7d"."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise GlideMQValidationError(option, text, "must be a duration with a unit, such as 30s, 5m, 2h or 7d")
    return round(float(found[1]) * _UNITS_MS[found[2]])


def time_of(option: str, text: str | None) -> int | None:
    """Return epoch ms: of a date and time (local if without offset), or of a duration ago."""
    if text is None:
        return None
    if _SPAN.fullmatch(text.strip()):
        return max(0, round(time.time() * 1_000) - span_of(option, text))
    try:
        return max(0, round(datetime.fromisoformat(text.strip()).astimezone().timestamp() * 1_000))
    except (ValueError, OverflowError, OSError):
        problem = "must be a time such as 2026-11-23T06:00, or a duration ago such as 2h"
        raise GlideMQValidationError(option, text, problem) from None


def value_of(text: str) -> Any:
    """Return the value of JSON text, or the text itself if it is not JSON."""
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return text


def _reject_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")  # NaN and Infinity, which Python reads


def pairs_of(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """Return the mapping of ``KEY=VALUE`` texts, whose values are JSON or else text."""
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise GlideMQValidationError(option, text, "must be KEY=VALUE")
        found[key] = value_of(value)
    return found


def rate_of(option: str, text: str) -> RateLimit:
    """Return the rate limit of a text such as "100/1m" or "5/s"."""
    from glidemq_py._core.limits import RateLimit

    number, slash, window = text.partition("/")
    if not slash or not number.isascii() or not number.isdigit() or len(number) > 12:
        raise GlideMQValidationError(option, text, "must be a number of jobs per window, such as 100/1m or 5/s")
    return RateLimit(int(number), span_of(option, window if window[:1].isdigit() else f"1{window}"))


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
