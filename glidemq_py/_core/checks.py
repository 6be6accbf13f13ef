"""Validation of single values and of user functions. This module knows no particular option.

Each function returns the validated value, or raises `GlideMQValidationError` with the name ``option``. The parameters
of user functions are checked when they are registered, not at the first call.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar, cast

from glidemq_py.errors import GlideMQValidationError, UnknownOptionError
from glidemq_py.errors.base import SECRET, show_value

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


def name_within(error: GlideMQValidationError, where: str) -> None:
    """Make the error name an option of another one: ``attempts`` of ``jobs[3]`` is ``jobs[3].attempts``."""
    if not error.option.startswith(where):
        error.option = f"{where}.{error.option}"
        error.args = (error.option, *error.args[1:])


def check_choice(option: str, value: object, choices: Collection[str]) -> str:
    """Return one of ``choices``; the error suggests the most similar one."""
    if isinstance(value, str) and value in choices:
        return str(value)
    texts = [str(choice) for choice in choices]  # not the repr of a StrEnum
    listed = ", ".join(map(repr, texts))
    near = difflib.get_close_matches(value, texts, 1) if isinstance(value, str) else []
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
            near = nearest_option(name, known)  # a common prefix would make any two names similar
            reject_unknown(f"{option}.{name}", given, (), suggestion=None if near is None else f"{option}.{near}")
    return cast("Mapping[str, Any]", mapping)


def reject_unknown(
    option: str, value: object, known: Collection[str], problem: str = "", suggestion: str | None = None
) -> NoReturn:
    """Raise `UnknownOptionError`. The values of secrets are hidden.

    Args:
        option: the unknown name.
        value: its value.
        known: the existing options.
        problem: text of the error; by default "unknown option", with the suggestion.
        suggestion: the option to use instead; without a ``problem``, by default the most similar known option.
    """
    shown = SECRET if _SECRET_NAME.search(option) else value
    if suggestion is None and not problem:
        suggestion = nearest_option(option, known)
    raise UnknownOptionError(option, shown, problem, suggestion)


def snake_case(name: str) -> str:
    """Return a name in snake_case, given one in camelCase, kebab-case or snake_case."""
    return _CAMEL_HUMP.sub(r"_\1", name).replace("-", "_").lower()


def camel_case(name: str) -> str:
    """Return a name in camelCase, given one in snake_case."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def nearest_option(option: str, known: Collection[str]) -> str | None:
    """Return the known option that is most similar to a name (camelCase matches snake_case), or None."""
    snake = snake_case(option)
    if snake in known:
        return snake
    near = difflib.get_close_matches(snake, known, 1, cutoff=0.6)
    return near[0] if near else None


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


class Mismatch(ValueError):  # noqa: N818 - callers that know the parameter turn it into an error
    """A value does not match its annotation."""

    def __init__(self, value: object, problem: str) -> None:
        super().__init__(value, problem)
        self.value = value
        self.problem = problem

    def describe(self, where: str) -> str:
        """Return the problem and its place, such as "times = 'x': Expected `int`, got `str`"."""
        return f"{where} = {show_value(self.value)}: {self.problem}"
