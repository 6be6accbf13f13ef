"""Repeat measurements during which other processes used the CPU."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

import psutil

__all__ = ["Alone"]

T = TypeVar("T")

_TRIES = 12
_PAUSE_SECONDS = 5.0


class Alone:
    """Repeats disturbed measurements.

    Args:
        allowed: share of a core that other processes may use, interrupts and kernel work included.

    Attributes:
        disturbed: number of discarded measurements.
        kept: the largest share of a core that others used in a kept measurement.
    """

    def __init__(self, allowed: float):
        self._allowed = allowed
        self.disturbed = 0
        self.kept = 0.0

    def measure(self, what: Callable[[], T]) -> T:
        """Return the result of a run that others did not disturb; after many attempts, of the last one."""
        for left in reversed(range(_TRIES)):
            everybody, ours, began = _everybody(), _ours(), time.perf_counter()
            result = what()
            others = (_everybody() - everybody - (_ours() - ours)) / (time.perf_counter() - began)
            if others <= self._allowed or not left:
                self.kept = max(self.kept, others)
                return result
            self.disturbed += 1
            print(f"  (others took {others:.2f} of a core: again)", file=sys.stderr)
            time.sleep(_PAUSE_SECONDS)
        raise AssertionError

    def __str__(self) -> str:
        return f"others took {max(self.kept, 0):.2f} of a core at most; {self.disturbed} disturbed runs were repeated"


def _everybody() -> float:
    """Seconds of all processors spent on anything, or taken from this machine."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0) - getattr(times, "guest", 0))


def _ours() -> float:
    """Seconds of this process, of those below it, and of those below it that have ended."""
    process = psutil.Process()
    own = process.cpu_times()
    seconds = float(own.user + own.system + own.children_user + own.children_system)
    for child in process.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue
        seconds += times.user + times.system
    return seconds
