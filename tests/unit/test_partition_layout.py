"""The layout of a partitioned queue: slots, names, routing and ids."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py import JobOptions, Queue
from glidemq_py._api.delegation import _OWN
from glidemq_py._api.partitioned import (
    _BY_ID,
    _BY_KEY,
    _COUNTED,
    _IN_TURN,
    _OF_FIRST,
    _SETTINGS,
    _SUMMED,
    PartitionedQueue,
)
from glidemq_py._core.names import partition_home, validate_job_id, validate_queue_name
from glidemq_py._partitions.routing import candidates, routing_key
from glidemq_py.errors import GlideMQError, GlideMQValidationError, UnsupportedFeatureError
from tests.inside import (
    MAX_PARTITIONS,
    Layout,
    Partition,
    hash_slot,
    layout,
    layout_text,
    parse_layout,
    partition_id,
    partition_names,
    partition_of_key,
    partition_slots,
    shares,
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


# -- routing of jobs to partitions, stored layouts, shares of limits, and the weights of a ---------


ROOT = Path(__file__).resolve().parents[2] / "glidemq_py"

EIGHT = Layout(1, partition_names("q", 8))


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({}, None),
        ({"ordering": {"key": "a"}}, "a"),
        ({"fair_key": "b"}, "b"),
        ({"deduplication": {"id": "c"}}, "c"),
        ({"job_id": "d"}, "d"),
        ({"job_id": "a", "ordering": {"key": "a"}}, "a"),
        ({"parent": {"queue": "q", "id": "1"}, "depends_on": ["1"]}, None),
    ],
)
def test_the_routing_key_of_a_job(options: Any, key: str | None):
    assert routing_key(JobOptions.parse(options)) == key


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"ordering": {"key": "a"}, "job_id": "b"}, "job_id"),
        ({"fair_key": "a", "deduplication": {"id": "b"}}, "deduplication"),
    ],
)
def test_options_that_a_partitioned_queue_rejects(options: Any, option: str):
    with pytest.raises(GlideMQValidationError) as raised:
        routing_key(JobOptions.parse(options))
    assert raised.value.option == option


def test_numbers_are_no_custom_ids():
    with pytest.raises(GlideMQValidationError) as raised:
        routing_key(JobOptions(job_id="17"))
    assert (raised.value.option, raised.value.value) == ("job_id", "17")


@given(st.integers(0, 7), st.text(min_size=1, max_size=9))
def test_an_id_leads_to_its_partition(number: int, own: str):
    shown = Partition(number, "q").id_of(own)
    found = candidates(shown, EIGHT)
    assert (number, own) in found
    if number:
        assert found == [(number, own)]


def test_where_an_id_without_a_partition_may_be():
    assert candidates("17", EIGHT) == [(0, "17")]
    assert candidates("9||x", EIGHT) == [(0, "9||x")]
    hashed = partition_of_key("order-7", 8)
    assert candidates("order-7", EIGHT) == ([(hashed, "order-7"), (0, "order-7")] if hashed else [(0, "order-7")])


def test_a_layout_is_read_as_it_was_written():
    layout = Layout(7, ("q", "q~p~aaaa", "q~p~bbbb"))
    assert parse_layout("q", layout_text(layout)) == layout


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"version":1}', '{"version":1,"names":["q"]}', '{"version":1,"names":["x","y"]}',
        '{"version":1,"names":["q","q"]}', '{"version":1,"names":["q",7]}', '{"version":1,"names":["q","{"]}',
        '{"version":"2","number":1,"counts":[2],"names":["q","r"]}',
        *(
            f'{{"version":2,"number":{number},"counts":{counts},"names":{names}}}'
            for number, counts, names in (
                (0, [2], '["q","r"]'), (1, [], '["q","r"]'), (1, [3], '["q","r"]'), (1, 2, '["q","r"]'),
                (1, [2], '["q","q"]'), (1, [2], '["q",7]'), (1, [2], '["q"]'), (1, [2], '["r","q"]'),
            )
        ),
    ],
)  # fmt: skip
def test_a_damaged_layout_is_rejected(text: str):
    with pytest.raises(GlideMQError, match="damaged"):
        parse_layout("q", text)


def test_a_later_layout_is_rejected():
    with pytest.raises(UnsupportedFeatureError):
        parse_layout("q", '{"version":3}')


@given(st.integers(1, 256), st.integers(0, 10_000))
def test_shares_add_up(partitions: int, total: int):
    if 0 < total < partitions:
        with pytest.raises(GlideMQValidationError):
            shares("n", total, partitions)
        return
    found = shares("n", total, partitions)
    assert sum(found) == total
    assert max(found) - min(found) <= 1
    assert not total or min(found) >= 1


_WRONG = re.compile(r"\.keys\.(?:meta, |\w+\()(?:self|job|run\.job)\.id\b")
_OTHER_IDS = ("_features/job_batches/batch.py", "_features/flows/plan.py")
"""Files whose `self.id` or `job.id` is not that of a `Job`."""


def test_server_calls_contain_the_stored_ids_of_jobs():
    # `Job.id` names the partition; the keys and calls of a partition know only the job's own id.
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("_job", "_features", "_worker", "_maintenance")
        for path in (ROOT / folder).rglob("*.py")
        if not str(path).endswith(_OTHER_IDS)
        for line in path.read_text(encoding="utf-8").splitlines()
        if _WRONG.search(line)
    ]
    assert found == []


def test_every_method_of_a_queue_supports_partitions():
    alone = {"stream", "lease", "iter_fair_keys"}
    routed = {*_BY_ID, *_BY_KEY, *_SETTINGS, *_OF_FIRST, *_SUMMED, *_COUNTED, *_IN_TURN, *alone}
    methods = {name for name, each in vars(Queue).items() if hasattr(each, "__wrapped__") and not name.startswith("_")}
    assert len(methods) > 50
    assert {name for name in methods - routed if not hasattr(PartitionedQueue, name)} <= _OWN
