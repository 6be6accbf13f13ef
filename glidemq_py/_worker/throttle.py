"""What bounds this worker's taking beside its slots: its limiters, and pauses that it was told to make.

Permits of the queue are the server's to spend (`exchange` does, on what it takes); what concerns this worker alone is
counted here.
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
        options: of the worker.
        over: called when a pause is over.
    """

    def __init__(self, options: WorkerOptions, over: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = over
        rate = options.limiter
        self.limiter: Final = None if rate is None else (rate.max, rate.duration)
        """What exchange takes as its limiter."""
        self._tokens = options.token_limiter
        self._window = -1
        self._used = 0
        self.holding = False
        """No job is to be taken now."""
        self._until = 0.0
        self._ahead = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, milliseconds: float) -> None:
        """Pause for a while; a pause that lasts longer stands."""
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
        """Milliseconds for which it still holds; 0 where it does not."""
        return max(0.0, self._until - self._loop.time()) * 1000 if self.holding else 0.0

    def passed(self, milliseconds: float) -> None:
        """Time has passed of which the event loop knows nothing: a test has moved the clock."""
        self._ahead += milliseconds / 1000
        self._until -= milliseconds / 1000
        if self.holding and self._until <= self._loop.time():
            self.close()
            self._let_go()

    def tokens(self, batch: Iterable[FinishedAttempt]) -> Tokens | None:
        """What exchange takes as its tokens; the worker's own window is charged here."""
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
