"""Whether a failed call is retried, and the interruptions that failed calls are evidence of.

Interruptions are times at which the connections of a worker saw the server unreachable or its slots moving. They are
shared by all connections derived from one another: a worker's own, its heartbeat's and its blocking reads'. Heartbeats
do not arrive during an outage, so the recovery of stalled jobs waits after an interruption
(_maintenance/stalled_jobs.py). In a cluster, a failed call for another queue may concern another shard only, so
interruptions are recorded per hash tag.
"""

from __future__ import annotations

import random
import time
from typing import Final, NamedTuple

from glide_shared.exceptions import GlideError

from glidemq_py._client.failures import FUNCTION_MISSING, CallOutcome, Failure, classify
from glidemq_py._core.logs import get_logger

__all__ = ["DEFAULT_REQUEST_TIMEOUT_MS", "CallRetry", "Interruptions", "Step"]

_log = get_logger(__name__)

_LOG_AFTER_S: Final = 1.0
_LOG_EVERY_S: Final = 10.0
_MAX_TAGS: Final = 1_000


class Interruptions:
    """Time of the last transient failure or slow reply of a group of connections. Thread-safe."""

    __slots__ = ("_last", "_last_by_tag", "_logged")

    def __init__(self) -> None:
        self._last: float | None = None
        self._last_by_tag: dict[str, float] = {}
        self._logged: float | None = None

    def note(self, tag: str | None = None) -> None:
        """Record that a call failed for a transient reason, or that its reply was late.

        Args:
            tag: Hash tag of the call's keys in a cluster. None: the interruption concerns all queues.
        """
        now = time.monotonic()
        if tag is None or (len(self._last_by_tag) >= _MAX_TAGS and tag not in self._last_by_tag):
            self._last = now
        else:
            self._last_by_tag[tag] = now

    def retrying(self, function: str, failure: Failure, cause: object, started: float) -> None:
        """Log a warning if a call first sent at ``started`` has been retried for over 1 s."""
        now = time.monotonic()
        if now - started < _LOG_AFTER_S or (self._logged is not None and now - self._logged < _LOG_EVERY_S):
            return
        self._logged = now
        _log.warning("%s: retrying call %s for %.1f s (%s)", failure.text, function, now - started, cause)

    def age_s(self, tag: str) -> float:
        """Return the seconds since the last interruption of the queue with this hash tag; infinity if none."""
        last = max(self._last or 0.0, self._last_by_tag.get(tag, 0.0))
        return time.monotonic() - last if last else float("inf")


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
        tag: hash tag of the call's keys in a cluster, else None; see `Interruptions.note`.
    """

    __slots__ = ("_interruptions", "_loads", "_name", "_pause", "_repeatable", "_started", "_tag", "_until")

    def __init__(
        self, name: str, *, repeatable: bool, started: float, limit_ms: int | None, interruptions: Interruptions,
        tag: str | None = None,
    ) -> None:  # fmt: skip
        self._name = name
        self._repeatable = repeatable
        self._started = started
        self._until = started + (limit_ms or DEFAULT_REQUEST_TIMEOUT_MS) / 1000
        self._interruptions = interruptions
        self._tag = tag
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
        self._interruptions.note(self._tag)
        if not failure.waits or not (failure.fate is CallOutcome.NOT_EXECUTED or self._repeatable):
            return None
        now = time.monotonic()
        if now >= self._until:
            return None
        self._interruptions.retrying(self._name, failure, error, self._started)
        pause = min(self._pause * (0.5 + random.random()), self._until - now)
        self._pause = min(self._pause * 2, _LAST_PAUSE_S)
        return Step(pause, load)
