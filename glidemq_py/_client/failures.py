"""Classification of the errors that GLIDE or the server reports for a call; interruptions; whether a server replies.

All transports, tasks and commands use this table; call_retry.py decides by it whether to retry a call. Errors of the
initial connection (wrong password, TLS) are handled by connect_errors.py. The `CallOutcome` of an error is: certainly
not executed, possibly executed, or permanent.

Interruptions are times at which the connections of a worker saw the server unreachable or its slots moving. They are
shared by all connections derived from one another: a worker's own, its heartbeat's and its blocking reads'. Heartbeats
do not arrive during an outage, so the recovery of stalled jobs waits after an interruption
(_worker/maintenance/stalled_jobs.py). In a cluster, a failed call for another queue may concern another shard only, so
interruptions are recorded per hash tag.

All connections of a process to the same addresses share a `Reachability`, so that an outage is logged once, and not by
everything that fails because of it. After the first call without a reply the server is in doubt. If it has not replied
to anything `_CHECK_AFTER_S` later, it is checked on a new connection: only then it is known to be unreachable. In a
cluster, it is reachable if any node replies.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from glidemq_py._client.threads import in_thread
from glidemq_py._core.forks import new_lock
from glidemq_py._core.logs import get_logger
from glidemq_py._core.times import duration_text
from glidemq_py.errors import (
    AmbiguousResultError,
    ClosedError,
    ConnectionRejectedError,
    GlideMQConnectionError,
    GlideMQError,
    LayoutChangedError,
    PermissionDeniedError,
    ScriptError,
    ServerNotReadyError,
    ServerOutOfMemoryError,
    UnsupportedFeatureError,
)

if TYPE_CHECKING:
    from glidemq_py._client.library_source import Library


class CallOutcome(enum.Enum):
    """Whether a failed call was executed, and so whether it may be retried."""

    NOT_EXECUTED = "transient, certainly not executed: any call may be retried"
    AMBIGUOUS = "transient, possibly executed: only a repeatable call may be retried"
    PERMANENT = "not transient: a retry fails again"


@dataclass(frozen=True, slots=True)
class Failure:
    """A row of the classification table.

    Attributes:
        name: name of the row, for tests and logs.
        outcome: whether the call was executed.
        is_temporary: the condition may end by itself, so a transport retries the call while it has time. If
            False (an operator must act, or may have to), the error is raised immediately.
        error: class of the error to raise.
        text: start of the error's message.
    """

    name: str
    outcome: CallOutcome
    is_temporary: bool
    error: type[GlideMQError]
    text: str


def _not_executed(name: str, text: str, *, is_temporary: bool = True) -> Failure:
    return Failure(name, CallOutcome.NOT_EXECUTED, is_temporary, ServerNotReadyError, text)


def _permanent(name: str, error: type[GlideMQError], text: str = "") -> Failure:
    return Failure(name, CallOutcome.PERMANENT, False, error, text)


_SLOT = "the queue's hash slot is moving to another node"
FUNCTION_MISSING: Final = _not_executed("function-missing", "the server does not have the function library")
READ_ONLY: Final = _not_executed("read-only", "the server is a read-only replica")
_SCRIPT = Failure("script", CallOutcome.PERMANENT, False, ScriptError, "")
_OUT_OF_MEMORY = _permanent(
    "out-of-memory", ServerOutOfMemoryError, "the server is at its maxmemory; the call changed nothing"
)
_DENIED = _permanent("denied", PermissionDeniedError, "permission denied")
_OTHER = _permanent("other", GlideMQError)
_FEATURE = _permanent("feature", UnsupportedFeatureError)
_LAYOUT = _permanent("layout", LayoutChangedError, "the partitions of the queue have changed; nothing was added")
CLOSED = _permanent("closed", ClosedError, "the connection is closed")
TIMEOUT = Failure("timeout", CallOutcome.AMBIGUOUS, True, AmbiguousResultError, "no reply within the request timeout")
LOST = Failure(
    "disconnected", CallOutcome.AMBIGUOUS, True, AmbiguousResultError, "the connection was lost before the reply came"
)
_UNREACHABLE = _not_executed("unreachable", "no node that serves the queue is reachable")

# Both spellings of each error: the server's code, and GLIDE's name for codes that it translates.
_BY_CODE: Final[dict[str, Failure]] = {
    "TRYAGAIN": _not_executed("slot-moving", _SLOT),
    "ASK": _not_executed("slot-moving", _SLOT),
    "MOVED": _not_executed("slot-moved", "the queue's hash slot is on another node"),
    "CLUSTERDOWN": _not_executed("cluster-down", "the cluster is down or failing over"),
    "LOADING": _not_executed("loading", "the server is loading its data"),
    "BUSYLOADINGERROR": _not_executed("loading", "the server is loading its data"),
    "MASTERDOWN": _not_executed("primary-down", "the replica has lost its primary"),
    "READONLY": READ_ONLY,
    "BUSY": _not_executed("busy", "the server is busy with a script"),
    "UNBLOCKED": _not_executed("unblocked", "the server ended a blocking read: its role has changed"),
    "NOREPLICAS": _not_executed(
        "no-replicas", "the server has too few replicas (min-replicas-to-write)", is_temporary=False
    ),
    "MISCONF": _not_executed("cannot-persist", "the server cannot write its data to disk", is_temporary=False),
    "CONNECTIONNOTFOUNDFORROUTE": _UNREACHABLE,
    "ALLCONNECTIONSUNAVAILABLE": _UNREACHABLE,
    "OOM": _OUT_OF_MEMORY,
    # GLIDE's core translates NOPERM to PermissionDenied.
    "NOPERM": _DENIED,
    "PERMISSIONDENIED": _DENIED,
    "NOAUTH": _DENIED,
    "WRONGPASS": _DENIED,
    "IOERROR": LOST,
    "FATALSENDERROR": LOST,
    "FATALRECEIVEERROR": LOST,
    # GLIDE's cluster client reports these if the node of a call dies.
    "BROKENPIPE": LOST,
    "CONNECTIONABORTED": LOST,
    "CONNECTIONRESET": LOST,
    "UNEXPECTEDEOF": LOST,
}

_CODE = re.compile(r"[A-Za-z]+")
_WRAPPED = re.compile(r"^(?:An error was signalled by the server: - )?(?:ResponseError: )?(?:ERR )?")
# A function runs with its caller's permissions; messages of Valkey and of Redis 7.0.
_DENIED_INSIDE = ("ACL failure in script", "The user executing the script can't")
_NO_PERMISSION = re.compile(
    r"(?:PermissionDenied: |NOPERM )User (?P<user>.*) has no permissions to "
    r"(?:run|access) the '(?P<what>[^']*)' (?P<kind>command|key|channel).*",
    re.DOTALL,
)
_DENIED_TO = re.compile(r"User (?:(?P<user>.*) )?has no permissions to (?:run|access) the '(?P<what>[^']*)' ")
_NO_FUNCTION = ("Function not found", "Function not loaded")
_NO_MEMORY = ("OOM command not allowed", "used memory > 'maxmemory'")
_UNKNOWN_FEATURE: Final = "unknown feature "
_OTHER_LAYOUT: Final = "layout "
_FEATURE_OF_QUEUE = re.compile(
    _UNKNOWN_FEATURE + r"(?P<name>.*?)(?::(?P<version>[^:]*))? of queue (?P<base>.*)", re.DOTALL
)
_LAYOUT_OF_QUEUE = re.compile(
    _OTHER_LAYOUT + r"(?P<stored>\d+) of queue (?P<base>.*), the client used (?P<used>\d+)", re.DOTALL
)
_PARTITION_MARK = re.compile(r"~p~[0-9a-z]{4}\Z")
_MOVED: Final = re.compile(r"MOVED (\d{1,5}) ((?!\?)\S*):(\d{1,5})$")
_IN_SCRIPT = ("user_function", "script:")


def classify_reply(text: str) -> Failure:
    """Return the table row for an error reply, in the server's or GLIDE's spelling."""
    bare = _WRAPPED.sub("", text)
    if bare.startswith(_UNKNOWN_FEATURE):
        return _FEATURE
    if bare.startswith(_OTHER_LAYOUT):
        return _LAYOUT
    if any(phrase in bare for phrase in _NO_FUNCTION):
        return FUNCTION_MISSING
    if any(phrase in bare for phrase in _NO_MEMORY):
        return _OUT_OF_MEMORY
    if any(phrase in bare for phrase in _DENIED_INSIDE):
        return _DENIED
    if any(phrase in bare for phrase in _IN_SCRIPT):
        return _SCRIPT  # the function may have written before it failed, regardless of its error code
    code = _CODE.match(bare)
    return _BY_CODE.get(code.group().upper(), _OTHER) if code else _OTHER


def moved_to(reply: str, host: str) -> dict[int, tuple[str, int]]:
    """Return the node, as host and port, of the slot that an error reply of a host says to have moved; else nothing."""
    found = _MOVED.search(reply)
    return {int(found[1]): (found[2] or host, int(found[3]))} if found else {}  # without a host: on the same one


def meaning_of(text: str, library: Library | None) -> GlideMQError:
    """Return our error for an error reply."""
    return error_of(classify_reply(text), text, library)


def error_of(
    failure: Failure, text: str, library: Library | None, *, reads: bool = False, refused: str = ""
) -> GlideMQError:
    """Return our error for a row of the table and the text of the original error.

    Args:
        failure: The row.
        text: The text.
        library: The function library of the call.
        reads: Whether the call only reads: then it does not matter whether it was executed.
        refused: See `Reachability.refused`.
    """
    bare = text.removeprefix("An error was signalled by the server: - ").removeprefix("ResponseError: ")
    if failure is _SCRIPT:
        location = library.locate_error(bare) if library is not None else None
        return ScriptError(bare, None if location is None else str(location))
    if failure is _FEATURE and (found := _FEATURE_OF_QUEUE.search(bare)):
        return UnsupportedFeatureError(_queue_of(found["base"]), found["name"], found["version"] or "")
    if failure is _LAYOUT and (found := _LAYOUT_OF_QUEUE.search(bare)):
        return LayoutChangedError(_queue_of(found["base"]), int(found["stored"]), int(found["used"]))
    if failure is _OTHER:
        return GlideMQError(bare)
    if failure is _DENIED:
        return _denied(bare)
    if failure.outcome is CallOutcome.NOT_EXECUTED:
        return failure.error(f"{failure.text}; the call was not executed ({bare})")
    if failure.outcome is CallOutcome.AMBIGUOUS:
        clause, cause = ("" if reads else "; the call may have been executed"), ("" if refused else f" ({bare})")
        lost = AmbiguousResultError(f"{refused or failure.text}{clause}{cause}")
        lost.timed_out = failure is TIMEOUT
        return lost
    return failure.error(f"{failure.text} ({bare})")


def _queue_of(base: str) -> str:
    """Return the name of the queue whose keys begin with this text; of a partition, that of the whole queue."""
    return _PARTITION_MARK.sub("", base.rpartition("{")[2].removesuffix("}"))


def _denied(text: str) -> PermissionDeniedError:
    whole = _NO_PERMISSION.fullmatch(text)
    cause = text if whole is None else f"user {whole['user']!r}, {whole['kind']} {whole['what']!r}"
    message = f"{_DENIED.text}: {cause} (docs/operate/permissions.md lists the required permissions)"
    found = whole or _DENIED_TO.search(text)
    return PermissionDeniedError(message) if found is None else PermissionDeniedError(
        message, found["user"] or "", found["what"]
    )  # fmt: skip


_log = get_logger(__name__)

_LOG_AFTER_S: Final = 1.0
_LOG_EVERY_S: Final = 10.0
_MAX_TAGS: Final = 1_000
_COUNT_EVERY_S: Final = 1.0
"""All calls that are pending when a connection is lost fail, one after the other: they are one interruption."""

_observers: list[Callable[[str], None]] = []


def observe_interruptions(observer: Callable[[str], None]) -> None:
    """Call ``observer`` with the reason of each interruption of a connection; for the metrics of the process."""
    _observers.append(observer)


class Interruptions:
    """Time of the last transient failure or slow reply of a group of connections. Thread-safe."""

    __slots__ = ("_counted", "_last", "_last_by_tag", "_logged", "server")

    def __init__(self, server: Reachability | None = None) -> None:
        self.server = Reachability() if server is None else server
        """Whether the server of the connections replies."""
        self._counted: dict[str, float] = {}
        self._last: float | None = None
        self._last_by_tag: dict[str, float] = {}
        self._logged: float | None = None

    def record(self, tag: str | None = None) -> None:
        """Record that a call failed for a transient reason, or that its reply was late.

        Args:
            tag: Hash tag of the call's keys in a cluster. None: the interruption concerns all queues.
        """
        now = time.monotonic()
        if tag is None or (len(self._last_by_tag) >= _MAX_TAGS and tag not in self._last_by_tag):
            self._last = now
        else:
            self._last_by_tag[tag] = now

    def count(self, reason: str) -> None:
        """Report an interruption to the observers, but the same reason at most once per second.

        Args:
            reason: Name of a row of the classification table, such as "disconnected"; or, for a replaced client,
                "half-open" or "demoted".
        """
        now = time.monotonic()
        if now - self._counted.get(reason, -_COUNT_EVERY_S) >= _COUNT_EVERY_S:
            self._counted[reason] = now
            for observer in _observers:
                observer(reason)

    def retrying(self, function: str, failure: Failure, cause: object, started: float) -> None:
        """Log a warning if a call first sent at ``started`` has been retried for over 1 s."""
        now = time.monotonic()
        if now - started < _LOG_AFTER_S or (self._logged is not None and now - self._logged < _LOG_EVERY_S):
            return
        self._logged = now
        level = logging.DEBUG if self.server.is_gone else logging.WARNING
        _log.log(level, "%s: retrying call %s for %.1f s (%s)", failure.text, function, now - started, cause)

    def age_s(self, tag: str) -> float:
        """Return the seconds since the last interruption of the queue with this hash tag; infinity if none."""
        last = max(self._last or 0.0, self._last_by_tag.get(tag, 0.0))
        return time.monotonic() - last if last else float("inf")


DEFAULT_REQUEST_TIMEOUT_MS: Final = 30_000
"""Used for an injected client without a request timeout."""


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
