"""Server calls, declared by typed signatures, and the packing of their arguments and replies.

A typed signature is the layout of a call: its packer, its reader and Lua's side derive from it (`call`).
``python -m tools.generate_rows`` writes Lua's side (``docs/design/protocol.md``, "Rows"). Optional parameters stand
at the end. Arguments are old-style MessagePack without the ``bin`` type and without nil in arrays: the server's decoder
rejects ``bin``, and decodes an array with nil as a map.
"""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache, partial
from typing import Annotated, Any, Final, Generic, ParamSpec, Self, TypeVar, cast, get_args, get_origin
from typing import get_type_hints as hints_of

import msgpack

from glidemq_py.errors import GlideMQError, ScriptError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
RowT = TypeVar("RowT", bound=tuple[Any, ...])


_GUARD: Final = ":slot-guard"


@lru_cache(maxsize=4096)
def declared_keys(key: str) -> list[str]:
    """Return ``key`` and its slot guard: a key of the same hash slot that never exists.

    While a slot migrates key by key (from MIGRATING until SETSLOT NODE), both nodes reply TRYAGAIN to a call with
    several declared keys if one of them does not exist, before the function runs. Without the guard, a function would
    run while some of the keys it derives are on the other node, and fail half-way. The guard starts with ``key``, so
    that an ACL rule that allows ``key`` also allows the guard.

    The returned list is cached: do not change it.
    """
    if "{" in key:
        return [key, key + _GUARD]
    return [key, f"{key}:{{{key}}}{_GUARD}"]  # the hash tag of a key without braces is the whole key


class Call(Generic[T_co]):
    """One FCALL of our library: ``function`` with its declared keys and at most a few packed arguments.

    Attributes:
        function: name without the library's prefix.
        key: the first declared key; every other key of the call derives from it on the server.
        keys: all declared keys, see `declared_keys`.
        args: arguments, as text or packed bytes.
        decode: converts the raw reply to the result.
        repeatable: True if a second execution is harmless: the call is sent again if its reply was lost.
        unclaimed: gets the result if the caller was cancelled or interrupted while the call was under way; None
            discards it.
    """

    __slots__ = ("args", "decode", "function", "key", "keys", "repeatable", "unclaimed")

    def __init__(
        self,
        function: str,
        key: str,
        args: tuple[bytes | str, ...],
        decode: Callable[[Any], T_co],
        repeatable: bool = False,
    ) -> None:
        self.function = function
        self.key = key
        self.keys = declared_keys(key)
        self.args = args
        self.decode = decode
        self.repeatable = repeatable
        self.unclaimed: Callable[[Any], object] | None = None

    def once(self) -> Self:
        """Return this call, not repeatable: its arguments let it have a second effect."""
        self.repeatable = False
        return self

    def read(self, reply: Any) -> T_co:
        """Return the result of a reply.

        Raises:
            ScriptError: the reply does not have the form of this function's replies.
        """
        try:
            return self.decode(reply)
        except GlideMQError:
            raise
        except Exception as error:
            raise self.malformed(error) from error

    def pass_on(self, reply: Any) -> None:
        """Give a reply to `unclaimed`."""
        if self.unclaimed is not None:
            self.unclaimed(self.read(reply))

    def malformed(self, error: Exception) -> ScriptError:
        """Return the error to raise if decoding a reply failed with `error`."""
        return ScriptError(f"call {self.function!r}: malformed reply of the server ({error!r})")


# msgpack has no type annotations.
_msgpack: Any = msgpack
_Packer: Any = _msgpack.Packer

pack: Final[Callable[[Any], bytes]] = partial(_msgpack.packb, use_bin_type=False, unicode_errors="surrogateescape")
"""Pack an argument for the server's decoder."""

unpack: Final[Callable[[bytes], Any]] = partial(
    _msgpack.unpackb, raw=False, unicode_errors="surrogateescape", strict_map_key=False
)
"""Unpack a reply. Bytes that are not UTF-8 become surrogates."""

