"""Validation of values, of user functions (when they are registered), and of options that declare each field once.

Each function returns the validated value, or raises `GlideMQValidationError` with the name ``option``. Our own classes
of options, not attrs: with a converter per field, that took three times as long per `JobOptions`, a part of every add.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    NoReturn,
    Self,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
)

from glidemq_py.errors import SECRET, GlideMQValidationError, MissingOptionError, UnknownOptionError

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

    ``what``: plural name of the elements, for the error.
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


T = TypeVar("T")
CallableT = TypeVar("CallableT", bound=Callable[..., Any])
StoredT = TypeVar("StoredT", covariant=True)
GivenT = TypeVar("GivenT", contravariant=True)

Check = Callable[[str, Any], Any]
"""(name of the option, given value) -> stored value; raises GlideMQValidationError."""

_Code = Callable[[Any], Any] | None
_Stored = tuple[tuple[str, str, _Code], ...]
"""Name, name in JSON and encoder of each stored field."""

_REQUIRED: Final[Any] = object()
_OVERRIDES: Final[Any] = "overrides"


class Converted(Generic[StoredT, GivenT]):
    """Type of a field of an `OptionValue` that is stored as another type than the accepted one."""

    if TYPE_CHECKING:

        def __get__(self, instance: object, owner: type | None = None) -> StoredT: ...

        def __set__(self, instance: object, value: GivenT) -> None: ...


_LIMITS: Final = frozenset({"minimum", "maximum", "choices", "kind", "unit"})


def option(
    check: Callable[..., Any],
    default: Any = _REQUIRED,
    *,
    optional: bool | None = None,
    stored: bool = True,
    omit_default: bool = False,
    encode: _Code = None,
    decode: _Code = None,
    kw_only: bool | None = None,
    none_overrides: bool = False,
    repr: bool = True,
    **declared: Any,
) -> Any:
    """Return a field of an option class.

    Args:
        check: Validates and converts given values: a `Check`, if it gets its limits.
        default: The stored value if none is given; it is not checked. Without one, the field of an `OptionValue` is
            required; that of another `CheckedOptions` is None, which also means "not given".
        optional: True if None means "not given"; None: True if the default is None.
        stored: False if it is not part of the stored JSON, where its name is in camelCase.
        omit_default: True if the default is not part of the stored JSON.
        encode: Converts the stored value to its JSON form, or to None to leave it out; None if it is JSON.
        decode: Returns what is checked when stored JSON of any client is read; None if it is the JSON.
        none_overrides: True if a given None is stored, so that it overrides a default that is merged later.
        kw_only: True if an `OptionValue` accepts it by name only; None: as its class.
        repr: False hides the value in the repr.
        **declared: The limits of the values, which ``check`` gets: ``minimum``, ``maximum``, ``choices`` (or their
            ``Literal``), ``kind``, ``unit``. And where the option is not supported: False or the reason, by place
            (`JobOptions.check_place`).
    """
    limits = {name: declared.pop(name) for name in _LIMITS & declared.keys()}
    if "choices" in limits:
        limits["choices"] = get_args(limits["choices"]) or limits["choices"]
    if limits:
        check = partial(check, **limits)
    required = default is _REQUIRED
    if omit_default:
        encode = partial(_unless, default)
    may_be_none = default is None if optional is None else optional
    may_be_none = _OVERRIDES if none_overrides else may_be_none
    metadata = {
        "check": check, "optional": may_be_none, "required": required, "stored": stored, "encode": encode,
        "decode": decode, "places": declared,
    }  # fmt: skip
    named = dataclasses.MISSING if kw_only is None else kw_only
    return dataclasses.field(default=None if required else default, metadata=metadata, kw_only=named, repr=repr)


def _unless(default: object, value: object) -> object:
    return None if value == default else value


def _stored_fields(fields: Iterable[tuple[str, Any]]) -> _Stored:
    return tuple((name, camel_case(name), each.metadata["encode"]) for name, each in fields if each.metadata["stored"])


class CheckedOptions:
    """Base of option classes. Decorate the class with ``@dataclass(frozen=True, init=False)``.

    Only given values are stored in the instance; defaults are those of the class, so an instance costs only these.
    """

    _checks: ClassVar[dict[str, tuple[Check, bool, str]]]
    _stored: ClassVar[_Stored]
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        members: list[tuple[str, Any]] = [(name, each) for name, each in vars(cls).items()]
        fields = [(name, each) for name, each in members if hasattr(each, "metadata") and "check" in each.metadata]
        cls._checks = {
            name: (each.metadata["check"], each.metadata["optional"] or each.metadata["required"], name)
            for name, each in fields
        }
        cls._stored = _stored_fields(fields)
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter(name, kind, default=each.default) for name, each in fields]
        cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]

    def __init__(self, **given: Any) -> None:
        values, checks = self.__dict__, self._checks
        for name, value in given.items():
            found = checks.get(name)
            if found is None:
                self._reject(name, value)
            elif value is None and found[1]:
                if found[1] is _OVERRIDES:
                    values[name] = None
            else:
                values[name] = found[0](found[2], value)
        self._check_given()

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy with some options changed; the others are not checked again."""
        checked, copy = type(self)(**changes), object.__new__(type(self))
        copy.__dict__.update(self.__dict__ | checked.__dict__)
        copy._check_given()
        return copy

    def to_wire(self) -> dict[str, Any]:
        """Return the stored JSON: camelCase names, without options that are None."""
        wire: dict[str, Any] = {}
        given = self._defaults | self.__dict__ if self._defaults else self.__dict__
        for name, key, encode in self._stored:
            value = given.get(name)
            if value is not None and encode is not None:
                value = encode(value)
            if value is not None:
                wire[key] = value
        return wire

    def _check_given(self) -> None:
        """Check options that depend on each other, after each one was checked alone."""

    def _reject(self, name: str, value: object) -> None:
        """Reject an unknown option. Raises UnknownOptionError."""
        reject_unknown(name, value, self._checks)


