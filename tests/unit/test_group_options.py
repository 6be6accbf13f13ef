"""Options for groups, limits and deduplication: accepted and rejected values, wire form."""

import json
from datetime import timedelta
from typing import Any

import pytest

from glidemq_py import Deduplication, GlideMQValidationError, JobOptions, Ordering, RateLimit, TokenBucket
from glidemq_py._core.limits import millitokens
from tests.inside import read_stored_options, row


@pytest.mark.parametrize(("tokens", "wire"), [
    (1, 1000), (0.001, 1), (0.0005, 1), (1.2345, 1235), (2.5, 2500), (10**9, 10**12),
])  # fmt: skip
def test_tokens_are_counted_in_thousandths_halves_up(tokens: float, wire: int):
    assert millitokens(tokens) == wire


@pytest.mark.parametrize("given", ["k", {"key": "k"}, Ordering("k")])
def test_a_group_is_its_key(given: Any):
    options = JobOptions(ordering=given)
    assert options.ordering == Ordering("k")
    assert options.to_wire() == {"ordering": {"key": "k"}}
    assert Ordering("k").to_row(None) == ["k"]
    assert Ordering("k").to_row(0.5) == ["k", 0, 0, 0, 0, 0, 500]


def test_a_group_with_everything():
    options = JobOptions.parse({
        "ordering": {
            "key": "k", "concurrency": 3, "rate_limit": {"max": 5, "duration": timedelta(seconds=1)},
            "token_bucket": {"capacity": 2.5, "refill_rate": 0.5},
        },
        "cost": 1.5,
    })  # fmt: skip
    assert options.ordering == Ordering(
        "k", concurrency=3, rate_limit=RateLimit(5, 1000), token_bucket=TokenBucket(2.5, 0.5)
    )
    assert json.loads(options.to_wire_json()) == {
        "ordering": {
            "key": "k", "concurrency": 3, "rateLimit": {"max": 5, "duration": 1000},
            "tokenBucket": {"capacity": 2.5, "refillRate": 0.5},
        },
        "cost": 1.5,
    }  # fmt: skip
    assert options.ordering.to_row(1.5) == ["k", 3, 5, 1000, 2500, 500, 1500]
    assert read_stored_options(options.to_wire_json()) == options


@pytest.mark.parametrize(("ordering", "option"), [
    ("", "ordering.key"), ("__", "ordering.key"), ("x" * 257, "ordering.key"), ({}, "ordering"), (7, "ordering"),
    ({"key": "k", "concurrency": 0}, "ordering.concurrency"),
    ({"key": "k", "concurrency": True}, "ordering.concurrency"),
    ({"key": "k", "rate_limit": {"max": 1}}, "ordering.rate_limit"),
    ({"key": "k", "rate_limit": {"max": 0, "duration": 1}}, "ordering.rate_limit.max"),
    ({"key": "k", "rate_limit": 5}, "ordering.rate_limit"),
    ({"key": "k", "token_bucket": {"capacity": 0, "refill_rate": 1}}, "ordering.token_bucket.capacity"),
    ({"key": "k", "token_bucket": {"capacity": 1, "refill_rate": float("inf")}}, "ordering.token_bucket.refill_rate"),
    ({"key": "k", "tokenBucket": {}}, "ordering.tokenBucket"),
])  # fmt: skip
def test_invalid_group_is_rejected(ordering: Any, option: str):
    with pytest.raises(GlideMQValidationError) as caught:
        JobOptions(ordering=ordering)
    assert caught.value.option == option


@pytest.mark.parametrize("cost", [0, -1, 0.0001, float("nan"), float("inf"), "1", True, 10**10])
def test_invalid_cost_is_rejected(cost: Any):
    with pytest.raises(GlideMQValidationError, match="cost"):
        JobOptions(ordering="k", cost=cost)


def test_lifo_and_a_group_exclude_one_another_wherever_they_come_from():
    with pytest.raises(GlideMQValidationError, match="lifo"):
        JobOptions(ordering="k", lifo=True)
    with pytest.raises(GlideMQValidationError, match="lifo"):
        JobOptions.merge(JobOptions(ordering="k"), JobOptions(lifo=True))
    assert read_stored_options('{"ordering":{"key":"k"},"lifo":true}') == JobOptions(ordering="k")


@pytest.mark.parametrize(("given", "wire"), [
    ({"id": "d"}, {"id": "d", "mode": "simple"}),
    ({"id": "d", "ttl": 60_000}, {"id": "d", "mode": "simple", "ttl": 60_000}),
    ({"id": "d", "mode": "throttle", "ttl": timedelta(seconds=2)}, {"id": "d", "mode": "throttle", "ttl": 2000}),
    (Deduplication("d", 5, "debounce"), {"id": "d", "mode": "debounce", "ttl": 5}),
])  # fmt: skip
def test_deduplication(given: Any, wire: Any):
    options = JobOptions(deduplication=given)
    assert options.to_wire() == {"deduplication": wire}
    assert options.deduplication is not None
    assert options.deduplication.to_row() == [wire["id"], wire.get("ttl", 0), wire["mode"]]
    assert read_stored_options(options.to_wire_json()) == options


@pytest.mark.parametrize("stored", [
    '{"ordering":{"key":7}}', '{"ordering":[]}', '{"ordering":{"key":"k","rateLimit":{"max":-1,"duration":1}}}',
    '{"deduplication":{"mode":"simple"}}', '{"cost":"dear"}',
])  # fmt: skip
def test_stored_junk_counts_as_not_given(stored: str):
    assert read_stored_options(stored) == JobOptions()


def test_rows_are_trimmed_and_mark_missing_values():
    head: Any = ["a", "null", "{}", ""]
    assert row(*head, ordering=["k"]) == [*head, False, 0, False, 0, 0, False, ["k"]]  # type: ignore[misc]
    assert row(*head, deduplication=["d"]) == [*head, False, 0, False, 0, 0, False, False, ["d"]]  # type: ignore[misc]
    assert row(*head, delay=5, ordering=["k"]) == [*head, 5, 0, 0, 0, 0, False, ["k"]]  # type: ignore[misc]
    assert row(*head, ttl=5, deduplication=["d"]) == [*head, 0, 0, 0, 0, 5, False, False, ["d"]]  # type: ignore[misc]
