"""Keyspace and functions of an in-memory server.

The keyspace is fakeredis with our clock, advanced by the test or running in real time.
fakeredis is called below its sockets and parsers: a command is a function call of a few microseconds. `Store.execute`
corrects replies that differ from a real server's.

The functions are those of the assembled library, in a separate Lua 5.1, as in a real server. `server.lua` and
`codecs.lua` are the Lua side; `ScriptEngine` converts commands, packed arguments and replies.

Callers must hold the server's lock.
"""

from __future__ import annotations

import importlib
import json
import math
import re
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgpack

from glidemq_py._client.library_source import Library
from glidemq_py._core.times import Milliseconds, to_ms
from glidemq_py.errors import EmbeddedServerError, GlideMQValidationError


class Clock:
    """The clock of an in-memory server. It controls delays, retries, limits, locks, ages and entry ids.

    Args:
        start: initial time, epoch ms; None uses the current time.
        running: the clock runs in real time; otherwise it changes only by `advance`.

    Raises:
        GlideMQValidationError: if ``start`` is not a valid time.
    """

    def __init__(self, start: int | None = None, *, running: bool = False) -> None:
        given: object = start
        if start is not None and (isinstance(given, bool) or not isinstance(given, int) or start < 0):
            raise GlideMQValidationError("start", start, "must be epoch milliseconds")
        self.running = running
        self._micros = time.time_ns() // 1000 if start is None else start * 1000
        self._since = time.monotonic_ns()
        self.moved = 0
        """Total of all advances, milliseconds."""
        self._listeners: list[Callable[[], None]] = []

    def now(self) -> int:
        """Return the time in epoch ms."""
        return self.micros() // 1000

    def micros(self) -> int:
        """Return the time in epoch microseconds."""
        return self._micros + ((time.monotonic_ns() - self._since) // 1000 if self.running else 0)

    def advance(self, by: Milliseconds) -> int:
        """Advance the clock and wake up pending blocking reads.

        Args:
            by: milliseconds or a timedelta.

        Returns:
            The new time, epoch ms.

        Raises:
            GlideMQValidationError: if ``by`` is negative or not a duration.
        """
        milliseconds = to_ms("by", by)
        self.moved += milliseconds
        self._micros += milliseconds * 1000
        for notify in tuple(self._listeners):
            notify()
        return self.now()

    def on_advance(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` after every `advance`."""
        self._listeners.append(notify)

    def __repr__(self) -> str:
        return f"<Clock {self.now()}{' running' if self.running else ''}>"


_WITH_SUBCOMMANDS: Final = frozenset((b"XGROUP", b"XINFO", b"OBJECT", b"CONFIG", b"CLIENT", b"MEMORY"))

_READS: Final = frozenset((b"XREAD", b"XREADGROUP"))
"""Commands for which fakeredis does not check the type of the key."""
_EMPTY: Final = frozenset((b"HRANDFIELD", b"SRANDMEMBER", b"ZRANDMEMBER"))
"""Commands that with a count return an empty array for a missing key; fakeredis returns nil."""

_WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
_VERSION: Final = (7, 2)


class CommandError(Exception):
    """An error reply; its message is the text of the reply."""


class _Acting(threading.local):
    seconds: float | None = None


_acting = _Acting()


class _Time:
    """Replaces the module `time` in fakeredis: our clock while one of our servers acts, otherwise the real time."""

    @staticmethod
    def time() -> float:
        return time.time() if _acting.seconds is None else _acting.seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def load_optional(module: str) -> Any:
    """Import a module of the extra `testing`. Raises EmbeddedServerError with the install command if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EmbeddedServerError(
            f"the in-memory server needs {module.partition('.')[0]}: pip install 'glidemq-py[testing]'"
        ) from error


def _share_our_clock() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("fakeredis.") and getattr(module, "time", None) is time:
            module.time = _Time()  # type: ignore[attr-defined]


class _Moment:
    """Freezes the time of a store. A class, because a generator costs more than many commands."""

    __slots__ = ("_before", "_store")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._before: float | None = None

    def __enter__(self) -> None:
        store = self._store
        self._before = _acting.seconds
        _acting.seconds = store._database.time = store._clock.micros() / 1_000_000

    def __exit__(self, *_: object) -> None:
        _acting.seconds = self._before


class _Command:
    """A command of fakeredis, which looks at the types of all arguments in each call.

    That takes longer than most commands, so it is done once. Commands with unusual arguments are left to it.
    """

    __slots__ = ("_converted", "_empties", "_fixed", "_function", "_keys", "_repeats", "_signature", "_socket")

    def __init__(self, socket: Any, function: Callable[..., Any], signature: Any) -> None:
        self._socket, self._function, self._signature = socket, function, signature
        self._empties: bool = "v" not in signature.flags
        """Delete a key whose last element was removed."""
        self._fixed: int = len(signature.fixed)
        self._repeats: int = len(signature.repeat) if set(signature.repeat) == {bytes} else 0
        fixed: tuple[Any, ...] = signature.fixed
        kinds = list(enumerate(fixed))
        keys = [(at, kind) for at, kind in kinds if hasattr(kind, "missing_return")]
        if any(kind.missing_return is not kind.UNSPECIFIED for _, kind in keys):
            self._fixed = sys.maxsize
        creates = "i" not in signature.flags
        self._keys: list[tuple[int, Any, bool]] = [
            (at, kind.type_, creates and kind.type_ not in (None, bytes)) for at, kind in keys
        ]
        self._converted: list[tuple[int, Callable[[bytes], Any]]] = [
            (at, kind.decode) for at, kind in kinds if kind is not bytes and hasattr(kind, "decode")
        ]

    def run(self, args: list[bytes], database: Any, item_type: Any) -> Any:
        """Return the reply, or fakeredis' error."""
        more = len(args) - self._fixed
        if more and (more < 0 or not self._repeats or more % self._repeats):
            return self._socket._run_command(self._function, self._signature, args, False)
        words: list[Any] = [*args]
        for at, convert in self._converted:
            words[at] = convert(args[at])
        items: list[Any] = []
        for at, kind, create in self._keys:
            found = database.get(args[at])
            if found is not None and kind is not None and type(found.value) is not kind:
                raise CommandError(_WRONG_TYPE)
            default: Any = kind() if found is None and create and kind is not None else None
            words[at] = item = item_type(args[at], database, found, default)
            items.append(item)
        try:
            return self._function(*words)
        finally:
            for item in items:
                item.writeback(self._empties)


class Store:
    """The databases of one server.

    Args:
        clock: the server's clock.
        touched: called with every key that a command changes.
    """

    def __init__(self, clock: Clock, touched: Callable[[bytes], object]) -> None:
        fakeredis = load_optional("fakeredis")
        _share_our_clock()
        self._clock = clock
        fake = fakeredis.FakeServer(version=_VERSION, server_type="valkey")
        # Functions use RESP2, as on a real server; clients use RESP3, which has maps.
        # (The clients are stored because a deleted client closes its connections.)
        self._clients = [fakeredis.FakeStrictRedis(server=fake, protocol=protocol) for protocol in (2, 3)]
        self._for_scripts, self._for_clients = (_socket(client) for client in self._clients)
        self._database = self._for_clients._db
        # We wake up blocked readers ourselves: fakeredis would require its own lock.
        self._database.notify_watch = touched
        self.listeners: list[Callable[[bytes], bool]] = []
        """Subscribers of channels: called with the channel of a message; True if it is theirs."""
        self._item_type: Any = importlib.import_module("fakeredis._core._database").CommandItem
        self._problem: Any = importlib.import_module("fakeredis._helpers").SimpleError
        self.as_resp2: Callable[[Any], Any] = importlib.import_module("fakeredis._socket._resp").convert_to_resp2
        self._found: dict[tuple[bool, bytes], _Command] = {}

    def moment(self) -> _Moment:
        """Freeze the time within this context, as a server does while it runs a function."""
        return _Moment(self)

    @property
    def seconds(self) -> float:
        """Time of the current moment, epoch seconds."""
        return self._clock.micros() / 1_000_000 if _acting.seconds is None else _acting.seconds

    def execute(self, name: bytes, args: list[bytes], *, script: bool) -> Any:
        """Run a command and return its reply, RESP2 for a function and RESP3 for clients. Raises CommandError.

        Args:
            name: the command, in capitals.
            args: its arguments.
            script: the caller is a function.
        """
        if name == b"TIME":
            micros = round(self.seconds * 1_000_000)
            return [b"%d" % (micros // 1_000_000), b"%d" % (micros % 1_000_000)]
        if name == b"PUBLISH":
            return sum([listen(args[0]) for listen in tuple(self.listeners)])
        if name in _WITH_SUBCOMMANDS and args:
            name, args = name + b" " + args[0].upper(), args[1:]
        if name == b"XPENDING" and len(args) > 3 and args[2].upper() == b"IDLE":
            # fakeredis omits entries that have been idle for exactly this time.
            args = [*args[:3], b"%d" % (int(args[3]) - 1), *args[4:]]
        try:
            command = self._found.get((script, name))
            if command is None:
                command = self._found[script, name] = self._find(script, name)
            reply = command.run(args, self._database, self._item_type)
            if isinstance(reply, self._problem):
                raise reply
        except self._problem as error:
            raise CommandError(_corrected(name, args, error.value)) from None
        except AttributeError:
            if name not in _READS:
                raise
            raise CommandError(_WRONG_TYPE) from None
        if name == b"XPENDING" and len(args) == 2 and not reply[0]:
            return [*reply[:3], None]
        if reply is None and name in _EMPTY and len(args) > 1:
            return []
        return reply

    def _find(self, script: bool, name: bytes) -> _Command:
        socket = self._for_scripts if script else self._for_clients
        function, signature = socket._name_to_func(name.decode("utf-8", "replace").lower())
        if function is None:
            raise CommandError(f"ERR unknown command '{name.decode()}'")
        return _Command(socket, function, signature)


def _socket(client: Any) -> Any:
    socket = client.connection_pool.get_connection()._sock
    socket.add_subkey_event = _ignore  # collected for notifications, which nobody wants
    return socket


def _ignore(*_: object) -> None: ...


def _corrected(name: bytes, args: list[bytes], text: str) -> str:
    if name == b"XREADGROUP" and text.startswith("ERR The XGROUP subcommand requires"):
        return f"NOGROUP No such key or consumer group '{args[1].decode('utf-8', 'replace')}' in XREADGROUP"
    return text.removeprefix("ERR ") if text.startswith("ERR BUSYGROUP") else text


_MOST_ARGUMENTS: Final = 200
"""Elements of a list that are passed as arguments. Lua's limit is 8,000."""
_PRELUDE: Final = Path(__file__).with_name("server.lua")
_CODECS: Final = Path(__file__).with_name("codecs.lua")
_msgpack: Any = msgpack
_type_of: Callable[[Any], Any] = type
_compiled: Final[dict[str, bytes]] = {}
"""The library that was loaded last, compiled: most programs and tests create many servers with the same one."""


class ScriptEngine:
    """A Lua runtime with the loaded libraries.

    Args:
        store: executes the commands of functions.
    """

    def __init__(self, store: Store) -> None:
        lua: Any = load_optional("lupa.lua51")
        self._store = store
        self._is_table = lua.lua_type
        self._lua = lua.LuaRuntime(encoding=None, unpack_returned_tuples=True, register_eval=False)
        self._table = self._lua.table_from
        self._null: Any = None
        self._names: dict[bytes, bytes] = {}
        self._loaded: set[str] = set()
        codecs = (self._unpack_msgpack, self._decode_json, _pack_double)
        self._null = self._lua.execute(_CODECS.read_bytes(), *codecs)
        self._pack = self._lua.execute(b"return function(...) return {...} end")
        """Returns a table of its arguments: faster than `table_from`."""
        self._load, self._compile, self._run, self._list = self._lua.execute(_PRELUDE.read_bytes(), self._execute)

    @property
    def functions(self) -> list[bytes]:
        """Names of the loaded functions."""
        return sorted(self._list().values())

    def load(self, library: Library) -> None:
        """Load a library if it is not loaded yet."""
        if library.name not in self._loaded:
            self.load_code(library.code)
            self._loaded.add(library.name)

    def load_code(self, code: str) -> None:
        """Load a library from its source. Raises CommandError."""
        try:
            # The first line (#!lua) is not Lua. Commenting it out keeps the line numbers.
            self._load(_compiled.get(code) or b"--" + code.encode())
            if code not in _compiled:
                _compiled.clear()
                _compiled[code] = self._compile(b"--" + code.encode())
        except Exception as error:
            raise CommandError(f"ERR Error compiling function: {error}") from error

    def call(self, name: str, keys: list[bytes], args: list[bytes]) -> Any:
        """Run a function and return its reply in a server's types. Raises CommandError."""
        with self._store.moment():
            # (xpcall returns a single value if the function returned nothing.)
            answer: Any = self._run(name.encode(), self._list_to_lua(keys), self._list_to_lua(args))
        answers: Any = (True, None) if answer is True else answer
        ok, reply = answers
        if not ok:
            raise CommandError(reply.decode("utf-8", "replace"))
        return self._from_lua(reply)

    # -- called by Lua ------------------------------------------------------------------------------------

    def _execute(self, name: bytes, *args: Any) -> tuple[bool, Any]:
        upper = self._names.get(name)
        if upper is None:
            upper = self._names[name] = name.upper()
        try:
            reply = self._store.execute(upper, [a if type(a) is bytes else _argument(a) for a in args], script=True)
        except CommandError as error:
            return False, str(error).encode()
        return True, reply if type(reply) is bytes or type(reply) is int else self._to_lua(reply)

    def _unpack_msgpack(self, packed: bytes) -> tuple[Any, ...]:
        try:
            return True, self._value(_msgpack.unpackb(packed, raw=True, strict_map_key=False))
        except Exception:  # usually several values
            unpacker = _msgpack.Unpacker(raw=True, strict_map_key=False)
            unpacker.feed(packed)
        try:
            return True, *(self._value(each) for each in unpacker)
        except Exception as error:
            return False, f"Bad data format in input. ({error})".encode()

    def _decode_json(self, text: bytes) -> tuple[bool, Any]:
        try:
            found = json.loads(text.decode("utf-8", "surrogateescape"))
        except ValueError as error:
            return False, f"Expected value but found invalid token: {error}".encode()
        return True, self._value(self._from_json(found))

    # -- values -------------------------------------------------------------------------------------------

    def _value(self, value: Any) -> Any:
        kind = _type_of(value)
        if kind is list:
            if len(value) <= _MOST_ARGUMENTS:
                return self._pack(*[each if type(each) is bytes else self._value(each) for each in value])
            return self._table([self._value(each) for each in value])
        return self._table(value, recursive=True) if kind is dict else value

    def _list_to_lua(self, items: list[bytes]) -> Any:
        return self._pack(*items) if len(items) <= _MOST_ARGUMENTS else self._table(items)

    def _from_json(self, value: Any) -> Any:
        if isinstance(value, str):
            return _bytes(value)
        inside: Any = value
        if isinstance(value, dict):
            return {_bytes(key): self._from_json(each) for key, each in inside.items()}
        if isinstance(value, list):
            return [self._from_json(each) for each in inside]
        return self._null if value is None else value

    def _to_lua(self, reply: Any) -> Any:
        kind = _type_of(reply)
        if kind is bytes or kind is int:
            return reply
        if kind is dict:
            reply = [part for pair in reply.items() for part in pair]
        elif kind is float:
            return _number(reply)
        elif kind is str:
            return reply.encode()
        elif kind is not list and kind is not tuple:
            return False if reply is None else self._table({b"ok": reply.value})
        items = [each if type(each) is bytes else self._to_lua(each) for each in reply]
        return self._pack(*items) if len(items) <= _MOST_ARGUMENTS else self._table(items)

    def _from_lua(self, value: Any) -> Any:
        kind = _type_of(value)
        if kind is bytes or kind is int:
            return value
        if kind is float:
            return int(value)
        if value is None or isinstance(value, bool):
            return 1 if value else None
        if self._is_table(value) != "table":
            return None
        if value[b"err"] is not None:
            raise CommandError(value[b"err"].decode("utf-8", "replace"))
        if value[b"ok"] is not None:
            return value[b"ok"].decode()
        items: list[Any] = []
        while (item := value[len(items) + 1]) is not None:
            items.append(self._from_lua(item))
        return items


def _argument(value: Any) -> bytes:
    """Format a number as a server does when Lua passes one to a command."""
    kind = _type_of(value)
    if kind is int:
        return b"%d" % value
    if kind is not float:
        raise CommandError("ERR Lua redis lib command arguments must be strings or integers")
    return _number(value)


def _number(number: float) -> bytes:
    """Format a number as a server does: in the fewest digits."""
    if abs(number) < 2**63 and number == int(number):
        return b"%d" % int(number)
    if math.isinf(number):
        return b"%f" % number
    return re.sub(r"e([+-])0", r"e\1", repr(number)).encode()


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _pack_double(number: float) -> bytes:
    return b"\xcb" + struct.pack(">d", number)