@dataclass_transform(frozen_default=True, field_specifiers=(option,))
class OptionValue(CheckedOptions):
    """Base of values that users create to pass as an option, such as `Backoff`; also by position.

    A subclass becomes a frozen dataclass. A field is one line, from which type checkers know both types:
    ``delay: Converted[int, Milliseconds] = option(to_ms, default=0)``. They recognize a default only if
    it is named.

    Args of a subclass:
        prefix: first part of the option names in errors, such as "backoff" in "backoff.delay".
        kw_only: True if all fields are accepted by name only.
    """

    _prefix: ClassVar[str] = ""
    _positional: ClassVar[tuple[str, ...]] = ()
    _required: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, prefix: str = "", kw_only: bool = False) -> None:
        super(CheckedOptions, cls).__init_subclass__()  # that of Generic
        decorated: Any = dataclasses.dataclass(frozen=True, init=False, kw_only=kw_only)(cls)
        fields = dataclasses.fields(decorated)
        prefix = cls._prefix = f"{prefix}." if prefix else ""
        cls._checks = {
            each.name: (each.metadata["check"], each.metadata["optional"], prefix + each.name) for each in fields
        }
        cls._positional = tuple(each.name for each in fields if not each.kw_only)
        cls._required = tuple(each.name for each in fields if each.metadata["required"])
        cls._stored = _stored_fields((each.name, each) for each in fields)
        cls._defaults = {each.name: each.default for each in fields}
        empty, parameter = inspect.Parameter.empty, inspect.Parameter
        decorated.__signature__ = inspect.Signature([
            parameter(
                each.name, parameter.KEYWORD_ONLY if each.kw_only else parameter.POSITIONAL_OR_KEYWORD,
                default=empty if each.metadata["required"] else each.default,
            )
            for each in sorted(fields, key=lambda each: each.kw_only is True)
        ])  # fmt: skip

    def __init__(self, *args: Any, **given: Any) -> None:
        if args:
            if len(args) > len(self._positional):
                most = len(self._positional)
                raise TypeError(f"{type(self).__name__}() takes at most {most} positional arguments, not {len(args)}")
            positional = dict(zip(self._positional, args, strict=False))
            for name in positional.keys() & given.keys():
                raise TypeError(f"{type(self).__name__}() got multiple values for argument {name!r}")
            given = positional | given
        for name in self._required:
            if given.get(name) is None:
                raise MissingOptionError(self._prefix + name, None, f"is required by {type(self).__name__}()")
        super().__init__(**given)

    @classmethod
    def from_wire(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of stored JSON, not checked, without missing and empty ones."""
        return {name: stored[key] for name, key, _ in cls._stored if stored.get(key)}


def check_option(kind: type[CheckedOptions], name: str, shown: str, value: object) -> None:
    """Check a value of one option alone, if the class ``kind`` has it.

    Args:
        kind: the option class.
        name: name of the option.
        shown: the name in the error.
        value: the value.

    Raises:
        GlideMQValidationError: with the name ``shown``.
    """
    found = kind._checks.get(name)
    if found is not None and not (value is None and found[1]):
        found[0](shown, value)


def describe_option(kind: type[CheckedOptions], name: str) -> str:
    """Return what the docstring of the class ``kind`` says about an option, as help of a command: on one line."""
    described = dict(_DESCRIBED.findall(inspect.getdoc(kind) or ""))
    text = " ".join(described.get(name, "").split()).rstrip(".")
    return text[:1].lower() + text[1:]


def parse_nested(option: str, value: object, kind: type[T], shapes: str = "") -> T:
    """Return an instance of the option class ``kind``, given an instance or a mapping of its fields.

    Args:
        option: name of the option, for the error.
        value: the instance or mapping. A field of a mapping that is None counts as not given.
        kind: the option class.
        shapes: other accepted types, for the error.

    Raises:
        GlideMQValidationError: with the names of ``option`` and the field.
    """
    if isinstance(value, kind):
        return value
    fields = tuple(cast("Any", kind).__dataclass_fields__)
    required: tuple[str, ...] = getattr(kind, "_required", ())
    if not isinstance(value, Mapping):
        name = kind.__name__
        article = "an" if name[0] in "AEIOU" else "a"
        shape = ", ".join(f"{each!r}: ..." for each in required or fields[:1])
        raise GlideMQValidationError(
            option, value, f"must be {article} {name}{shapes} or a mapping such as {{{shape}}}"
        )
    given = check_mapping(option, cast("object", value), fields)
    for name in required:
        if given.get(name) is None:
            raise MissingOptionError(option, given, f"requires {name!r}")
    try:
        return kind(**{name: each for name, each in given.items() if each is not None})
    except GlideMQValidationError as error:
        field = error.option.removeprefix(getattr(kind, "_prefix", ""))
        name = option if field == kind.__name__ else f"{option}.{field}"
        raise GlideMQValidationError(name, error.value, error.problem) from None


def lists_options(kind: type[Any], typed: type[Any], without: Collection[str] = ()) -> Callable[[CallableT], CallableT]:
    """Let a method with ``**options`` list them in its signature and docstring, for ``help()`` and shells.

    Args:
        kind: Class of the options, whose docstring describes each.
        typed: The ``TypedDict`` with which type checkers check them; it has the names and types.
        without: Names that the method rejects.
    """

    def decorate(method: CallableT) -> CallableT:
        signature, keyword = inspect.signature(method), inspect.Parameter.KEYWORD_ONLY
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        listed = [
            inspect.Parameter(name, keyword, default=None, annotation=each.__forward_arg__)
            for name, each in typed.__annotations__.items()
            if name not in without
        ]
        changed: Any = method
        changed.__signature__ = signature.replace(parameters=[*own, *listed])
        texts = _DESCRIBED.findall(inspect.getdoc(kind) or "")
        names = {each.name for each in listed}
        words = "".join(f"            {name}: {_INDENT.sub(' ' * 16, text)}\n" for name, text in texts if name in names)
        changed.__doc__ = _OPTIONS.sub(lambda found: found[0] + words, method.__doc__ or "")
        return method

    return decorate


_DESCRIBED: Final = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
_INDENT: Final = re.compile(r"(?<=\n) +")
_OPTIONS: Final = re.compile(r"^ +\*\*options:.*\n", re.MULTILINE)
