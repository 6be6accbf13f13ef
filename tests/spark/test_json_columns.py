"""Tests that Arrow columns become exact JSON. They need neither Java nor a server."""

# ruff: noqa: E402  # what comes with an extra is looked for first
import base64
import json
import math
import random
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="comes with the extra `spark`")
pa: Any = pytest.importorskip("pyarrow", reason="comes with the extra `spark`")

from glidemq_py.errors import ColumnError, PayloadTooLargeError
from glidemq_py.spark.encoding import RowEncoder
from glidemq_py.spark.json_columns import JsonColumns
from glidemq_py.spark.write_schema import WritePlan
from tests.spark.test_encoding import options, sent

BERLIN = timezone(timedelta(hours=1))
AWKWARD = ["", "plain", 'quote " and \\ slash', "line\nfeed\r\ttab", "\x00\x01\x1f\x7f", "ünï 😀 \u2028", "null", "{}"]
LEAVES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "boolean": (pa.bool_(), [True, False], [True, False]),
    "tinyint": (pa.int8(), [-128, 127], [-128, 127]),
    "bigint": (pa.int64(), [-(2**63), 0, 2**63 - 1], [-(2**63), 0, 2**63 - 1]),
    "double": (
        pa.float64(),
        [0.0, 1.0, -2.0, 0.1, 1e20, 1e-7, 5e-324, 1.7976931348623157e308, 123456789.123456789],
        [0.0, 1.0, -2.0, 0.1, 1e20, 1e-7, 5e-324, 1.7976931348623157e308, 123456789.123456789],
    ),
    "decimal": (
        pa.decimal128(38, 8),
        [Decimal("1.10000000"), Decimal("-123456789012345678901234567890.12345678")],
        ["1.10000000", "-123456789012345678901234567890.12345678"],
    ),
    "string": (pa.string(), AWKWARD, AWKWARD),
    "large string": (pa.large_string(), AWKWARD, AWKWARD),
    "binary": (pa.binary(), [b"", b"\x00\xff\xfe"], ["", base64.b64encode(b"\x00\xff\xfe").decode()]),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)], ["0001-01-01", "9999-12-31"]),
    "timestamp": (
        pa.timestamp("us", "Europe/Berlin"),
        [datetime(2026, 1, 2, 3, 4, 5, 123456, BERLIN), datetime(1905, 1, 1, 0, 0, 0, 1, UTC)],
        ["2026-01-02T02:04:05.123456Z", "1905-01-01T00:00:00.000001Z"],
    ),
    "timestamp_ntz": (pa.timestamp("us"), [datetime.fromisoformat("2026-01-02")], ["2026-01-02T00:00:00.000000"]),
    "time": (pa.time64("us"), [time(1, 2, 3, 4)], ["01:02:03.000004"]),
}  # fmt: skip


def read(texts: Any) -> list[Any]:
    return [json.loads(text) for text in texts.to_pylist()]


@pytest.mark.parametrize("kind", LEAVES)
def test_value_is_exact(kind: str):
    arrow, values, expected = LEAVES[kind]
    array = pa.array([*values, None, *values], arrow)
    assert read(JsonColumns().texts(array)) == [*expected, None, *expected]
    assert read(JsonColumns().texts(array.slice(len(values)))) == [None, *expected]
    assert all(type(one) is type(other) for one, other in zip(read(JsonColumns().texts(array)), expected, strict=False))


def test_float_is_the_shortest_text_of_a_float():
    array = pa.array([0.1, 16777216.0, 3.4028235e38, -0.0], pa.float32())
    texts = JsonColumns().texts(array)
    assert texts.to_pylist() == ["0.1", "16777216.0", "3.4028235e+38", "-0.0"]
    assert pa.array(read(texts), pa.float32()).equals(array)


def value_of(kind: Any, rng: random.Random) -> tuple[Any, Any]:
    """A random value of an Arrow type, and what a JSON reader returns for it."""
    if rng.random() < 0.2:
        return None, None
    if pa.types.is_struct(kind):
        fields = {kind.field(i).name: value_of(kind.field(i).type, rng) for i in range(kind.num_fields)}
        return {name: one for name, (one, _) in fields.items()}, {name: other for name, (_, other) in fields.items()}
    if pa.types.is_map(kind):
        found = {key: value_of(kind.item_type, rng) for key in rng.sample(AWKWARD, rng.randint(0, 3))}
        return [(key, one) for key, (one, _) in found.items()], {key: other for key, (_, other) in found.items()}
    if pa.types.is_list(kind):
        values = [value_of(kind.value_type, rng) for _ in range(rng.randint(0, 3))]
        return [one for one, _ in values], [other for _, other in values]
    _, values, expected = next(leaf for leaf in LEAVES.values() if leaf[0] == kind)
    at = rng.randrange(len(values))
    return values[at], expected[at]


