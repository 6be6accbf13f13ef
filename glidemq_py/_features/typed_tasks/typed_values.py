"""Convert between plain JSON values and typed values, according to annotations of typed tasks.

Each annotation is compiled once. pydantic and msgspec are never imported here: a program that uses their classes in
annotations has imported them already; their own classes are converted by them. Other classes are not: of the 129 cases
of tests/unit/test_typed.py, msgspec.convert fails 66 and a strict pydantic.TypeAdapter 93 (paths in errors, timedeltas,
unions of dataclasses, enums of tuples, keys that are no text), and dataclasses must convert without either package.

Types without a JSON form are converted by their annotation: sets are stored as lists, bytes as base64, paths as text,
timedeltas as milliseconds.
"""

from __future__ import annotations

import base64
import collections
import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final, cast
from uuid import UUID

import typing_extensions

from glidemq_py._features.typed_tasks import rebuild
from glidemq_py._features.typed_tasks.rebuild import Converter, Fields, Mismatch
from glidemq_py.errors import JobDataError

__all__ = ["Codec", "Mismatch", "from_plain"]

_MS: Final = timedelta(milliseconds=1)


def from_plain(annotation: Any, value: Any, where: str) -> Any:
    """Return the value described by an annotation, rebuilt from plain data.

    Plain types are checked, not converted (but an int is accepted for a float). For other classes the value must
    already be an instance, which a custom serializer may return.

    Args:
        annotation: a type, with forward references resolved.
        value: the plain value.
        where: name of the value in errors.

    Raises:
        JobDataError: the value does not match; names ``where`` and the value.
    """
    return Codec(annotation).read(value, where)


class Codec:
    """Converts the values of one annotation from and to plain values.

    Args:
        annotation: the type.
        namespace: local names for the forward references of its classes.

    Attributes:
        convert: converts a plain value to the typed one; raises `Mismatch`.
        special: values may need `write` before they are serialized.
    """

    __slots__ = ("convert", "special")

    def __init__(self, annotation: Any, namespace: Mapping[str, Any] | None = None) -> None:
        compiler = _Compiler(namespace)
        self.convert = compiler.compile(annotation)
        self.special = compiler.special

    @property
    def is_plain(self) -> bool:
        """True if values are not converted."""
        return self.convert is rebuild.as_is

    def read(self, value: Any, where: str) -> Any:
        """Return the typed value.

        Raises:
            JobDataError: the value does not match; names ``where`` and the value.
        """
        try:
            return self.convert(value)
        except Mismatch as mismatch:
            raise JobDataError(mismatch.describe(where)) from mismatch

    def write(self, value: Any) -> Any:
        """Return the value in a JSON form that `read` accepts."""
        return _write(value) if self.special else value


def _write(value: Any) -> Any:
    """Return the value with sets, bytes, paths and timedeltas in JSON form; the encoder handles other objects."""
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return [_write(each) for each in cast("Iterable[Any]", value)]
    if isinstance(value, Mapping):
        return {_write(key): _write(each) for key, each in cast("Mapping[object, Any]", value).items()}
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, timedelta):
        whole, rest = divmod(value, _MS)
        return value / _MS if rest else whole
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _write(getattr(value, each.name)) for each in dataclasses.fields(value)}
    return value


# -- from annotations to converters -------------------------------------------------------------------------

_LISTS: Final[Mapping[Any, Callable[[list[Any]], Any]]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    collections.deque: collections.deque,
    collections.abc.Set: frozenset,
    collections.abc.MutableSet: set,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Collection: list,
    collections.abc.Iterable: list,
}
_WRITTEN_AS_LISTS: Final = (set, frozenset, collections.deque, collections.abc.Set, collections.abc.MutableSet)
_MAPPINGS: Final[Mapping[Any, Callable[[dict[Any, Any]], Any]]] = {
    dict: dict,
    collections.OrderedDict: collections.OrderedDict,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
}
_CONTAINERS: Final = frozenset({*_LISTS, *_MAPPINGS, tuple})
_UNIONS: Final = (typing.Union, types.UnionType)
_WRAPPERS: Final = (typing.Annotated, typing.Required, typing.NotRequired, typing_extensions.ReadOnly, typing.Final)
_SCALARS: Final = (int, float, bool)
_ISO: Final = ((datetime, "an ISO 8601 date and time"), (date, "an ISO 8601 date"), (time, "an ISO 8601 time"))


