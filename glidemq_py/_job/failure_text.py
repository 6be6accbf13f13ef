"""The texts that a failed attempt stores: the error's message and the job's last tracebacks."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Final

from glidemq_py._core import json_text as json
from glidemq_py._core.logs import format_traceback, text_of
from glidemq_py._core.record import MAX_STACKTRACES
from glidemq_py.errors import GlideMQError, SerializationError

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
