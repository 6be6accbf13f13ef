"""Frames, values and queue names of the gateway's protocol."""

import contextlib
import uuid
from datetime import UTC, datetime
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py.gateway.commands import COMMANDS
from glidemq_py.gateway.frames import FrameReader
from glidemq_py.gateway.ids import MAX_QUEUES, IdMaker, queue_number
from glidemq_py.gateway.names import QueueNameError, engine_name, wire_name
from glidemq_py.gateway.table import CommandError, Field, Kind, check_field, check_fields
from glidemq_py.gateway.values import MAX_DEPTH, UNDEFINED, InvalidValueError, frame_of, value_of
from tools.generate_gateway import PAGE, page


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


def answer(value: Any) -> Any:
    frame = frame_of(value)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return msgpack.unpackb(frame[4:], strict_map_key=False, timestamp=3)


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(min_value=1, max_value=50))
def test_frames_do_not_depend_on_the_pieces(payloads: list[bytes], size: int) -> None:
    data = b"".join(len(each).to_bytes(4, "big") + each for each in payloads)
    reader = FrameReader()
    found = [each for start in range(0, len(data), size) for each in reader.feed(data[start : start + size])]
    assert found == payloads
    assert not reader.has_partial


def test_frame_of_the_largest_size_is_read() -> None:
    reader = FrameReader(limit=10)
    assert reader.feed(b"\0\0\0\x0a" + b"x" * 10) == [b"x" * 10]
    assert reader.feed(b"\0\0\0\x01a\0\0\0\x0b" + b"x") == [b"a"]
    assert reader.oversized == 11
    assert reader.feed(b"\0\0\0\x01a") == []


@given(st.binary(max_size=100))
def test_any_bytes_are_a_value_or_rejected(payload: bytes) -> None:
    try:
        value = value_of(payload)
    except InvalidValueError:
        return
    answer(value)


def test_undefined_is_absent_in_maps_and_null_in_lists() -> None:
    undefined = msgpack.ExtType(0, b"\0")
    packed = msgpack.packb({"a": undefined, "b": [undefined, 1], "c": None})
    assert value_of(packed) == {"b": [None, 1], "c": None}
    assert value_of(msgpack.packb(undefined)) is None
    assert answer({"id": UNDEFINED}) == {"id": undefined}


def test_depth_is_limited() -> None:
    value = value_of(nested(MAX_DEPTH))
    assert isinstance(value, list)
    with pytest.raises(InvalidValueError, match="deeper"):
        value_of(nested(MAX_DEPTH + 1))
    assert len(value_of(b"\xdc\x01\x2c" + b"\x90" * 300)) == 300


def test_elements_are_limited() -> None:
    longest = b"\xdd\x00\x0f\x42\x40" + b"\xc0" * 1_000_000
    assert len(value_of(longest)) == 1_000_000
    with pytest.raises(InvalidValueError, match="elements"):
        value_of(b"\x92" + longest + longest)


@pytest.mark.parametrize("value", [2**31, -(2**31), 2**32 - 1, 0, -1])
def test_integers_of_32_bits_stay_integers(value: int) -> None:
    assert type(answer(value)) is int
    assert answer(value) == value


@pytest.mark.parametrize("value", [2**32, -(2**31) - 1, 1_700_000_000_000, 2**70])
def test_larger_integers_are_floats(value: int) -> None:
    assert answer({"at": [value]}) == {"at": [float(value)]}
    assert type(answer(value)) is float


def test_integers_beyond_floats_are_infinite() -> None:
    assert answer([10**400, -(10**400)]) == [float("inf"), float("-inf")]


def test_dates_bytes_and_maps_survive() -> None:
    value = {
        "date": datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC),
        "bytes": b"\0\xff",
        "map": {1: "a", 2.5: [True]},
    }
    assert value_of(frame_of(value)[4:]) == value


def test_text_that_is_not_unicode_is_replaced() -> None:
    assert answer("a\ud800") == "a?"


@pytest.mark.parametrize("name", ["a", "a:b", "50%", "a%3Ab", "%25", "%253A", "::", "a%3ab"])
def test_queue_names_are_reversible(name: str) -> None:
    assert wire_name(engine_name(name)) == name


@given(st.text(alphabet=":%235Aa", min_size=1, max_size=12), st.text(alphabet=":%235Aa", min_size=1, max_size=12))
def test_names_of_different_queues_differ(first: str, second: str) -> None:
    assert (engine_name(first) == engine_name(second)) == (first == second)
    assert wire_name(engine_name(first)) == first


