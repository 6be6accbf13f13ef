"""Tests that rows packed by column are equal to rows of single adds."""

# ruff: noqa: E402  # what comes with an extra is looked for first
import itertools
import json
import random
from collections.abc import Sequence
from typing import Any, cast

import pytest

pytest.importorskip("pyspark", reason="comes with the extra `spark`")
pa: Any = pytest.importorskip("pyarrow", reason="comes with the extra `spark`")

from glidemq_py import JobOptions
from glidemq_py.errors import ColumnError
from glidemq_py.spark.encoding import PackedRows, RowEncoder, pack_rows, packed_texts
from glidemq_py.spark.options import WriteOptions
from glidemq_py.spark.sinks import Batches, Request, Together
from glidemq_py.spark.templates import TemplatePacker
from glidemq_py.spark.write_schema import WritePlan
from tests.inside import Row, request, stored_row, unpack

IDS = (None, "a", "7", 'ünï-"x"', "z" * 200)
DELAYS = (None, 0, 500)
KEYS = (None, "k")
BACKOFFS = (None, '{"type": "exponential", "delay": 9, "max_delay": 99}', "7")


class Sent:
    """Instead of a sink."""

    pieces: dict[str, int]
    counts: dict[str, tuple[int, int]]
    together = Together(rows=1_000, bytes=192 * 1024, requests=32)

    def __init__(self):
        self.calls: list[tuple[str, list[Any]]] = []

    def send(self, requests: Sequence[Request]):
        for queue, packed, count in requests:
            rows, quiet = unpack(packed)
            assert (quiet, len(rows)) == (True, count)
            self.calls.append((queue, rows))

    def finish(self):
        """Every call was answered."""

    def rows(self, queue: str) -> list[Any]:
        return [row for name, rows in self.calls if name == queue for row in rows]


def options(**given: Any) -> WriteOptions:
    return WriteOptions.parse({"queue": "q", "url": "valkey://localhost"} | given, streaming=False)


def sent(plan: WritePlan, write: WriteOptions, *batches: Any) -> Sent:
    sink: Any = Sent()
    collected, encoder = Batches(sink, write), RowEncoder(plan, write)
    for batch in batches:
        for queue, rows in encoder.encode(batch):
            collected.put(queue, rows)
    collected.end()
    assert collected.rows == sum(len(rows) for _, rows in sink.calls)
    return sink


def expected(name: str, data: str, write: WriteOptions, values: tuple[Any, ...]) -> Row:
    job_id, delay, key, backoff = values
    given = JobOptions(attempts=5, delay=delay, ordering=key, backoff=None if backoff is None else json.loads(backoff))
    given = JobOptions.merge(JobOptions.merge(write.defaults, given), JobOptions(job_id=job_id))
    return stored_row(name, data, given.to_wire_json(), given)


@pytest.mark.parametrize("defaults", [{}, {"backoff": '{"type": "exponential", "delay": 9}', "ttl": "5000"}])
def test_options_of_rows(defaults: dict[str, str]):
    write, values = options(attempts="5", **defaults), list(itertools.product(IDS, DELAYS, KEYS, BACKOFFS))
    names = [f"n{i % 3}" for i in range(len(values))]
    texts = [f'{{"i":{i},"é":"ü"}}' for i in range(len(values))]
    queues = [None if i % 4 else "other" for i in range(len(values))]
    kinds = (pa.string(), pa.int64(), pa.string(), pa.string())
    columns = [pa.array(column, kind) for column, kind in zip(zip(*values, strict=True), kinds, strict=True)]
    every = ["name", "data", "jobId", "delay", "orderingKey", "backoff", "queue"]
    batch = pa.RecordBatch.from_arrays([pa.array(names), pa.array(texts), *columns, pa.array(queues)], every)
    places = {name: place for place, name in enumerate(every) if name != "data"}
    plan = WritePlan(columns=places, data_kind="json", data_columns=((1, "data"),))
    found = sent(plan, write, batch)
    for queue, shown in (("q", None), ("other", "other")):
        rows = zip(names, texts, values, queues, strict=True)
        want = [expected(name, text, write, value) for name, text, value, at in rows if at == shown]
        assert found.rows(queue) == unpack_of(want)


def unpack_of(rows: list[Row]) -> list[Any]:
    """As they come back from MessagePack: tuples are lists."""
    return list(unpack(request(rows, True))[0])


def test_calls_depend_on_the_rows_only():
    rng = random.Random(5)
    texts = ['"' + "x" * rng.choice((0, 10, 300, 5_000)) + '"' for _ in range(3_000)]
    plan = WritePlan(columns={}, data_kind="json", data_columns=((0, "data"),))
    write = options(jobName="n", batchSize="40", maxBatchBytes="9000")
    seen: list[list[tuple[str, list[Any]]]] = []
    for size in (1, 7, 1_000, 3_000):
        batches = [pa.RecordBatch.from_arrays([pa.array(texts[i : i + size])], ["data"]) for i in range(0, 3_000, size)]
        seen.append(sent(plan, write, *batches).calls)
    assert all(calls == seen[0] for calls in seen)
    assert [row[1] for _, rows in seen[0] for row in rows] == texts
    assert max(len(rows) for _, rows in seen[0]) <= 40
    sizes = [sum(len(row[1]) for row in rows) for _, rows in seen[0]]
    assert max(sizes) <= 9_000
    assert sum(sizes[:-1]) > 3_000 * len(sizes[:-1])  # and are not sent far from full


