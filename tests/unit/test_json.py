"""The JSON codec: both encoders side by side, every accepted type, and errors that say where."""

import dataclasses
import enum
import importlib.util
import json as stdlib
import math
import sys
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py._core.json_text import _dumps_orjson, _dumps_stdlib, _loads_orjson, _loads_stdlib
from glidemq_py.errors import SerializationError
from tests.inside import json_text as json

orjson = pytest.importorskip("orjson")

CODECS = {
    "orjson": (_dumps_orjson, _loads_orjson),
    "stdlib": (_dumps_stdlib, _loads_stdlib),
}


@pytest.fixture(params=list(CODECS.values()), ids=list(CODECS))
def codec(request):
    return request.param


@dataclasses.dataclass
class Point:
    x: int
    _hidden: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True, frozen=True)
class Line:
    start: Point
    end: Point


class Model(pydantic.BaseModel):
    at: datetime
    name: str = "ž"


class Struct(msgspec.Struct, rename="camel"):
    some_name: int
    at: datetime


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    YES = "yes"


class Text(str):
    __slots__ = ()


Pair = namedtuple("Pair", "a b")  # noqa: PYI024

AWARE = datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (0, "0"),
        (-0.0, "-0.0"),
        (1.5, "1.5"),
        ("žluť 漢字 😀", '"žluť 漢字 😀"'),
        ('"\\/\b\f\n\r\t\x00\x1f\x7f\u2028', '"\\"\\\\/\\b\\f\\n\\r\\t\\u0000\\u001f\x7f\u2028"'),
        ({"a": [1, 2.5, None, True], "b": {}}, '{"a":[1,2.5,null,true],"b":{}}'),
        ([], "[]"),
        ((1, (2,)), "[1,[2]]"),
        (Pair(1, 2), "[1,2]"),
        (OrderedDict(a=1), '{"a":1}'),
        (MappingProxyType({"a": 1}), '{"a":1}'),
        (math.nan, "null"),
        ([math.inf, -math.inf], "[null,null]"),
        (2**64, "18446744073709551616"),
        ([-(2**80)], "[-1208925819614629174706176]"),
        ({1: "a", None: "b", 1.5: "c", "d": "e"}, '{"1":"a","null":"b","1.5":"c","d":"e"}'),
        ({True: 1, False: 2, 2**70: 3}, '{"true":1,"false":2,"1180591620717411303424":3}'),
        ({Level.HIGH: 1, Word.YES: 2, Colour.RED: 3}, '{"3":1,"yes":2,"red":3}'),
        (Point(1), '{"x":1,"_hidden":[]}'),
        (Line(Point(1, [2]), Point(3)), '{"start":{"x":1,"_hidden":[2]},"end":{"x":3,"_hidden":[]}}'),
        (Model(at=datetime(2030, 1, 1, tzinfo=UTC)), '{"at":"2030-01-01T00:00:00Z","name":"ž"}'),
        ([Struct(1, datetime(2030, 1, 1, tzinfo=UTC))], '[{"someName":1,"at":"2030-01-01T00:00:00Z"}]'),
        (AWARE, '"2030-01-02T03:04:05.000006+01:00"'),
        (datetime(2030, 1, 2, 3, 4, 5), '"2030-01-02T03:04:05"'),  # noqa: DTZ001
        (date(2030, 1, 2), '"2030-01-02"'),
        (time(3, 4, 5), '"03:04:05"'),
        (UUID(int=5), '"00000000-0000-0000-0000-000000000005"'),
        (Decimal("1.10"), '"1.10"'),
        ([Colour.RED, Colour.PAIR, Level.HIGH, Word.YES], '["red",[1,2],3,"yes"]'),
        (Text("x"), '"x"'),
        ("\ud800x", '"\\ud800x"'),
        ({"\udfff": math.nan}, '{"\\udfff":null}'),
        ({"nan": math.nan, "at": AWARE, "big": 2**70, "m": Model(at=AWARE)}, None),
    ],
)
def test_both_encoders_write_the_same(value, text):
    by_orjson, by_stdlib = _dumps_orjson(value), _dumps_stdlib(value)
    assert by_orjson == by_stdlib
    if text is not None:
        assert by_orjson == text


def _deep(depth: int, leaf: Any = 1):
    for _ in range(depth):
        leaf = [leaf]
    return leaf


def test_nesting_beyond_orjson(codec):
    dumps, loads = codec
    assert loads(dumps(_deep(290, {1: 2}))) == _deep(290, {"1": 2})


class Broken(pydantic.BaseModel):
    @pydantic.model_serializer
    def refuse(self) -> dict[str, Any]:
        raise RuntimeError("not today")


