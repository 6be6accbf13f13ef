"""The calls that a worker makes to report results and fetch jobs, how they fail, and the steps after a failed one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from glidemq_py._core.calls.working import Held, Tokens
    from glidemq_py._job.run import FinishedAttempt, Run

MAX_ROWS: Final = 100
"""Maximum number of jobs reported, and fetched, by one call: about a millisecond of server time."""


class Failure(Enum):
    """Why a call failed."""

    LOST = auto()
    """The connection: the call may have been executed."""
    REJECTED = auto()
    """The server function failed; a reported row may be the cause."""
    CLOSED = auto()
    """The connection was closed by its owner, or the server refuses every call of this worker."""
    BROKEN = auto()
    """Any other error."""


class Step(Enum):
    """Steps after a failed call, in their order."""

    PAUSE = auto()
    REPORT = auto()
    """Report results of failed calls again. A lost call may have reported a job's failure and fetched the same job for
    its retry. Its pending row would make REATTACH treat the new attempt as known."""
    INVALIDATE = auto()
    REATTACH = auto()


@dataclass(slots=True, eq=False)
class Exchange:
    """Report results and fetch up to ``want`` jobs.

    Attributes:
        want: Number of requested jobs.
        batch: The results.
        wake_count: Number of wake-ups before the call.
        held: Counts of this worker's jobs and suspects if the call may fetch suspects.
        tokens: Token limit of the queue and the tokens of the results, if the worker has such a limit.
    """

    want: int
    batch: list[FinishedAttempt]
    wake_count: int
    held: Held | None = None
    tokens: Tokens | None = None


@dataclass(slots=True, eq=False)
class Pipelined:
    """Fetch up to ``want`` jobs with a call that is sent behind a blocking read.

    Attributes:
        want: Number of requested jobs; the call reserves their slots.
        number: Number of the call, until it is invalidated by `Invalidate`.
        held: See `Exchange`.
    """

    want: int
    number: int
    held: Held | None


@dataclass(slots=True, eq=False)
class Invalidate:
    """Make the server ignore the pipelined call with this number."""

    number: int


@dataclass(slots=True, eq=False)
class Reattach:
    """Find jobs that lost replies assigned to this worker.

    Attributes:
        known: Runs of the known jobs.
        want: Maximum number of jobs.
        cursor: Cursor of the previous call, or ''.
    """

    known: list[Run]
    want: int
    cursor: str


Call = Exchange | Invalidate | Reattach
"""A call whose reply or failure the engine awaits."""
