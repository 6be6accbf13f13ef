"""Suspending a job from its handler until a signal comes; the server calls for suspended jobs, and their values.

The attempt ends; the handler runs again from its start when a signal comes. The state of the coroutine is not stored.
docs/learn/suspend.md shows how to write such handlers. docs/reference/data-model.md describes the stored format.
Malformed stored values are skipped, never raised.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from glidemq_py._core import requests
from glidemq_py._core.calls import Call, declared, reader
from glidemq_py._core.calls.working import Keep, Suspended
from glidemq_py._core.checks import check_callable, check_text
from glidemq_py._core.rows import REPORT_KINDS
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import GlideMQValidationError, SuspendError

if TYPE_CHECKING:
    from glidemq_py._job.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A signal that a job received.

    Attributes:
        name: name of the signal.
        data: its payload, or None.
        received_at: time of arrival, epoch ms.
    """

    name: str
    data: Any = None
    received_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendInfo:
    """Details of a suspended job.

    Attributes:
        reason: the reason that the handler gave, or None.
        suspended_at: start of the suspension, epoch ms.
        timeout: ms until the job fails if no signal comes; None = no limit.
        signals: all signals received so far, oldest first.
    """

    reason: str | None
    suspended_at: int
    timeout: int | None
    signals: tuple[Signal, ...]


def parse_signals_field(text: str | None) -> tuple[Signal, ...]:
    """Parse the field ``signals`` of a job hash, a JSON array."""
    if not text:
        return ()
    parsed = _parse(text)
    if not isinstance(parsed, list):
        return ()
    return tuple(signal for item in cast("list[object]", parsed) if (signal := _signal(item)) is not None)


def parse_signals(entries: Iterable[str]) -> tuple[Signal, ...]:
    """Parse the entries of the list ``signals:<id>``, one signal per entry."""
    return tuple(signal for entry in entries if (signal := _signal(_parse(entry))) is not None)


def _signal(item: object) -> Signal | None:
    if not isinstance(item, dict):
        return None
    entry = cast("dict[str, Any]", item)
    data, at = entry.get("data"), entry.get("receivedAt")
    if isinstance(data, str):
        # The payload is JSON within JSON; other text is kept as it is.
        read = _parse(data) if data else None
        data = data if read is _NO_JSON else read
    whole = isinstance(at, int | float) and 0 <= at < 2**53
    return Signal(name=str(entry.get("name", "")), data=data, received_at=int(at) if whole and at else 0)


_NO_JSON: Any = object()


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NO_JSON


@declared("sweep_suspended_reply")
class Swept(NamedTuple):
    """Reply of `sweep`."""

    failed: list[str]
    """Jobs whose timeout has expired."""
    next_due: int
    """Milliseconds until the next deadline; -1 = none."""
    more: int
    """1 = more jobs may be overdue."""
    held: int
    """0 = another client holds the lock of this task; nothing was done."""


def suspended(
    job_id: str, entry: str, fence: int, processed_on: int, reason: str, timeout: int, keep: Keep = 0
) -> Suspended:
    """Return the report that suspends a job until a signal, for at most ``timeout`` ms (0 = no limit)."""
    return Suspended(REPORT_KINDS["suspended"], job_id, entry, fence, processed_on, reason, timeout, keep)


def signal(meta: str, job_id: str, name: str, data: str) -> Call[str]:
    """Send a signal and return 'resumed', 'kept', 'full', 'ended' or 'gone'. ``data`` is JSON text, '' = none."""
    return Call("signal", meta, requests.signal(id=job_id, name=name, data=data), bytes.decode)


def sweep(meta: str) -> Call[Swept]:
    """Fail up to 100 suspended jobs whose timeout has expired."""
    return Call("sweep_suspended", meta, (), reader(Swept))


MAX_SIGNAL_NAME = 256
MAX_REASON = 4_096


def suspend(
    self: Job[Any, Any, Any],
    *,
    reason: str | None = None,
    timeout: Milliseconds | None = None,
    on_resume: Callable[[tuple[Signal, ...]], Any] | None = None,
) -> NoReturn:
    """Suspend the job until `Queue.signal`. Always raises, which ends this attempt without counting it.

    When a signal comes, the job returns to waiting and any worker runs its handler again from the start, with the
    signal in `signals`. A signal that came before the suspension resumes the job at once.

    Args:
        reason: description of the awaited event, for people; at most 4,096 characters.
        timeout: ms or timedelta, at least 1 ms; if no signal comes within it, the job fails and is not retried.
            None = no limit.
        on_resume: plain or async function called with `signals` in place of the handler if the same worker object
            resumes the job. This is an optimization that may not happen: the handler must reach the same result.
            Its return value is the result of the job, and the `timeout` of the job applies. Not supported in
            sandboxes.

    Raises:
        SuspendError: always; do not catch it. In a batch handler, the job then fails with `GlideMQValidationError`.
        GlideMQValidationError: ``on_resume`` was given in a sandbox.
        GlideMQValidationError: an argument is invalid.
        GlideMQError: the job is not running in a handler.
    """
    self._in_handler("suspend")
    if on_resume is not None:
        check_callable("on_resume", on_resume, "signals")
        if self._link.no_continuations is not None:
            raise GlideMQValidationError("on_resume", on_resume, self._link.no_continuations)
    signal = SuspendError(
        None if reason is None else check_text("reason", reason, maximum=MAX_REASON),
        None if timeout is None else to_ms("timeout", timeout, minimum=1),
        on_resume,
    )
    raise self._own(signal)


async def wait_for_signal(
    self: Job[Any, Any, Any], name: str, *, reason: str | None = None, timeout: Milliseconds | None = None
) -> Signal:
    """Return the signal with this name, or suspend the job until it comes.

    The n-th call for a name in a run of the handler returns the n-th signal with that name. So a handler that waits
    in the same order in every run gets the same signals again, and then continues with the next one. Code before a
    wait must be idempotent.

    Args:
        name: name of the signal, at most 256 characters. Signals with other names are kept for other calls.
        reason: for people; "signal <name>" by default.
        timeout: as for `suspend`; it restarts if a signal with another name resumes the job.

    Returns:
        The signal.

    Raises:
        SuspendError: the signal has not come yet; do not catch it.
        GlideMQValidationError: an argument is invalid.
        GlideMQError: the job is not running in a handler, or the server cannot be reached.
    """
    self._in_handler("wait_for_signal")
    check_text("name", name, maximum=MAX_SIGNAL_NAME)
    waits = self._waits = self._waits or {}
    returned = waits.get(name, 0)
    found = [signal for signal in self.signals if signal.name == name]
    if len(found) <= returned:
        # The signal may have come while the handler ran, or before its first run.
        reply = await self._link.command("LRANGE", self._link.keys.signals(self._stored_id), "0", "-1")
        received = parse_signals(item.decode("utf-8", "replace") for item in reply)
        found = [signal for signal in received if signal.name == name]
    if len(found) <= returned:
        suspend(self, reason=reason or f"signal {name}", timeout=timeout)
    waits[name] = returned + 1
    return found[returned]
