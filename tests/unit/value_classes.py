"""Classes of users whose values become JSON: for the tables of json.txt and typed.txt."""

# ruff: noqa: F401
from __future__ import annotations

import collections
import dataclasses
import json as stdlib
import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag, StrEnum
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
    cast,
)
from uuid import UUID

import msgspec
import pydantic
from typing_extensions import TypeAliasType

T = TypeVar("T")


class Colour(Enum):
    RED = "red"
    PAIR = (1, 2)
    DAY = date(2025, 1, 2)


class Level(IntEnum):
    LOW = 1


class Name(StrEnum):
    ADA = "ada"


class Flag(IntFlag):
    A = 1
    B = 2


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


@dataclass(slots=True, kw_only=True)
class Shape:
    points: list[Point]
    by_name: dict[str, Point] = field(default_factory=dict)
    made: datetime | None = None
    area: float = field(init=False, default=0.0)


@dataclass
class Tree:
    value: bytes
    children: list[Tree] = field(default_factory=list)


@dataclass
class Box(Generic[T]):
    content: T
    others: list[T] = field(default_factory=list)


@dataclass
class Even:
    number: int

    def __post_init__(self):
        if self.number % 2:
            raise ValueError("must be even")


class Model(pydantic.BaseModel):
    at: datetime
    sizes: set[int] = set()
    sender: str = pydantic.Field(default="", alias="from")


class Sized(pydantic.BaseModel, extra="forbid"):
    width: int
    tags: pydantic.Json[list[str]] = pydantic.Field(default_factory=list)

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.width**2


class Boxed(pydantic.BaseModel, extra="forbid"):
    inside: Sized


class Strict(pydantic.BaseModel, strict=True):
    at: date
    id: UUID


class Struct(msgspec.Struct, rename="camel"):
    some_name: int
    data: bytes = b""


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


@dataclass
class Waits:
    first: list[timedelta]
    movie: Movie | None = None


class Pair(NamedTuple):
    first: Point
    second: int = 5


class Id(str):
    __slots__ = ()


UserId = NewType("UserId", int)
Many = TypeAliasType("Many", list[T], type_params=(T,))
NOON = datetime(2025, 6, 7, 12, tzinfo=UTC)
SENDER: dict[str, Any] = {"from": "x"}
AN_ID = UUID("12345678123456781234567812345678")


@dataclass
class Hidden:
    x: int
    _hidden: list[int] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Line:
    start: Hidden
    end: Hidden


class Named(pydantic.BaseModel):
    at: datetime
    name: str = "ž"


class Camel(msgspec.Struct, rename="camel"):
    some_name: int
    at: datetime


class Broken(pydantic.BaseModel):
    @pydantic.model_serializer
    def refuse(self) -> dict[str, Any]:
        raise RuntimeError("not today")
