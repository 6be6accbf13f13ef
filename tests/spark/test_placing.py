"""Partitions chosen by the column are those that single adds choose."""

# ruff: noqa: E402  # what comes with an extra is looked for first
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="comes with the extra `spark`")
pa: Any = pytest.importorskip("pyarrow", reason="comes with the extra `spark`")

from glidemq_py import JobOptions
from glidemq_py.errors import ColumnError, GlideMQValidationError
from glidemq_py.spark.encoding import RowEncoder
from glidemq_py.spark.options import WriteOptions
from glidemq_py.spark.placing import Placer
from glidemq_py.spark.write_schema import WritePlan
from tests.inside import Layout, partition_names, partition_of_key, routing, stored_row, unpack

OPTION_OF = {"jobId": "job_id", "orderingKey": "ordering", "fairKey": "fair_key"}
COLUMNS = ("queue", *OPTION_OF, "deduplicationId")
NAMES = {name: partition_names(name, 64) for name in ("q", "p")}

keys = st.sampled_from(["a", "order-7", "Zürich", "北京", "\U0001f4e7" * 9, 'quo"ted\\', "7x"]) | st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=':{}*?[]"'), min_size=1, max_size=9
).filter(lambda key: not key.isdigit() and key == key.strip())


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    """Options of a row: one key in one or more of them, or none."""
    kinds = draw(st.sets(st.sampled_from(COLUMNS[1:])))
    if "orderingKey" in kinds:
        kinds = kinds - {"fairKey"}
    return {"queue": draw(st.sampled_from([None, "q", "p", "plain"]))} | dict.fromkeys(kinds, draw(keys))


def options_of(row: Mapping[str, Any], defaults: JobOptions) -> JobOptions:
    own: dict[str, Any] = {option: row[name] for name, option in OPTION_OF.items() if row.get(name) is not None}
    if "deduplicationId" in row:
        own["deduplication"] = {"id": row["deduplicationId"]}
    return JobOptions.of_job(defaults, JobOptions.parse(own))


def layouts_of(counts: Mapping[str, int]) -> dict[str, Layout | None]:
    """Return layouts; None for a queue without partitions."""
    return {name: Layout(5, NAMES[name][:count]) if count > 1 else None for name, count in counts.items()} | {
        "plain": None
    }


def encoded(table: list[dict[str, Any]], layouts: Mapping[str, Layout | None], turn: int, **given: str) -> Any:
    write = WriteOptions.parse({"queue": "q", "url": "valkey://localhost", "jobName": "n"} | given, streaming=False)
    texts = pa.array([str(n) for n in range(len(table))])
    columns = [pa.array([row.get(name) for row in table], pa.string()) for name in COLUMNS]
    batch = pa.RecordBatch.from_arrays([texts, *columns], ["data", *COLUMNS])
    places = {name: at for at, name in enumerate(COLUMNS, 1)}
    plan = WritePlan(columns=places, data_kind="json", data_columns=((0, "data"),))
    found: dict[str, list[Any]] = defaultdict(list)
    placer = Placer(lambda names: {name: layouts[name] for name in names}, turn)
    for queue, packed in RowEncoder(plan, write, placer).encode(batch):
        for n in range(len(packed)):
            found[queue].append(unpack(packed.copy(n, n + 1)))
    return found


@settings(deadline=None)
@given(
    st.lists(rows(), min_size=1, max_size=80),
    st.fixed_dictionaries({name: st.integers(1, 64) for name in NAMES}),
    st.integers(0, 99),
    st.sampled_from([{}, {"orderingKey": "of-all"}]),
)
def test_rows_go_where_single_adds_go(
    table: list[dict[str, Any]], counts: dict[str, int], turn: int, given: dict[str, str]
):
    layouts = layouts_of(counts)
    defaults = JobOptions(ordering=given["orderingKey"]) if given else JobOptions()
    wanted: dict[str, list[Any]] = defaultdict(list)
    problems: list[Exception] = []
    for n, row in enumerate(table):
        queue = row["queue"] or "q"
        layout = layouts[queue] or Layout(0, (queue,))
        try:
            options = options_of(row, defaults)
            key = routing.routing_key(options) if layout.partitions > 1 else None
        except GlideMQValidationError as error:
            problems.append(error)
            continue
        number = partition_of_key(key, layout.partitions) if key is not None else turn % layout.partitions
        wanted[layout.names[number]].append(list(stored_row("n", str(n), options.to_wire_json(), options)))
    if problems:
        with pytest.raises(ColumnError):
            encoded(table, layouts, turn, **given)
        return
    found = encoded(table, layouts, turn, **given)
    assert found == wanted


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"jobId": "17"}, "column 'jobId', row 3 of its partition = '17': must not be a number"),
        (
            {"jobId": "a", "orderingKey": "b"},
            "column 'jobId', row 3 of its partition = 'a': must equal orderingKey ('b')",
        ),
        (
            {"fairKey": "a", "deduplicationId": "b"},
            "column 'deduplicationId', row 3 of its partition = 'b': must equal fairKey ('a')",
        ),
    ],
)
def test_an_error_names_the_row(row: dict[str, Any], problem: str):
    layouts = layouts_of({"q": 3, "p": 1})
    table = [{"queue": "plain"} | row, {"queue": "p"} | row, {"queue": "q"} | row]
    assert sum(map(len, encoded(table[:2], layouts, 0).values())) == 2  # allowed without partitions
    with pytest.raises(ColumnError) as raised:
        encoded(table, layouts, 0)
    assert problem in str(raised.value)
