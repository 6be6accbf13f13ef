"""Run the functions of an in-memory server: the assembled library in a separate Lua 5.1, as in a real server.

`server.lua` and `codecs.lua` are the Lua side; this module converts commands, packed arguments and replies. Callers
must hold the server's lock.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgpack

from glidemq_py._client.library_source import Library
from glidemq_py._client.memory.store import CommandError, Store, load_optional

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
