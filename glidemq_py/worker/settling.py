"""What the server's answer to a finished attempt means: whom of this process it is told."""

from __future__ import annotations

import logging
from typing import Final

from glidemq_py.errors import StaleAttemptError
from glidemq_py.telemetry.state import TELEMETRY
from glidemq_py.wire.calls.working import AttemptStatus
from glidemq_py.worker.finished import Finished, lost_answer
from glidemq_py.worker.listeners import Listeners

__all__ = ["Settling", "report_dropped"]

_log = logging.getLogger(__name__)


_OUTCOMES: Final[dict[int, str]] = {
    AttemptStatus.OK: "completed",
    AttemptStatus.FAILED: "failed",
    AttemptStatus.RETRYING: "retrying",
    AttemptStatus.DELAYED: "delayed",
    AttemptStatus.LIMITED: "delayed",
    AttemptStatus.SUSPENDED: "suspended",
    AttemptStatus.RELEASED: "released",
}
"""In the words of meters; everything else was the end of an attempt that is not the current one."""


_WANTED_ENDS: Final = ("expired", "revoked")


class Settling:
    """Tells listeners what became of the attempts that were handed in.

    Args:
        name: of the queue.
        listeners: who is told.
    """

    __slots__ = ("_listeners", "_name")

    def __init__(self, name: str, listeners: Listeners) -> None:
        self._name = name
        self._listeners = listeners

    def settle(self, finished: Finished, status: int) -> None:
        """The server has answered ``status`` to a row that was handed in."""
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
            listeners.tell("failed", job, finished.error)
        elif status == AttemptStatus.RETRYING:
            listeners.tell("retrying", job, finished.error)
        elif status in (AttemptStatus.DELAYED, AttemptStatus.LIMITED):
            listeners.tell("delayed", job, finished.error)
        elif status == AttemptStatus.SUSPENDED:
            listeners.tell("suspended", job, finished.error)
        elif status == AttemptStatus.WAITING_CHILDREN:
            listeners.tell("waiting-children", job)
        elif status in (AttemptStatus.STALE, AttemptStatus.GONE, AttemptStatus.ALREADY):
            # ALREADY to what was never sent before: another job bears that id now, all data having been flushed.
            what = "is gone" if status == AttemptStatus.GONE else "was given to another worker"
            _log.warning("job %s of queue %r %s: its outcome is dropped", job.id, self._name, what)
            listeners.tell("error", StaleAttemptError(job.id))


def report_dropped(name: str, dropped: list[list[str]]) -> None:
    """Log what the server set aside: as a warning, unless the job's own options or a user wanted that."""
    for entry, job_id, reason in dropped:
        level = logging.INFO if reason in _WANTED_ENDS else logging.WARNING
        _log.log(level, "queue %r: set aside job %r (stream entry %r): %s", name, job_id, entry, reason)
