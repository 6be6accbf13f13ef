"""Dataclasses as JSON in camelCase."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

__all__ = ["camel"]


def camel(value: Any) -> Any:
    """Return a dataclass as JSON with its members in camelCase."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {_camel(field.name): camel(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [camel(each) for each in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {name: camel(each) for name, each in cast("Mapping[str, Any]", value).items()}
    return value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