def type_of(rng: random.Random, depth: int = 3) -> Any:
    shape = rng.choice(("leaf", "struct", "map", "list")) if depth else "leaf"
    if shape == "struct":
        return pa.struct([(f'f"{i}', type_of(rng, depth - 1)) for i in range(rng.randint(0, 3))])
    if shape == "map":
        return pa.map_(pa.string(), type_of(rng, depth - 1))
    if shape == "list":
        return pa.list_(type_of(rng, depth - 1))
    return rng.choice(list(LEAVES.values()))[0]


@pytest.mark.parametrize("seed", range(60))
def test_nested_values_are_exact(seed: int):
    rng = random.Random(seed)
    kind = type_of(rng)
    values = [value_of(kind, rng) for _ in range(50)]
    array = pa.array([one for one, _ in values], kind)
    assert read(JsonColumns().texts(array)) == [other for _, other in values]
    assert read(JsonColumns().texts(array.slice(7, 30))) == [other for _, other in values[7:37]]


def data_of(column: Any, **given: str) -> list[str]:
    write = options(jobName="n", **given)
    plan = WritePlan(columns={}, data_kind="object", data_columns=((0, "x"), (1, "i")))
    batch = pa.RecordBatch.from_arrays([column, pa.array(range(len(column)))], ["x", "i"])
    return [row[1] for row in sent(plan, write, batch).rows("q")]


def test_null_fields_are_kept():
    assert data_of(pa.array([None, "a"])) == ['{"x":null,"i":0}', '{"x":"a","i":1}']


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_numbers_that_are_not_finite(kind: Any):
    column = pa.array([1.5, math.nan, None, math.inf, -math.inf, 2.0], kind)
    assert [json.loads(text)["x"] for text in data_of(column)] == [1.5, None, None, None, None, 2.0]
    found = [json.loads(text)["x"] for text in data_of(column, nonFinite="string")]
    assert found == [1.5, "NaN", None, "Infinity", "-Infinity", 2.0]
    with pytest.raises(
        ColumnError, match=r"^column 'x', row 2 of its partition = nan: NaN and infinities are rejected"
    ):
        data_of(column, nonFinite="reject")


def test_not_finite_numbers_are_rejected_at_any_depth():
    column = pa.array(
        [[{"a": [1.0]}], None, [{"a": []}, {"a": [math.inf]}]], pa.list_(pa.struct([("a", pa.list_(pa.float64()))]))
    )
    with pytest.raises(ColumnError, match="row 3 of its partition") as error:
        data_of(column, nonFinite="reject")
    assert (error.value.option, error.value.row) == ("x", 3)
    assert json.loads(data_of(column)[2])["x"] == [{"a": []}, {"a": [None]}]


@pytest.mark.parametrize("place", ["data", "name", "orderingKey"])
def test_invalid_utf8_names_column_and_row(place: str):
    column = pa.array([b'"a"', b'"b"', b'"\xff"']).view(pa.string())
    others = pa.array(["1"] * 3)
    columns = {"data": others, "name": others, "orderingKey": others} | {place: column}
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    plan = WritePlan(columns={"name": 1, "orderingKey": 2}, data_kind="json", data_columns=((0, "data"),))
    with pytest.raises(ColumnError, match=rf"^column '{place}', row 3 .* is not valid UTF-8"):
        sent(plan, options(), batch)


def test_text_column_becomes_json_strings():
    plan = WritePlan(columns={}, data_kind="text", data_columns=((0, "data"),))
    batch = pa.RecordBatch.from_arrays([pa.array([*AWKWARD, None])], ["data"])
    rows = sent(plan, options(jobName="n"), batch).rows("q")
    assert [json.loads(row[1]) for row in rows] == [*AWKWARD, None]


def test_too_large_object_names_its_row():
    with pytest.raises((ColumnError, PayloadTooLargeError), match="row 2"):
        data_of(pa.array(["a", "x" * 1_100_000]))


def test_object_is_compressed():
    assert all(text.startswith("gz:") for text in data_of(pa.array(["a", "b"]), compression="gzip"))


def test_every_row_of_an_encoder_is_counted():
    encoder = RowEncoder(
        WritePlan(columns={}, data_kind="value", data_columns=((0, "data"),)), options(jobName="n", nonFinite="reject")
    )
    good = pa.RecordBatch.from_arrays([pa.array([1.0] * 2_500)], ["data"])
    bad = pa.RecordBatch.from_arrays([pa.array([1.0, math.nan])], ["data"])
    assert sum(len(rows) for _, rows in encoder.encode(good)) == 2_500
    with pytest.raises(ColumnError) as error:
        list(encoder.encode(bad))
    assert error.value.row == 2_502
