"""Malformed jobs and stream entries: discarded or failed with a reason; the worker continues."""

import base64
import gzip
from typing import Any

import pytest

from glidemq_py import Job, JobFailedError
from glidemq_py.testing import RespClient
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.server.worker_support import EventRecorder, WorkerFor


async def handle(job: Job):
    return job.data


async def still_works(queue: Queue, raw: Raw):
    """Check that a valid job completes, and nothing is left behind."""
    assert await queue.add_and_wait("good", "fine") == "fine"
    assert raw.pending() == []
    assert raw.run("XLEN", "stream") == 0
    assert (await queue.get_job_counts()).active == 0


@pytest.mark.parametrize("missing", ["name", "data", "opts"])
async def test_incomplete_job_record_fails(raw: Raw, queue: Queue, worker_for: WorkerFor, missing: str):
    raw.put_job("broken", **dict[str, Any]({missing: None}))
    async with worker_for(handle):
        await still_works(queue, raw)
        record = raw.job("broken")
        assert record["state"] == "failed"
        assert "malformed" in record["failedReason"]
        assert raw.event_names("broken") == ["failed"]
        assert raw.run("ZSCORE", "failed", "broken") is not None


async def test_entries_without_a_job_are_discarded(
    raw: Raw, queue: Queue, worker_for: WorkerFor, caplog: pytest.LogCaptureFixture
):
    raw.push(something="else")
    raw.push(jobId="nobody", name="n")
    raw.push(jobId="", name="n")
    raw.push(name="n", jobId="\x00\udcff odd")
    raw.run("SET", "job:text", "not a hash")
    raw.push(jobId="text", name="n")
    async with worker_for(handle):
        await still_works(queue, raw)
    for reason in ("without a job id", "is gone", "not a hash"):
        assert reason in caplog.text
    assert raw.run("ZCARD", "failed") == 0
    assert raw.run("GET", "job:text") == "not a hash"
    await queue.obliterate(force=True, scan=True)


@pytest.mark.parametrize("place", ["lifo", "priority", "scheduled"])
async def test_lists_and_sets_without_jobs(raw: Raw, queue: Queue, worker_for: WorkerFor, place: str):
    raw.run("SET", "job:text", "not a hash")
    for job_id in ("nobody", "text"):
        if place == "scheduled":
            raw.run("ZADD", place, 1, job_id)
            raw.run("ZADD", place, 3 * 2**42 + 1, f"{job_id}-urgent")
        else:
            raw.run("RPUSH", place, job_id)
    async with worker_for(handle):
        await still_works(queue, raw)
        assert raw.run("EXISTS", place) == 0
        assert raw.run("GET", "list-active") in (None, "0")
    await queue.obliterate(force=True, scan=True)


@pytest.mark.parametrize(
    "data",
    ["{", "", "nul", "\udcff\udcfe", "gz:", "gz:not base64!", "gz:" + base64.b64encode(b"not gzip").decode(),
     "gz:" + base64.b64encode(gzip.compress(b"{")).decode(),
     "gz:" + base64.b64encode(gzip.compress(b'"cut"')[:-6]).decode(),
     "gz:" + base64.b64encode(gzip.compress(b'"' + b"x" * 2_000_000 + b'"')).decode()],
    ids=["cut", "empty", "word", "bytes", "gz-empty", "gz-base64", "gz-zlib", "gz-json", "gz-cut", "gz-bomb"],
)  # fmt: skip
async def test_unreadable_data_fails_the_job_without_retries(raw: Raw, queue: Queue, worker_for: WorkerFor, data: str):
    raw.put_job("broken", data=data, opts='{"attempts":5}')
    async with worker_for(handle):
        job = await queue.get_job("broken")
        assert job is not None
        with pytest.raises(JobFailedError) as caught:
            await job.wait_until_finished()
        assert caught.value.failed_type == "JobDataError"
        assert raw.job("broken")["attemptsMade"] == "1"
        await still_works(queue, raw)


async def test_unreadable_data_is_ignored_if_not_accessed(raw: Raw, queue: Queue, worker_for: WorkerFor):
    async def ignore(job: Job) -> str:
        return "fine"

    raw.put_job("broken", data="{")
    async with worker_for(ignore):
        job = await queue.get_job("broken")
        assert job is not None
        assert await job.wait_until_finished() == "fine"


