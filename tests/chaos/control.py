"""The control measurement of a chaos run: how much slower than an idle machine this one is, at any time of the run.

A process wakes up ten times per second, needs a few milliseconds of CPU time, and prints when it wanted to start, when
it ended, and the CPU time. It has the same priority and cores as the parties. What it waited for a core, they did too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Final

__all__ = ["Control"]

_PERIOD_S: Final = 0.1
_WORK_S: Final = 0.004


class Control:
    """Starts the process, and reads its measurements in a thread. Without `start`, `slowdown` is 1."""

    def __init__(self):
        self._pulses: list[tuple[float, float, float]] = []
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def start(self):
        """Start to measure, which costs a twentieth of a core."""
        if self._process is not None:
            return
        self._process = subprocess.Popen(
            [sys.executable, "-S", __file__], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        self._thread = threading.Thread(target=self._read, daemon=True, name="control")
        self._thread.start()

    def _read(self):
        assert self._process is not None
        for line in self._process.stdout or ():
            begin, end, cpu = map(float, line.split())
            with self._lock:
                self._pulses.append((begin, end, cpu))

    def slowdown(self, begin: float, end: float) -> float:
        """Return how many times longer work took between two times of the monotonic clock; 1.0: no longer."""
        with self._lock:
            found = [pulse for pulse in self._pulses if pulse[1] >= begin and pulse[0] <= end]
        needed = sum(cpu for _, _, cpu in found)
        return max(1.0, sum(late - early for early, late, _ in found) / needed) if needed else 1.0

    def close(self):
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._thread.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _pulse():
    while True:
        wanted = time.monotonic() + _PERIOD_S
        time.sleep(_PERIOD_S)
        begin = time.process_time()
        while (used := time.process_time() - begin) < _WORK_S:
            continue
        print(f"{wanted:.6f} {time.monotonic():.6f} {used:.6f}", flush=True)


if __name__ == "__main__":
    _pulse()
