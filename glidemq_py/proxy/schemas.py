"""JSON schemas of types, from which request bodies are checked and the OpenAPI document is made.

A request and a response are typed dicts; those of requests have Python's names, which are camelCase in JSON. A
dataclass of the library that is returned as it is has no type of its own: see `model_of`.
"""

from __future__ import annotations

import dataclasses
import inspect
import operator
import re
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    Required,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from glidemq_py._core.checks import camel_case, nearest_option, reject_unknown, snake_case
from glidemq_py.errors import GlideMQValidationError

Schema = dict[str, Any]


class Keywords(Schema):
    """Further keywords of the schema of a type, in its ``Annotated``, which must be hashable."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


SCHEMAS: Final[dict[str, Schema]] = {}
"""The schemas of objects by name, to which other schemas refer."""

_REFERENCE: Final = "#/components/schemas/"
_NAMES: Final = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}


def schema_of(kind: Any) -> Schema:
    """Return the schema of a type; the one of an object is added to `SCHEMAS`, and the result refers to it.

    The metadata of ``Annotated`` is further keywords, or another type whose schema is used instead.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return {}
    if kind in _NAMES:
        return {"type": _NAMES[kind]}
    if origin is Annotated:
        found = schema_of(arguments[0])
        for each in arguments[1:]:
            found = {**found, **each} if isinstance(each, Keywords) else schema_of(each)
        return found
    if origin in (Required, NotRequired):
        return schema_of(arguments[0])
    if origin is Literal:
        return {**schema_of(type(arguments[0])), "enum": list(arguments)}
    if origin in (Union, UnionType):
        return {"anyOf": [schema_of(each) for each in arguments]}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": schema_of(arguments[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    return _reference_to(kind)


def _reference_to(kind: Any) -> Schema:
    """Return a reference to the schema of a typed dict or a dataclass."""
    name: str = kind.__name__
    if name not in SCHEMAS:
        model = kind if is_typeddict(kind) else model_of(kind)
        found = SCHEMAS[name] = {}  # before its members, which may have the same type
        hints = get_type_hints(model, include_extras=True)
        optional = () if model.__total__ else hints
        found |= {
            "type": "object", "description": (inspect.getdoc(model) or "").strip(),
            "properties": {camel_case(member): schema_of(hint) for member, hint in hints.items()},
            "required": [
                camel_case(member) for member, hint in hints.items()
                if get_origin(hint) is Required or (get_origin(hint) is not NotRequired and member not in optional)
            ],
            "additionalProperties": False,
        }  # fmt: skip
    return {"$ref": _REFERENCE + name}


def model_of(kind: type[Any], renamed: Mapping[str, str] | None = None, **members: Any) -> Any:
    """Return the type of the JSON that `responses.camel` returns for a dataclass.

    Args:
        kind: the dataclass.
        renamed: names of members that are not the camelCase of the field's name.
        members: types of members that differ from the field's, or that the dataclass lacks.
    """
    hints, names = get_type_hints(kind), renamed or {}
    fields = {camel_case(field.name): hints[field.name] for field in dataclasses.fields(kind)}
    content = {names.get(name, name): hint for name, hint in fields.items()}
    doc = (inspect.getdoc(kind) or "").partition("\n")[0].partition(". ")[0]
    return typed_dict(kind.__name__, doc, {**content, **members})


def typed_dict(name: str, doc: str, members: Mapping[str, Any], *, total: bool = True) -> Any:
    """Return a typed dict, for which type checkers accept only literals."""
    create: Any = TypedDict
    model = create(name, members, total=total)
    model.__doc__ = doc
    return model


# -- checks ----------------------------------------------------------------------------------------------------

_KINDS: Final[Mapping[str, tuple[Any, str]]] = {
    "string": (str, "a valid string"), "integer": (int, "a valid integer"), "number": ((int, float), "a valid number"),
    "boolean": (bool, "a valid boolean"), "array": (list, "a valid list"), "object": (dict, "an object"),
}  # fmt: skip
_LIMITS: Final = (
    ("minimum", operator.lt, "must be at least {0:,}"), ("maximum", operator.gt, "must be at most {0:,}"),
    ("exclusiveMinimum", operator.le, "must be greater than {0:,}"),
    ("minLength", operator.lt, "must have at least {0} character"),
    ("maxLength", operator.gt, "must have at most {0} characters"),
    ("minItems", operator.lt, "must have at least {0} item, not {1}"),
    ("maxItems", operator.gt, "must have at most {0} items, not {1}"),
)  # fmt: skip