@pytest.mark.parametrize(
    "opts",
    ["", "{", "[]", "null", "7", '"x"', "[" * 50_000, '{"attempts":"many","timeout":-5,"backoff":7.5}',
     '{"attempts":1e999,"backoff":{"type":{},"delay":[]},"removeOnComplete":"yes","lockDuration":true}',
     '{"removeOnComplete":{"count":-1,"age":"old"},"priority":99999,"delay":-1,"ttl":0}',
     '{"attempts":' + "9" * 5_000 + "}", '{"unknown":1,"cost":{},"ordering":null}', "\udcff"],
    ids=range(13),
)  # fmt: skip
async def test_unreadable_options_are_ignored(raw: Raw, queue: Queue, worker_for: WorkerFor, opts: str):
    raw.put_job("odd", opts=opts, data='"data"')
    async with worker_for(handle):
        job = await queue.get_job("odd")
        assert job is not None
        assert await job.wait_until_finished() == "data"
        await still_works(queue, raw)


@pytest.mark.parametrize(
    "fields",
    [
        {"timestamp": "yesterday"}, {"timestamp": None}, {"attemptsMade": "few"}, {"attemptsMade": "-3"},
        {"attemptsMade": None}, {"priority": "high"}, {"delay": "x"}, {"progress": "{"}, {"stacktrace": "["},
        {"stacktrace": '{"a":1}'}, {"stacktrace": "[1,2]"}, {"fence": "x"}, {"fence": "-1"}, {"fence": "9" * 40},
        {"fence": "1.5"}, {"stalledCount": "x"}, {"expireAt": "never"}, {"expireAt": "0"}, {"processedOn": "x"},
        {"name": ""}, {"name": "\udcff\udcfe"}, {"id": "another"}, {"eid": "no entry"},
        {"timestamp": "9" * 400},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("end", ["completed", "failed"])
async def test_invalid_fields_do_not_stop_the_worker(
    raw: Raw, queue: Queue, worker_for: WorkerFor, fields: Any, end: str
):
    raw.put_job("odd", data='"data"', opts='{"attempts":2}', **fields)

    async def look(job: Job):
        assert isinstance(job.name, str)
        _ = job.progress, job.opts, job.timestamp, job.attempts_made, job.priority, job.stacktrace
        if end == "failed" and job.id == "odd":
            raise ValueError("on purpose")
        return job.data

    async with worker_for(look) as worker:
        recorded = EventRecorder(worker)
        await recorded.wait(end)
        await still_works(queue, raw)
        assert recorded.count["error"] == 0
    assert raw.state("odd") == end
    assert raw.event_names("odd").count(end) == 1


@pytest.mark.exclude("partitioned", reason="the entries are written to one part")
async def test_job_with_two_stream_entries_runs_once(raw: Raw, queue: Queue, worker_for: WorkerFor):
    job = await queue.add("n", "data")
    raw.push(jobId=job.id, name="n")
    raw.push(jobId=job.id, name="n")
    ran: list[str] = []

    async def note(job: Job):
        ran.append(job.id)
        return job.data

    async with worker_for(note, concurrency=3):
        assert await job.wait_until_finished() == "data"
        raw.push(jobId=job.id, name="n")
        await still_works(queue, raw)
    assert ran.count(job.id) == 1
    assert raw.event_names(job.id).count("completed") == 1


@pytest.mark.parametrize("key", ["events", "metrics:completed", "wake", "list-active", "list-active-ids", "workers"])
async def test_keys_of_a_wrong_type_do_not_stop_jobs(
    worker_for: WorkerFor, url: Any, raw: Raw, queue_name: str, key: str, key_leaks: Any
):
    if key in ("events", "metrics:completed", "wake"):
        raw.run("SET", key, "foreign")
    else:
        raw.run("RPUSH", key, "foreign")
    try:
        async with Queue(queue_name, url) as queue, worker_for(handle):
            assert await queue.add_and_wait("n", "plain") == "plain"
            assert await queue.add_and_wait("n", "lifo", lifo=True) == "lifo"
    finally:
        raw.run("DEL", key)
        raw.run("ZREM", "list-active-ids", "1", "2")


async def test_child_with_a_missing_parent_runs(
    worker_for: WorkerFor, resp: RespClient, raw: Raw, queue: Queue, queue_name: str
):
    raw.put_job("child", parentId="p", parentQueue=f"{queue_name}-elsewhere")
    ran: list[str] = []

    async def note(job: Job) -> str:
        ran.append(job.id)
        return "fine"

    async with worker_for(note):
        assert await queue.add_and_wait("n") == "fine"
    assert "child" in ran
    assert raw.state("child") == "completed"
    assert resp.execute("EXISTS", f"glide:{{{queue_name}-elsewhere}}:job:p") == 0
