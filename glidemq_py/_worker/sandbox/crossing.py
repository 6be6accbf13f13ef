"""Exceptions on their way between a worker and its sandbox.

Errors and signals of this package arrive as what they are. Any other exception arrives as one of the same name, message
and traceback text, derived from the nearest of its classes that the other side knows already, so that `retry_on` and
`except` go by what it is. Nothing is imported on its behalf.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from glidemq_py import errors
from glidemq_py._worker.sandbox.framing import Message, packable

__all__ = ["ROOT_MARK", "pack_error", "unpack_error"]

ROOT_MARK: Final = "[PROJECT_ROOT]"
"""Stands for the current folder in messages and tracebacks."""

_OURS: Final = errors.__name__
_HERE: Final = str(Path(__file__).parent)
_TEXT_CHARS: Final = 65_536
_SAFE: Final = {("datetime", name) for name in ("timedelta", "datetime", "date", "timezone")}


class _Unpickler(pickle.Unpickler):
    """Reads our own errors, and nothing else that would have to be imported."""

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) in _SAFE or (module == _OURS and name in errors.__all__):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not cross out of a sandbox")


def pack_error(error: BaseException) -> Message:
    """What is sent of an exception."""
    if isinstance(error, errors.JobSignal):
        error = _as_ours(error)
    kind = type(error)
    kinds = [(each.__module__, each.__qualname__) for each in kind.__mro__ if issubclass(each, BaseException)]
    return {
        "name": kind.__name__, "module": kind.__module__, "kinds": kinds, "text": _clean(_text(error)),
        "trace": _clean("".join(traceback.format_exception(kind, error, _users_part(error.__traceback__)))),
        "fields": packable(vars(error)), "pickle": _pickled(error),
    }  # fmt: skip


def _as_ours(signal: errors.JobSignal) -> errors.JobSignal:
    """A user's own kind of signal as the one that it is a kind of: what it says is all that matters."""
    kind: Any = next(each for each in type(signal).__mro__ if each.__module__ == _OURS)
    plain: errors.JobSignal = kind.__new__(kind)
    plain.args = signal.args
    plain.__dict__.update(vars(signal))
    plain.__traceback__ = signal.__traceback__
    return plain


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a broken __str__ must not cost the job its end
        return type(error).__name__


def _pickled(error: BaseException) -> bytes | None:
    if type(error).__module__ != _OURS:
        return None
    error.args = tuple(_clean(arg) if isinstance(arg, str) else arg for arg in error.args)
    try:
        return pickle.dumps(error)
    except Exception:  # whatever hangs on it
        return None


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """From the user's first line on."""
    step = trace
    while step is not None and step.tb_frame.f_code.co_filename.startswith(_HERE):
        step = step.tb_next
    return step or trace


def _clean(text: str) -> str:
    root = os.getcwd()
    if len(root) > 1:
        text = text.replace(root + os.sep, ROOT_MARK + os.sep).replace(root, ROOT_MARK)
    return text if len(text) <= _TEXT_CHARS else "…" + text[-_TEXT_CHARS:]


class _SandboxTraceback(Exception):  # noqa: N818 - named like its models in the standard library
    """Shows the traceback of another process where this one's is printed, as `concurrent.futures` does."""

    def __str__(self) -> str:
        return f'\n"""\n{str(self.args[0]).rstrip()}\n"""'


def unpack_error(message: Message) -> Exception:
    """The exception that arrives; its ``sandbox_traceback`` is the text of the traceback."""
    error = _original(message["pickle"])
    if error is None and [_OURS, "JobSignal"] in message["kinds"]:
        error = errors.GlideMQError(f"{message['name']} cannot leave a sandbox with what it holds: {message['text']}")
    error = error or _stand_in(message)
    error.__dict__["sandbox_traceback"] = message["trace"]
    if not isinstance(error, errors.JobSignal):
        error.__cause__ = _SandboxTraceback(message["trace"])
    return error


def _original(pickled: bytes | None) -> Exception | None:
    if pickled is None:
        return None
    try:
        return _Unpickler(io.BytesIO(pickled)).load()  # type: ignore[no-any-return]
    except Exception:  # an attribute of a class that is not known here
        return None


def _stand_in(message: Message) -> Exception:
    text: str = message["text"]

    def say(_: object) -> str:
        return text

    for module, name in (*message["kinds"], ("builtins", "Exception")):
        base = getattr(sys.modules.get(module), name, None)
        if not (isinstance(base, type) and issubclass(base, Exception)):
            continue  # not known here, or one that would end the worker, such as SystemExit
        members: Message = {"__module__": message["module"], "__init__": _keep_text, "__str__": say}
        try:
            error: Exception = type(message["name"], (base,), members)(text)
        except Exception:  # it cannot be made of a text
            continue
        error.__dict__.update(message["fields"])
        return error
    return Exception(f"{message['name']}: {text}")


def _keep_text(self: Exception, text: str) -> None:
    Exception.__init__(self, text)
