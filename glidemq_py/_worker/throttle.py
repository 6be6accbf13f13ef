"""Limits on fetching besides the slots: the worker's limiters and `rate_limit` pauses.

Limits of the whole queue are counted by the server (in `exchange`); limits of this worker alone are counted here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from glidemq_py._core.calls.working import Tokens
from glidemq_py._features.usage.job_api import tokens_used
from glidemq_py._worker.finished import FinishedAttempt
from glidemq_py._worker.options import WorkerOptions

__all__ = ["Throttle"]


class Throttle:
    """Limits of one worker.

    Args:
        options: Options of the worker.
        over: Called when a pause ends.
    """

    def __init__(self, options: WorkerOptions, over: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = over
        rate = options.limiter
        self.limiter: Final = None if rate is None else (rate.max, rate.duration)
        """The limiter as an argument of `exchange`."""
        self._tokens = options.token_limiter
        self._window = -1
        self._used = 0
        self.holding = False
        """True during a pause: no job may be fetched."""
        self._until = 0.0
        self._ahead = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, milliseconds: float) -> None:
        """Pause for so many ms; a longer pause that is in effect is kept."""
        until = self._loop.time() + milliseconds / 1000
        if milliseconds <= 0 or until <= self._until:
            return
        if self._timer is not None:
            self._timer.cancel()
        self.holding = True
        self._until = until
        self._timer = self._loop.call_at(until, self._let_go)

    def _let_go(self) -> None:
        self.holding = False
        self._timer = None
        self._over()

    @property
    def left(self) -> float:
        """Remaining milliseconds of the pause; 0 if there is none."""
        return max(0.0, self._until - self._loop.time()) * 1000 if self.holding else 0.0

    def passed(self, milliseconds: float) -> None:
        """Advance the clock by so many ms, for tests that move the time."""
        self._ahead += milliseconds / 1000
        self._until -= milliseconds / 1000
        if self.holding and self._until <= self._loop.time():
            self.close()
            self._let_go()

    def tokens(self, batch: Iterable[FinishedAttempt]) -> Tokens | None:
        """Return the token argument of `exchange`, and charge the worker's own window with the tokens of ``batch``."""
        limit = self._tokens
        if limit is None:
            return None
        reported = [tokens_used(finished.run.job) for finished in batch]
        if limit.scope != "queue":
            self._charge(sum(tokens_used(finished.run.job) for finished in batch if not finished.sent))
        return None if limit.scope == "worker" else (limit.max_tokens, limit.duration, reported)

    def _charge(self, tokens: int) -> None:
        assert self._tokens is not None
        now, length = (self._loop.time() + self._ahead) * 1000, self._tokens.duration
        window = int(now // length)
        if window != self._window:
            self._window, self._used = window, 0
        self._used += tokens
        if self._used >= self._tokens.max_tokens:
            self.hold((window + 1) * length - now)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