class _Compiler:
    """Turns one annotation into a converter."""

    def __init__(self, namespace: Mapping[str, Any] | None) -> None:
        self.special = False
        self._namespace = None if namespace is None else dict(namespace)
        self._made: dict[Any, Converter] = {}

    def compile(self, annotation: Any) -> Converter:
        """Return the converter of an annotation."""
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if annotation is Any or annotation is object:
            return rebuild.as_is
        if origin in _UNIONS:
            return self._union(arguments)
        if origin is typing.Literal:
            return rebuild.literal(arguments)
        if origin in _WRAPPERS:
            return self.compile(arguments[0])
        if origin in _CONTAINERS:
            return self._container(origin, arguments)
        if _is_alias(origin or annotation) or isinstance(origin or annotation, type):
            return self._named(annotation, origin or annotation)
        if isinstance(annotation, typing.NewType):
            return self.compile(annotation.__supertype__)
        if isinstance(annotation, typing.TypeVar) and annotation.__bound__ is not None:
            return self.compile(annotation.__bound__)
        return rebuild.instance(type(None), "None") if annotation is None else rebuild.as_is

    def _named(self, annotation: Any, kind: Any) -> Converter:
        """Return the converter of a class or an alias, which may be recursive: inner references are resolved late."""
        made = self._made
        if annotation not in made:
            made[annotation] = lambda value: made[annotation](value)
            made[annotation] = self._alias(annotation, kind) if _is_alias(kind) else self._class(annotation, kind)
        return made[annotation]

    def _alias(self, annotation: Any, alias: Any) -> Converter:
        return self.compile(_filled(alias.__value__, _arguments(annotation, alias.__type_params__)))

    def _union(self, members: tuple[Any, ...]) -> Converter:
        others = [self.compile(each) for each in members if each is not type(None)]
        if rebuild.as_is in others:
            return rebuild.as_is
        if len(others) > 1:
            scalars = frozenset(each for each in _SCALARS if each in members)
            made = rebuild.union(others, scalars, " or ".join(_name(each) for each in members))
        else:
            made = others[0]
        return rebuild.optional(made) if type(None) in members else made

    def _container(self, kind: Any, items: tuple[Any, ...]) -> Converter:
        if kind in _MAPPINGS:
            key, item = (self.compile(each) for each in items or (Any, Any))
            return rebuild.mapping(_MAPPINGS[kind], key, item)
        if kind is tuple and items[-1:] != (...,):
            return rebuild.row([self.compile(each) for each in items], tuple)
        self.special |= kind in _WRITTEN_AS_LISTS
        return rebuild.sequence(_LISTS.get(kind, tuple), self.compile(items[0]) if items else rebuild.as_is)

    def _class(self, annotation: Any, kind: Any) -> Converter:
        if kind in _CONTAINERS:
            return self._container(kind, (Any, ...) if kind is tuple else ())
        if dataclasses.is_dataclass(kind):
            return self._dataclass(annotation, kind)
        if hasattr(kind, "__struct_fields__"):
            return rebuild.struct(annotation)
        if hasattr(kind, "model_validate") and hasattr(kind, "__pydantic_fields_set__"):
            return rebuild.model(kind)
        if typing_extensions.is_typeddict(kind):
            held = Fields(self._hints(annotation, kind), self._required_keys(kind), is_open=True)
            return rebuild.fields(_NoInstances, kind.__name__, dict, held)
        names: tuple[str, ...] | None = getattr(kind, "_fields", None)
        if names is not None and issubclass(kind, tuple):
            known, make = self._hints(annotation, kind), cast("Callable[..., Any]", kind)
            return rebuild.row([known.get(name, rebuild.as_is) for name in names], lambda items: make(*items))
        return self._value_class(kind)

    def _value_class(self, kind: Any) -> Converter:
        """Return the converter of a class whose instances are single values: numbers, text, times."""
        if issubclass(kind, Enum):
            return rebuild.enum(kind)
        if kind is float:
            return rebuild.number
        for base, what in _ISO:
            if issubclass(kind, base):
                return rebuild.made_of(kind, (str,), kind.fromisoformat, what)
        if issubclass(kind, UUID):
            return rebuild.made_of(kind, (str,), kind, "a UUID")
        if issubclass(kind, Decimal):
            return rebuild.made_of(kind, (str, int, float), lambda value: kind(str(value)), "a decimal number")
        if issubclass(kind, (timedelta, bytes, bytearray, PurePath)):
            self.special = True
            return _special(kind)
        for plain in (str, int, float):
            if issubclass(kind, plain) and kind not in (str, int, bool):
                return rebuild.made_of(kind, (plain,), kind, kind.__name__)
        # isinstance() does not work with protocols.
        return rebuild.as_is if getattr(kind, "_is_protocol", False) else rebuild.instance(kind, _name(kind))

    def _dataclass(self, annotation: Any, kind: Any) -> Converter:
        every, missing = dataclasses.fields(kind), dataclasses.MISSING
        known = self._hints(annotation, kind, {each.name for each in every if each.init})
        required = frozenset(
            each.name for each in every if each.init and each.default is missing and each.default_factory is missing
        )
        ignored = frozenset(each.name for each in every if not each.init)
        return rebuild.fields(kind, kind.__name__, kind, Fields(known, required, ignored))

    def _required_keys(self, kind: Any) -> frozenset[str]:
        """Return the required keys of a TypedDict; with annotations as text, the class misses `Required` marks."""
        keys = set(kind.__required_keys__)
        for name, hint in typing_extensions.get_type_hints(kind, localns=self._namespace, include_extras=True).items():
            marks = _marks(hint)
            if typing.NotRequired in marks:
                keys.discard(name)
            elif typing.Required in marks:
                keys.add(name)
        return frozenset(keys)

    def _hints(self, annotation: Any, kind: Any, names: set[str] | None = None) -> dict[str, Converter]:
        """Return the converters of the fields of a class, by name."""
        hints = typing_extensions.get_type_hints(kind, localns=self._namespace)
        arguments = _arguments(annotation, getattr(kind, "__parameters__", ()))
        return {
            name: self.compile(_filled(hint, arguments))
            for name, hint in hints.items()
            if names is None or name in names
        }


