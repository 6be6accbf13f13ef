"""Convert between plain JSON values and typed values, according to annotations of typed tasks.

msgspec rebuilds the values; this module adds the rest of the stored form: timedeltas are milliseconds, times
have any ISO 8601 form, and a dataclass takes no unknown fields. In the other direction sets are stored as lists, bytes
as base64, paths as text; the JSON encoder writes the rest.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, time, timedelta
from pathlib import PurePath
from typing import Any, Final, cast

import msgspec
from msgspec import inspect as described

from glidemq_py._core import json_text as json
from glidemq_py._core.payload import Mismatch

__all__ = ["Codec"]

_MS: Final = timedelta(milliseconds=1)
_WRITTEN: Final = (
    described.SetType, described.FrozenSetType, described.BytesType, described.ByteArrayType, described.TimeDeltaType,
    described.CustomType,
)  # fmt: skip
_PARTS: Final = ("type", "types", "item_type", "item_types", "key_type", "value_type", "fields")
_ISO: Final[Mapping[type, Callable[[str], Any]]] = {
    described.DateTimeType: datetime.fromisoformat,
    described.TimeType: time.fromisoformat,
}
_NUMBERS: Final = (described.IntType, described.FloatType)
_PREPARED: Final = (*_ISO, described.DataclassType, described.TimeDeltaType)


class Codec:
    """Converts the values of one annotation from and to plain values.

    Args:
        annotation: the type, with forward references resolved.

    Attributes:
        special: values may need `write` before they are serialized.
        is_plain: values are not converted.

    Raises:
        TypeError: the annotation is not supported.
        NameError: a field of a class refers to a name that its module does not have.
    """

    __slots__ = ("_annotation", "_description", "_prepares", "is_plain", "special")

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation
        self._description = described.type_info(annotation)
        parts = list(_parts(self._description))
        for each in parts:
            if isinstance(each, described.CustomType) and each.cls.__module__.startswith("collections"):
                raise TypeError(f"{each.cls.__name__} is not supported; use list, set, dict, Sequence or Mapping")
            if isinstance(getattr(each, "key_type", None), (described.BoolType, described.TimeDeltaType)):
                raise TypeError("keys of the types bool and timedelta are not supported; use text")
        self._prepares = any(isinstance(each, _PREPARED) for each in parts)
        self.special = any(isinstance(each, _WRITTEN) for each in parts)
        self.is_plain = isinstance(self._description, described.AnyType)

    def convert(self, value: Any) -> Any:
        """Return the typed value.

        Plain types are checked, not converted (but an int is accepted for a float). For classes that JSON lacks the
        value must already be an instance, which a custom serializer may return.

        Raises:
            Mismatch: the value does not match the annotation.
        """
        try:
            plain = _prepare(self._description, value) if self._prepares else value
            return msgspec.convert(plain, self._annotation, str_keys=True, dec_hook=_custom)
        except msgspec.ValidationError as error:
            raise Mismatch(value, str(error)) from error

    def write(self, value: Any) -> Any:
        """Return the value in a JSON form that `convert` accepts."""
        return _write(value) if self.special else value


def _parts(description: described.Type) -> Iterator[object]:
    """Yield the description of an annotation and those of all types within it, once each."""
    seen: dict[int, object] = {}
    pending: list[object] = [description]
    while pending:
        part = pending.pop()
        if id(part) not in seen:
            seen[id(part)] = part
            yield part
            for name in _PARTS:
                inner: Any = getattr(part, name, ())
                pending += inner if isinstance(inner, tuple) else (inner,)


def _prepare(kind: Any, value: Any) -> Any:
    """Return a plain value with the durations and times of its annotation, and check the fields of dataclasses."""
    if isinstance(kind, described.Metadata):
        return _prepare(kind.type, value)
    if isinstance(kind, described.UnionType):
        # At most one member is stored as a list, one as an object, one as text; a number is a number if it may be one.
        if type(value) in (int, float) and any(isinstance(each, _NUMBERS) for each in kind.types):
            return value
        for each in kind.types:
            value = _prepare(each, value)
        return value
    try:
        if isinstance(kind, described.TimeDeltaType) and type(value) in (int, float):
            return timedelta(milliseconds=value)
        if type(kind) in _ISO and isinstance(value, str):
            return _ISO[type(kind)](value)
    except (ValueError, OverflowError) as error:
        raise msgspec.ValidationError(str(error)) from error
    if isinstance(value, Mapping):
        return _prepare_object(kind, cast("Any", value))
    if isinstance(value, (list, tuple)):
        return _prepare_list(kind, cast("Any", value))
    return value


def _prepare_object(kind: Any, value: Mapping[Any, Any]) -> Any:
    if isinstance(kind, described.DictType):
        return {key: _prepare(kind.value_type, each) for key, each in value.items()}
    if not isinstance(kind, (described.DataclassType, described.TypedDictType)):
        return value
    fields = {each.name: each.type for each in kind.fields}
    if isinstance(kind, described.DataclassType):
        for key in value.keys() - fields.keys():
            raise msgspec.ValidationError(f"{kind.cls.__name__} has no field {key!r}")
    return {key: _prepare(fields[key], each) for key, each in value.items() if key in fields}


def _prepare_list(kind: Any, value: list[Any] | tuple[Any, ...]) -> Any:
    kinds: Any = getattr(kind, "item_types", None) or [each.type for each in getattr(kind, "fields", ())]
    if kinds:
        return [_prepare(*each) for each in zip(kinds, value, strict=False)] + list(value[len(kinds) :])
    item = getattr(kind, "item_type", None)
    return value if item is None else [_prepare(item, each) for each in value]


def _custom(kind: Any, value: Any) -> Any:
    """Return a value of a class that msgspec does not support: pydantic models, paths, subclasses of str."""
    made: Any = typing.get_origin(kind) or kind
    if isinstance(value, made):
        return value
    if hasattr(made, "model_validate"):
        try:
            return made.model_validate(value, by_name=True, by_alias=True)
        except ValueError:
            # Strict models accept text for a date or a UUID only in JSON mode.
            return made.model_validate_json(json.dumps(value), by_name=True, by_alias=True)
    if issubclass(made, (PurePath, str)) and isinstance(value, str):
        return made(value)
    raise ValueError(f"must be {made.__name__}")


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
