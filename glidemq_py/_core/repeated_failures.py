"""The log lines of what fails again and again, without a line per failure: a task, or code of the application."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Final

from glidemq_py._core.times import duration_text

_EVERY_S: Final = 60.0
_MAX_KINDS: Final = 200


class ForeignFailures:
    """Logs the failures of code of the application with their traceback, and limits them as the failure log does.

    Nothing that the error, or a filter or handler of the application's logging, raises meanwhile leaves it.

    Args:
        log: The logger.
        per_minute: Number of failures of one kind per minute that are logged as an ERROR; the others are at DEBUG.
    """

    def __init__(self, log: logging.Logger, per_minute: int = 5) -> None:
        self._log = log
        self._per_minute = per_minute
        self._counts: dict[tuple[str, type[BaseException]], int] = {}
        self._window_end = 0.0

    def log(self, kind: str, error: BaseException, template: str, *args: object) -> None:
        """Log a failure of this kind."""
        with contextlib.suppress(BaseException):
            now = time.monotonic()
            if now >= self._window_end:
                self._counts, self._window_end = {}, now + _EVERY_S
            key = (kind, type(error)) if len(self._counts) < _MAX_KINDS else ("", BaseException)
            count = self._counts[key] = self._counts.get(key, 0) + 1
            level = logging.ERROR if count <= self._per_minute else logging.DEBUG
            self._log.log(level, template, *args, exc_info=error)


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
