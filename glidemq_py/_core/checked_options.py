"""Base of option classes that declare each field once: name, stored type, default, check, name in stored JSON.

Our own 60 lines instead of attrs: with a converter per field, attrs took three times as long per `JobOptions` (4.9
against 1.6 microseconds), which is part of every add. Its converters would also not know the field's name, which every
error contains.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Self

from glidemq_py._core.checks import reject_unknown

__all__ = ["CheckedOptions", "option"]

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
