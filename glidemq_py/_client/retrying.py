"""Decide whether a failed call is retried: one rule for event loops and threads."""

from __future__ import annotations

import random
import time
from typing import Final, NamedTuple

from glide_shared.exceptions import GlideError

from glidemq_py._client.failures import FUNCTION_MISSING, CallOutcome, classify
from glidemq_py._client.interruptions import Interruptions

__all__ = ["DEFAULT_REQUEST_TIMEOUT_MS", "CallRetry", "Step"]

DEFAULT_REQUEST_TIMEOUT_MS: Final = 30_000
"""Used for an injected client without a request timeout."""

_FIRST_PAUSE_S: Final = 0.005
_LAST_PAUSE_S: Final = 0.25


class Step(NamedTuple):
    """What to do before a call is retried."""

    pause: float
    """Seconds to wait."""
    load: bool
    """Load the function library."""


class CallRetry:
    """Decides for one failed call, error by error, whether to retry it.

    Args:
        name: name of the call, for the log.
        repeatable: the call is idempotent.
        started: time of the first attempt, by ``time.monotonic``.
        limit_ms: how long to retry, milliseconds: the request timeout.
        interruptions: records every transient error.
    """

    __slots__ = ("_interruptions", "_loads", "_name", "_pause", "_repeatable", "_started", "_until")

    def __init__(
        self, name: str, *, repeatable: bool, started: float, limit_ms: int | None, interruptions: Interruptions
    ) -> None:
        self._name = name
        self._repeatable = repeatable
        self._started = started
        self._until = started + (limit_ms or DEFAULT_REQUEST_TIMEOUT_MS) / 1000
        self._interruptions = interruptions
        self._pause = _FIRST_PAUSE_S
        self._loads = 0

    def after(self, error: GlideError) -> Step | None:
        """Return what to do before the next attempt, or None if the error must be raised."""
        failure = classify(error)
        load = failure is FUNCTION_MISSING
        if load:
            self._loads += 1
            if self._loads == 1:
                return Step(0.0, load=True)
        if failure.fate is CallOutcome.PERMANENT:
            return None
        self._interruptions.note()
        if not failure.waits or not (failure.fate is CallOutcome.NOT_EXECUTED or self._repeatable):
            return None
        now = time.monotonic()
        if now >= self._until:
            return None
        self._interruptions.retrying(self._name, failure, error, self._started)
        pause = min(self._pause * (0.5 + random.random()), self._until - now)
        self._pause = min(self._pause * 2, _LAST_PAUSE_S)
        return Step(pause, load)
