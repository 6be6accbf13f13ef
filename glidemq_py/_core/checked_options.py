"""Base classes of options that declare each field once: name, types, default, check, name in stored JSON.

Our own 130 lines instead of attrs: with a converter per field, attrs took three times as long per `JobOptions` (4.9
against 1.6 microseconds), which is part of every add.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    Self,
    TypeVar,
    cast,
    dataclass_transform,
)

from glidemq_py._core.checks import camel_case, check_mapping, reject_unknown
from glidemq_py.errors import GlideMQValidationError, MissingOptionError

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


def option(
    check: Check,
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
    **places: str | Literal[False],
) -> Any:
    """Return a field of an option class.

    Args:
        check: Validates and converts given values.
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
        **places: Where the option is not supported: False or the reason, by place (`JobOptions.check_place`).
    """
    required = default is _REQUIRED
    if omit_default:
        encode = partial(_unless, default)
    may_be_none = default is None if optional is None else optional
    may_be_none = _OVERRIDES if none_overrides else may_be_none
    metadata = {
        "check": check, "optional": may_be_none, "required": required, "stored": stored, "encode": encode,
        "decode": decode, "places": places,
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


def lists_options(
    kind: type[CheckedOptions], typed: type[Any], without: Collection[str] = ()
) -> Callable[[CallableT], CallableT]:
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