def test_oversized_row_is_sent_alone():
    plan = WritePlan(columns={}, data_kind="json", data_columns=((0, "data"),))
    texts = ["1", '"' + "x" * 500 + '"', "2", "3"]
    batch = pa.RecordBatch.from_arrays([pa.array(texts)], ["data"])
    calls = sent(plan, options(jobName="n", maxBatchBytes="100"), batch).calls
    assert [[row[1] for row in rows] for _, rows in calls] == [["1"], [texts[1]], ["2", "3"]]


@pytest.mark.parametrize("kind", ["string", "large_string"])
def test_parts_of_columns(kind: str):
    whole = pa.array(["cut off", "ab", "", "é" * 70_000, "cut off"], getattr(pa, kind)())
    packed = PackedRows.of(pack_rows((b"\x91", *packed_texts(whole.slice(1, 3)))))
    assert len(packed) == 3
    assert [unpack(packed.copy(i, i + 1)) for i in range(3)] == [["ab"], [""], ["é" * 70_000]]
    assert unpack(packed.part(1, 2).copy(0, 1)) == [""]


@pytest.mark.parametrize(
    ("column", "values", "where"),
    [("name", ["a", "", "b"], 1_501), ("queue", ["a", "b:c", "b"], 1_501), ("data", ["1", "x", "2"], 1_501)],
)
def test_error_names_the_row_in_its_partition(column: str, values: list[str], where: int):
    many = {"data": ["1"] * 2_000} | {column: values[:1] * 1_500 + values[1:] + values[:1] * 498}
    batch = pa.RecordBatch.from_arrays([pa.array(each) for each in many.values()], list(many))
    places = {name: place for place, name in enumerate(many) if name != "data"}
    plan = WritePlan(columns=places, data_kind="json", data_columns=((0, "data"),))
    with pytest.raises(ColumnError) as failure:
        sent(plan, options(jobName="n"), batch)
    assert failure.value.option == column or f"column '{column}'" in str(failure.value)
    assert f"{where:,}" in str(failure.value) or str(where) in str(failure.value)


