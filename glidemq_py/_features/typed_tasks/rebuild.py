"""Converters that rebuild one kind of value each; `typed_values` combines them according to annotations.

A converter raises `Mismatch` for an invalid value. Each enclosing level adds its step to the path of the error.
"""

from __future__ import annotations

import collections
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import InvalidOperation
from enum import Enum
from typing import Any, Final, NoReturn, cast

from glidemq_py._core import json_text as json
from glidemq_py.errors import SerializationError
from glidemq_py.errors.base import show_value

__all__ = [
    "Converter", "Fields", "Mismatch", "as_is", "enum", "fields", "instance", "literal", "made_of", "mapping",
    "model", "number", "optional", "row", "sequence", "struct", "union",
]  # fmt: skip

Converter = Callable[[Any], Any]
"""Converts a plain value to the typed one; raises `Mismatch`."""

_LISTS: Final = (list, tuple, set, frozenset, collections.deque)


class Mismatch(ValueError):  # noqa: N818 - callers that know the parameter turn it into an error
    """A value does not match its annotation. `path` leads to the invalid part."""

    def __init__(self, value: object, problem: str) -> None:
        super().__init__(value, problem)
        self.value = value
        self.problem = problem
        self.path: list[str] = []

    def describe(self, where: str) -> str:
        """Return the problem and its place, such as "image.width = 'x': must be int"."""
        return f"{where}{''.join(self.path)} = {show_value(self.value)}: {self.problem}"


def _refuse(value: object, what: str) -> NoReturn:
    raise Mismatch(value, f"must be {what}")


# -- single values ------------------------------------------------------------------------------------------


def as_is(value: Any) -> Any:
    """Return the value unchanged."""
    return value


def instance(kind: type, what: str) -> Converter:
    """Return a converter that accepts instances of ``kind``."""

    def convert(value: Any) -> Any:
        return value if isinstance(value, kind) else _refuse(value, what)

    return convert


def number(value: Any) -> float:
    """Return the value as a float; JSON encoders of other languages write 1.0 as 1."""
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise Mismatch(value, "is too large for float") from error
    return _refuse(value, "float")


