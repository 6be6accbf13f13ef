"""Options that are values with fields of their own, given as such a value or as a mapping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from glidemq_py.errors import GlideMQValidationError
from glidemq_py.options.checks import check_mapping

__all__ = ["parse_nested"]

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
