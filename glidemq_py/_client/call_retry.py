"""Failed calls of GLIDE: the error's class, our error for it, the decision to retry, and the load of the library.

failures.py has the table, without GLIDE.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from glide_shared.exceptions import ClosingError, GlideError
from glide_shared.exceptions import ConnectionError as GlideConnectionError
from glide_shared.exceptions import TimeoutError as GlideTimeoutError
from glide_shared.routes import AllPrimaries

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
from glidemq_py.errors import (
    ClosedError,
    GlideMQConnectionError,
    GlideMQError,
    LibraryError,
    ServerNotReadyError,
    ServerOutOfMemoryError,
)

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


def is_of_node(error: GlideError) -> bool:
    """Return whether an error means that the node cannot serve calls now; it may be no longer the right one."""
    failure = classify(error)
    return failure is not FUNCTION_MISSING and failure.outcome is not CallOutcome.PERMANENT


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


class Loads:
    """The loads of the function library by one client, whose transports share them."""

    def __init__(self) -> None:
        self.under_way: asyncio.Task[None] | None = None
        self.is_awaited = False
        """Later calls must await `ended`: those that have missed the library are sent again first."""
        self.number = 0
        """Number of loads that have succeeded."""

    async def ended(self) -> None:
        """Wait until a load has ended, and the calls that have missed the library have been sent again."""
        while self.is_awaited:
            if self.under_way is not None:
                with contextlib.suppress(GlideMQError):  # each call that needs the library reports the error itself
                    await asyncio.shield(self.under_way)
            await asyncio.sleep(0)

    async def load(self, load: Callable[[], Awaitable[None]], before: int) -> None:
        """Load the library, once for all calls that have missed it.

        Args:
            load: Sends the command.
            before: `number` when the call that missed the library was sent. If it has grown, nothing is loaded.

        Raises:
            GlideMQError: If the library cannot be loaded.
        """
        if self.number > before:
            return
        if self.under_way is None:
            self.is_awaited = True
            self.under_way = asyncio.ensure_future(self._load(load))
            self.under_way.add_done_callback(self._loaded)
        await asyncio.shield(self.under_way)

    async def _load(self, load: Callable[[], Awaitable[None]]) -> None:
        await load()
        self.number += 1

    def _loaded(self, loading: asyncio.Task[None]) -> None:
        self.under_way = None
        if not loading.cancelled():
            loading.exception()  # the calls that need the library raise it, unless they were cancelled meanwhile
        self._let_pass(5)  # turns of the loop: calls that have missed it are sent again in the second or third one

    def _let_pass(self, turns: int) -> None:
        if self.under_way is None:
            self.is_awaited = turns > 0
            if self.is_awaited:
                asyncio.get_running_loop().call_soon(self._let_pass, turns - 1)


def load_arguments(library: Library, cluster: bool) -> tuple[tuple[str, ...], Any]:
    """Return the FUNCTION LOAD command and its route."""
    return ("FUNCTION", "LOAD", library.code), AllPrimaries() if cluster else None


def loading_failed(error: GlideError, library: Library) -> GlideMQError | None:
    """Return the error to raise for a failed FUNCTION LOAD, or None if the library was already loaded."""
    text = str(error)
    if "already exists" in text:
        return None
    ours = translate(error, library)
    if isinstance(ours, ClosedError):
        return ours
    if isinstance(ours, ServerOutOfMemoryError):
        return ServerOutOfMemoryError(f"the function library cannot be loaded: the server is at its maxmemory: {text}")
    if isinstance(ours, GlideMQConnectionError):
        return ServerNotReadyError(f"the function library is missing and cannot be loaded now: {ours}")
    return LibraryError(
        f"the function library {library.name} cannot be loaded: {ours}. If applications may not load functions, "
        "an administrator must load it: python -m glidemq_py.library load --url URL"
    )
