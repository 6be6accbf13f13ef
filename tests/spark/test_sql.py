"""Tests of views, tables and INSERT in SQL."""

from typing import Any

import pytest

from tests.spark.conftest import Written


@pytest.fixture
def options(url: str, queue_name: str) -> str:
    return f"OPTIONS (url '{url}', queue '{queue_name}')"


@pytest.mark.parametrize(
    ("view", "insert", "expected"),
    [
        ("(name STRING, data STRING)", "INTO jobs SELECT 'n', '1'", ("n", "1")),
        ("(name STRING, data STRING)", "INTO jobs (data, name) SELECT '1', 'n'", ("n", "1")),
        ("(name STRING, data STRING)", "INTO jobs VALUES ('n', '1')", ("n", "1")),
        ("", "INTO jobs (name, data) SELECT 'n', '1'", ("n", "1")),
        ("", "INTO jobs (data, priority, name) VALUES ('1', 3, 'n')", ("n", "1")),
    ],
)
def test_insert_into_a_view(spark: Any, options: str, written: Written, view: str, insert: str, expected: Any):
    """With and without columns of the view, and of the statement."""
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW jobs {view} USING glidemq {options}")
    spark.sql(f"INSERT {insert}")
    assert [(row.name, row.data) for row in spark.sql("SELECT name, data FROM jobs").collect()] == [expected]


def test_columns_of_a_view_by_option(spark: Any, options: str, written: Written):
    columns = options.replace(")", ", columns 'name,data', jobName 'sql')")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW jobs USING glidemq {columns}")
    spark.sql("INSERT INTO jobs SELECT 'n', '1'")
    spark.sql("INSERT INTO jobs (data) SELECT '2'")
    assert sorted((job["name"], job["data"]) for job in written.jobs) == [("n", "1"), ("sql", "2")]


@pytest.mark.parametrize(
    ("insert", "problem"),
    [
        ("INTO jobs SELECT 'n', '1'", "not enough data columns"),
        (
            "INTO jobs (name, data, id) VALUES ('n', '1', '7')",
            "'id', row 1 of .* = '7': must be null: the queue",
        ),
    ],
)
def test_insert_without_columns_is_rejected(spark: Any, options: str, written: Written, insert: str, problem: str):
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW jobs USING glidemq {options}")
    with pytest.raises(Exception, match=problem):
        spark.sql(f"INSERT {insert}")
    assert not written.ids


def test_tables_get_their_options_in_each_statement(spark: Any, options: str, written: Written, url: str):
    """Spark passes a Python data source none of the options of CREATE TABLE: the errors say what to use."""
    table, given = written.queue.replace("-", "_"), f"WITH (url = '{url}', queue = '{written.queue}')"
    spark.sql(f"CREATE TABLE {table} (name STRING, data STRING) USING glidemq {options}")
    try:
        for statement in (f"SELECT * FROM {table}", f"INSERT INTO {table} SELECT 'n', '1'"):
            with pytest.raises(Exception, match=r"'queue' = None: is required.*CREATE TEMPORARY VIEW.* WITH \(queue"):
                spark.sql(statement).collect()
        spark.sql(f"INSERT INTO {table} {given} SELECT 'n', '1'")
        found = spark.sql(f"SELECT * FROM {table} {given}").collect()
        assert [tuple(row) for row in found] == [("n", "1")]
        frame = spark.createDataFrame([("m", "2")], "name string, data string")
        frame.writeTo(table).option("url", url).option("queue", written.queue).append()
        assert spark.read.options(url=url, queue=written.queue).table(table).count() == 2
    finally:
        spark.sql(f"DROP TABLE {table}")


def test_create_table_without_columns(spark: Any, options: str, written: Written, url: str):
    """Here Spark passes the options, and the properties of the table: options that would be lost are rejected."""
    table = written.queue.replace("-", "_")
    with pytest.raises(Exception, match=r"option '(url|queue)' = .*: of a table has no effect.*CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE {table} USING glidemq {options}")
    spark.sql(f"CREATE TABLE {table} USING glidemq")
    try:
        assert spark.sql(f"SELECT * FROM {table} WITH (url = '{url}', queue = '{written.queue}')").count() == 0
    finally:
        spark.sql(f"DROP TABLE {table}")


@pytest.mark.parametrize("partitions", [1, 2])
def test_more_than_a_thousand_queues_leave_nothing(spark: Any, sink: Any, written: Written, resp: Any, partitions: int):
    """Too many in one task, which then sends nothing; or in all tasks together, which the server counts."""
    base = written.queue
    frame = spark.range(0, 1_100, numPartitions=partitions).selectExpr(f"concat('{base}-', id) as queue", "'1' as data")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
    try:
        with pytest.raises(Exception, match=r"(a write can use|writes to more than) 1,000 queues"):
            sink(frame).save()
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    left = [key for key in resp.keys(f"glide:{{{base}-*") if resp.execute("TYPE", key) != "hash"]
    assert not [key for key in left if "write" not in key]  # no job
    if partitions == 1:
        assert not resp.keys(f"glide:{{{base}-*")
    assert not written.ids
