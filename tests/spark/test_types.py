"""Tests that every Spark type is stored as exact JSON, and read back as it was."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from glidemq_py.testing import RespClient
from tests.spark.conftest import Written

TYPES = {
    "boolean": ("true", "boolean", "true"),
    "tinyint": ("-128Y", "tinyint", "-128"),
    "smallint": ("32767S", "smallint", "32767"),
    "int": ("-2147483648", "int", "-2147483648"),
    "bigint": ("9223372036854775807L", "bigint", "9223372036854775807"),
    "float": ("cast(0.1 as float)", "float", "0.1"),
    "double": ("cast(0.1 as double) + 0.2D", "double", "0.30000000000000004"),
    "whole_double": ("7D", "double", "7.0"),
    "nan": ("double('NaN')", "double", '"NaN"'),
    "infinity": ("float('-Infinity')", "float", '"-Infinity"'),
    "decimal": (
        "cast('1234567890123456789012345678.9012345678' as decimal(38,10))", "decimal(38,10)",
        '"1234567890123456789012345678.9012345678"',
    ),
    "small_decimal": ("cast('0.00000001' as decimal(38,8))", "decimal(38,8)", '"1E-8"'),
    "string": ("concat('quote \" ', unhex('0A'), ' ünï 😀')", "string", '"quote \\" \\n ünï 😀"'),
    "varchar": ("cast('abc' as varchar(5))", "string", '"abc"'),
    "binary": ("X'00FF10'", "binary", '"AP8Q"'),
    "date": ("date'0001-01-01'", "date", '"0001-01-01"'),
    "timestamp": ("timestamp'2026-01-02 03:04:05.123456 Asia/Tokyo'", "timestamp", '"2026-01-01T18:04:05.123456Z"'),
    "timestamp_ntz": (
        "timestamp_ntz'2026-01-02 03:04:05.000001'", "timestamp_ntz", '"2026-01-02T03:04:05.000001"'
    ),
    "absent": ("cast(null as int)", "int", "null"),
    "struct": (
        "named_struct('a', cast(null as string), 'at', timestamp'2026-01-02 03:04:05.000001')",
        "struct<a:string,at:timestamp>", '{"a":null,"at":"2026-01-02T03:04:05.000001Z"}',
    ),
    "array": ("array(1.10, null, 2.25)", "array<decimal(3,2)>", '["1.10",null,"2.25"]'),
    "empty_array": ("cast(array() as array<int>)", "array<int>", "[]"),
    "map": (
        "map('k\"', array(date'2026-01-02'), 'n', null)", "map<string,array<date>>",
        '{"k\\"":["2026-01-02"],"n":null}',
    ),
}  # fmt: skip
"""SQL of a value, its type, and the JSON that is stored."""


@pytest.fixture(scope="module")
def stored(spark: Any, server: Any, resp_of_module: RespClient) -> tuple[Any, str]:
    """The frame with a value of each type, and the data that is stored for it."""
    frame = spark.range(1).selectExpr(*(f"{value} as {name}" for name, (value, _, _) in TYPES.items()))
    frame.write.format("glidemq").mode("append").options(
        url=server.url, queue="types", jobName="n", nonFinite="string"
    ).save()
    (data,) = Written(resp_of_module, "types").data
    return frame, data


@pytest.fixture(scope="module")
def resp_of_module(server: Any) -> Any:
    """Return a client that lives as long as the module."""
    with RespClient.from_url(server.url) as client:
        yield client


@pytest.mark.parametrize("name", TYPES)
def test_type(spark: Any, stored: tuple[Any, str], name: str):
    frame, data = stored
    assert f'"{name}":{TYPES[name][2]}' in data
    assert json.loads(data)[name] == json.loads(TYPES[name][2])
    read = spark.createDataFrame([(data,)], "data string").selectExpr(
        f"from_json(data, '`{name}` {TYPES[name][1]}').`{name}` as found"
    )
    both = read.crossJoin(frame.selectExpr(f"`{name}` as given"))
    texts = both.selectExpr("cast(found as string) as found", "cast(given as string) as given").first()
    assert texts.found == texts.given
    if "map" not in TYPES[name][1]:
        assert both.selectExpr("found <=> given as equal").first().equal, texts


def test_frame_is_read_back_with_its_schema(spark: Any, sink: Callable[..., Any], source: Callable[..., Any]):
    from pyspark.sql import functions as F  # noqa: N812  # the usual name

    frame = spark.range(300).selectExpr(
        "id", "timestamp_micros(id * 1234567) as at", "cast(id / 7 as decimal(20,10)) as price",
        "if(id % 3 = 0, null, 'n') as note", "id / 7 as ratio", "struct(id, id * 2 as twice) as both",
    )  # fmt: skip
    sink(frame).save()
    read = source().load().select(F.from_json("data", frame.schema).alias("row")).select("row.*")
    assert sorted(read.collect()) == sorted(frame.collect())
