"""Reports the server's reply to a finished attempt to listeners, logs and meters."""

from __future__ import annotations

from typing import Final

from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py._worker.failure_log import FailureLog
from glidemq_py._worker.finished import FinishedAttempt, lost_answer
from glidemq_py._worker.listeners import Listeners
from glidemq_py.errors import StaleAttemptError
from glidemq_py.telemetry.state import TELEMETRY

__all__ = ["OutcomeReporting"]

_OUTCOMES: Final[dict[int, str]] = {
    AttemptStatus.OK: "completed",
    AttemptStatus.FAILED: "failed",
    AttemptStatus.RETRYING: "retrying",
    AttemptStatus.DELAYED: "delayed",
    AttemptStatus.LIMITED: "delayed",
    AttemptStatus.SUSPENDED: "suspended",
    AttemptStatus.RELEASED: "released",
}
"""Names for meters; every other status means that the attempt was not the current one."""


class OutcomeReporting:
    """Calls listeners with the outcome of each reported attempt.

    Args:
        name: Name of the queue.
        listeners: Get the worker events.
        failure_log: Logs failures.
    """

    __slots__ = ("_failure_log", "_listeners", "_name")

    def __init__(self, name: str, listeners: Listeners, failure_log: FailureLog) -> None:
        self._name = name
        self._listeners = listeners
        self._failure_log = failure_log

    def settle(self, finished: FinishedAttempt, status: int) -> None:
        """Process the server's reply ``status`` to a reported row."""
        listeners, job = self._listeners, finished.run.job
        if finished.sent:
            status = lost_answer(finished, status)
        if TELEMETRY.on:
            for meter in TELEMETRY.meters:
                meter.settled(self._name, _OUTCOMES.get(status, "stale"))
        if status == AttemptStatus.OK:
            if listeners.wanted("completed"):
                listeners.tell("completed", job, finished.result)
        elif status == AttemptStatus.FAILED:
            self._failure_log.failed(finished)
            listeners.tell("failed", job, finished.error)
        elif status == AttemptStatus.RETRYING:
            self._failure_log.retrying(finished)
            listeners.tell("retrying", job, finished.error)
        elif status in (AttemptStatus.DELAYED, AttemptStatus.LIMITED):
            listeners.tell("delayed", job, finished.error)
        elif status == AttemptStatus.SUSPENDED:
            listeners.tell("suspended", job, finished.error)
        elif status == AttemptStatus.WAITING_CHILDREN:
            listeners.tell("waiting-children", job)
        elif status in (AttemptStatus.STALE, AttemptStatus.GONE, AttemptStatus.ALREADY):
            # ALREADY for a row sent for the first time: all data was flushed and another job has this id now.
            self._failure_log.discarded(finished, gone=status == AttemptStatus.GONE)
            listeners.tell("error", StaleAttemptError(job.id))