VARIED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "jobId": (pa.string(), (None, "a", "7", 'ünï-"x"', "c0ffee", "9f", "1234567890123", "with space", "\\")),
    "delay": (pa.int32(), (None, 0, 1, 500, 2**31 - 1)),
    "priority": (pa.int16(), (None, 0, 1, 2047, 1777)),
    "attempts": (pa.int64(), (None, 2, 3)),
    "ttl": (pa.int64(), (None, 1, 10**11)),
    "orderingKey": (pa.string(), (None, "k", 'ünï-"x"', "customer 7", "\\n")),
    "deduplicationId": (pa.string(), (None, "d", 'ünï-"x"', "__")),
    "timeout": (pa.int32(), (None, 5, 9)),
    "backoff": (pa.string(), (None, "7", '{"type": "fixed", "delay": 3}')),
    "removeOnComplete": (pa.bool_(), (None, True, False)),
    "removeOnFail": (pa.int64(), (None, 0, 5)),
}
EXCLUSIVE: tuple[tuple[dict[str, tuple[Any, tuple[Any, ...]]], str], ...] = (
    ({"fairKey": (pa.string(), (None, *(f"tenant {n}" for n in range(150)), 'ünï-"x"', "__"))}, "orderingKey"),
    ({"rank": (pa.int32(), (None, 0, 1, 5, 2_047, 2_048, 1_000_000, -1, -1_000_000))}, "priority"),
)
"""Columns that replace another one of `VARIED`."""


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("defaults", [{}, {"delay": "77", "attempts": "4", "backoff": "9", "orderingKey": "default"}])
def test_rows_packed_by_column_equal_rows_packed_one_by_one(
    seed: int, defaults: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    rng, varied = random.Random(seed), dict(VARIED)
    if seed % 3:
        more, less = EXCLUSIVE[seed % 3 - 1]
        varied = {name: value for name, value in (varied | more).items() if name != less}
        defaults = {name: value for name, value in defaults.items() if name != less}
    names = rng.sample(sorted(varied), rng.randint(1, len(varied)))
    columns: list[Any] = [pa.array([str(n) for n in range(200)])]
    for name in names:
        kind, values = varied[name]
        some = rng.sample(values, rng.randint(1, len(values)))
        columns.append(pa.array([rng.choice(some) for _ in range(200)], kind))
    batch = pa.RecordBatch.from_arrays(columns, ["data", *names])
    plan = WritePlan(
        columns={name: i + 1 for i, name in enumerate(names)}, data_kind="json", data_columns=((0, "data"),)
    )
    write = options(jobName="n", **{"attempts": "2"} | defaults)
    packed: list[bool] = []
    pack = TemplatePacker.pack

    def watched(self: TemplatePacker, arrays: Any) -> Any:
        found = pack(self, arrays)
        packed.append(found is not None)
        return found

    monkeypatch.setattr(TemplatePacker, "pack", watched)
    by_column = sent(plan, write, batch).rows("q")
    assert packed == [True]
    monkeypatch.setattr(TemplatePacker, "pack", lambda self, arrays: None)
    assert by_column == sent(plan, write, batch).rows("q")


def test_every_mix_of_absent_zero_and_given_options_is_packed_by_column(monkeypatch: pytest.MonkeyPatch):
    values = list(itertools.product((None, 0, 5), (None, 0, 9), (None, 3), (None, "id"), (None, "key")))
    rows = [(delay, priority, ttl, job_id and f"{job_id}-{n}", key) for n, (delay, priority, ttl, job_id, key) in
            enumerate(values)]  # fmt: skip
    names = ["delay", "priority", "ttl", "jobId", "orderingKey"]
    columns = [pa.array(["1"] * len(rows)), *map(pa.array, zip(*rows, strict=True))]
    batch = pa.RecordBatch.from_arrays(columns, ["data", *names])
    plan = WritePlan(
        columns={name: i + 1 for i, name in enumerate(names)}, data_kind="json", data_columns=((0, "data"),)
    )
    monkeypatch.setattr(RowEncoder, "_tail_of", None)
    by_column = sent(plan, options(jobName="n"), batch).rows("q")
    monkeypatch.undo()
    monkeypatch.setattr(TemplatePacker, "pack", lambda self, arrays: None)
    assert by_column == sent(plan, options(jobName="n"), batch).rows("q")


@pytest.mark.parametrize(
    ("column", "value"),
    [("jobId", ""), ("jobId", "007"), ("jobId", "a:b"), ("jobId", "x" * 257), ("jobId", "a\u0001"), ("delay", -1),
     ("delay", 2**50), ("priority", 2048), ("ttl", 0), ("ttl", -5), ("orderingKey", ""), ("orderingKey", "__"),
     ("orderingKey", "k" * 257), ("fairKey", ""), ("fairKey", "k" * 257), ("rank", 1_000_001), ("attempts", -1),
     ("deduplicationId", ""), ("deduplicationId", "x" * 257), ("timeout", -1)],
)  # fmt: skip
def test_invalid_value_of_a_packed_column_names_its_row(column: str, value: Any):
    values = [None, 5, 7, value, 6] if isinstance(value, int) else [None, "a", "b", value, "c"]
    batch = pa.RecordBatch.from_arrays([pa.array(["1"] * 5), pa.array(values)], ["data", column])
    plan = WritePlan(columns={column: 1}, data_kind="json", data_columns=((0, "data"),))
    with pytest.raises(ColumnError, match=rf"{column}.*row 4\b|row 4\b.*{column}"):
        sent(plan, options(jobName="n"), batch)


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [("backoff", "1s", "'backoff', row 2 .* = '1s': must be JSON: ms, or"), ("backoff", -1, "'backoff', row 2 .* = -1"),
     ("backoff", '{"type": "fixed", "delay": 1, "max_delay": -1}', "'backoff.max_delay', row 2 .* = -1"),
     ("backoff", '{"maxDelay": 1}', "'backoff.maxDelay', row 2 .*did you mean 'backoff.max_delay'"),
     ("removeOnFail", '{"age": -1}', "'removeOnFail.age', row 2 .* = -1"),
     ("removeOnComplete", "all", "'removeOnComplete', row 2 .* = 'all': must be JSON: a number, true")],
)  # fmt: skip
def test_invalid_json_of_a_column_names_its_row(column: str, value: Any, problem: str):
    batch = pa.RecordBatch.from_arrays([pa.array(["1", "1"]), pa.array([None, value])], ["data", column])
    plan = WritePlan(columns={column: 1}, data_kind="json", data_columns=((0, "data"),))
    with pytest.raises(ColumnError, match=f"column {problem}"):
        sent(plan, options(jobName="n", attempts="3"), batch)


def test_too_many_queues_fail_before_a_row_of_their_batch_is_sent():
    plan = WritePlan(columns={"queue": 1}, data_kind="json", data_columns=((0, "data"),))
    names = [f"q{n % 1_050}" for n in range(9_000)]
    batch = pa.RecordBatch.from_arrays([pa.array(["1"] * len(names)), pa.array(names)], ["d", "queue"])
    write, sink = options(jobName="n", queue="home", batchSize="2"), cast(Any, Sent())
    collected, encoder = Batches(sink, write), RowEncoder(plan, write)

    def put():
        for queue, rows in encoder.encode(batch):
            collected.put(queue, rows)

    with pytest.raises(ColumnError, match=r"'queue', row 1001 .*'q1000'.*a write can use 1,000 queues"):
        put()
    assert sink.calls == []
    within = batch.filter(pa.array([int(name[1:]) < 1_000 for name in names]))
    assert len({queue for queue, _ in sent(plan, write, within).calls}) == 1_000
