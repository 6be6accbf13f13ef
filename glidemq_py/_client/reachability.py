"""Whether the server of a process can be reached, and the log lines when that changes.

All connections of a process to the same addresses share a `Reachability`, so that an outage is logged once, and not by
everything that fails because of it. After the first call without a reply the server is in doubt. If it has not replied
to anything `_CHECK_AFTER_S` later, it is checked on a new connection: only then it is known to be unreachable. In a
cluster, it is reachable if any node replies.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakValueDictionary

from glidemq_py._client.threads import in_thread
from glidemq_py._core.forks import new_lock
from glidemq_py._core.logs import get_logger
from glidemq_py._core.times import duration_text
from glidemq_py.errors import ConnectionRejectedError, GlideMQConnectionError

_log = get_logger(__name__)

_CHECK_AFTER_S: Final = 1.0
"""A server that is restarted, or fails over, within this time is not reported."""
_PROBLEM_AFTER_S: Final = 0.2
"""One call without a reply is no problem of the server if others have replies meanwhile."""
_REMIND_S: Final = 60.0
_TRUST_S: Final = 60.0
"""How long calls without a reply have another cause, after the server has replied on a new connection."""
_CHECK_LOST_S: Final = 30.0
"""Age of a check from which on another one is started: an event loop that has stopped does not finish its check."""

REFUSED: Final = "connection refused"
"""Cause for which a call was certainly not sent on a new connection."""

Check = Callable[[], str | None]
"""Connects; returns why the server does not reply, or None if it does. Blocks."""


class Reachability:
    """Whether a server replies. Thread-safe.

    Args:
        where: Its addresses, for messages. Empty: outages are neither noticed nor logged.

    Attributes:
        is_doubted: Whether a call had no reply, and no other one had one since. The receiver of a reply calls `replied`
            if it is True.
        is_gone: Whether it is known to be unreachable, or to reject this client.
        rejection: Why it rejects this client, such as a changed password; empty if it does not.
    """

    __slots__ = (
        "__weakref__", "_check_started", "_checking", "_doubted_at", "_logged_at", "_refusal", "_replying_at",
        "_timeout_s", "_turn", "is_doubted", "is_gone", "rejection", "where",
    )  # fmt: skip

    def __init__(self, where: str = "") -> None:
        self.where = where
        self.is_doubted = self.is_gone = False
        self._turn = new_lock()
        self._doubted_at = self._logged_at = 0.0
        self._replying_at = -_TRUST_S
        """When it was last found to reply although calls had no reply."""
        self._timeout_s = 0.0
        self._refusal = self.rejection = ""
        self._checking: asyncio.Task[None] | None = None
        """The last check, which one of the event loops of the process runs for all."""
        self._check_started = 0.0

    @property
    def refused(self) -> str:
        """A text for errors if the server has refused or rejected the last connection; else empty."""
        return self.rejection or (self._refusal and f"server {self.where} cannot be reached ({self._refusal})")

    @property
    def problem(self) -> str:
        """A text for errors while it does not reply; empty for the first fifth of a second."""
        if self.doubted_s < _PROBLEM_AFTER_S:
            return ""
        return self.refused or f"server {self.where} does not reply"

    @property
    def doubted_s(self) -> float:
        """For how long it has not replied, seconds."""
        return time.monotonic() - self._doubted_at if self.is_doubted else 0.0

    def failed(self, waited_s: float, timeout_s: float, check: Check) -> None:
        """Note that a call had no reply.

        Args:
            waited_s: How long it has waited.
            timeout_s: The request timeout.
            check: Is run in a thread if there is no reply to any call.
        """
        if not self.where:
            return
        now = time.monotonic()
        with self._turn:
            if not self.is_doubted:
                self.is_doubted, self._doubted_at = True, now - waited_s
            self._timeout_s = timeout_s
            is_reminder = self.is_gone and now - self._logged_at >= _REMIND_S
            if is_reminder:
                self._logged_at = now
            if not self.is_gone:
                self._start_check(check, now)
        if is_reminder:
            _log.warning("server %s: still unreachable after %s", self.where, duration_text(self.doubted_s))

    def _start_check(self, check: Check, now: float) -> None:
        loop, before = asyncio._get_running_loop(), self._checking
        if loop is None:
            return  # the check waits for a call of an event loop
        if before is None or before.done() or now - self._check_started >= _CHECK_LOST_S:
            self._checking, self._check_started = loop.create_task(self._check(check)), now

    async def _check(self, check: Check) -> None:
        await asyncio.sleep(_CHECK_AFTER_S)
        cause = await in_thread(check) if self.is_doubted else None
        with self._turn:
            if not self.is_doubted or self.is_gone:
                return
            if cause is None:
                self.is_doubted, self._refusal, self._replying_at = False, "", time.monotonic()
                return
            self.is_gone, self._logged_at = True, time.monotonic()
            if cause == REFUSED:
                self._refusal = cause
        _log.warning(
            "server %s: cannot be reached since %s (%s); calls wait for it up to the request timeout (%g s), then fail",
            self.where, time.strftime("%H:%M:%S", time.localtime(time.time() - self.doubted_s)), cause, self._timeout_s,
        )  # fmt: skip

    def refuse(self) -> None:
        """Note that it has refused a connection."""
        self._refusal = REFUSED

    def reject(self, error: ConnectionRejectedError) -> None:
        """Note that it rejects another connection of this client, so calls will have no reply."""
        with self._turn:
            known, self.rejection = self.rejection, str(error)
            if not self.is_doubted:
                self.is_doubted, self._doubted_at = True, time.monotonic()
            self.is_gone, self._logged_at = True, time.monotonic()
        if not known:
            _log.warning("server %s: rejects this client; calls fail: %s", self.where, error)

    def replied(self) -> None:
        """Note a reply."""
        with self._turn:
            was_gone, lasted_s = self.is_gone, self.doubted_s
            self.is_doubted = self.is_gone = False
            self._refusal = self.rejection = ""
        if was_gone:
            _log.warning("server %s: reachable again after %s", self.where, duration_text(lasted_s))

    def level(self, error: BaseException) -> int:
        """Return the level of a log line about an error of a call that is repeated.

        It is DEBUG if the server cannot be reached, which is logged once for all.
        """
        is_cause = isinstance(error, GlideMQConnectionError | TimeoutError) and (
            self.is_gone or (self.is_doubted and time.monotonic() - self._replying_at >= _TRUST_S)
        )
        return logging.DEBUG if is_cause else logging.WARNING


def repeated_level(transport: object, error: BaseException) -> int:
    """Return `Reachability.level` for the server of a connection."""
    server: Reachability | None = getattr(getattr(transport, "interruptions", None), "server", None)
    return logging.WARNING if server is None else server.level(error)


_known: WeakValueDictionary[tuple[tuple[str, int], ...], Reachability] = WeakValueDictionary()
_known_turn = new_lock()


def reachability_of(addresses: Iterable[tuple[str, int]]) -> Reachability:
    """Return the object that all connections of this process to these addresses share."""
    key = tuple(addresses)
    with _known_turn:
        found = _known.get(key)
        if found is None:
            where = ", ".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in key)
            found = _known[key] = Reachability(where)
        return found
