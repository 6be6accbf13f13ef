"""One attempt of a worker to run a job: its fencing token, the state shared with the handler, the texts of a failure.

A failed attempt stores the error's message and the job's last tracebacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CoroutineType
from typing import Any, Final, TypeVar

from glidemq_py._client.runtime import wait_for_event
from glidemq_py._client.transport import JobTransport
from glidemq_py._core import json_text as json
from glidemq_py._core.calls import Call
from glidemq_py._core.forks import new_event, new_lock
from glidemq_py._core.logs import format_traceback, text_of
from glidemq_py._core.record import MAX_STACKTRACES
from glidemq_py.errors import GlideMQError, SerializationError, UnrecoverableError

T = TypeVar("T")

_WATCHED_CALLS: Final = 16
_NUMBERS_KEPT: Final = 64
"""Numbers of appends that the server remembers (``lua/core/fencing.lua``)."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt of a worker to run a job.

    Attributes:
        entry: Stream entry id, or '' for a job from a list.
        fence: The job's activation counter; together with `processed_on` the fencing token of this attempt.
        processed_on: Server time of the activation, epoch ms.
        context: The value that the worker's lifespan yielded.
        owner: The task of the handler, or True if it is a plain function; None in a batch, and of a lease.
        tokens: The last value passed to `Job.report_tokens`.
        discarded: True if the handler called `Job.discard`: no further attempts.
        ended: True if the attempt is over for the worker (timed out, cancelled, lock lost); its result is discarded.
    """

    entry: str
    fence: int
    processed_on: int
    context: Any
    owner: Any = field(default=None, init=False)
    tokens: int = field(default=0, init=False)
    discarded: bool = field(default=False, init=False)
    ended: bool = field(default=False, init=False)
    appends: Appends | None = field(default=None, init=False)
    _cancelled: threading.Event | None = field(default=None, init=False)
    calls: list[CoroutineType[Any, Any, Any]] | None = field(default=None, init=False)
    """Coroutines of the job's methods that the handler called; None if it called none."""

    @property
    def token(self) -> tuple[int, int]:
        """The fencing token that every call of this attempt contains."""
        return self.fence, self.processed_on

    @property
    def cancelled(self) -> threading.Event:
        """Event that is set when the attempt is cancelled; for handlers in threads, which cannot be killed."""
        event = self._cancelled
        if event is None:
            with _creating:
                event = self._cancelled
                if event is None:
                    event = self._cancelled = new_event()
                    if self.ended:
                        event.set()
        return event

    def end(self) -> None:
        """End the attempt: its result will be discarded, and `cancelled` is set."""
        self.ended = True
        with _creating:
            if self._cancelled is not None:
                self._cancelled.set()

    def watch(self, call: CoroutineType[Any, Any, Any]) -> None:
        """Record a coroutine that the handler created by calling a method of the job."""
        calls = self.calls
        if calls is None:
            self.calls = [call]
            return
        if len(calls) >= _WATCHED_CALLS and len(calls).bit_count() == 1:
            calls[:] = filter(_is_unstarted, calls)
        calls.append(call)

    def missing_await(self) -> UnrecoverableError | None:
        """Return the error for a method that the handler called without ``await``; None if there is none.

        Call it after the handler has ended. A coroutine that has not started is no error if a task or another owner
        still refers to it.
        """
        calls, self.calls = self.calls or [], None
        forgotten = None
        while calls:
            call = calls.pop()
            if _is_unstarted(call):
                name, owned = call.cr_code.co_name, weakref.ref(call)
                del call  # without another owner this deletes the coroutine, with a RuntimeWarning of Python
                forgotten = name if owned() is None else forgotten
        if forgotten is None:
            return None
        return UnrecoverableError(
            f"the handler called job.{forgotten}() without await, so it had no effect: use "
            f"`await job.{forgotten}(...)` in an async def handler, `job.blocking.{forgotten}(...)` in a plain one"
        )