_FLAGS: Final = {"true": True, "false": False}
_INTEGER: Final = re.compile(r"-?[0-9]{1,16}")


def definition(schema: Schema) -> Schema:
    """Return a schema, or the one that it refers to."""
    return SCHEMAS[schema["$ref"].removeprefix(_REFERENCE)] if "$ref" in schema else schema


def is_required(schema: Schema) -> bool:
    """Return False if an object may be empty."""
    return "oneOf" in schema or bool(definition(schema)["required"])


def checked(name: str, value: Any, schema: Schema) -> Any:
    """Return a value of a request, whose objects have Python's names.

    There is no conversion of types, no unknown member, no null in place of an option. A text with a pattern is left to
    the library.

    Args:
        name: its name, for errors.
        value: the value.
        schema: its schema.

    Raises:
        GlideMQValidationError: if it does not conform to the schema.
    """
    schema = definition(schema)
    if "anyOf" in schema:
        return _checked_alternatives(name, value, schema["anyOf"])
    kind = schema.get("type")
    if kind is None:
        return value
    types, wanted = _KINDS[kind]
    is_flag = isinstance(value, bool)
    if not isinstance(value, types) or is_flag is not (types is bool):
        raise GlideMQValidationError(name, value, f"must be {wanted}")
    _check_limits(name, value, schema)
    if kind == "array":
        return [checked(f"{name}[{i}]", each, schema["items"]) for i, each in enumerate(value)]
    return _checked_object(name, value, schema) if kind == "object" else value


def _check_limits(name: str, value: Any, schema: Schema) -> None:
    allowed = schema.get("enum", [value])
    if value not in allowed:
        *others, last = map(repr, allowed)
        raise GlideMQValidationError(name, value, f"must be {' or '.join(filter(None, [', '.join(others), last]))}")
    size: Any = value if isinstance(value, (int, float)) else len(value)
    for limit, is_beyond, problem in () if "pattern" in schema else _LIMITS:
        if limit in schema and is_beyond(size, schema[limit]):
            raise GlideMQValidationError(name, value, problem.format(schema[limit], size))


def _checked_object(name: str, value: dict[str, Any], schema: Schema) -> dict[str, Any]:
    prefix, members = f"{name}." if name else "", schema.get("properties")
    if members is None:
        others = schema["additionalProperties"]
        return {key: checked(prefix + key, each, others) for key, each in value.items()}
    for key, each in value.items():
        if key not in members:
            near = nearest_option(key, members)
            reject_unknown(prefix + key, each, (), suggestion=near and prefix + near)
    for key in schema["required"]:
        if key not in value:
            raise GlideMQValidationError(prefix + key, None, "is required")
    return {snake_case(key): checked(prefix + key, each, members[key]) for key, each in value.items()}


def _checked_alternatives(name: str, value: Any, schemas: Sequence[Schema]) -> Any:
    """Return the value of one of several types. Of the errors of all, one within the value is meant."""
    problems: list[str] = []
    for schema in schemas:
        try:
            return checked(name, value, schema)
        except GlideMQValidationError as error:
            if error.option != name:
                raise
            problems.append(error.problem)
    text = " or ".join(dict.fromkeys(problems)).replace(" or must be ", " or ")
    raise GlideMQValidationError(name, value, text)


def text_value(name: str, text: str | None, schema: Schema) -> Any:
    """Return the checked value of a query parameter; None = not given. Raises the errors of `checked`."""
    if text is None:
        if "default" in schema:
            return schema["default"]
        raise GlideMQValidationError(name, None, "is required")
    value: Any = text
    if schema["type"] == "boolean":
        value = _FLAGS.get(text)
        if value is None:
            raise GlideMQValidationError(name, text, "must be true or false")
    if schema["type"] == "integer":
        if not _INTEGER.fullmatch(text):
            raise GlideMQValidationError(name, text, "must be an integer")
        value = int(text)
    return checked(name, value, schema)
