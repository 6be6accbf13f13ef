"""Limits of one worker on fetching, besides its slots: token limits and `rate_limit` pauses.

A part of the fetch engine. It has no clock: times are arguments, in seconds of a monotonic clock. Limits of the whole
queue are counted by the server, in `exchange`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from glidemq_py._core.calls.working import Tokens
    from glidemq_py._core.limits import TokenLimiter
    from glidemq_py._job.run import FinishedAttempt


class Throttle:
    """The limits, and the pause of a worker that has reached one. The partitions of a queue have one together.

    Args:
        tokens: Maximum number of tokens per window.
    """

    def __init__(self, tokens: TokenLimiter | None = None) -> None:
        self.limit: Final = tokens
        self.holding = False
        """True during a pause: no job may be fetched."""
        self.until = 0.0
        """End of the pause."""
        self._window = -1
        self._used = 0
        self._ahead = 0.0

    def hold(self, milliseconds: float, now: float) -> None:
        """Pause for so many ms; a longer pause that is in effect is kept."""
        until = now + milliseconds / 1000
        if milliseconds > 0 and until > self.until:
            self.holding, self.until = True, until

    def left(self, now: float) -> float:
        """Return the remaining milliseconds of the pause; 0 if there is none."""
        return max(0.0, self.until - now) * 1000 if self.holding else 0.0

    def passed(self, milliseconds: float) -> None:
        """Advance the clock by so many ms, for tests that move the time."""
        self._ahead += milliseconds / 1000
        self.until -= milliseconds / 1000

    def charge(
        self, limit: TokenLimiter, batch: Collection[FinishedAttempt], now: float, share: int | None = None
    ) -> Tokens | None:
        """Charge the worker's window with the tokens of ``batch``; return the token argument of `exchange`.

        Args:
            limit: The limit.
            batch: The results.
            now: The time.
            share: Maximum number of tokens of the queue if it is a partition.
        """
        reported = [finished.run.job._tokens_used for finished in batch]
        if limit.scope != "queue":
            new = sum(finished.run.job._tokens_used for finished in batch if not finished.sent)
            self._charge_window(limit, new, now)
        most = limit.max_tokens if share is None else share
        return None if limit.scope == "worker" else (most, limit.duration, reported)

    def _charge_window(self, limit: TokenLimiter, tokens: int, now: float) -> None:
        ms, length = (now + self._ahead) * 1000, limit.duration
        window = int(ms // length)
        if window != self._window:
            self._window, self._used = window, 0
        self._used += tokens
        if self._used >= limit.max_tokens:
            self.hold((window + 1) * length - ms, now)
