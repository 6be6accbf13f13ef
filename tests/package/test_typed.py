"""Rebuilding typed values from what JSON carried: every kind of annotation, both ways, and errors that say where."""

from __future__ import annotations

import collections
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

from glidemq_py import GlideMQValidationError, Worker
from glidemq_py._core import json_text as json
from glidemq_py._core.checks import Mismatch
from glidemq_py._features import typed_values

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
        (Sequence[Point], [Point(1)]),
        (Mapping[str, Point], {"a": Point(1)}),
        (dict[int, str], {1: "a"}),
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
        (Level, Level.LOW),
        (Name, Name.ADA),
        (Flag, Flag.A | Flag.B),
        (Literal["a", 1] | None, "a"),
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
        (T, "x"),
        (Optional[Point], None),  # noqa: UP045 - the older spelling too
        (Optional[Point], Point(1)),  # noqa: UP045
        (int | Point | None, Point(1)),
        (list[Point] | dict[str, Point], {"a": Point(1)}),
        (bytes | None, b"x"),
    ],
    ids=repr,
)
def test_both_ways(annotation: Any, value: Any):
    codec = typed_values.Codec(annotation)
    read = codec.convert(json.loads(json.dumps(codec.write(value))))
    assert read == value
    assert type(read) is type(value)
    # A serializer of the user's own may bring the very objects.
    assert codec.convert(value) == value


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (float, 1, 1.0),
        (int | float, 1, 1),
        (float | int, 1, 1),
        (bool | str, True, True),
        (Decimal, 1.5, Decimal("1.5")),
        (datetime, "2025-06-07T12:00:00.000Z", NOON),
        (datetime, "1800-01-01T00:00:00+00:53:28", datetime.fromisoformat("1800-01-01T00:00:00+00:53:28")),
        (datetime, "2025-06-07 12:00", datetime(2025, 6, 7, 12)),  # noqa: DTZ001
        (time, "12:00", time(12)),
        (timedelta, 1500, timedelta(milliseconds=1500)),
        (int | timedelta, 1500, 1500),
        (dict[str, list[timedelta | None]], {"a": [5, None]}, {"a": [timedelta(milliseconds=5), None]}),
        (tuple[int, timedelta], [5, 5], (5, timedelta(milliseconds=5))),
        (Movie, {"title": "x", "more": 1}, {"title": "x"}),
        (Waits, {"first": [5], "movie": {"title": "x"}}, Waits([timedelta(milliseconds=5)], {"title": "x"})),
        (Model, {"at": "2025-06-07T12:00:00Z", "sender": "x"}, Model(at=NOON, **SENDER)),
        (Model, {"at": "2025-06-07T12:00:00Z", "from": "x"}, Model(at=NOON, **SENDER)),
        (str | None, None, None),
        (dict[int | str, int], {"1": 1}, {"1": 1}),
    ],
    ids=repr,
)
def test_values_written_by_peers(annotation: Any, value: Any, expected: Any):
    assert typed_values.Codec(annotation).convert(value) == expected


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, "5", "it = '5': Expected `int`, got `str`"),
        (int, 5.0, "it = 5.0: Expected `int`, got `float`"),
        (int, None, "it = None: Expected `int`, got `null`"),
        (str, 5, "it = 5: Expected `str`, got `int`"),
        (bool, 1, "it = 1: Expected `bool`, got `int`"),
        (float, True, "it = True: Expected `float`, got `bool`"),
        (float, 10**400, "Number out of range"),
        (None, 1, "it = 1: Expected `null`, got `int`"),
        (list[int], "abc", "it = 'abc': Expected `array`, got `str`"),
        (list[int], [1, "x"], "it = [1, 'x']: Expected `int`, got `str` - at `$[1]`"),
        (tuple[int, str], [1], "it = [1]: Expected `array` of length 2, got 1"),
        (tuple[timedelta, str], [1, "a", 2], "Expected `array` of length 2, got 3"),
        (set, [[1]], "Expected a hashable value"),
        (dict[str, int], [1], "it = [1]: Expected `object`, got `array`"),
        (dict[str, int], {"a": "x"}, "it = {'a': 'x'}: Expected `int`, got `str` - at `$[...]`"),
        (dict[int, int], {"a": 1}, "it = {'a': 1}: Expected `int`, got `str` - at `key` in `$`"),
        (Point, {"x": "1"}, "it = {'x': '1'}: Expected `int`, got `str` - at `$.x`"),
        (Point, {"y": 1}, "it = {'y': 1}: Object missing required field `x`"),
        (Point, {"x": 1, "z": 2}, "it = {'x': 1, 'z': 2}: Point has no field 'z'"),
        (dict[str, Pair], {"a": [{"x": 1, "z": 2}, 1]}, "Point has no field 'z'"),
        (Point, [1], "it = [1]: Expected `object`, got `array`"),
        (Shape, {"points": [{"x": 1}, {"x": None}]}, "Expected `int`, got `null` - at `$.points[1].x`"),
        (Tree, {"value": "", "children": [{"value": "?"}]}, "Invalid base64 encoded string - at `$.children[0].value`"),
        (Even, {"number": 3}, "it = {'number': 3}: must be even"),
        (datetime, "soon", "it = 'soon': Invalid isoformat string"),
        (datetime, 5, "it = 5: Expected `datetime`, got `int`"),
        (date, "2025-13-01", "it = '2025-13-01': Invalid RFC3339 encoded date"),
        (UUID, "x", "it = 'x': Invalid UUID"),
        (Decimal, "x", "it = 'x': Invalid decimal string"),
        (timedelta, "soon", "it = 'soon': Invalid ISO8601 duration"),
        (timedelta, True, "it = True: Expected `duration`, got `bool`"),
        (timedelta, 1e300, "too large"),
        (Path, 5, "it = 5: must be Path"),
        (Level, 7, "it = 7: Invalid enum value 7"),
        (Literal["a", 1], True, "it = True: Expected `int | str`, got `bool`"),
        (int | Point, "x", "it = 'x': Expected `int | object`, got `str`"),
        (Movie, {"year": 1}, "Object missing required field `title`"),
        (Pair, [1, 2], "Expected `object`, got `int` - at `$[0]`"),
        (Model, {"at": "soon"}, "1 validation error for Model"),
        (list[Model], [{"at": "soon"}], "1 validation error for Model"),
        (Struct, {"someName": "x"}, "Expected `int`, got `str` - at `$.someName`"),
        (type("Lock", (), {}), "x", "it = 'x': must be Lock"),
    ],
    ids=repr,
)
def test_mismatch_error_has_path_and_type(annotation: Any, value: Any, message: str):
    with pytest.raises(Mismatch) as caught:
        typed_values.Codec(annotation).convert(value)
    assert message in caught.value.describe("it")