def _marks(hint: Any) -> list[Any]:
    """Return the wrappers around a type, outermost first."""
    marks: list[Any] = []
    while (origin := typing.get_origin(hint)) in _WRAPPERS:
        marks.append(origin)
        hint = typing.get_args(hint)[0]
    return marks


class _NoInstances:
    """A class without instances, for objects that stay dicts."""


def _special(kind: Any) -> Converter:
    """Return the converter of values written by `_write`."""
    if issubclass(kind, timedelta):
        return rebuild.made_of(kind, (int, float), lambda value: kind(milliseconds=value), "a number of milliseconds")
    if issubclass(kind, PurePath):
        return rebuild.made_of(kind, (str,), kind, "a path")
    return rebuild.made_of(kind, (str,), lambda text: kind(base64.b64decode(text, validate=True)), "base64 text")


def _arguments(annotation: Any, parameters: tuple[Any, ...]) -> dict[Any, Any]:
    """Return the arguments of a generic class by type variable: {T: int} for ``Box[int]``."""
    return dict(zip(parameters, typing.get_args(annotation), strict=False))


def _filled(annotation: Any, arguments: dict[Any, Any]) -> Any:
    """Return an annotation with its type variables replaced."""
    if isinstance(annotation, typing.TypeVar):
        return arguments.get(annotation, annotation)
    parameters: tuple[Any, ...] = getattr(annotation, "__parameters__", ())
    if not arguments or not parameters or typing.get_origin(annotation) is None:
        return annotation
    return annotation[tuple(arguments.get(each, Any) for each in parameters)]


def _is_alias(annotation: Any) -> bool:
    return isinstance(annotation, typing_extensions.TypeAliasType)


def _name(annotation: Any) -> str:
    if annotation is type(None):
        return "None"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
