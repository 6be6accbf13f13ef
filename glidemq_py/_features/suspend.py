"""Suspended jobs: waiting for a signal, sending one, failing those that waited too long (``lua/features/suspend``)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from glidemq_py._client.runtime import BackgroundTask
from glidemq_py._client.transport import JobTransport
from glidemq_py._core.calls import call
from glidemq_py._core.checks import check_callable, check_text
from glidemq_py._core.keys import parse_job_id
from glidemq_py._core.logs import get_logger, show_id
from glidemq_py._core.payload import encode_json
from glidemq_py._core.record import JobRecord, JobState
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py._partitions.link import QueueLink
from glidemq_py._partitions.parts import ConnectedQueue
from glidemq_py.errors import ClosedError, GlideMQError, GlideMQValidationError, JobStateError, SuspendError


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
    return tuple(
        deliver_signal for item in cast("list[object]", parsed) if (deliver_signal := _signal(item)) is not None
    )


def parse_signals(entries: Iterable[str]) -> tuple[Signal, ...]:
    """Parse the entries of the list ``signals:<id>``, one signal per entry."""
    return tuple(deliver_signal for entry in entries if (deliver_signal := _signal(_parse(entry))) is not None)


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


@call("signal")
def deliver_signal(id: str, name: str, data: str) -> str:
    """Send a signal and return 'resumed', 'kept', 'full', 'ended' or 'gone'. ``data`` is JSON text, '' = none."""
    ...


@call("sweep_suspended", repeatable=True)
def sweep() -> Swept:
    """Fail up to 100 suspended jobs whose timeout has expired."""
    ...


MAX_SIGNAL_NAME = 256
MAX_REASON = 4_096


def suspend_error(
    link: QueueLink[JobTransport],
    reason: str | None,
    timeout: Milliseconds | None,
    on_resume: Callable[[tuple[Signal, ...]], Any] | None = None,
) -> SuspendError:
    """Return the error that suspends a job; see `Job.suspend`."""
    if on_resume is not None:
        check_callable("on_resume", on_resume, "signals")
        if link.no_continuations is not None:
            raise GlideMQValidationError("on_resume", on_resume, link.no_continuations)
    return SuspendError(
        None if reason is None else check_text("reason", reason, maximum=MAX_REASON),
        None if timeout is None else to_ms("timeout", timeout, minimum=1),
        on_resume,
    )


async def received_signals(link: QueueLink[JobTransport], job_id: str) -> tuple[Signal, ...]:
    """Return the signals that a job has received so far, oldest first."""
    reply = await link.command("LRANGE", link.keys.signals(job_id), "0", "-1")
    return parse_signals(item.decode("utf-8", "replace") for item in reply)


_FIELDS = ("state", "suspendReason", "suspendedAt", "suspendTimeout")
_WAITS = ("fence", "awaits")


async def signal(self: ConnectedQueue, job_id: str, name: str, data: Any = None) -> bool:
    """Send a signal to a job, which resumes it if it is suspended.

    If the job has not ended and is not suspended, the signal is stored and resumes the job as soon as it is
    suspended.

    Args:
        job_id: id of the job.
        name: name of the signal, at most 256 characters.
        data: any JSON value (the serializer of the queue is not used); None = no data.

    Returns:
        True if the job received the signal; False if the job does not exist or has ended.

    Raises:
        JobStateError: the job already stores 1,000 signals, or 1 MiB of them.
        PayloadTooLargeError: ``data`` is too large; nothing was sent.
        SerializationError: ``data`` is not JSON; nothing was sent.
        GlideMQValidationError: ``job_id`` or ``name`` is invalid; nothing was sent.
        AmbiguousResultError: the reply was lost. If you send the signal again, the job may receive it twice.
    """
    return await send_signal(self, job_id, name, data) in ("resumed", "kept")


async def send_signal(queue: ConnectedQueue, job_id: str, name: str, data: Any) -> str:
    """Send a signal and return 'resumed', 'kept', 'ended' or 'gone'; see `signal` for the errors."""
    parse_job_id(job_id)
    check_text("name", name, maximum=MAX_SIGNAL_NAME)
    text = "" if data is None else encode_json("data", data)
    outcome = await queue._of(job_id, lambda link, own: link.call(deliver_signal, own, name, text))
    if outcome == "full":
        raise JobStateError(job_id, "at its limit of 1,000 signals or 1 MiB", "signal")
    return outcome


async def read_suspend_info(link: QueueLink, key: str) -> SuspendInfo | None:
    """Return details of a job that waits for a signal; None if the job does not exist or does not wait."""
    names = (*_FIELDS, *_WAITS)
    values = await link.command("HMGET", link.keys.job(key), *names)
    fields = {
        name: None if value is None else value.decode("utf-8", "replace")
        for name, value in zip(names, values, strict=True)
    }
    fence, awaits = (fields.pop(name) or "" for name in _WAITS)
    record = JobRecord.parse(key, fields)
    is_waiting = record.state is JobState.DELAYED and awaits.startswith(f"{fence} ")
    if record.state is not JobState.SUSPENDED and not is_waiting:
        return None
    return SuspendInfo(
        reason=record.suspend_reason, suspended_at=record.suspended_at or 0, timeout=record.suspend_timeout,
        signals=await received_signals(link, key),
    )  # fmt: skip


_log = get_logger("glidemq_py.failures")

_FIRST_S: Final = 1.0
_IDLE_S: Final = 5.0
_BUSY_S: Final = 1.0
_SOON_S: Final = 0.001
_NEVER: Final = 9_999_999_999_999
"""Score of suspended jobs without a deadline."""


class SuspendTimeoutsTask(BackgroundTask):
    """Maintenance task that fails suspended jobs at their deadlines.

    It polls every five seconds, or earlier if the next deadline is earlier. A poll reads the first member of the sorted
    set; the server function is called only if a job is overdue.

    Args:
        link: the queue.
        failed: called after jobs have failed.
        log: called with the id of each failed job; None = log a line.
    """

    def __init__(
        self,
        link: QueueLink,
        failed: Callable[[], None] = lambda: None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(f"suspended-{link.keys.name}")
        self._link = link
        self._failed = failed
        self._log_failed = log or self._log_failure
        self._woken = asyncio.Event()
        self._due = 0.0

    def start(self) -> None:
        """Start the task; the first poll is one second later."""
        self._due = asyncio.get_running_loop().time() + _FIRST_S
        super().start()

    def suspended(self, _: object, signal: SuspendError) -> None:
        """Take the deadline of a job that a worker of this process has suspended into account."""
        if signal.timeout is None:
            return
        milliseconds = signal.timeout
        due = asyncio.get_running_loop().time() + milliseconds / 1000
        if due < self._due:
            self._due = due
            self._woken.set()

    async def _repeat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._due):
                    await self._woken.wait()
                continue
            self._due = loop.time() + _IDLE_S
            try:
                pause = await self.run_once()
            except ClosedError:
                return
            except GlideMQError as error:
                _log.debug("queue %s: failing expired suspended jobs failed: %s", self._link.label, error)
                pause = _IDLE_S
            self._due = min(self._due, loop.time() + pause)

    def _log_failure(self, job_id: str) -> None:
        _log.error("queue %r: job %s failed (suspended without a signal within its timeout)", self._link.queue_name,
                   show_id(self._link.shown_id(job_id)))  # fmt: skip

    async def run_once(self) -> float:
        """Fail overdue jobs and return the seconds until the next poll."""
        transport, keys = self._link.transport, self._link.keys
        first = await transport.command("ZRANGE", keys.suspended, "0", "0", "WITHSCORES")
        if not first or next(iter(first.values())) >= _NEVER:
            return _IDLE_S
        while True:
            swept = await transport.call(sweep(keys.meta))
            for job_id in swept.failed:
                self._log_failed(job_id)
            if swept.failed:
                self._failed()
            if not swept.more:
                break
        if not swept.held:
            return _BUSY_S
        return _IDLE_S if swept.next_due < 0 else min(_IDLE_S, swept.next_due / 1000 + _SOON_S)
