"""Interruptions: times at which the connections of a worker saw the server unreachable or its slots moving.

Shared by all connections derived from one another: a worker's own, its heartbeat's and its blocking reads'. Heartbeats
do not arrive during an outage, so the recovery of stalled jobs waits after an interruption
(_maintenance/stalled_jobs.py).
"""

from __future__ import annotations

import time
from typing import Final

from glidemq_py._client.failures import Failure
from glidemq_py._core.logs import get_logger

__all__ = ["Interruptions"]

_log = get_logger(__name__)

_LOG_AFTER_S: Final = 1.0
_LOG_EVERY_S: Final = 10.0


class Interruptions:
    """Time of the last transient failure or slow reply of a group of connections. Thread-safe."""

    __slots__ = ("_last", "_logged")

    def __init__(self) -> None:
        self._last: float | None = None
        self._logged: float | None = None

    def note(self) -> None:
        """Record that a call failed for a transient reason, or that its reply was late."""
        self._last = time.monotonic()

    def retrying(self, function: str, failure: Failure, cause: object, started: float) -> None:
        """Record a retry of a call first sent at ``started``; log a warning if it has been retried for over 1 s."""
        self._last = now = time.monotonic()
        if now - started < _LOG_AFTER_S or (self._logged is not None and now - self._logged < _LOG_EVERY_S):
            return
        self._logged = now
        _log.warning("%s: retrying call %s for %.1f s (%s)", failure.text, function, now - started, cause)

    @property
    def age_s(self) -> float:
        """Return the seconds since the last interruption; infinity if there was none."""
        return float("inf") if self._last is None else time.monotonic() - self._last
