"""Frames, values and queue names of the gateway's protocol."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from glidemq_py.gateway.job_ids import MAX_QUEUES, IdMaker, queue_number
from glidemq_py.gateway.names import engine_name, wire_name
from glidemq_py.gateway.values import FrameReader
from tools.generate_gateway import PAGE, page


def test_frame_of_the_largest_size_is_read() -> None:
    reader = FrameReader(limit=10)
    assert reader.feed(b"\0\0\0\x0a" + b"x" * 10) == [b"x" * 10]
    assert reader.feed(b"\0\0\0\x01a\0\0\0\x0b" + b"x") == [b"a"]
    assert reader.oversized == 11
    assert reader.feed(b"\0\0\0\x01a") == []


@given(st.text(alphabet=":%235Aa", min_size=1, max_size=12), st.text(alphabet=":%235Aa", min_size=1, max_size=12))
def test_names_of_different_queues_differ(first: str, second: str) -> None:
    assert (engine_name(first) == engine_name(second)) == (first == second)
    assert wire_name(engine_name(first)) == first


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


def test_few_uuids_of_clients_are_taken_for_ids_of_the_gateway() -> None:
    made = IdMaker(lambda: 1_700_000_000_000).make(7)
    taken = [queue_number(f"{made[:-8]}{number:08x}") is not None for number in range(4_096)]
    assert 0 < sum(taken) < 100  # 16 are expected
