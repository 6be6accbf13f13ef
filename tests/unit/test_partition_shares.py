"""The shares that partitions get in the concurrency of their queue."""

import random

import pytest

from glidemq_py._features.partitions.shares import UNLIMITED, PartitionLoad, filled, lacks_share, wanted_shares


def wanted(limit: int, *needs: int, turn: int = 0) -> list[int]:
    return wanted_shares(limit, [PartitionLoad(0, 0, need) for need in needs], turn)


@pytest.mark.parametrize(
    ("levels", "caps", "room", "expected"),
    [
        ([], [], 3, []),
        ([0, 0, 0], [9, 9, 9], 7, [3, 2, 2]),
        ([5, 0, 1], [9, 9, 9], 3, [5, 2, 2]),
        ([0, 0, 0], [1, 9, 2], 100, [1, 9, 2]),
        ([4, 4], [4, 4], 3, [4, 4]),
        ([0] * 256, [2**31] * 256, 2**31, [2**31 // 256] * 256),
    ],
)
def test_room_goes_to_the_lowest_level(levels: list[int], caps: list[int], room: int, expected: list[int]):
    assert filled(levels, caps, room) == expected


def test_without_jobs_the_shares_are_equal():
    assert wanted(10, 0, 0, 0, 0) == [3, 3, 2, 2]


def test_a_busy_partition_gets_what_the_others_do_not_use():
    assert wanted(8, 0, 50, 0, 0, 0, 0, 0, 0) == [1, 7, 0, 0, 0, 0, 0, 0]
    assert wanted(8, 50, 0, 0, 0, 0, 0, 0, 0) == [8, 0, 0, 0, 0, 0, 0, 0]
    assert wanted(80, 0, 500, 0, 0, 0, 0, 0, 0) == [1, 73, 1, 1, 1, 1, 1, 1], "a large limit leaves one slot to each"


def test_busy_partitions_get_equal_shares_up_to_what_they_need():
    assert wanted(80, 500, 500, 3, 500) == [26, 26, 3, 25]


def test_a_limit_below_the_number_of_busy_partitions_goes_round():
    turns = [wanted(2, 5, 5, 5, turn=turn) for turn in range(4)]
    assert turns == [[1, 1, 0], [1, 0, 1], [1, 1, 0], [1, 0, 1]]


def test_any_loads_use_the_limit_exactly():
    dice = random.Random(5)
    for _ in range(2_000):
        count = dice.randint(1, 20)
        limit = dice.randint(1, 200)
        loads = [
            PartitionLoad(dice.randint(0, limit), dice.randint(0, 20), dice.choice([0, 0, 1, 300]))
            for _ in range(count)
        ]
        found = wanted_shares(limit, loads, dice.randint(0, 10))
        assert sum(found) <= limit
        assert sum(found) == limit or limit < count
        assert found[0] >= 1, "Node peers of partition 0 would read 0 as no limit"
        if limit >= count:
            assert all(share >= 1 for share, load in zip(found, loads, strict=True) if load.active + load.ready)


def test_only_ready_jobs_beyond_the_share_lack_one():
    assert lacks_share(PartitionLoad(3, 3, 1))
    assert not lacks_share(PartitionLoad(3, 1, 2))
    assert not lacks_share(PartitionLoad(3, 5, 0)), "jobs that run beyond a lowered share need none"
    assert not lacks_share(PartitionLoad(UNLIMITED, 5, 5))
