"""Rebuilding typed values from what JSON carried: every kind of annotation, both ways, and errors that say where."""

from __future__ import annotations

import collections
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag, StrEnum
from pathlib import Path, PurePosixPath
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
import pytest
from typing_extensions import TypeAliasType

from glidemq_py._core import json_text as json
from glidemq_py._features.typed_tasks.typed_values import Codec, from_plain
from glidemq_py.errors import JobDataError

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

    def __post_init__(self) -> None:
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


class Pair(NamedTuple):
    first: Point
    second: int = 5


class Id(str):
    __slots__ = ()


UserId = NewType("UserId", int)
Tags = TypeAliasType("Tags", dict[str, list[Point] | None])
Many = TypeAliasType("Many", list[T], type_params=(T,))
NOON = datetime(2025, 6, 7, 12, tzinfo=UTC)
SENDER: dict[str, Any] = {"from": "x"}
AN_ID = UUID("12345678123456781234567812345678")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 5),
        (str, "x"),
        (bool, True),
        (float, 1.5),
        (None, None),
        (Any, {"a": [1, None]}),
        (object, "x"),
        (list, [1, "x"]),
        (dict, {"a": 1}),
        (tuple, (1, 2)),
        (set, {1, 2}),
        (list[Point], [Point(1), Point(2, 3)]),
        (tuple[Point, ...], (Point(1),)),
        (tuple[int, Point], (1, Point(2))),
        (tuple[()], ()),
        (set[Point], {Point(1)}),
        (frozenset[date], frozenset({date(2025, 1, 1)})),
        (collections.deque[Point], collections.deque([Point(1)])),
        (Sequence[Point], [Point(1)]),
        (Iterable[int], [1, 2]),
        (Mapping[str, Point], {"a": Point(1)}),
        (collections.OrderedDict[str, Point], collections.OrderedDict(a=Point(1))),
        (dict[int, str], {1: "a"}),
        (dict[float, str], {1.5: "a"}),
        (dict[bool, str], {True: "a"}),
        (dict[UUID, list[Point]], {AN_ID: [Point(1)]}),
        (dict[Level, str], {Level.LOW: "a"}),
        (dict[Path, timedelta], {Path("a"): timedelta(1)}),
        (datetime, NOON),
        (date, date(2025, 1, 2)),
        (time, time(1, 2)),
        (UUID, AN_ID),
        (Decimal, Decimal("1.10")),
        (Path, Path("/a/b")),
        (PurePosixPath, PurePosixPath("a")),
        (timedelta, timedelta(seconds=5)),
        (timedelta, timedelta(microseconds=-1)),
        (bytes, b"\x00\xff"),
        (bytearray, bytearray(b"x")),
        (Colour, Colour.RED),
        (Colour, Colour.PAIR),
        (Colour, Colour.DAY),
        (Level, Level.LOW),
        (Name, Name.ADA),
        (Flag, Flag.A | Flag.B),
        (Literal["a", 1] | None, "a"),
        (Literal[Colour.RED], Colour.RED),
        (Point, Point(1, 2)),
        (Shape, Shape(points=[Point(1)], by_name={"a": Point(2)}, made=NOON)),
        (Tree, Tree(b"r", [Tree(b"a"), Tree(b"b", [Tree(b"c")])])),
        (Box[Point], Box(Point(1), [Point(2)])),
        (Box[set[int]], Box({1}, [{2}])),
        (Even, Even(2)),
        (Model, Model(at=NOON, sizes={1}, **{"from": "x"})),
        (Strict, Strict(at=date(2025, 1, 2), id=AN_ID)),
        (list[Model], [Model(at=NOON)]),
        (Sized, Sized(width=3, tags=cast("Any", '["a"]'))),
        (Boxed, Boxed(inside=Sized(width=3, tags=cast("Any", "[]")))),
        (Struct, Struct(1, b"x")),
        (dict[str, Struct], {"a": Struct(1)}),
        (Movie, {"title": "x", "year": 1}),
        (Pair, Pair(Point(1), 2)),
        (Id, Id("x")),
        (UserId, 5),
        (Annotated[Point, "x"], Point(1)),
        (Annotated[list[Point], []], [Point(1)]),
        (T, "x"),
        (Optional[Point], None),  # noqa: UP045 - the older spelling too
        (Optional[Point], Point(1)),  # noqa: UP045
        (int | Point | None, Point(1)),
        (Point | Shape, Shape(points=[])),
        (datetime | str, NOON),
        (datetime | str, "soon"),
        (list[Point] | dict[str, Point], {"a": Point(1)}),
        (bytes | None, b"x"),
        (Tags, {"a": [Point(1)], "b": None}),
        (Many[Point], [Point(1)]),
    ],
    ids=repr,
)
def test_both_ways(annotation: Any, value: Any) -> None:
    codec = Codec(annotation)
    read = codec.read(json.loads(json.dumps(codec.write(value))), "it")
    assert read == value
    assert type(read) is type(value)
    # A serializer of the user's own may bring the very objects.
    assert codec.read(value, "it") == value


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (float, 1, 1.0),
        (int | float, 1, 1),
        (float | int, 1, 1),
        (bool | str, True, True),
        (Decimal, 1.5, Decimal("1.5")),
        (datetime, "2025-06-07T12:00:00.000Z", NOON),
        (timedelta, 1500, timedelta(milliseconds=1500)),
        (Model, {"at": "2025-06-07T12:00:00Z", "sender": "x"}, Model(at=NOON, **SENDER)),
        (Model, {"at": "2025-06-07T12:00:00Z", "from": "x"}, Model(at=NOON, **SENDER)),
        (Movie, {"title": "x", "more": 1}, {"title": "x", "more": 1}),
        (Shape, {"points": [], "area": 7.0}, Shape(points=[])),
        (str | None, None, None),
        (dict[int | str, int], {"1": 1}, {"1": 1}),
    ],
    ids=repr,
)
def test_values_written_by_peers(annotation: Any, value: Any, expected: Any) -> None:
    assert from_plain(annotation, value, "it") == expected


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, "5", "it = '5': must be int"),
        (int, 5.0, "it = 5.0: must be int"),
        (int, None, "it = None: must be int"),
        (str, 5, "it = 5: must be str"),
        (bool, 1, "it = 1: must be bool"),
        (float, True, "it = True: must be float"),
        (float, 10**400, "is too large for float"),
        (None, 1, "it = 1: must be None"),
        (list[int], "abc", "it = 'abc': must be a list"),
        (list[int], [1, "x"], "it[1] = 'x': must be int"),
        (tuple[int, str], [1], "it = [1]: must be a list of 2"),
        (tuple[int, str], [1, 2], "it[1] = 2: must be str"),
        (set, [[1]], "unhashable"),
        (dict[str, int], [1], "it = [1]: must be an object"),
        (dict[str, int], {"a": "x"}, "it['a'] = 'x': must be int"),
        (dict[int, int], {"a": 1}, "it['a'] = 'a': must be int"),
        (Point, {"x": "1"}, "it.x = '1': must be int"),
        (Point, {"y": 1}, "it = {'y': 1}: missing Point fields: x"),
        (Point, {"x": 1, "z": 2}, "it.z = 2: Point has no such field"),
        (Point, [1], "it = [1]: must be an object with the fields of Point"),
        (Shape, {"points": [{"x": 1}, {"x": None}]}, "it.points[1].x = None: must be int"),
        (Tree, {"value": "", "children": [{"value": "?"}]}, "it.children[0].value = '?': must be base64 text"),
        (Even, {"number": 3}, "it = {'number': 3}: must be even"),
        (datetime, "soon", "it = 'soon': must be an ISO 8601 date and time"),
        (datetime, 5, "it = 5: must be an ISO 8601 date and time"),
        (date, "2025-13-01", "must be an ISO 8601 date"),
        (UUID, "x", "it = 'x': must be a UUID"),
        (Decimal, "x", "it = 'x': must be a decimal number"),
        (timedelta, "PT5S", "must be a number of milliseconds"),
        (timedelta, 1e300, "must be a number of milliseconds"),
        (Path, 5, "must be a path"),
        (Colour, "blue", "it = 'blue': must be the value of a Colour"),
        (Literal["a", 1], True, "it = True: must be one of 'a', 1"),
        (int | Point, "x", "it = 'x': must be int or Point"),
        (Movie, {"year": 1}, "missing Movie fields: title"),
        (Pair, [1, 2], "it[0] = 1: must be an object with the fields of Point"),
        (Model, {"at": "soon"}, "1 validation error for Model"),
        (Struct, {"someName": "x"}, "Expected `int`, got `str` - at `$.someName`"),
        (type("Lock", (), {}), "x", "it = 'x': must be Lock"),
    ],
    ids=repr,
)
def test_mismatch_error_has_path_and_type(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises(JobDataError) as caught:
        from_plain(annotation, value, "it")
    assert message in str(caught.value)


def test_plain_annotations_cost_nothing() -> None:
    assert Codec(Any).is_plain
    assert not Codec(int).is_plain
    assert not Codec(list[Point]).special
    assert Codec(list[Tree]).special


def test_neither_pydantic_nor_msgspec_is_imported() -> None:
    code = (
        "import sys, dataclasses, datetime\n"
        "from glidemq_py._features.typed_tasks.typed_values import from_plain\n"
        "@dataclasses.dataclass\n"
        "class A:\n    at: datetime.date\n"
        "assert from_plain(list[A] | None, [{'at': '2025-01-02'}], 'x')\n"
        "assert not {'pydantic', 'msgspec'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