LOOP: Any = [1]
LOOP.append({"again": LOOP})


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (object(), "objects of type object cannot"),
        ({"users": [{"tags": {1, 2}}]}, r"at data\.users\[0\]\.tags: objects of type set cannot"),
        ({"a b": b"x"}, r"at data\['a b'\]: objects of type bytes cannot"),
        ([timedelta(1)], r"at data\[0\]: objects of type timedelta cannot"),
        ([Point], r"at data\[0\]: objects of type type cannot"),
        ([lambda: 1], r"at data\[0\]: objects of type function cannot"),
        ({(1, 2): 3}, r"at data\[tuple\]: a dict key of type tuple cannot"),
        ({math.nan: 3}, "a dict key must not be NaN"),
        ({"x": Line(Point(1), Point(set()))}, r"at data\.x\.end\.x: objects of type set cannot"),  # type: ignore[arg-type]
        (Broken(), "not today"),
        (LOOP, r"at data\[1\]\.again: it contains itself"),
        (_deep(5000), "nested"),
        pytest.param(10**5000, "4300", id="huge"),
        ({"k" * 10_000: object()}, "objects of type object cannot"),
    ],
)
def test_unserializable_value_is_rejected_with_its_path(codec, value, place):
    dumps, _ = codec
    with pytest.raises(SerializationError, match=place) as caught:
        dumps(value, "data")
    assert caught.value.option == "data"
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        (' {"a": [1, 2.5]} ', {"a": [1, 2.5]}),
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", 2**64),
        ("-9223372036854775809", -(2**63) - 1),
        (
            '{"pad":"xxxxxxx","n":[123456789012345678901234567890]}',
            {"pad": "xxxxxxx", "n": [123456789012345678901234567890]},
        ),
        ("1e400", math.inf),
        ('"\\ud800"', "\ud800"),
        ('"\\ud83d\\ude00"', "😀"),
        ('{"a":1,"a":2}', {"a": 2}),
        ("-0", 0),
    ],
)
def test_both_decoders_read_the_same(codec, text, value):
    _, loads = codec
    for form in (text, text.encode()):
        result = loads(form)
        assert result == value
        assert type(result) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nul",
        "NaN",
        "[Infinity]",
        "-Infinity",
        "{'a':1}",
        "[1,]",
        "1 2",
        "\ufeff1",
        b"\xff",
        b'"\xed\xa0\x80"',
        "[" * 100_000,
        '"\x01"',
        None,
        7,
    ],
)
def test_invalid_json_is_rejected(codec, text):
    _, loads = codec
    with pytest.raises(SerializationError, match="is not JSON") as caught:
        loads(text, "data")
    assert caught.value.option == "data"


@given(st.integers(0, 60), st.integers(-(2**80), 2**80), st.sampled_from([",", " ", "]"]))
def test_large_integers_are_exact_wherever_they_stand(pad, number, separator):
    text = f'["{"x" * pad}",{number}{separator if separator == " " else ""}]'
    assert _loads_orjson(text) == stdlib.loads(text)
    assert all(type(each) in (str, int) for each in _loads_orjson(text))


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(1e-3, 1e12) | st.just(0.0) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
    max_leaves=30,
)


@given(plain)
def test_plain_data_is_written_and_read_alike(value):
    text = _dumps_orjson(value)
    assert text == _dumps_stdlib(value)
    assert text == stdlib.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert _loads_orjson(text) == _loads_stdlib(text) == stdlib.loads(text)


@given(st.floats())
def test_floats_come_back(value):
    expected = value if math.isfinite(value) else None
    for dumps, loads in CODECS.values():
        assert loads(dumps(value)) == expected


@pytest.mark.slow
@given(
    st.recursive(
        st.none()
        | st.integers()
        | st.floats()
        | st.text(st.characters(categories=["Cs", "L", "N", "P"]))
        | st.binary()
        | st.dates(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.floats() | st.none(), inner),
        max_leaves=20,
    )
)
def test_nothing_else_is_ever_raised(value):
    outcomes = []
    for dumps, _ in CODECS.values():
        try:
            outcomes.append(stdlib.loads(dumps(value)))
        except SerializationError:
            outcomes.append(SerializationError)
    assert outcomes[0] == outcomes[1]


@given(st.text() | st.binary())
def test_reading_never_raises_anything_else(text):
    outcomes = []
    for _, loads in CODECS.values():
        try:
            outcomes.append(loads(text))
        except SerializationError:
            outcomes.append(SerializationError)
    assert outcomes[0] == outcomes[1]


def test_without_orjson_the_standard_library_does_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "orjson", None)
    spec = importlib.util.spec_from_file_location("json_without_orjson", json.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module._orjson is None
    assert module.dumps({"a": [math.nan, Point(1)]}) == '{"a":[null,{"x":1,"_hidden":[]}]}'
    assert module.loads('{"a":1}') == {"a": 1}


def test_the_installed_codec_is_used():
    assert json.dumps is _dumps_orjson
    assert json.dumps({"a": 1}) == '{"a":1}'
    assert json.loads(b"[1]") == [1]