class Appends:
    """Numbers the calls of an attempt that append, so that the server recognizes a repetition.

    The numbers of the calls in flight differ by less than 64: the server remembers so many.
    """

    def __init__(self) -> None:
        self._turn, self._replied = asyncio.Lock(), asyncio.Event()
        self._last = 0
        self._in_flight: set[int] = set()

    async def send(self, transport: JobTransport, call: Callable[[str], Call[T]]) -> T:
        """Make the call with the next number."""
        async with self._turn:
            while self._last - min(self._in_flight, default=self._last) >= _NUMBERS_KEPT - 1:
                self._replied.clear()
                await wait_for_event(self._replied, 1.0)
            self._last += 1
            number = self._last
            self._in_flight.add(number)
        try:
            return await transport.call(call(str(number)))
        finally:
            self._in_flight.discard(number)
            self._replied.set()


def _is_unstarted(call: CoroutineType[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(call) == inspect.CORO_CREATED


def watch_calls(cls: type) -> None:
    """Let the public ``async def`` methods of a job class record their coroutines in the attempt, if there is one."""
    for name, method in inspect.getmembers(cls, inspect.iscoroutinefunction):
        if not name.startswith("_") and not hasattr(method, "__wrapped__"):
            setattr(cls, name, _watched(method))


def _watched(method: Callable[..., CoroutineType[Any, Any, Any]]) -> Callable[..., CoroutineType[Any, Any, Any]]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> CoroutineType[Any, Any, Any]:
        coroutine = method(self, *args, **kwargs)
        attempt = self._attempt
        if attempt is not None:
            attempt.watch(coroutine)
        return coroutine

    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(call)
    vars(call)["_is_coroutine"] = vars(asyncio.coroutines)[
        "_is_coroutine"
    ]  # for asyncio.iscoroutinefunction, and mocks
    return call


# Events are created on first access, which may happen in the event loop or in a handler's thread.
_creating = new_lock()


_REASON_CHARS: Final = 4_096
_TRACE_CHARS: Final = 8_192
_TRACE_FRAMES: Final = 32


def message_of(error: BaseException) -> str:
    """Return the message of an exception, or its type's name if it has none."""
    return text_of(error) or type(error).__name__


def reason_of(error: BaseException) -> str:
    """Return the message of an exception as it is stored."""
    return stored_text(message_of(error))


def stored_text(text: str, limit: int = _REASON_CHARS) -> str:
    """Return text that is valid UTF-8 and at most ``limit`` characters long."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def unstored_error(what: str, raised: BaseException) -> GlideMQError:
    """Return the error of an attempt whose ``what`` has raised ``raised``, which is handled, while it was prepared."""
    text = f"the {what} cannot be stored"
    with contextlib.suppress(BaseException):  # the name of a class may raise as well
        text += f": {type(raised).__name__}: {message_of(raised)}"
    return GlideMQError(text).with_traceback(sys.exc_info()[2])


def received_traceback(error: BaseException) -> str | None:
    """Return the traceback that an error of another process has brought along, or None."""
    return vars(error).get("sandbox_traceback")  # getattr() would call a __getattr__ of the application


def stacktraces_with(earlier: object, error: BaseException, lines: int | None = None) -> str:
    """Return a JSON array of the job's last tracebacks, newest last.

    Args:
        earlier: The array of its earlier attempts, or None.
        error: Why the attempt failed. ``sandbox_traceback`` of it is the traceback, if it has one;
            ``innermost_first`` is True if its first lines are those of the failed code.
        lines: Maximum number of lines of this traceback; 0: it is not stored. None: no limit.
    """
    known: list[str] = []
    if isinstance(earlier, str):
        try:
            read: Any = json.loads(earlier)
        except SerializationError:
            read = None
        if isinstance(read, list):
            known = [text for text in read if isinstance(text, str)]  # pyright: ignore[reportUnknownVariableType]
    trace = received_traceback(error)
    is_reversed: bool = trace is not None and getattr(type(error), "innermost_first", False)
    if trace is None:
        trace = format_traceback((type(error), error, error.__traceback__), -_TRACE_FRAMES) + "\n"
    if lines == 0:
        return json.dumps(known[-MAX_STACKTRACES:])
    if lines is not None:
        some = trace.splitlines(keepends=True)
        trace = "".join(some[:lines]).rstrip("\n") if is_reversed else "".join(some[-lines:])
    text = stored_text(trace[:_TRACE_CHARS] if is_reversed else trace[-_TRACE_CHARS:], _TRACE_CHARS)
    return json.dumps([*known[-(MAX_STACKTRACES - 1) :], text])
