"""`RepeatedFailure`: the log lines of a task that fails again and again, without a line per attempt."""

from __future__ import annotations

import logging
import time
from typing import Final

from glidemq_py._core.times import duration_text

__all__ = ["RepeatedFailure"]

_EVERY_S: Final = 60.0


class RepeatedFailure:
    """Logs the first failure, then at most one per minute, and once that the task works again.

    Args:
        log: The logger.
        what: The task in the lines, such as "queue 'q': firing schedulers".

    Attributes:
        since: When the first failure was logged, by ``time.monotonic``; None while the task works.
    """

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log, self._what = log, what
        self.since: float | None = None
        self._logged_at = -_EVERY_S

    def failed(self, error: BaseException, level: int = logging.WARNING) -> None:
        """Log a failure, with ``level`` if it is not one of many."""
        now = time.monotonic()
        is_due = now - self._logged_at >= _EVERY_S
        if is_due and level > logging.DEBUG:
            self._logged_at = now
            if self.since is None:
                self.since = now
        self._log.log(level if is_due else logging.DEBUG, "%s failed: %s", self._what, error)

    def succeeded(self) -> None:
        """Log that the task works again, if its failure was logged."""
        if self.since is not None:
            lasted = duration_text(time.monotonic() - self.since)
            self._log.warning("%s works again, after %s", self._what, lasted)
            self.since = None
