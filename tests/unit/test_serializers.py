"""Serializers and compression, wherever data and results are written; the payload limit, wherever anything is."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from glidemq_py import (
    JSON_SERIALIZER,
    MSGPACK_SERIALIZER,
    GlideMQValidationError,
    Job,
    Queue,
    Worker,
)

WHEN = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


async def echo(job: Job):
    return job.data


# -- the values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -(2**63), 2**64 - 1, 1.5, "", "ö\U0001f600", b"", b"\x00\xff", [], [1, [2]], {},
        {"a": {"b": None}}, {1: "int", b"k": 2, None: 3}, WHEN, [WHEN, b"x"],
    ],
    ids=repr,
)  # fmt: skip
def test_msgpack_round_trip(value: Any):
    text = MSGPACK_SERIALIZER.serialize(value)
    assert text.isascii()
    assert text.startswith("mp:")
    assert MSGPACK_SERIALIZER.deserialize(text) == value


def test_msgpack_accepts_all_json_values():
    identifier = UUID(int=7)
    assert MSGPACK_SERIALIZER.deserialize(MSGPACK_SERIALIZER.serialize({"id": identifier})) == {"id": str(identifier)}


def test_msgpack_returns_naive_times_and_composed_keys():
    value = {"at": datetime(2026, 1, 2), (1, (2, b"k")): [datetime(2026, 1, 2)]}  # noqa: DTZ001
    assert MSGPACK_SERIALIZER.deserialize(MSGPACK_SERIALIZER.serialize(value)) == value


def test_msgpack_reads_json_too():
    assert MSGPACK_SERIALIZER.deserialize('{"a":[1]}') == {"a": [1]}


def test_names_mean_ours():
    assert Queue("q", serializer="json").options.serializer == "json"
    with pytest.raises(GlideMQValidationError, match="did you mean 'msgpack'"):
        Queue("q", serializer="msgpck")  # type: ignore[arg-type]
    with pytest.raises(GlideMQValidationError, match="must have the methods"):
        Worker("q", echo, serializer=object())  # type: ignore[arg-type]


# -- everywhere --------------------------------------------------------------------------------------------


def test_json_is_the_default():
    assert JSON_SERIALIZER.deserialize(JSON_SERIALIZER.serialize({"a": 1})) == {"a": 1}
