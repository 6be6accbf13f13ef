"""Spark writes and reads jobs of a queue with its own serializer, beside workers and queues in Python."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.spark.options import WriteOptions
from glidemq_py.spark.read_options import ReadOptions
from glidemq_py.spark.serializers import read_data, stored_data
from tests.server.worker_support import EventRecorder
from tests.spark.conftest import Written
from tests.spark.encrypting import Encrypted
from tests.spark.queries import Query

ENCRYPTED = "tests.spark.encrypting:Encrypted"


async def double(job: Job) -> dict[str, int] | None:
    return {"n": 2 * job.data["n"]} if job.data else None


@pytest.mark.parametrize("compression", ["none", "gzip"])
async def test_encrypted_jobs_are_written_completed_and_read(
    spark: Any, sink: Callable[..., Any], source: Callable[..., Any], written: Written, url: str, queue_name: str,
    compression: str,
):  # fmt: skip
    sink(spark.range(3).selectExpr("id as n"), serializer=ENCRYPTED, compression=compression).save()
    assert not any("{" in text for text in written.data)
    serializer = Encrypted()
    async with Queue(queue_name, url, serializer=serializer, compression="gzip") as queue:
        await queue.add("n", None)
        worker = Worker(queue_name, double, url, serializer=serializer)
        recorded = EventRecorder(worker)
        async with worker:
            await recorded.wait("completed", 4)

    rows = source(serializer=ENCRYPTED, state="completed", columns="data,returnvalue").load().collect()
    assert sorted((row.data, row.returnvalue) for row in rows) == [
        ("null", "null"), ('{"n":0}', '{"n":0}'), ('{"n":1}', '{"n":2}'), ('{"n":2}', '{"n":4}'),
    ]  # fmt: skip
    (stored, *_) = source(state="completed", columns="returnvalue").load().where("returnvalue <> 'null'").collect()
    assert "{" not in stored.returnvalue


async def test_results_are_streamed(spark: Any, sink: Callable[..., Any], url: str, queue_name: str, tmp_path: Any):
    sink(spark.range(3).selectExpr("id as n"), serializer=ENCRYPTED).save()
    async with Worker(queue_name, lambda job: job.data["n"], url, serializer=Encrypted()) as worker:
        await worker.drain()
    options = {"url": url, "queue": queue_name, "state": "completed", "serializer": ENCRYPTED}
    query = Query(spark, tmp_path, "data string, returnvalue string", **options)
    query.run()
    found = {(row.data, row.returnvalue) for row in query.rows()}
    assert found == {('{"n":0}', "0"), ('{"n":1}', "1"), ('{"n":2}', "2")}


async def test_jobs_of_other_serializers_are_read_as_stored(
    source: Callable[..., Any], url: str, queue_name: str, sink: Callable[..., Any], spark: Any
):
    async with Queue(queue_name, url) as queue:
        await queue.add("plain", {"n": 1})
    sink(spark.range(1).selectExpr("id as n"), serializer="msgpack").save()
    async with Queue(queue_name, url) as queue:
        jobs = await queue.get_jobs("waiting")
        assert sorted(job.data["n"] for job in jobs) == [0, 1]  # a JSON queue reads MessagePack too

    texts = [row.data for row in source(serializer=ENCRYPTED, columns="data").load().collect()]
    assert sorted(text[:3] for text in texts) == ["mp:", '{"n']
    found = [json.loads(row.data) for row in source(serializer="msgpack", columns="data").load().collect()]
    assert sorted(value["n"] for value in found) == [0, 1]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("pickle", "'serializer' = 'pickle': must be json, msgpack or module:attribute"),
        ("no_such_module:x", "could not be loaded by a Python process of Spark: ModuleNotFoundError"),
        ("tests.spark.encrypting:Encryptd", "could not be loaded .*AttributeError.*Encryptd"),
        ("tests.spark.encrypting:NOT_ONE", "could not be loaded .*not callable"),
        (
            "builtins:dict",
            "'serializer' = 'builtins:dict': must be module:attribute of an object with .* not of a dict",
        ),
        ("os:getcwd", "'serializer' = 'os:getcwd': must be .* not of a str"),
    ],
)
def test_an_option_that_names_no_serializer_is_rejected(name: str, problem: str):
    given = {"queue": "q", "url": "valkey://localhost", "serializer": name}
    with pytest.raises(GlideMQValidationError, match=problem):
        WriteOptions.parse(given, streaming=False)
    with pytest.raises(GlideMQValidationError, match=problem):
        ReadOptions.parse(given, streaming=True)
    assert WriteOptions.parse(given | {"serializer": ENCRYPTED}, streaming=False).serializer == ENCRYPTED


@pytest.mark.parametrize("number", ["1e400", "-1E+0999", "1" * 310 + ".5", "1" * 305 + "e9"])
def test_a_number_beyond_the_range_of_a_float_is_rejected(number: str):
    """It would come back as infinity, which is not JSON."""
    with pytest.raises(GlideMQValidationError, match=r"'data' = .*: contains the number -?1.*out of the range"):
        stored_data(f'{{"n":[{number}]}}', "msgpack", "none", "data")
    text = f'{{"n":"{number}","m":1e300,"k":{"7" * 30}.5}}'
    assert read_data(stored_data(text, "msgpack", "none", "data"), "msgpack").startswith(f'{{"n":"{number}","m":1e')
