"""One attempt of a worker to run a job: its fencing token, and the state shared by the worker and the handler."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from glidemq_py._core.forks import new_event, new_lock

__all__ = ["Attempt"]


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of a worker to run a job.

    Attributes:
        entry: Stream entry id, or '' for a job from a list.
        fence: The job's activation counter; together with `processed_on` the fencing token of this attempt.
        processed_on: Server time of the activation, epoch ms.
        context: The value that the worker's lifespan yielded.
        tokens: The last value passed to `Job.report_tokens`.
        discarded: True if the handler called `Job.discard`: no further attempts.
        ended: True if the attempt is over for the worker (timed out, canceled, lock lost); a later result is discarded.
    """

    entry: str
    fence: int
    processed_on: int
    context: Any
    tokens: int = field(default=0, init=False)
    discarded: bool = field(default=False, init=False)
    ended: bool = field(default=False, init=False)
    _cancelled: threading.Event | None = field(default=None, init=False)

    @property
    def token(self) -> tuple[int, int]:
        """The fencing token that every call of this attempt contains."""
        return self.fence, self.processed_on

    @property
    def cancelled(self) -> threading.Event:
        """Event that is set when the attempt is canceled; for handlers in threads, which cannot be killed."""
        event = self._cancelled
        if event is None:
            with _creating:
                event = self._cancelled
                if event is None:
                    event = self._cancelled = new_event()
                    if self.ended:
                        event.set()
        return event

    def end(self) -> None:
        """End the attempt: its result will be discarded, and `cancelled` is set."""
        self.ended = True
        with _creating:
            if self._cancelled is not None:
                self._cancelled.set()


# Events are created on first access, which may happen in the event loop or in a handler's thread.
_creating = new_lock()
