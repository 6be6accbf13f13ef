"""Messages between a worker and its sandbox: MessagePack maps, each after its length in four bytes.

`multiprocessing.connection` is not used: asyncio cannot read it, so each process would need a thread in the worker.

Worker: `start`, `job`, `reply`, `cancel`. Sandbox: `ready` or `invalid`, `request`, `ended`. Job data and results are
the text written by the queue's serializer.

Exceptions: errors and signals of this package keep their type. Any other exception becomes an instance of a new class
with the same name, message and traceback text. That class is derived from the nearest base class that the receiver has
imported, so `retry_on` and `except` work. Nothing is imported for it.

`Target` is the name of a handler: ``package.module:function``, or a file with or without ``:function``.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import io
import os
import pickle
import re
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, cast

import msgpack

from glidemq_py import errors
from glidemq_py._core.logs import format_traceback, text_of
from glidemq_py._job.attempt import stored_text
from glidemq_py._worker.handlers import check_handler
from glidemq_py.errors import GlideMQValidationError

Message = dict[str, Any]

_HEAD: Final = struct.Struct(">I")
_PLAIN: Final = (str, int, float, bool, bytes, type(None))

# msgpack has no type annotations.
_msgpack: Any = msgpack
_packb: Callable[..., bytes] = _msgpack.packb
_unpackb: Callable[..., Any] = _msgpack.unpackb


def pack_message(kind: str, **fields: Any) -> bytes:
    """Return the bytes of a message."""
    body = _packb({"kind": kind, **fields}, use_bin_type=True, unicode_errors="surrogatepass", default=_rare)
    return _HEAD.pack(len(body)) + body


def _rare(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return list(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    raise TypeError(f"{type(value).__name__} cannot cross into a sandbox")


def packable(fields: dict[str, Any]) -> Message:
    """Return the fields that have plain values."""
    return {name: value for name, value in fields.items() if isinstance(value, _PLAIN)}


def _unpack(body: bytes) -> Message | None:
    """Return a message; None if it is malformed: a handler has written to the connection, which is then closed."""
    try:
        message = _unpackb(body, raw=False, unicode_errors="surrogatepass", strict_map_key=False)
    except (ValueError, TypeError, RecursionError, _msgpack.UnpackException):
        return None
    return cast("Message", message) if isinstance(message, dict) and "kind" in message else None


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    """Return the next message; None if the connection is closed or the message is malformed."""
    try:
        (length,) = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        return _unpack(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, OSError):
        return None


def receive_message(sock: socket.socket) -> Message | None:
    """Return the next message of a blocking socket; None if it is closed or the message is malformed."""
    head = _receive(sock, _HEAD.size)
    body = None if head is None else _receive(sock, _HEAD.unpack(head)[0])
    return None if body is None else _unpack(body)


def _receive(sock: socket.socket, length: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < length:
        try:
            part = sock.recv(length - len(parts))
        except OSError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)


ROOT_MARK: Final = "[PROJECT_ROOT]"
"""Replaces the current directory in messages and tracebacks."""

_OURS: Final = errors.__name__
_HERE: Final = str(Path(__file__).parent)
_TEXT_CHARS: Final = 65_536
_SAFE: Final = {("datetime", name) for name in ("timedelta", "datetime", "date", "timezone")}


class _Unpickler(pickle.Unpickler):
    """Unpickles errors of this package and date types only."""

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) in _SAFE or (module == _OURS and name in errors.__all__):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not cross out of a sandbox")


def pack_error(error: BaseException) -> Message:
    """Return the message fields of an exception."""
    if isinstance(error, errors.JobSignal):
        error = _as_ours(error)
    kind = type(error)
    kinds = [(each.__module__, each.__qualname__) for each in kind.__mro__ if issubclass(each, BaseException)]
    return {
        "name": kind.__name__, "module": kind.__module__, "kinds": kinds,
        "text": stored_text(_without_root(text_of(error)), _TEXT_CHARS),
        "trace": _clean(format_traceback((kind, error, _users_part(error.__traceback__))) + "\n"),
        "fields": packable(vars(error)), "pickle": _pickled(error),
    }  # fmt: skip


def _as_ours(signal: errors.JobSignal) -> errors.JobSignal:
    """Convert a user's subclass of a signal to the signal class of this package."""
    kind: Any = next(each for each in type(signal).__mro__ if each.__module__ == _OURS)
    plain: errors.JobSignal = kind.__new__(kind)
    plain.args = signal.args
    plain.__dict__.update(vars(signal))
    plain.__traceback__ = signal.__traceback__
    return plain


