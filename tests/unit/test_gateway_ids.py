"""Ids of jobs that the gateway makes."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py.gateway.ids import MAX_QUEUES, IdMaker, queue_number


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