@pytest.mark.parametrize("name", ["", "a" * 257, ":" * 100, "{a}", "a*", "a\n"])
def test_names_that_no_queue_can_have(name: str) -> None:
    with pytest.raises(QueueNameError):
        engine_name(name)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        (Field("delay", Kind.NUMBER), "1", "delay must be a number"),
        (Field("delay", Kind.NUMBER), True, "delay must be a number"),
        (Field("delay", Kind.NUMBER), float("nan"), "delay must be a finite number"),
        (Field("delay", Kind.NUMBER, minimum=0), -1, "delay must be at least 0"),
        (Field("timeout", Kind.NUMBER, maximum=60_000), 60_001, "timeout must be at most 60000"),
        (Field("priority", Kind.INTEGER), 1.5, "priority must be an integer"),
        (Field("id", required=True), None, "id is required"),
        (Field("id"), 5, "id must be a string"),
        (Field("id", maximum=2), "abc", "id must be at most 2 characters"),
        (Field("lifo", Kind.FLAG), 1, "lifo must be a boolean"),
        (Field("ids", Kind.TEXTS), "a", "ids must be a list"),
        (Field("ids", Kind.TEXTS), ["a", 1], r"ids\[1\] must be a string"),
        (Field("jobs", Kind.LIST), {}, "jobs must be a list"),
        (Field("dedup", Kind.MAP), [], "dedup must be a map"),
        (Field("queue", Kind.STRICT_QUEUE), "a b", "Queue name contains invalid characters"),
        (Field("queue", Kind.STRICT_QUEUE), None, "Queue name is required"),
    ],
)
def test_invalid_field_is_named(field: Field, value: Any, error: str) -> None:
    with pytest.raises(CommandError, match=error):
        check_field(field, value)


@given(
    st.sampled_from(sorted(COMMANDS)),
    st.dictionaries(
        st.sampled_from(["queue", "token", "id", "data", "count"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.none()) | st.binary(),
    ),
)
def test_any_fields_are_accepted_or_rejected(name: str, fields: dict[str, Any]) -> None:
    """The fuzzer of the table: no field of any type raises another error."""
    names = {field.name for field in COMMANDS[name].fields}
    with contextlib.suppress(CommandError):
        assert set(check_fields(COMMANDS[name], fields)) == names


def test_table_of_the_documentation_is_current() -> None:
    text = PAGE.read_text()
    assert text == page(text), "run: python -m tools.generate_gateway"


# -- ids of jobs that the gateway makes ------------------------------------------------------------


@given(st.integers(min_value=0, max_value=MAX_QUEUES - 1), st.integers(min_value=0, max_value=2**48 - 2))
def test_id_is_a_uuid_with_time_and_queue(queue: int, now: int) -> None:
    made = IdMaker(lambda: now).make(queue)
    read = uuid.UUID(made)
    assert str(read) == made
    assert read.version == 7
    assert read.variant == uuid.RFC_4122
    assert queue_number(made) == queue
    assert read.int >> 80 == now


def test_ids_ascend_within_a_millisecond_and_when_the_clock_is_set_back() -> None:
    times = iter([5_000] * 5_000 + [4_000] * 5_000 + [9_000])
    maker = IdMaker(lambda: next(times))
    made = [maker.make(number % 3) for number in range(10_001)]
    assert made == sorted(set(made))


def test_makers_differ() -> None:
    made = [IdMaker(lambda: 1).make(1) for _ in range(1_000)]
    assert len(set(made)) == 1_000


@pytest.mark.parametrize(
    "other",
    ["", "17", "orders:17", "0190163d-8694-739b-aea5-966c26f8ad9", "0190163D-8694-739B-AEA5-966C26F8AD91",
     "0190163d-8694-439b-aea5-966c26f8ad91", "\u0660190163d-8694-739b-aea5-966c26f8ad91"],
)  # fmt: skip
def test_other_texts_have_no_queue(other: str) -> None:
    assert queue_number(other) is None


def test_few_uuids_of_clients_are_taken_for_ids_of_the_gateway() -> None:
    made = IdMaker(lambda: 1_700_000_000_000).make(7)
    taken = [queue_number(f"{made[:-8]}{number:08x}") is not None for number in range(4_096)]
    assert 0 < sum(taken) < 100  # 16 are expected