def _pickled(error: BaseException) -> bytes | None:
    if type(error).__module__ != _OURS:
        return None
    error.args = tuple(_clean(arg) if isinstance(arg, str) else arg for arg in error.args)
    try:
        return pickle.dumps(error)
    except BaseException:  # an attribute cannot be pickled
        return None


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame of user code on."""
    step = trace
    while step is not None and step.tb_frame.f_code.co_filename.startswith(_HERE):
        step = step.tb_next
    return step or trace


def _clean(text: str) -> str:
    text = stored_text(_without_root(text), len(text) * 2)
    return text if len(text) <= _TEXT_CHARS else "…" + text[-_TEXT_CHARS:]


def _without_root(text: str) -> str:
    root = os.getcwd()
    return text if len(root) <= 1 else text.replace(root + os.sep, ROOT_MARK + os.sep).replace(root, ROOT_MARK)


class _SandboxTraceback(Exception):  # noqa: N818 - named like its models in the standard library
    """Cause that shows the traceback of the other process, as `concurrent.futures` does."""

    def __str__(self) -> str:
        return f'\n"""\n{str(self.args[0]).rstrip()}\n"""'


def unpack_error(message: Message) -> Exception:
    """Return the received exception, with the text of its traceback as ``sandbox_traceback``."""
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
    except Exception:  # an attribute has a class that is not imported here
        return None


def _stand_in(message: Message) -> Exception:
    text: str = message["text"]

    def say(_: object) -> str:
        return text

    for module, name in (*message["kinds"], ("builtins", "Exception")):
        base = getattr(sys.modules.get(module), name, None)
        if not (isinstance(base, type) and issubclass(base, Exception)):
            continue  # not imported here, or a class that would end the worker, such as SystemExit
        members: Message = {"__module__": message["module"], "__init__": _keep_text, "__str__": say}
        try:
            error: Exception = type(message["name"], (base,), members)(text)
        # It cannot be created from a text; another base class may be.
        except BaseException:  # nosec B112
            continue
        error.__dict__.update(message["fields"])
        return error
    return Exception(f"{message['name']}: {text}")


def _keep_text(self: Exception, text: str) -> None:
    Exception.__init__(self, text)


PID: Final = struct.Struct(">q")
"""A message between a worker and its fork server: a process id, or an exit code."""

DEFAULT_FUNCTION: Final = "handler"
_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_MODULE = re.compile(rf"(?P<module>{_NAME}):(?P<function>{_NAME})")
_FILE = re.compile(rf"(?P<file>.+\.py)(?::(?P<function>{_NAME}))?", re.DOTALL)
_FILE_MODULE = "glidemq_sandboxed_{}"


@dataclass(frozen=True, slots=True)
class Target:
    """A function in a module, or in a file.

    Attributes:
        place: Name of the module, or absolute path of the file.
        is_file: True if ``place`` is a path.
        function: Name of the function.
    """

    place: str
    is_file: bool
    function: str


def parse_target(text: str) -> Target:
    """Parse the name of a handler without importing it.

    Raises:
        GlideMQValidationError: If the name is invalid, or the file or module does not exist.
    """
    file = _FILE.fullmatch(text)
    if file is not None:
        path = Path(file["file"]).absolute()
        if not path.is_file():
            raise GlideMQValidationError("handler", text, f"there is no file {str(path)!r}")
        return Target(str(path), True, file["function"] or DEFAULT_FUNCTION)
    module = _MODULE.fullmatch(text)
    if module is None:
        raise GlideMQValidationError("handler", text, 'must be "module:function" or the path of a .py file')
    top = module["module"].partition(".")[0]
    # Finding a submodule would import its package, which only the sandbox's processes may do.
    if top not in sys.modules and importlib.util.find_spec(top) is None:
        raise GlideMQValidationError("handler", text, f"there is no module {top!r}")
    return Target(module["module"], False, module["function"])


def load_target(target: Target) -> Callable[[Any], Any]:
    """Import and return the function; called in the sandbox's process. Errors of the import are raised.

    Raises:
        LookupError: If it does not exist or is not a function.
    """
    found: Any = _load_file(target.place) if target.is_file else _load_module(target.place)
    for name in target.function.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise LookupError(f"{target.place} has no {target.function!r}") from None
    if not callable(found):
        raise LookupError(f"{target.function!r} of {target.place} is {type(found).__name__}, not a function")
    try:
        function: Callable[[Any], Any] = check_handler(found, "job")
    except GlideMQValidationError as error:
        raise LookupError(f"{target.function!r} of {target.place} {error.problem}") from None
    return function


def _load_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise LookupError(f"there is no module {error.name!r}") from None
        raise


def _load_file(path: str) -> Any:
    folder = str(Path(path).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as for a script, so that it can import its neighbors
    name = _FILE_MODULE.format(re.sub(r"\W", "_", Path(path).stem))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LookupError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
