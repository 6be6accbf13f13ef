"""A result to report, and how to interpret the reply to a second report after a lost reply.

The fencing token makes a second report harmless, but its reply has less information than the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py._features.suspend.calls import SUSPENDED_ROW
from glidemq_py._worker.run import Run

__all__ = ["FinishedAttempt", "lost_answer"]

# Kinds of rows and positions of their fields (_core/calls/working.py, `completed` and `failed`).
_COMPLETED: Final = 1
_FAILED: Final = 2
_GROUP_LIMITED: Final = 5
_WAITING_CHILDREN: Final = 6
_SIGNALLED: Final = (4, _GROUP_LIMITED, _WAITING_CHILDREN, SUSPENDED_ROW)
_LIMIT: Final = 8
_HOW: Final = 7
_KEEP: Final = {_COMPLETED: 6, _FAILED: 10}


@dataclass(slots=True)
class FinishedAttempt:
    """A row to report, and the arguments of its worker events.

    Attributes:
        row: The row of the exchange call.
        run: The run that ended.
        result: Return value of the handler, or None.
        error: Exception or signal that ended the attempt, or None.
        refusals: Number of calls that failed because of this row.
        sent: True if the row was sent before and the reply was lost.
    """

    row: list[object]
    run: Run
    result: Any
    error: BaseException | None
    refusals: int = 0
    sent: bool = False


def lost_answer(finished: FinishedAttempt, status: int) -> int:
    """Return the most likely status of a lost reply, derived from the ``status`` of the repeated report.

    ALREADY: the first report was accepted. GONE: it was accepted if the job was to be removed at its end or by
    retention. STALE: it was accepted if the job was to be retried, and has been fetched again since.
    """
    if status not in (AttemptStatus.ALREADY, AttemptStatus.GONE, AttemptStatus.STALE):
        return status
    row = finished.row
    kind: Any = row[0]
    limit: Any = row[_LIMIT] if kind == _FAILED else 0
    is_retried = finished.run.job.attempts_made + 1 < limit
    if status == AttemptStatus.GONE and not (kind in _KEEP and any(row[_KEEP[kind] : _KEEP[kind] + 1])):
        return status
    if status == AttemptStatus.STALE and not (is_retried or kind in _SIGNALLED):
        return status
    if kind == SUSPENDED_ROW:
        return AttemptStatus.SUSPENDED
    if kind == _WAITING_CHILDREN:
        return AttemptStatus.WAITING_CHILDREN
    if kind in _SIGNALLED:
        fails = kind == _GROUP_LIMITED and row[_HOW] == "fail"
        return AttemptStatus.FAILED if fails else AttemptStatus.DELAYED
    if kind == _COMPLETED:
        return AttemptStatus.OK
    if kind != _FAILED:
        return AttemptStatus.RELEASED
    return AttemptStatus.RETRYING if is_retried else AttemptStatus.FAILED
