"""The types of responses that the OpenAPI document shows. At run time responses are not validated.

The model of a response stands beside its endpoint; here is what they share. A dataclass of the library that is returned
as it is has no model of its own: see `model_of`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

from pydantic import ConfigDict, Field, GetPydanticSchema, with_config
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

__all__ = [
    "Amounts",
    "AsText",
    "Count",
    "Error",
    "NextCursor",
    "Payload",
    "Removed",
    "ResponseModel",
    "like",
    "model_of",
]

Payload = Annotated[Any, Field(description="Any JSON value.")]
Count = Annotated[int, Field(ge=0)]
AsText = Annotated[list[str], Field(description="Members that are given as text: too deeply nested or not decodable.")]
NextCursor = Annotated[str | None, Field(description="Where to continue; null = the end.")]
Amounts = dict[str, float]

_EXACT = ConfigDict(extra="forbid")


@with_config(_EXACT)
class ResponseModel(TypedDict):
    """A response has no other members than those documented."""


def model_of(kind: type[Any], renamed: Mapping[str, str] | None = None, **members: Any) -> Any:
    """Return the type of the JSON that `responses.camel` returns for a dataclass.

    Args:
        kind: the dataclass.
        renamed: names of members that are not the camelCase of the field's name.
        members: types of members that differ from the field's, or that the dataclass lacks.
    """
    hints, names = get_type_hints(kind), renamed or {}
    fields = {to_camel(field.name): hints[field.name] for field in dataclasses.fields(kind)}
    content = {names.get(name, name): hint for name, hint in fields.items()}
    create: Any = TypedDict  # type checkers accept only literals
    model = create(kind.__name__, {**content, **members})
    model.__doc__ = (inspect.getdoc(kind) or "").partition("\n")[0].partition(". ")[0]
    return with_config(_EXACT)(model)


def like(model: Any) -> GetPydanticSchema:
    """Return metadata for a member whose type is a result of `model_of`.

    Type checkers do not accept such a result in an annotation: ``usage: Annotated[Any, like(_Usage)]``.
    """
    return GetPydanticSchema(lambda _, handler: handler(model))


class Error(ResponseModel):
    """An error: a message, and a code that does not change."""

    error: str
    code: str


class Removed(ResponseModel):
    """Whether something was deleted."""

    removed: bool
