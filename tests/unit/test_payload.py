"""Data and results as stored text: limits in bytes, gzip as the original writes it, custom serializers."""

import base64
import pickle
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py import (
    JSON_SERIALIZER,
)
from glidemq_py.errors import PayloadTooLargeError, SerializationError
from tests.inside import (
    check_size,
    decode_data,
    decode_result,
    encode_data,
    encode_result,
)

# Data of a recorded Node job of the kind "gzip" (shortened in its big part), as JSON text.
SAMPLE = {
    "kind": "gzip",
    "i": 0,
    "text": "žluť 漢字 😀",
    "nested": {"a": [1, 2.5, None, True]},
    "big": "x" * 3000,
}


class Raw:
    """Text is stored as it is."""

    def serialize(self, value: Any, /) -> str:
        return value

    def deserialize(self, text: str, /):
        return text


class Pickled:
    def serialize(self, value: Any, /) -> str:
        return base64.b64encode(pickle.dumps(value)).decode()

    def deserialize(self, text: str, /):
        return pickle.loads(base64.b64decode(text))


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("serializer", [JSON_SERIALIZER, Pickled()])
def test_data_comes_back(serializer, compression):
    text = encode_data(SAMPLE, serializer, compression)
    assert text.startswith("gz:") == (compression == "gzip")
    assert decode_data(text, serializer) == SAMPLE


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.integers(0, 200))
def test_the_limit_is_of_bytes(text, limit):
    size = len(text.encode())
    if size > limit:
        with pytest.raises(PayloadTooLargeError) as caught:
            check_size("data", text, limit)
        assert (caught.value.size, caught.value.limit) == (size, limit)
    else:
        check_size("data", text, limit)


@given(st.text(), st.binary())
def test_broken_data_raises_nothing_else(text, packed):
    for stored in (text, "gz:" + text, "gz:" + base64.b64encode(packed).decode()):
        with suppress(SerializationError):
            decode_data(stored)


def test_text_that_looks_compressed_comes_back():
    stored = encode_data("gz:not really", Raw())
    assert decode_data(stored, Raw()) == "gz:not really"


@pytest.mark.parametrize("result", [b"bytes", None, 7, "\ud800"])
def test_a_serializer_must_return_text(result):
    with pytest.raises(SerializationError, match="the serializer"):
        encode_data(result, Raw())


class Failing:
    def serialize(self, value: Any, /) -> str:
        raise KeyError("no")

    def deserialize(self, text: str, /):
        raise KeyError("no")


def test_a_serializer_that_fails():
    with pytest.raises(SerializationError, match=r"the serializer failed: KeyError\('no'\)") as caught:
        encode_data(1, Failing())
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(SerializationError, match="option 'result'"):
        decode_result("x", Failing())


@pytest.mark.parametrize("serializer", [JSON_SERIALIZER, Failing(), Pickled()])
def test_no_result_is_null_for_every_serializer(serializer):
    assert encode_result(None, serializer) == "null"
    assert decode_result("null", serializer) is None


def test_results_come_back_and_are_never_compressed():
    text = encode_result(SAMPLE)
    assert text == encode_data(SAMPLE)
    assert decode_result(text) == SAMPLE
    assert decode_result(encode_result(SAMPLE, Pickled()), Pickled()) == SAMPLE
