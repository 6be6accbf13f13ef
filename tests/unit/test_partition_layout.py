"""The layout of a partitioned queue: slots, names, routing and ids."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py._core.names import partition_home, validate_job_id, validate_queue_name
from glidemq_py.errors import GlideMQValidationError
from tests.inside import (
    MAX_PARTITIONS,
    Partition,
    hash_slot,
    layout,
    partition_id,
    partition_names,
    partition_of_key,
    partition_slots,
    split_partition_id,
)

THREE_PRIMARIES = (range(5_461), range(5_461, 10_923), range(10_923, 16_384))
"""The ranges that `valkey-cli --cluster create` assigns."""


def test_slots_are_those_of_the_cluster_specification():
    assert [hash_slot(tag) for tag in ("123456789", "foo", "somekey")] == [0x31C3, 12182, 11058]


@pytest.mark.parametrize("count", [3, 4, 6, 8, 16])
def test_every_primary_has_its_share_for_every_name(count: int):
    for first in range(16_384):
        slots = partition_slots(first, count)
        assert slots[0] == first
        shares = [sum(slot in primary for slot in slots) for primary in THREE_PRIMARIES]
        assert sum(shares) == count
        # 4 and 16 leave one over; partition 0 may be on the other side of a border.
        assert max(shares) - min(shares) <= (0 if count % 3 == 0 else 2)
        assert min(shares) >= (count - 1) // 3


def test_names_hash_to_the_slots_of_the_layout():
    for at in range(20):
        names = partition_names(f"emails-{at}", 8)
        assert names[0] == f"emails-{at}"
        assert tuple(map(hash_slot, names)) == partition_slots(hash_slot(names[0]), 8)


def test_the_name_of_a_partition_contains_that_of_its_queue():
    assert {partition_home(name) for name in partition_names("mail", 8)[1:]} == {"mail"}
    assert [partition_home(name) for name in ("mail", "~p~0abc", "mail~p~0ab", "mail~p~0abcd")] == [None] * 4


def test_all_partitions_of_the_largest_queue_are_in_different_slots():
    names = partition_names("emails", MAX_PARTITIONS)
    assert len({hash_slot(name) for name in names}) == MAX_PARTITIONS
    assert [validate_queue_name(name) for name in names] == list(names)


def test_a_plain_queue_keeps_its_name():
    assert partition_names("emails", 1) == ("emails",)


@pytest.mark.parametrize(
    ("name", "partitions", "option"),
    [
        ("emails", 0, "partitions"),
        ("emails", MAX_PARTITIONS + 1, "partitions"),
        ("emails~p~0a1z", 2, "name"),
        ("e" * 250, 2, "name"),
        ("\U0001f4e7" * 125, 2, "name"),
        ("a:b", 2, "name"),
    ],
)
def test_invalid_layouts_are_rejected(name: str, partitions: int, option: str):
    with pytest.raises(GlideMQValidationError, match=option):
        partition_names(name, partitions)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 256])
def test_keys_are_spread_evenly(count: int):
    keys = 400 * count
    jobs = Counter(partition_of_key(f"tenant-{at}", count) for at in range(keys))
    assert set(jobs) == set(range(count))
    assert min(jobs.values()) > 300


@given(st.integers(0, MAX_PARTITIONS - 1), st.text(min_size=1) | st.from_regex(r"[0-9]{1,4}\|\|.+", fullmatch=True))
def test_ids_name_exactly_one_job(partition: int, job_id: str):
    assert split_partition_id(partition_id(partition, job_id)) == (partition, job_id)


def test_ids_of_partition_0_are_those_of_the_plain_queue():
    assert partition_id(0, "17") == "17"
    assert partition_id(3, "17") == "3||17"
    assert partition_id(0, "3||17") == "0||3||17"
    assert layout.split_partition_id("0||3||17") == (0, "3||17")


OWN_IDS = st.one_of(st.from_regex(r"[0-9]{1,3}~?[0-9a-z~-]{0,4}", fullmatch=True), st.integers(1, 10**6).map(str))


@given(st.integers(0, MAX_PARTITIONS - 1), OWN_IDS, st.integers(0, MAX_PARTITIONS - 1), OWN_IDS)
def test_prefixes_of_ids_are_different(first: int, one: str, second: int, other: str):
    found, others = Partition(first, "q").id_prefix_of(one), Partition(second, "q").id_prefix_of(other)
    assert (found == others) == ((first, one) == (second, other))
    assert validate_job_id(f"{found}-1") == f"{found}-1"


def test_prefix_of_a_plain_id_is_the_id():
    assert [Partition(0, "q").id_prefix_of(own) for own in ("17", "order-7", "3-17", "3~17")] == [
        "17", "order-7", "3-17", "0~3~17",
    ]  # fmt: skip
    assert Partition(3, "q").id_prefix_of("17") == "3~17"
