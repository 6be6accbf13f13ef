"""The JSON codec, for any value and any text (tables/json.txt has the single ones)."""

import importlib.util
import json as stdlib
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py._core.json_text import _dumps_orjson, _dumps_stdlib, _loads_orjson, _loads_stdlib
from glidemq_py.errors import SerializationError
from tests.inside import json_text as json
from tests.unit.value_classes import Hidden

orjson = pytest.importorskip("orjson")

CODECS = {
    "orjson": (_dumps_orjson, _loads_orjson),
    "stdlib": (_dumps_stdlib, _loads_stdlib),
}


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
    assert module.dumps({"a": [math.nan, Hidden(1)]}) == '{"a":[null,{"x":1,"_hidden":[]}]}'
    assert module.loads('{"a":1}') == {"a": 1}


def test_the_installed_codec_is_used():
    assert json.dumps is _dumps_orjson
    assert json.dumps({"a": 1}) == '{"a":1}'
    assert json.loads(b"[1]") == [1]
