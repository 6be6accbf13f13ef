"""Data and results as stored text: limits in bytes, gzip as the original writes it, custom serializers."""

import base64
import gzip
import json as stdlib
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
    PAYLOAD_LIMIT,
    check_size,
    decode_data,
    decode_result,
    encode_data,
    encode_json,
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


def test_compressed_data_can_be_read_by_peers():
    text = encode_data(SAMPLE, compression="gzip")
    packed = base64.b64decode(text.removeprefix("gz:"), validate=True)
    assert packed.startswith(b"\x1f\x8b\x08")
    assert gzip.decompress(packed).decode() == stdlib.dumps(SAMPLE, ensure_ascii=False, separators=(",", ":"))
    assert text == encode_data(SAMPLE, compression="gzip"), "the same data gives the same text"


def test_compressed_data_of_other_writers_is_read():
    packed = gzip.compress(stdlib.dumps(SAMPLE).encode(), 9)
    assert decode_data("gz:" + base64.b64encode(packed).decode()) == SAMPLE


def test_none_is_null():
    assert encode_data(None) == "null"
    assert decode_data("null") is None


# -- limits -------------------------------------------------------------------------------------------------


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.integers(0, 200))
def test_the_limit_is_of_bytes(text, limit):
    size = len(text.encode())
    if size > limit:
        with pytest.raises(PayloadTooLargeError) as caught:
            check_size("data", text, limit)
        assert (caught.value.size, caught.value.limit) == (size, limit)
    else:
        check_size("data", text, limit)


@pytest.mark.parametrize("character", ["a", "é", "漢", "😀"])
def test_the_limit_itself_is_allowed(character):
    width = len(character.encode())
    room = PAYLOAD_LIMIT - 2  # the quotes
    value = character * (room // width) + "a" * (room % width)
    assert len(encode_data(value).encode()) == PAYLOAD_LIMIT
    with pytest.raises(PayloadTooLargeError, match="1,048,577 bytes"):
        encode_data(value + "a")


def test_the_limit_is_measured_before_compression():
    with pytest.raises(PayloadTooLargeError):
        encode_data("a" * PAYLOAD_LIMIT, compression="gzip")


@pytest.mark.parametrize("encode", [encode_result, lambda value: encode_json("progress", value)])
def test_results_and_progress_have_the_limit_too(encode):
    with pytest.raises(PayloadTooLargeError):
        encode("a" * PAYLOAD_LIMIT)


def test_unpacked_data_can_fill_the_limit():
    value = "a" * (PAYLOAD_LIMIT - 2)
    assert decode_data(encode_data(value, compression="gzip")) == value


@given(st.text(), st.binary())
def test_broken_data_raises_nothing_else(text, packed):
    for stored in (text, "gz:" + text, "gz:" + base64.b64encode(packed).decode()):
        with suppress(SerializationError):
            decode_data(stored)


# -- serializers --------------------------------------------------------------------------------------------


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


def test_unserializable_data_is_rejected_by_name():
    with pytest.raises(SerializationError, match=r"option 'data' = .*: at data\.when: objects of type set"):
        encode_data({"when": {1}})
    with pytest.raises(SerializationError, match="option 'result'"):
        encode_result(object())


@pytest.mark.parametrize("serializer", [JSON_SERIALIZER, Failing(), Pickled()])
def test_no_result_is_null_for_every_serializer(serializer):
    assert encode_result(None, serializer) == "null"
    assert decode_result("null", serializer) is None


def test_results_come_back_and_are_never_compressed():
    text = encode_result(SAMPLE)
    assert text == encode_data(SAMPLE)
    assert decode_result(text) == SAMPLE
    assert decode_result(encode_result(SAMPLE, Pickled()), Pickled()) == SAMPLE
