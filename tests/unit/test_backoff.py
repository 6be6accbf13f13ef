"""Backoff: what may be written, and the formula of docs/learn/retries.md#backoff."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glidemq_py import Backoff, JobOptions
from glidemq_py.errors import GlideMQValidationError, UnknownOptionError
from tests.inside import MAX_DURATION_MS, read_stored_options


@pytest.mark.parametrize(
    ("given_value", "expected"),
    [
        (1000, Backoff("fixed", 1000)),
        (0, Backoff("fixed", 0)),
        (timedelta(seconds=2), Backoff("fixed", 2000)),
        ({"type": "exponential", "delay": 50}, Backoff("exponential", 50)),
        (
            {"type": "exponential", "delay": timedelta(seconds=1), "jitter": 1},
            Backoff("exponential", 1000, jitter=1.0),
        ),
        ({"type": "fixed", "delay": 5, "jitter": None, "max_delay": 9}, Backoff("fixed", 5, max_delay=9)),
        ({"type": "by-the-moon"}, Backoff("by-the-moon")),
        (Backoff("fixed", 1), Backoff("fixed", 1)),
    ],
)
def test_valid_backoff_forms(given_value, expected):
    assert Backoff.parse("backoff", given_value) == expected


@pytest.mark.parametrize(
    ("value", "option"),
    [
        (True, "backoff"),
        (1.5, "backoff"),
        ("exponential", "backoff"),
        (-1, "backoff"),
        ([], "backoff"),
        ({}, "backoff"),
        ({"delay": 5}, "backoff"),
        ({"type": "fixed"}, "backoff"),
        ({"type": "", "delay": 5}, "backoff.type"),
        ({"type": 3, "delay": 5}, "backoff.type"),
        ({"type": "fixed", "delay": -5}, "backoff.delay"),
        ({"type": "fixed", "delay": 1.0}, "backoff.delay"),
        ({"type": "fixed", "delay": 5, "jitter": 1.1}, "backoff.jitter"),
        ({"type": "fixed", "delay": 5, "jitter": float("nan")}, "backoff.jitter"),
        ({"type": "fixed", "delay": 5, "jitter": True}, "backoff.jitter"),
        ({"type": "fixed", "delay": 5, "jitter": "0.5"}, "backoff.jitter"),
        ({"type": "fixed", "delay": 5, "max_delay": 4}, "backoff.max_delay"),
        ({1: 2}, "backoff"),
    ],
)
def test_invalid_backoff_is_rejected(value, option):
    with pytest.raises(GlideMQValidationError) as caught:
        Backoff.parse("backoff", value)
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("kind", "meant"),
    [("exponetial", "exponential"), ("Exponential", "exponential"), ("fixd", "fixed"), ("FIXED", "fixed")],
)
def test_a_misspelled_type_is_rejected_with_its_spelling(kind, meant):
    with pytest.raises(GlideMQValidationError, match=f"did you mean '{meant}'") as caught:
        JobOptions.parse({"attempts": 3, "backoff": {"type": kind, "delay": 10}})
    assert (caught.value.option, caught.value.value) == ("backoff.type", kind)
    with pytest.raises(GlideMQValidationError, match=f"did you mean '{meant}'"):
        Backoff(kind, 10)


@pytest.mark.parametrize("kind", ["exponential2", "my-exponential", "fixed2", "expo", "linear", "steps"])
def test_the_name_of_a_strategy_is_accepted(kind):
    assert Backoff.parse("backoff", {"type": kind}).type == kind


def test_a_misspelled_type_that_another_client_has_stored_keeps_its_delay():
    stored = read_stored_options('{"attempts": 3, "backoff": {"type": "exponetial", "delay": 10}}').backoff
    assert stored is not None
    assert (stored.type, stored.delay) == ("exponetial", 10)


@pytest.mark.parametrize("name", ["maxDelay", "max_dela", "maxdelay"])
def test_unknown_part_is_rejected_with_a_suggestion(name):
    with pytest.raises(UnknownOptionError, match=r"did you mean 'backoff.max_delay'"):
        Backoff.parse("backoff", {"type": "fixed", "delay": 5, name: 9})


@pytest.mark.parametrize(("attempts_made", "expected"), [(0, 50), (1, 50), (2, 100), (3, 200), (10, 25_600)])
def test_exponential(attempts_made, expected):
    assert Backoff("exponential", 50).compute(attempts_made) == expected


@pytest.mark.parametrize("kind", ["fixed", "by-the-moon"])
def test_fixed_and_unknown_types_do_not_grow(kind):
    assert [Backoff(kind, 50).compute(n) for n in (1, 2, 9)] == [50, 50, 50]


def test_jitter_adds_a_share_and_rounds():
    backoff = Backoff("fixed", 101, jitter=0.5)
    assert backoff.compute(1, lambda: 0.0) == 101
    assert backoff.compute(1, lambda: 0.5) == 126  # 101 + 25.25
    assert backoff.compute(1, lambda: 0.99) == 151  # 101 + 49.995


@given(
    st.sampled_from(["fixed", "exponential"]),
    st.integers(0, MAX_DURATION_MS),
    st.floats(0, 1),
    st.integers(0, 1_000_000),
    st.floats(0, 1, exclude_max=True),
)
def test_every_delay_is_an_int_within_bounds(kind, delay, jitter, attempts_made, draw):
    value = Backoff(kind, delay, jitter=jitter).compute(attempts_made, lambda: draw)
    assert type(value) is int
    assert delay <= value <= MAX_DURATION_MS


def test_max_delay_bounds_jitter_too():
    assert Backoff("exponential", 1000, jitter=1.0, max_delay=5000).compute(9, lambda: 0.9) == 5000


def test_wire_form_has_the_given_values():
    assert Backoff("fixed", 50).to_wire() == {"type": "fixed", "delay": 50}
    full = Backoff("exponential", 50, jitter=0.25, max_delay=900)
    assert full.to_wire() == {"type": "exponential", "delay": 50, "jitter": 0.25, "maxDelay": 900}
