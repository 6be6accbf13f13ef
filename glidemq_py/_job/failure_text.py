"""The texts that a failed attempt stores: the error's message and the job's last tracebacks."""

from __future__ import annotations

import traceback
from typing import Any, Final

from glidemq_py._core import json_text as json
from glidemq_py._core.record import MAX_STACKTRACES
from glidemq_py.errors import SerializationError

__all__ = ["message_of", "reason_of", "stacktraces_with", "stored_text"]

_REASON_CHARS: Final = 4_096
_TRACE_CHARS: Final = 8_192
_TRACE_FRAMES: Final = 32


def message_of(error: BaseException) -> str:
    """Return the message of an exception, or its type's name if it has none."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # a broken __str__ must not prevent the report
        return type(error).__name__


def reason_of(error: BaseException) -> str:
    """Return the message of an exception as it is stored."""
    return stored_text(message_of(error))


def stored_text(text: str, limit: int = _REASON_CHARS) -> str:
    """Return text that is valid UTF-8 and at most ``limit`` characters long."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


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
    trace = getattr(error, "sandbox_traceback", None)
    if trace is None:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-_TRACE_FRAMES))
    is_reversed: bool = getattr(error, "innermost_first", False)
    if lines == 0:
        return json.dumps(known[-MAX_STACKTRACES:])
    if lines is not None:
        some = trace.splitlines(keepends=True)
        trace = "".join(some[:lines]).rstrip("\n") if is_reversed else "".join(some[-lines:])
    text = stored_text(trace[:_TRACE_CHARS] if is_reversed else trace[-_TRACE_CHARS:], _TRACE_CHARS)
    return json.dumps([*known[-(MAX_STACKTRACES - 1) :], text])