def made_of(kind: type, given: tuple[type, ...], make: Converter, what: str) -> Converter:
    """Return a converter to ``kind`` from the plain types ``given``."""

    def convert(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if isinstance(value, given) and not isinstance(value, bool):
            try:
                return make(value)
            except (ValueError, TypeError, OverflowError, InvalidOperation) as error:
                raise Mismatch(value, f"must be {what}") from error
        return _refuse(value, what)

    return convert


def enum(kind: type[Enum]) -> Converter:
    """Return a converter from values to members of an Enum."""

    def convert(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        try:
            return kind(value)
        except (ValueError, TypeError) as error:
            for member in kind:
                # A member whose value is a tuple or a date arrives as a list or as text.
                if json.loads(json.dumps(member.value)) == value:
                    return member
            raise Mismatch(value, f"must be the value of a {kind.__name__}") from error

    return convert


def literal(choices: tuple[Any, ...]) -> Converter:
    """Return a converter that accepts the choices; True does not match 1."""
    plain = [(each.value if isinstance(each, Enum) else each, each) for each in choices]
    what = "one of " + ", ".join(repr(given) for given, _ in plain)

    def convert(value: Any) -> Any:
        for given, choice in plain:
            if value is choice or (type(value) is type(given) and value == given):
                return choice
        return _refuse(value, what)

    return convert


def union(members: list[Converter], scalars: frozenset[type], what: str) -> Converter:
    """Return a converter that uses the first matching member; numbers whose type is a member are left unchanged."""

    def convert(value: Any) -> Any:
        if type(value) in scalars:
            return value
        for member in members:
            try:
                return member(value)
            except Mismatch:
                continue
        return _refuse(value, what)

    return convert


def optional(member: Converter) -> Converter:
    """Return a converter that also accepts None."""
    return lambda value: None if value is None else member(value)


# -- containers ---------------------------------------------------------------------------------------------


def sequence(make: Callable[[list[Any]], Any], item: Converter) -> Converter:
    """Return a converter for lists, passed through ``make``."""

    def convert(value: Any) -> Any:
        values = _many(value, _LISTS)
        made = list(values) if item is as_is else _each(item, values)
        try:
            return make(made)
        except TypeError as error:  # unhashable members of a set
            raise Mismatch(values, str(error)) from error

    return convert


def _many(value: Any, kinds: tuple[type, ...]) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, kinds) else _refuse(value, "a list")


def _object(value: Any, what: str) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else _refuse(value, what)


def _each(item: Converter, values: list[Any]) -> list[Any]:
    made: list[Any] = []
    try:
        for value in values:
            made.append(item(value))  # noqa: PERF401 - the length gives the position of the invalid item
    except Mismatch as mismatch:
        mismatch.path.insert(0, f"[{len(made)}]")
        raise
    return made


def row(items: list[Converter], make: Callable[[list[Any]], Any]) -> Converter:
    """Return a converter for lists with one type per position, such as tuples."""

    def convert(value: Any) -> Any:
        values = _many(value, (list, tuple))
        if len(values) != len(items):
            _refuse(values, f"a list of {len(items)}")
        made: list[Any] = []
        try:
            for item, each in zip(items, values, strict=True):
                made.append(item(each))
        except Mismatch as mismatch:
            mismatch.path.insert(0, f"[{len(made)}]")
            raise
        return make(made)

    return convert


def mapping(make: Callable[[dict[Any, Any]], Any], key: Converter, item: Converter) -> Converter:
    """Return a converter for dicts, passed through ``make``."""

    def convert(value: Any) -> Any:
        made: dict[Any, Any] = {}
        for name, each in _object(value, "an object").items():
            try:
                made[_key(key, name)] = item(each)
            except Mismatch as mismatch:
                mismatch.path.insert(0, f"[{name!r}]")
                raise
        return make(made)

    return convert


def _key(convert: Converter, name: Any) -> Any:
    """Return the converted key of a JSON object; its text may encode a number, a bool or null."""
    try:
        return convert(name)
    except Mismatch as mismatch:
        try:
            scalar = json.loads(name)
        except SerializationError:
            raise mismatch from None
        return convert(scalar)


# -- classes ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Fields:
    """The fields of a class.

    Attributes:
        known: converters by name.
        required: names of required fields.
        ignored: names of serialized fields that the class computes itself.
        is_open: accept unknown names.
    """

    known: dict[str, Converter]
    required: frozenset[str]
    ignored: frozenset[str] = frozenset()
    is_open: bool = False


def fields(kind: type, name: str, make: Callable[..., Any], held: Fields) -> Converter:
    """Return a converter from objects to ``kind`` (``name`` in errors), built by keyword."""
    what = f"an object with the fields of {name}"

    def convert(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        given = _object(value, what)
        made: dict[str, Any] = {}
        for key, each in given.items():
            item = held.known.get(key)
            try:
                if item is not None:
                    made[key] = item(each)
                elif held.is_open:
                    made[key] = each
                elif key not in held.ignored:
                    raise Mismatch(each, f"{name} has no such field")
            except Mismatch as mismatch:
                mismatch.path.insert(0, f".{key}")
                raise
        if not held.required <= made.keys():
            raise Mismatch(given, f"missing {name} fields: {', '.join(sorted(held.required - made.keys()))}")
        try:
            return make(**made)
        except (ValueError, TypeError) as error:  # rejected by the class itself
            raise Mismatch(given, str(error) or type(error).__name__) from error

    return convert


def model(kind: Any) -> Converter:
    """Return a converter to a pydantic model, by the model's own validation."""
    invalid: type[Exception] = sys.modules["pydantic"].ValidationError
    by: dict[str, Any] = {}
    if "by_name" in inspect.signature(kind.model_validate).parameters:
        # We serialize fields by name; other producers may use the alias.
        by = {"by_name": True, "by_alias": True}

    def convert(value: Any) -> Any:
        try:
            return kind.model_validate(value, **by)
        except invalid:
            pass
        try:
            # Strict models accept text for a date or a UUID only in JSON mode.
            return kind.model_validate_json(json.dumps(value), **by)
        except (invalid, SerializationError) as error:
            raise Mismatch(value, str(error)) from error

    return convert


def struct(kind: Any) -> Converter:
    """Return a converter to a msgspec Struct."""
    msgspec: Any = sys.modules["msgspec"]

    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise Mismatch(value, str(error)) from error

    return convert
