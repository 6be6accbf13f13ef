"""One run of a job by a worker: its fencing token, and what the worker and the handler tell each other."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Attempt"]


class Attempt:
    """The attempt that a worker makes at a job.

    Attributes:
        entry: stream entry id, or '' for a job from a list.
        fence: the job's activation counter; with `processed_on` the token of this attempt.
        processed_on: server time of the activation, epoch ms.
        context: what the worker's lifespan yielded.
        tokens: what `Job.report_tokens` said last.
        discarded: the handler asked for no more attempts.
        ended: the attempt is over for the worker (timed out, revoked, taken away); a later result is refused.
    """

    __slots__ = ("_cancelled", "context", "discarded", "ended", "entry", "fence", "processed_on", "tokens")

    def __init__(self, entry: str, fence: int, processed_on: int, context: Any) -> None:
        self.entry = entry
        self.fence = fence
        self.processed_on = processed_on
        self.context = context
        self.tokens = 0
        self.discarded = False
        self.ended = False
        self._cancelled: threading.Event | None = None

    @property
    def token(self) -> tuple[int, int]:
        """What every call of this attempt carries."""
        return self.fence, self.processed_on

    @property
    def cancelled(self) -> threading.Event:
        """Set when the attempt's result is no longer wanted; for handlers in threads, which cannot be killed."""
        event = self._cancelled
        if event is None:
            with _creating:
                event = self._cancelled
                if event is None:
                    event = self._cancelled = threading.Event()
                    if self.ended:
                        event.set()
        return event

    def end(self) -> None:
        """Refuse whatever this attempt still brings, and tell its handler."""
        self.ended = True
        with _creating:
            if self._cancelled is not None:
                self._cancelled.set()


# Events are made only for attempts that ask for one, by the loop or by a handler's thread.
_creating = threading.Lock()
