"""Checks of one value each, shared by the option classes. No option is named here.

Every function returns the value in the form it is kept in, or raises `GlideMQValidationError` about `option`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar, cast

from glidemq_py.errors import GlideMQValidationError, UnknownOptionError
from glidemq_py.errors.base import SECRET

__all__ = [
    "parse_nested",
]

ItemT = TypeVar("ItemT")

_CAMEL_HUMP: Final = re.compile(r"(?<=[a-z0-9])([A-Z])")
_SECRET_NAME: Final = re.compile(r"pass(word)?|secret|token|credential", re.IGNORECASE)


def check_bool(option: str, value: object) -> bool:
    """True or False itself: 1 and "yes" are refused."""
    if value is True or value is False:
        return value
    raise GlideMQValidationError(option, value, "must be True or False")


def check_int(option: str, value: object, minimum: int, maximum: int, *, unit: str = "") -> int:
    """A whole number from `minimum` to `maximum`; booleans and floats (2.0 too) are refused."""
    if type(value) is not int:
        # Subclasses (IntEnum, numpy-like) are turned into plain ints; bool is one by accident of history.
        if isinstance(value, bool) or not isinstance(value, int):
            raise GlideMQValidationError(option, value, f"must be an int{unit}, not {type(value).__name__}")
        value = int(value)
    if value < minimum:
        raise GlideMQValidationError(option, value, f"must be >= {minimum}")
    if value > maximum:
        raise GlideMQValidationError(option, value, f"must be <= {maximum}")
    return value


def check_text(option: str, value: object, *, maximum: int) -> str:
    """A non-empty string of at most `maximum` characters that can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise GlideMQValidationError(option, value, f"must be a str, not {type(value).__name__}")
    if not value:
        raise GlideMQValidationError(option, value, "must not be empty")
    if not value.isascii():
        try:
            # Peers in JavaScript count UTF-16 code units, so that is what the limit counts.
            length = len(value.encode("utf-16-le")) // 2
        except UnicodeEncodeError:
            raise GlideMQValidationError(option, value, "holds a lone surrogate, which is not text") from None
    else:
        length = len(value)
    if length > maximum:
        raise GlideMQValidationError(option, value, f"must be at most {maximum} characters long, not {length}")
    return value


def check_several(option: str, value: Iterable[ItemT], what: str) -> Iterable[ItemT]:
    """Something to iterate over, and neither one text nor one mapping in place of it. ``what`` it must hold is told."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise GlideMQValidationError(option, cast("object", value), f"must be several {what}, such as a list")
    return value


def check_choice(option: str, value: object, choices: Collection[str]) -> str:
    """One of a few words; the nearest is suggested for any other."""
    if isinstance(value, str) and value in choices:
        return str(value)
    listed = ", ".join(repr(choice) for choice in choices)
    near = difflib.get_close_matches(value, choices, 1) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise GlideMQValidationError(option, value, f"must be one of {listed}{hint}")


def check_mapping(option: str, value: object, known: Collection[str]) -> Mapping[str, Any]:
    """A mapping whose keys are all in `known`."""
    if not isinstance(value, Mapping):
        raise GlideMQValidationError(option, value, f"must be a mapping, not {type(value).__name__}")
    mapping = cast("Mapping[object, object]", value)
    for name, given in mapping.items():
        if not isinstance(name, str):
            raise GlideMQValidationError(option, mapping, f"keys must be str, not {type(name).__name__}")
        if name not in known:
            refuse_unknown(f"{option}.{name}", given, [f"{option}.{each}" for each in known])
    return cast("Mapping[str, Any]", mapping)


def refuse_unknown(option: str, value: object, known: Collection[str]) -> NoReturn:
    """Raise `UnknownOptionError` with the nearest known option; camelCase finds its snake_case twin."""
    shown = SECRET if _SECRET_NAME.search(option) else value
    raise UnknownOptionError(option, shown, suggestion=nearest_option(option, known))


def nearest_option(option: str, known: Collection[str]) -> str | None:
    """Return the known option that a name most resembles (camelCase finds snake_case), or None."""
    snake = _CAMEL_HUMP.sub(r"_\1", option).replace("-", "_").lower()
    if snake in known:
        return snake
    near = difflib.get_close_matches(snake, known, 1, cutoff=0.6)
    return near[0] if near else None


T = TypeVar("T")


def parse_nested(option: str, value: object, kind: type[T], *, needed: int) -> T:
    """An instance of the dataclass ``kind``, from one or from a mapping of its fields.

    Args:
        needed: how many of the fields, from the first on, have no default.

    Raises:
        GlideMQValidationError: names ``option`` and the field.
    """
    if isinstance(value, kind):
        return value
    fields = tuple(cast("Any", kind).__dataclass_fields__)
    required = fields[:needed]
    if not isinstance(value, Mapping):
        shape = ", ".join(f"{name!r}: ..." for name in required or fields[:1])
        raise GlideMQValidationError(option, value, f"must be a {kind.__name__} or a mapping such as {{{shape}}}")
    given = check_mapping(option, cast("object", value), fields)
    for name in required:
        if given.get(name) is None:
            raise GlideMQValidationError(option, given, f"needs {name!r}")
    try:
        return kind(**{name: each for name, each in given.items() if each is not None})
    except GlideMQValidationError as error:
        raise GlideMQValidationError(f"{option}.{error.option}", error.value, error.problem) from None
