"""Validation of single values, of user functions and of option classes. This module knows no particular option.

Each function returns the validated value, or raises `GlideMQValidationError` with the name ``option``. The parameters
of user functions are checked when they are registered, not at the first call.

`CheckedOptions` is the base of option classes that declare each field once: name, stored type, default, check, name in
stored JSON. Our own 60 lines instead of attrs: with a converter per field, attrs took three times as long per
`JobOptions` (4.9 against 1.6 microseconds), which is part of every add. Its converters would also not know the name of
the field, which every error contains.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Final, NoReturn, Self, TypeVar, cast

from glidemq_py.errors import GlideMQValidationError, UnknownOptionError
from glidemq_py.errors.base import SECRET

__all__ = [
    "CheckedOptions",
    "check_callable",
    "option",
    "parse_nested",
    "signature_of",
]

ItemT = TypeVar("ItemT")

_CAMEL_HUMP: Final = re.compile(r"(?<=[a-z0-9])([A-Z])")
_SECRET_NAME: Final = re.compile(r"pass(word)?|secret|token|credential", re.IGNORECASE)


def check_bool(option: str, value: object) -> bool:
    """Return True or False; reject anything else, 1 and "yes" too."""
    if value is True or value is False:
        return value
    raise GlideMQValidationError(option, value, "must be True or False")


def check_int(option: str, value: object, minimum: int, maximum: int, *, unit: str = "") -> int:
    """Return an integer from ``minimum`` to ``maximum``; reject booleans and floats (2.0 too).

    Args:
        option: name of the option, for the error.
        value: the value to check.
        minimum: smallest valid value.
        maximum: largest valid value.
        unit: text after "must be an integer" in the error, such as " (seconds)".
    """
    if type(value) is not int:
        # Subclasses of int (IntEnum) become plain integers, except bool.
        if isinstance(value, bool) or not isinstance(value, int):
            raise GlideMQValidationError(
                option, value, f"{_integer(minimum, maximum, unit)}, not {type(value).__name__}"
            )
        value = int(value)
    if not minimum <= value <= maximum:
        raise GlideMQValidationError(option, value, _integer(minimum, maximum, unit))
    return value


def _integer(minimum: int, maximum: int, unit: str) -> str:
    return f"must be an integer{unit} from {minimum:,} to {maximum:,}"


def check_text(option: str, value: object, *, maximum: int) -> str:
    """Return a non-empty string of at most ``maximum`` UTF-16 code units that can be encoded as UTF-8."""
    if not isinstance(value, str):
        raise GlideMQValidationError(option, value, f"must be a string, not {type(value).__name__}")
    if not value:
        raise GlideMQValidationError(option, value, "must not be empty")
    if not value.isascii():
        try:
            # Node peers count UTF-16 code units.
            length = len(value.encode("utf-16-le")) // 2
        except UnicodeEncodeError:
            raise GlideMQValidationError(option, value, "must not contain a lone surrogate") from None
    else:
        length = len(value)
    if length > maximum:
        raise GlideMQValidationError(option, value, f"must have at most {maximum:,} characters, not {length:,}")
    return value


def check_iterable(option: str, value: Iterable[ItemT], what: str) -> Iterable[ItemT]:
    """Return an iterable; reject strings, bytes and mappings.

    Args:
        option: name of the option, for the error.
        value: the value to check.
        what: plural name of the elements, for the error.
    """
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise GlideMQValidationError(option, cast("object", value), f"must be an iterable of {what}, such as a list")
    return value


def check_choice(option: str, value: object, choices: Collection[str]) -> str:
    """Return one of ``choices``; the error suggests the most similar one."""
    if isinstance(value, str) and value in choices:
        return str(value)
    listed = ", ".join(repr(choice) for choice in choices)
    near = difflib.get_close_matches(value, choices, 1) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise GlideMQValidationError(option, value, f"must be one of {listed}{hint}")


def check_mapping(option: str, value: object, known: Collection[str]) -> Mapping[str, Any]:
    """Return a mapping whose keys are all in ``known``."""
    if not isinstance(value, Mapping):
        raise GlideMQValidationError(option, value, f"must be a mapping, not {type(value).__name__}")
    mapping = cast("Mapping[object, object]", value)
    for name, given in mapping.items():
        if not isinstance(name, str):
            raise GlideMQValidationError(option, mapping, f"keys must be strings, not {type(name).__name__}")
        if name not in known:
            reject_unknown(f"{option}.{name}", given, [f"{option}.{each}" for each in known])
    return cast("Mapping[str, Any]", mapping)


def reject_unknown(
    option: str, value: object, known: Collection[str], problem: str = "", suggestion: str | None = None
) -> NoReturn:
    """Raise `UnknownOptionError`. The values of secrets are hidden.

    Args:
        option: the unknown name.
        value: its value.
        known: the existing options.
        problem: text of the error; by default "unknown option", with the most similar known option.
        suggestion: the option to use instead, for a given ``problem``.
    """
    shown = SECRET if _SECRET_NAME.search(option) else value
    raise UnknownOptionError(option, shown, problem, suggestion if problem else nearest_option(option, known))


def snake_case(name: str) -> str:
    """Return a name in snake_case, given one in camelCase, kebab-case or snake_case."""
    return _CAMEL_HUMP.sub(r"_\1", name).replace("-", "_").lower()


def nearest_option(option: str, known: Collection[str]) -> str | None:
    """Return the known option that is most similar to a name (camelCase matches snake_case), or None."""
    snake = snake_case(option)
    if snake in known:
        return snake
    near = difflib.get_close_matches(snake, known, 1, cutoff=0.6)
    return near[0] if near else None


T = TypeVar("T")


def parse_nested(option: str, value: object, kind: type[T], *, needed: int) -> T:
    """Return an instance of the dataclass ``kind``, given an instance or a mapping of its fields.

    Args:
        option: name of the option, for the error.
        value: the instance or mapping.
        kind: the dataclass.
        needed: number of fields, from the first, that have no default.

    Raises:
        GlideMQValidationError: with the names of ``option`` and the field.
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
            raise GlideMQValidationError(option, given, f"requires {name!r}")
    try:
        return kind(**{name: each for name, each in given.items() if each is not None})
    except GlideMQValidationError as error:
        raise GlideMQValidationError(f"{option}.{error.option}", error.value, error.problem) from None


