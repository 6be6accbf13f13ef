"""Failed calls of GLIDE: the class of the error, our error for it, and the decision to retry the call.

failures.py has the table, without GLIDE.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from glide_shared.exceptions import ClosingError, GlideError
from glide_shared.exceptions import ConnectionError as GlideConnectionError
from glide_shared.exceptions import TimeoutError as GlideTimeoutError

from glidemq_py._client.failures import (
    CLOSED,
    DEFAULT_REQUEST_TIMEOUT_MS,
    FUNCTION_MISSING,
    LOST,
    TIMEOUT,
    CallOutcome,
    Failure,
    Interruptions,
    classify_reply,
    error_of,
)
from glidemq_py.errors import GlideMQError

if TYPE_CHECKING:
    from glidemq_py._client.library_source import Library


def classify(error: GlideError) -> Failure:
    """Return the table row for an error raised by GLIDE."""
    if isinstance(error, ClosingError):
        return CLOSED
    if isinstance(error, GlideTimeoutError):
        return TIMEOUT
    if isinstance(error, GlideConnectionError):
        return LOST
    return classify_reply(str(error))


def translate(
    error: GlideError, library: Library | None = None, *, reads: bool = False, refused: str = ""
) -> GlideMQError:
    """Return our error for an error of GLIDE; the caller raises it from the original. The arguments: see `error_of`."""
    return error_of(classify(error), str(error), library, reads=reads, refused=refused)


def not_read(replies: Sequence[Any]) -> GlideError | None:
    """Return the first error after which reads are repeated: the server was not ready or the slot had moved."""
    for reply in replies:
        if isinstance(reply, GlideError) and classify(reply).outcome is not CallOutcome.PERMANENT:
            return reply
    return None


_READS: Final = frozenset((
    "EXISTS", "FT.INFO", "FT.SEARCH", "FT._LIST", "GET", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET",
    "HSCAN", "INFO", "LLEN", "LRANGE", "PING", "SCAN", "SISMEMBER", "SMEMBERS", "SSCAN", "TIME", "XLEN", "XRANGE",
    "XREAD", "XREVRANGE", "ZCARD", "ZCOUNT", "ZMSCORE", "ZRANGE", "ZSCAN", "ZSCORE",
))  # fmt: skip


def only_reads(command: Sequence[str | bytes]) -> bool:
    """Return whether a command of the package only reads, so that it is repeated, unless it waits for data."""
    return command[0] in _READS


_FIRST_PAUSE_S: Final = 0.005
_LAST_PAUSE_S: Final = 0.25
_LEAST_ATTEMPT_S: Final = 0.05


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
        limit_ms: how long to retry, milliseconds.
        interruptions: records every transient error.
        tag: hash tag of the call's keys in a cluster, else None; see `Interruptions.record`.
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

    @property
    def left_s(self) -> float:
        """Time that the next attempt has, seconds."""
        return max(_LEAST_ATTEMPT_S, self._until - time.monotonic())

    def after(self, error: GlideError) -> Step | None:
        """Return what to do before the next attempt, or None if the error must be raised."""
        failure = classify(error)
        load = failure is FUNCTION_MISSING
        if load:
            self._loads += 1
            if self._loads == 1:
                return Step(0.0, load=True)
        if failure.outcome is CallOutcome.PERMANENT:
            return None
        self._interruptions.record(self._tag)
        self._interruptions.count(failure.name)
        if not failure.is_temporary or not (failure.outcome is CallOutcome.NOT_EXECUTED or self._repeatable):
            return None
        now = time.monotonic()
        if now >= self._until:
            return None
        self._interruptions.retrying(self._name, failure, error, self._started)
        pause = min(self._pause * (0.5 + random.random()), self._until - now)
        self._pause = min(self._pause * 2, _LAST_PAUSE_S)
        return Step(pause, load)
