"""Fields of commands, with types and limits, and their checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeGuard, cast

from glidemq_py.gateway.names import CommandError as CommandError
from glidemq_py.gateway.names import check_wire_name, engine_name
from glidemq_py.gateway.values import UNDEFINED, PortableMap

Answer = dict[str, Any]
"""Fields of an answer besides ``ok`` and ``reqId``."""
Given = Mapping[str, Any]
"""Fields of a command, checked."""
DONE: Final[Answer] = PortableMap(id=UNDEFINED)
"""The answer of a command that returns nothing."""


class Kind(StrEnum):
    """Types of fields."""

    TEXT = "string"
    QUEUE = "queue name"
    STRICT_QUEUE = "queue name of the protocol"
    NUMBER = "number"
    INTEGER = "integer"
    POSITIVE = "positive integer"
    FLAG = "boolean"
    TEXTS = "list of strings"
    LIST = "list"
    MAP = "map"
    ANY = "any value"
    UNSUPPORTED = "not supported"
    """Absent, or a value without effect."""

    def __call__(
        self, name: str, minimum: float | None = None, maximum: float | None = None, *, required: bool = False,
        default: Any = None,
    ) -> Field:  # fmt: skip
        """Return a field of this type."""
        return Field(name, self, required, minimum, maximum, default)


_TEXT_ONLY: Final = frozenset((str,))
_QUEUES: Final = (Kind.QUEUE, Kind.STRICT_QUEUE)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a command.

    Attributes:
        name: Name on the wire.
        kind: Type of the value.
        required: If False, the field may be absent or null.
        minimum: Smallest number, or 1 for a text that must not be empty, or None.
        maximum: Largest number, or longest text, or None.
        default: Value if the field is absent.
    """

    name: str
    kind: Kind = Kind.TEXT
    required: bool = False
    minimum: float | None = None
    maximum: float | None = None
    default: Any = None


QUEUE: Final = Kind.QUEUE("queue", required=True)
STRICT_QUEUE: Final = Kind.STRICT_QUEUE("queue", required=True)
JOB: Final = Field("id", required=True)
TOKEN: Final = Field("token")


class _Plan:
    """The fields of a command by name, so that only those given are checked."""

    __slots__ = ("defaults", "fields", "needed", "others")

    def __init__(self, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self.needed = [field for field in fields if field.required or field.kind in _QUEUES]
        self.others = {field.name: field for field in fields if field not in self.needed}
        self.defaults = {field.name: field.default for field in fields}


_plans: dict[int, _Plan] = {}
"""Plans by the identity of their tuple, which a plan keeps alive."""


def check_all(fields: tuple[Field, ...], given: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values of fields, with defaults for the absent ones.

    Args:
        fields: A tuple that is declared once.
        given: The values.

    Raises:
        CommandError: If a field is missing or invalid; the message names it.
    """
    plan = _plans.get(id(fields))
    if plan is None:
        plan = _plans[id(fields)] = _Plan(fields)
    others = plan.others
    values = plan.defaults.copy()
    for field in plan.needed:
        values[field.name] = check_field(field, given.get(field.name))
    for name, value in given.items():
        known = others.get(name)
        if known is not None and value is not None:
            values[name] = check_field(known, value)
    return values


def check_nested(name: str, fields: tuple[Field, ...], given: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the values of the map in a field; the names of its items are all known.

    Raises:
        CommandError: If an item is unknown, missing or invalid; the message names it.
    """
    known = {field.name for field in fields}
    for key in given:
        if key not in known:
            raise CommandError(f"{name}.{key} is not supported")
    try:
        return check_all(fields, given)
    except CommandError as error:
        raise CommandError(f"{name}.{error}") from None


def check_field(field: Field, value: Any) -> Any:
    """Return the value of one field.

    Raises:
        CommandError: If the value is missing or invalid.
    """
    if field.kind is Kind.STRICT_QUEUE or field.kind is Kind.QUEUE:
        return _queue(field, value)
    if value is None:
        if field.required:
            raise CommandError(f"{field.name} is required")
        return field.default
    check = _CHECKS.get(field.kind)
    return value if check is None else check(field, value)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_map(value: object) -> TypeGuard[dict[Any, Any]]:
    """Return whether a value is a map."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Return whether a value is a list."""
    return isinstance(value, list)


def _queue(field: Field, value: Any) -> str:
    if field.kind is Kind.STRICT_QUEUE or not isinstance(value, str):
        value = check_wire_name(value)
    return engine_name(value)


def _text(field: Field, value: Any) -> str:
    if not isinstance(value, str):
        raise CommandError(f"{field.name} must be a string")
    if field.minimum is not None and len(value) < field.minimum:
        raise CommandError(f"{field.name} must be a non-empty string")
    if field.maximum is not None and len(value) > field.maximum:
        raise CommandError(f"{field.name} must be at most {field.maximum:.0f} characters")
    return value


def _number(field: Field, value: Any) -> float:
    if not is_number(value):
        raise CommandError(f"{field.name} must be a number")
    if isinstance(value, float) and not math.isfinite(value):  # a large integer is no float
        raise CommandError(f"{field.name} must be a finite number")
    if field.minimum is not None and value < field.minimum:
        raise CommandError(f"{field.name} must be at least {field.minimum:.0f}")
    if field.maximum is not None and value > field.maximum:
        raise CommandError(f"{field.name} must be at most {field.maximum:.0f}")
    return value


def _integer(field: Field, value: Any) -> int:
    number = _number(field, value)
    if int(number) != number:
        raise CommandError(f"{field.name} must be an integer")
    return int(number)


def _positive(field: Field, value: Any) -> int:
    """Check a limit of a group, whose error in the protocol differs from that of other integers."""
    if not is_number(value) or not 1 <= value < math.inf or int(value) != value:
        raise CommandError(f"{field.name} must be a positive safe integer")
    return _integer(field, value)


def _unsupported(field: Field, value: Any) -> Any:
    if value not in (False, 0, "", [], {}, field.default):
        raise CommandError(f"{field.name} is not supported yet")
    return field.default


def _instance_of(kind: type, name: str) -> Callable[[Field, Any], Any]:
    def check(field: Field, value: Any) -> Any:
        if not isinstance(value, kind):
            raise CommandError(f"{field.name} must be {name}")
        return value

    return check


_list: Final = _instance_of(list, "a list")


def _texts(field: Field, value: Any) -> list[str]:
    if value.__class__ is list and _TEXT_ONLY.issuperset(map(type, value)):
        return cast("list[str]", value)
    for number, each in enumerate(_list(field, value)):
        if not isinstance(each, str):
            raise CommandError(f"{field.name}[{number}] must be a string")
    return cast("list[str]", value)


_CHECKS: Mapping[Kind, Callable[[Field, Any], Any]] = {
    Kind.TEXT: _text, Kind.NUMBER: _number, Kind.INTEGER: _integer, Kind.POSITIVE: _positive,
    Kind.FLAG: _instance_of(bool, "a boolean"),
    Kind.LIST: _list, Kind.TEXTS: _texts, Kind.MAP: _instance_of(dict, "a map"), Kind.UNSUPPORTED: _unsupported,
}  # fmt: skip