@pytest.mark.parametrize(
    ("annotation", "problem"),
    [
        (datetime | str, "more than one str-like type"),
        (Point | Shape, "more than one dataclass"),
        (list[int] | set[int], "more than one array-like"),
        (Colour, "all str or all int values"),
        (Literal[Colour.RED], "Literal may only contain"),
        (collections.deque[Point], "deque is not supported; use list"),
        (list[collections.OrderedDict[str, int]], "OrderedDict is not supported"),
        (Iterable[int], "Iterable is not supported"),
        (list[dict[bool, int]], "keys of the types bool"),
        (dict[timedelta, int], "keys of the types bool"),
        (Many[Point], "not supported"),
    ],
    ids=repr,
)
def test_unsupported_annotation_is_named_when_the_task_is_registered(annotation: Any, problem: str):
    def task(value: Any): ...

    task.__annotations__["value"] = annotation
    with pytest.raises(
        GlideMQValidationError, match=f"option 'task' = 'it': its annotations cannot be used: .*{problem}"
    ):
        Worker("tasks").task("it")(task).route()


def test_plain_annotations_cost_nothing():
    assert typed_values.Codec(Any).is_plain
    assert not typed_values.Codec(int).is_plain
    assert not typed_values.Codec(list[Point]).special
    assert typed_values.Codec(list[Tree]).special
