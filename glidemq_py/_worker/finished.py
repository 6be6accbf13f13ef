"""An outcome on its way to the server, and what a lost answer to it said.

Fencing makes handing in twice harmless; the second answer says less than the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from glidemq_py._core.calls.working import AttemptStatus
from glidemq_py._features.suspend.calls import SUSPENDED_ROW
from glidemq_py._worker.run import Run

__all__ = ["FinishedAttempt", "lost_answer"]

# Of a row (_core/calls/working.py, `completed` and `failed`): its kinds, and where what is asked here stands.
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
    """A row to hand in, and what listeners are told of it.

    Attributes:
        row, run, result, error: what ended, and how.
        refusals: how often the function failed on it.
        sent: it has been under way before, and the answer was lost.
    """

    row: list[object]
    run: Run
    result: Any
    error: BaseException | None
    refusals: int = 0
    sent: bool = False


def lost_answer(finished: FinishedAttempt, status: int) -> int:
    """What the lost answer to a row most likely said, by what a repeated call is told of its job.

    ALREADY: it was taken. GONE: so it was, where the job was to be removed at its end or by retention. STALE: so it
    was, where the failed job was to be tried again, and has been taken anew since.
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