TEXT_MARK: Final = 0xDB
"""First byte of a text with a 4-byte big-endian length (str 32), which fits a text of any length."""


ROWS: Final[dict[str, tuple[str, ...]]] = {}
"""The fields of the rows that have been imported, by name."""


def fields_of(name: str, fields: str) -> tuple[str, ...]:
    """Declare a row, a list of a request or a reply, by the names of its fields in their order; return the names.

    A field that is appended at the end is compatible: the other side reads False or nothing until it knows the field.
    The order of existing fields never changes, because builds of several versions use one queue.

    Raises:
        TypeError: A row with this name has other fields.
    """
    found = tuple(fields.split())
    if ROWS.setdefault(name, found) != found:
        raise TypeError(f"row {name!r} has the fields {ROWS[name]}, not {found}")
    return found


def declared(name: str) -> Callable[[type[RowT]], type[RowT]]:
    """Decorate a NamedTuple that is the row ``name``; see `fields_of`."""

    def declare(kind: type[RowT]) -> type[RowT]:
        fields_of(name, " ".join(kind._fields))  # type: ignore[attr-defined]
        return kind

    return declare


def pieces(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield items in pieces of at most ``size``, one for each call."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def array_head(length: int) -> bytes:
    """Return the header that precedes the packed elements of an array."""
    return _Packer().pack_array_header(length)  # type: ignore[no-any-return]


_namedtuple: Any = namedtuple  # noqa: PYI024

_FLAG: Final = "flag"
_ARGUMENT: Final = "argument"
_PACKED: Final = "packed"

Flag = Annotated[bool, _FLAG]
"""A field that is sent as 0 or 1."""
Argument = Annotated[T, _ARGUMENT]
"""An argument of its own after the packed fields, as text or bytes: True is ``1``; False and None are empty."""
Packed = Annotated[T, _PACKED]
"""The only packed value, instead of the array of fields."""

DECLARED: Final[dict[str, Declaration[..., Any]]] = {}
"""The declarations that have been imported, by the name of their function."""


@dataclass(eq=False)
class Declaration(Generic[P, T]):
    """A function of the library: called with a key and its arguments, it returns the `Call`.

    Attributes:
        function: Name of the function.
        signature: The layout of the call.
        given_reader: Converts the reply, if its type does not say how.
        repeatable: See `Call.repeatable`.
        has_queue: True if the key is the meta key of a queue.
        raw: True if the reply is an array of the server's protocol instead of packed bytes.
        hot: True if Lua reads the request by position (`G.requests`), and passes the fields of the reply in order:
            tables of named fields are too slow.
    """

    function: str
    signature: Callable[P, T]
    given_reader: Callable[[Any], T] | None
    repeatable: bool
    has_queue: bool
    raw: bool
    hot: bool

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return hints_of(self.signature, include_extras=True)

    @cached_property
    def _arguments(self) -> Callable[..., tuple[Any, ...]]:
        """The class of the arguments in their order, made at first use: 0.2 ms."""
        parameters = inspect.signature(self.signature).parameters.values()
        given = [each.default for each in parameters if each.default is not inspect.Parameter.empty]
        arguments: Callable[..., tuple[Any, ...]] = _namedtuple(
            self.function, [each.name for each in parameters], rename=True, defaults=given
        )
        return arguments

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """How each argument is sent, in their order: flag, argument, packed, or "" for a field."""
        kinds = (self._hints[name] for name in inspect.signature(self.signature).parameters)
        return tuple(getattr(kind, "__metadata__", ("",))[0] for kind in kinds)

    @cached_property
    def _has_fields_only(self) -> bool:
        return not any(self.kinds)

    @cached_property
    def result(self) -> Any:
        """The type of the reply, if there is one."""
        kind = self._hints["return"]
        found = [each for each in get_args(kind) if each is not type(None)] if type(None) in get_args(kind) else [kind]
        return found[0]

    @cached_property
    def read(self) -> Callable[[Any], T]:
        """The function that converts the reply."""
        return self.given_reader or _reader(self.result, self.raw)

    def __call__(self, key: str, /, *args: P.args, **options: P.kwargs) -> Call[T]:
        """Return the call."""
        fields: list[Any] = list(self._arguments(*args, **options))
        sent: list[bytes | str] = []
        if not self._has_fields_only:
            values, fields = fields, list[Any]()
            for value, kind in zip(values, self.kinds, strict=True):
                if not kind:
                    fields.append(value)
                elif kind == _ARGUMENT:
                    sent.append(value if isinstance(value, (str, bytes)) else _text(value))
                elif kind == _FLAG:
                    fields.append(int(value))
                else:
                    sent.append(pack(value))
        if self.hot:
            # Lua reads nothing as False. The fields that are always given are no False, or not the last.
            while fields[-1] is False or fields[-1] is None:
                fields.pop()
        while None in fields:
            fields[fields.index(None)] = False
        if fields:
            sent.insert(0, pack(fields))
        return Call(self.function, key, tuple(sent), self.read, self.repeatable)


def call(
    function: str, *, read: Callable[[Any], Any] | None = None, repeatable: bool = False, has_queue: bool = True,
    raw: bool = False, hot: bool = False,
) -> Callable[[Callable[P, T]], Declaration[P, T]]:  # fmt: skip
    """Declare a function of the library by a typed signature without a body.

    Its parameters are the packed fields, in their order; None is sent as False. The type of its result says how the
    reply is read: a bool, int, text or enumeration as it is; a NamedTuple, list, tuple or dict is packed.

    Args:
        function: Name of the function.
        read: Converts the reply, if its type does not say how.
        repeatable: True if a second execution changes nothing more, so that the call is repeated after a lost reply.
        has_queue: False if the key belongs to no queue.
        raw: True if the reply is an array of the server's protocol.
        hot: True if Lua's side reads and writes by position.
    """

    def declare(signature: Callable[P, T]) -> Declaration[P, T]:
        made = Declaration(function, signature, read, repeatable, has_queue, raw, hot)
        if DECLARED.setdefault(function, made) is not made:
            raise TypeError(f"the call {function!r} is declared twice")
        return made

    return declare


def _text(value: object) -> str:
    return "" if value is None or value is False else str(int(value) if isinstance(value, bool) else value)


def _reader(kind: Any, raw: bool) -> Callable[[Any], Any]:
    """Return the function that converts a reply to a type."""
    if hasattr(kind, "_fields") and not raw and not any(map(_converter, hints_of(kind).values())):
        return lambda reply: kind(*unpack(reply))  # one function, as the replies of hot calls are
    if kind is str:
        return bytes.decode
    if kind in (bool, int) or (isinstance(kind, type) and issubclass(kind, Enum)):
        return cast("Callable[[Any], Any]", kind)
    convert = _converter(kind)
    if raw:
        return convert or list
    return unpack if convert is None else lambda reply: convert(unpack(reply))


def _converter(kind: Any) -> Callable[[Any], Any] | None:
    """Return the function that converts an unpacked value to a type; None if it has that type already."""
    if hasattr(kind, "_fields"):
        parts = [_converter(each) for each in hints_of(kind).values()]
        if not any(parts):
            return lambda row: kind(*row)
        return lambda row: kind(*_converted(row, parts))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    if kind is dict or get_origin(kind) is dict:
        return dict
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        of_item = _converter(item)
        return None if of_item is None else lambda rows: [of_item(row) for row in rows]
    return None


def _converted(row: list[Any], parts: list[Callable[[Any], Any] | None]) -> list[Any]:
    return [value if part is None else part(value) for value, part in zip(row, parts, strict=False)]