_F = TypeVar("_F", bound=Callable[..., Any])


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function. On Python 3.14, annotations that are not yet defined stay references.

    Raises:
        ValueError: the function has no signature, as some built-in functions.
        TypeError: the signature of this type of object is not supported.
    """
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def check_callable(option: str, function: _F, *arguments: str) -> _F:
    """Return a function that can be called with these positional arguments.

    Args:
        option: name of the option, for the error.
        function: the function to check. It is accepted if it has no readable signature.
        arguments: names of the positional arguments, for the error.

    Raises:
        GlideMQValidationError: not callable, or not with this number of arguments.
    """
    shape = f"must be a callable with the parameters ({', '.join(arguments)})"
    if not callable(function):
        raise GlideMQValidationError(option, function, shape)
    try:
        signature = signature_of(function)
    except (ValueError, TypeError):
        return function
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise GlideMQValidationError(option, function, f"{shape}, not {_shown(signature)}: {error}") from None
    return function


def _shown(signature: inspect.Signature) -> str:
    empty = inspect.Parameter.empty
    bare = [each.replace(annotation=empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=empty))


Check = Callable[[str, Any], Any]
"""(name of the option, given value) -> stored value; raises GlideMQValidationError."""


def option(
    check: Check,
    default: Any = None,
    *,
    optional: bool | None = None,
    wire: str = "",
    encode: Callable[[Any], Any] | None = None,
) -> Any:
    """Return a field of a `CheckedOptions` class.

    Args:
        check: Validates and converts given values.
        default: The stored value if none is given; it is not checked.
        optional: True if None means "not given"; None: True if the default is None.
        wire: Name in the stored JSON; "" if it is not stored.
        encode: Converts the stored value to its JSON form; None if it is JSON.
    """
    may_be_none = default is None if optional is None else optional
    metadata = {"check": check, "optional": may_be_none, "wire": wire, "encode": encode}
    return dataclasses.field(default=default, metadata=metadata)


class CheckedOptions:
    """Base of option classes. Decorate the class with ``@dataclass(frozen=True, init=False)``.

    Only given values are stored in the instance; defaults are those of the class, so an instance costs only these.
    """

    _checks: ClassVar[dict[str, tuple[Check, bool]]]

    def __init_subclass__(cls) -> None:
        members: list[tuple[str, Any]] = [(name, each) for name, each in vars(cls).items()]
        fields = [(name, each) for name, each in members if hasattr(each, "metadata") and "check" in each.metadata]
        cls._checks = {name: (each.metadata["check"], each.metadata["optional"]) for name, each in fields}
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter(name, kind, default=each.default) for name, each in fields]
        cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]

    def __init__(self, **given: Any) -> None:
        values, checks = self.__dict__, self._checks
        for name, value in given.items():
            found = checks.get(name)
            if found is None:
                self._reject(name, value)
            elif not (value is None and found[1]):
                values[name] = found[0](name, value)
        self._check_given()

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some options changed; the others are not checked again."""
        checked, copy = type(self)(**changes), object.__new__(type(self))
        copy.__dict__.update(self.__dict__ | checked.__dict__)
        copy._check_given()
        return copy

    def _check_given(self) -> None:
        """Check options that depend on each other, after each one was checked alone."""

    def _reject(self, name: str, value: object) -> None:
        """Reject an unknown option. Raises UnknownOptionError."""
        reject_unknown(name, value, self._checks)
