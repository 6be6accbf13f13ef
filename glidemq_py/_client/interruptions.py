"""What a worker's connections have noticed of a server that was away or whose slots moved.

Shared by all connections made from one another: a worker's own, its heartbeat's and its blocking reads'. Heartbeats do
not arrive while the server is away, so the recovery of stalled jobs waits after an interruption
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
    """When calls of a group of connections last failed for a transient reason, or took long. Used from any thread."""

    __slots__ = ("_last", "_logged")

    def __init__(self) -> None:
        self._last: float | None = None
        self._logged: float | None = None

    def note(self) -> None:
        """A call failed for a transient reason, or was answered late."""
        self._last = time.monotonic()

    def retrying(self, function: str, failure: Failure, cause: object, started: float) -> None:
        """A call that was first sent at ``started`` is about to be sent again. Log it if that takes long."""
        self._last = now = time.monotonic()
        if now - started < _LOG_AFTER_S or (self._logged is not None and now - self._logged < _LOG_EVERY_S):
            return
        self._logged = now
        _log.warning("%s: retrying call %s for %.1f s already (%s)", failure.text, function, now - started, cause)

    @property
    def age_s(self) -> float:
        """Seconds since the last interruption; infinity if there was none."""
        return float("inf") if self._last is None else time.monotonic() - self._last
