"""Routing of jobs to partitions, stored layouts, shares of limits, and the weights of a worker's partitions."""

import re
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
from glidemq_py._partitions.routing import candidates, routing_key
from glidemq_py.errors import GlideMQError, GlideMQValidationError, UnsupportedFeatureError
from tests.inside import Layout, Partition, layout_text, parse_layout, partition_names, partition_of_key, shares

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
