"""The option `fallbacks`: accepted and rejected values, storing and reading."""

from typing import Any

import pytest

from glidemq_py import Fallback, GlideMQValidationError, JobOptions
from glidemq_py._core.fallbacks import read_fallbacks
from tests.inside import read_stored_options


def test_every_form_is_stored_as_peers_read_it():
    options = JobOptions(
        fallbacks=[
            "a", {"model": "b", "provider": "p"}, Fallback("c", metadata={"t": 0.5, "ü": [1]}),
        ]
    )  # fmt: skip
    assert options.to_wire_json() == (
        '{"fallbacks":[{"model":"a"},{"model":"b","provider":"p"},{"model":"c","metadata":{"t":0.5,"ü":[1]}}]}'
    )
    assert read_stored_options(options.to_wire_json()).fallbacks == options.fallbacks


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ("a", "fallbacks"), ({"model": "a"}, "fallbacks"), (5, "fallbacks"), (["a"] * 101, "fallbacks"),
        ([5], "fallbacks[0]"), (["a", ""], "fallbacks[1].model"), ([{}], "fallbacks[0]"),
        ([{"model": "a", "provider": 5}], "fallbacks[0].provider"),
        ([{"model": "a", "metadata": [1]}], "fallbacks[0].metadata"),
        ([{"model": "a", "metadata": {"x": object()}}], "fallbacks[0].metadata"),
        ([{"model": "a", "metadata": {"x": float("nan")}}], "fallbacks[0].metadata"),
        ([{"model": "a", "metadata": {"x": "y" * 70_000}}], "fallbacks[0].metadata"),
        ([{"model": "a", "metadata": {5: 1}}], "fallbacks[0].metadata"),
        ([{"model": "a", "modle": "b"}], "fallbacks[0].modle"),
    ],
)  # fmt: skip
def test_invalid_options_are_rejected(given: Any, option: str):
    with pytest.raises(GlideMQValidationError) as refused:
        JobOptions(fallbacks=given)
    assert refused.value.option == option


@pytest.mark.parametrize(
    ("stored", "models"),
    [
        (None, []), ("a", []), ({}, []), ([], []), ([{"model": "a"}, 5, {"model": "b"}], ["a"]),
        ([{"model": "a", "more": 1, "provider": None}], ["a"]), ([{"provider": "p"}], []),
    ],
)  # fmt: skip
def test_valid_part_of_a_peers_fallbacks_is_read(stored: Any, models: list[str]):
    assert [fallback.model for fallback in read_fallbacks(stored)] == models
