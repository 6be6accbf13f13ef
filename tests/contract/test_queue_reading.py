"""Looking into a queue: single jobs, slices, iteration while others come and go, counts, workers."""

import asyncio
import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from glidemq_py import Job, JobRef, JobState, SerializationError
from glidemq_py.errors import JobDataError
from tests.contract.api import FlowProducer, Queue
from tests.contract.observe import Raw, wait_for_workers
from tests.inside import misuse
from tests.server.worker_support import EventRecorder, Gate, WorkerFor


async def noop(job: Job):
    if job.data == "fail":
        raise ValueError("on purpose")
    return {"was": job.data}


# -- one job ----------------------------------------------------------------------------------------------


async def test_a_job_read_back(worker_for: WorkerFor, queue: Queue, queue_name: str):
    async with worker_for(noop) as worker:
        recorded = EventRecorder(worker)
        added = await queue.add("good", {"a": 1}, attempts=2, timeout=9_000)
        failing = await queue.add("bad", "fail", attempts=2)
        await recorded.until(lambda recorded: recorded.count["completed"] + recorded.count["failed"] == 2)
        good, bad = await queue.get_job(added.id), await queue.get_job(failing.id)
        assert good is not None
        assert bad is not None
        assert (good.name, good.data, good.state, good.queue_name) == ("good", {"a": 1}, JobState.COMPLETED, queue_name)
        assert good.timestamp == added.timestamp <= good.processed_on <= good.finished_on  # type: ignore[operator]
        assert good.returnvalue == {"was": {"a": 1}}
        assert good.opts == {"attempts": 2, "timeout": 9_000}
        assert (good.attempts_made, good.failed_reason, good.stacktrace, good.progress) == (0, None, (), 0)
        assert (bad.state, bad.attempts_made, bad.failed_reason, bad.failed_type) == (
            JobState.FAILED, 2, "on purpose", "ValueError"
        )  # fmt: skip
        assert bad.returnvalue is None
        assert len(bad.stacktrace) == 2
        assert "noop" in bad.stacktrace[-1]
        assert bad.cancelled.is_set() is False
        assert bad.context is None


async def test_missing_job(queue: Queue):
    assert await queue.get_job("1") is None
    assert await queue.remove("1") is False
    job = await queue.add("n")
    given: Any = int(job.id) if job.id.isdigit() else job.id
    assert await queue.get_job(given) is not None


async def test_malformed_hash_is_read_partly(queue: Queue, raw: Raw):
    raw.put_job(
        "bad", timestamp="soon", attemptsMade="many", delay="-", priority="x", data="{broken", opts="[]", state="odd",
        progress="{", stacktrace="no list", processedOn="NaN", name="näme", returnvalue="{",
    )  # fmt: skip
    raw.run("HSET", "job:bytes", "name", "n", "state", "waiting", "data", b'"\xff"', "failedReason", b"\xfe")
    raw.push(jobId="bytes", name="n")
    raw.run("HSET", "job:thin", "state", "failed")
    job = await queue.get_job("bad")
    assert job is not None
    assert (job.name, job.timestamp, job.attempts_made, job.delay, job.state) == ("näme", 0, 0, 0, None)
    assert (job.opts, job.progress, job.stacktrace, job.processed_on) == ({}, 0, (), None)
    with pytest.raises(JobDataError, match="bad"):
        _ = job.data
    with pytest.raises(SerializationError):
        _ = job.returnvalue
    assert await job.get_state() is None
    assert (await queue.get_job("thin")) is not None
    listed = [job.id async for job in queue.iter_jobs("waiting")]
    assert listed == ["bad", "bytes"]
    found = await queue.get_job("bytes")
    assert found is not None
    assert (found.data, found.failed_reason) == ("\udcff", "\udcfe")
    await queue.obliterate(force=True, scan=True)


# -- many -------------------------------------------------------------------------------------------------


PARKED = pytest.param("group-waiting", marks=pytest.mark.exclude("partitioned", reason="it writes keys of one part"))
STATES = ("waiting", "active", "delayed", "prioritized", "completed", "failed", PARKED, "suspended",
          "waiting-children")  # fmt: skip


@pytest.mark.parametrize("state", STATES)
async def test_slices_of_every_state(state: str, queue: Queue, worker_for: WorkerFor, raw: Raw):
    """A position is that of the iteration, wherever pages, bands, lists and groups begin."""
    gate = Gate()
    if state == "waiting":
        await queue.add_bulk([("n",)] * 250)
        await queue.add_bulk([("n", None, {"lifo": True})] * 5)
        async with worker_for(gate, concurrency=3) as worker:
            for _ in range(3):
                await gate.next()
            worker.pause()
            await slices_are_right(queue, state, 252)
            gate.open()
    elif state == "active":
        await queue.add_bulk([("n", None, {"priority": 1} if i % 2 else {}) for i in range(9)])
        async with worker_for(gate, concurrency=9):
            for _ in range(9):
                await gate.next()
            await slices_are_right(queue, state, 9)
            gate.open()
    elif state in ("delayed", "prioritized"):
        delay = 60_000 if state == "delayed" else 0
        await queue.add_bulk([("n", i, {"delay": delay, "priority": 1 + i % 7}) for i in range(60)])
        await slices_are_right(queue, state, 60)
    elif state == "group-waiting":
        jobs = await queue.add_bulk([("n", i, {"ordering": f"k{i % 5}"}) for i in range(60)])
        raw.run("DEL", "stream")
        for job in jobs:
            raw.run("ZADD", f"groupq:{job.ordering_key or f'k{job.data % 5}'}", job.data, job.id)
        await slices_are_right(queue, state, 60)
    else:
        jobs = await queue.add_bulk([("n", i) for i in range(60)])
        for job in jobs:
            raw.run("ZADD", state, job.data // 4, job.id)
        await slices_are_right(queue, state, 60)
    await queue.obliterate(force=True, scan=True)


async def slices_are_right(queue: Queue, state: str, count: int):
    everything = [job.id async for job in queue.iter_jobs(state)]
    assert len(everything) == count
    middle = count // 2
    for start, end in ((0, 0), (1, 1), (0, -1), (middle, middle + 3), (count - 1, -1), (count - 2, count + 9)):
        found = [job.id for job in await queue.get_jobs(state, start, end)]
        assert found == (everything[start:] if end == -1 else everything[start : end + 1])
    for nothing in ((count, -1), (count + 5, count + 9), (4, 3)):
        assert await queue.get_jobs(state, *nothing) == []


async def test_counts(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    assert (await queue.get_job_counts()).total == 0
    async with worker_for(noop) as worker:
        recorded = EventRecorder(worker)
        await queue.add_bulk([("n", "fail"), ("n", 1), ("n", 2)])
        await recorded.until(lambda recorded: recorded.count["completed"] + recorded.count["failed"] == 3)
    async with worker_for(gate, concurrency=2):
        await queue.add_bulk([("n",)] * 5)
        await gate.next()
        await gate.next()
        await queue.add("n", delay=50_000)
        await queue.add_bulk([("n", None, {"priority": 1})] * 4)
        await queue.add("n", lifo=True)
        counts = await queue.get_job_counts()
        assert (counts.waiting, counts.active, counts.delayed, counts.prioritized) == (4, 2, 1, 4)
        assert (counts.completed, counts.failed, counts.paused) == (2, 1, False)
        assert await queue.count() == 9
        assert len(await queue.get_jobs("active")) == 2
        gate.open()


async def visited(queue: Queue, state: str, page: int) -> Counter[str]:
    return Counter([job.id async for job in queue.iter_jobs(state, page)])


@pytest.mark.slow
@pytest.mark.parametrize("page", [1, 7, 250, 1_000])
async def test_three_thousand_jobs_of_one_moment(url: str, queue_name: str, page: int):
    """Jobs with equal scores are told apart only by their position in the set."""
    at = datetime.now(UTC) + timedelta(hours=1)
    count = 3_000 if page > 1 else 300
    async with Queue(queue_name, url, events=False) as queue:
        jobs = await queue.add_bulk([("n", None, {"run_at": at})] * count)
        assert await visited(queue, "delayed", page) == Counter(job.id for job in jobs)


@pytest.mark.parametrize("page", [10, *(pytest.param(page, marks=pytest.mark.slow) for page in (1, 3, 50, 1_000))])
@pytest.mark.parametrize("state", ["waiting", "lifo", "delayed", "prioritized", "completed", "failed"])
async def test_iteration_during_changes(worker_for: WorkerFor, url: str, queue_name: str, state: str, page: int):
    """Those that keep their state come exactly once. Those behind, around and before the reader go, others come."""
    options: Any = {"delayed": {"delay": 60_000}, "prioritized": {"priority": 3}, "lifo": {"lifo": True}}.get(state, {})
    listed = "waiting" if state == "lifo" else state
    count = 90
    async with Queue(queue_name, url, events=False) as queue:
        rows = [("n", "fail" if state == "failed" else i, options) for i in range(count)]
        ids = [job.id for job in await queue.add_bulk(rows)]
        if state in ("completed", "failed"):
            async with worker_for(noop, concurrency=50, events=False) as worker:
                recorded = EventRecorder(worker)
                await recorded.wait(state, count)
        keep, go = ids[2::3], [job_id for at, job_id in enumerate(ids) if at % 3 < 2]
        met: Counter[str] = Counter()
        added = 0
        async for job in queue.iter_jobs(listed, page):
            met[job.id] += 1
            if go:
                await queue.remove(go.pop(0 if len(go) % 2 else -1))
                if job.id in go:
                    go.remove(job.id)
                    await job.remove()
            if added < 30 and state not in ("completed", "failed"):
                await queue.add("new", None, **options)
                added += 1
        assert {job_id: met[job_id] for job_id in keep} == dict.fromkeys(keep, 1)
        assert max(met.values()) == 1


@pytest.mark.parametrize("options", [{}, {"lifo": True}, {"delay": 60_000}, {"priority": 1}])
async def test_iteration_that_removes_jobs(url: str, queue_name: str, options: Any):
    async with Queue(queue_name, url, events=False) as queue:
        jobs = await queue.add_bulk([("n", None, options)] * 100)
        state = (await jobs[0].get_state()) or ""
        met = 0
        async for job in queue.iter_jobs(state, page=10):
            assert await job.remove()
            met += 1
        assert met == 100
        assert (await queue.get_job_counts()).total == 0


async def test_iteration_while_workers_work(queue: Queue, worker_for: WorkerFor):
    async with worker_for(noop, concurrency=20) as worker:
        recorded = EventRecorder(worker)
        await queue.add_bulk([("n", i, {"delay": 120_000}) for i in range(200)])
        adding = asyncio.create_task(queue.add_bulk([("n", i) for i in range(3_000)]))
        met = await visited(queue, "delayed", 9)
        assert met == Counter([job.id for job in await queue.get_jobs("delayed")])
        assert len(met) == 200
        assert max((await visited(queue, "completed", 50)).values(), default=1) == 1
        await adding
        await recorded.wait("completed", 3_000)
        assert len(await visited(queue, "completed", 1_000)) == 3_000


async def test_iteration_can_be_stopped(queue: Queue):
    await queue.add_bulk([("n",)] * 20)
    async for _ in queue.iter_jobs("waiting", page=2):
        break
    assert len(await visited(queue, "waiting", 2)) == 20


# -- workers ----------------------------------------------------------------------------------------------


async def test_workers_of_both_languages(queue: Queue, worker_for: WorkerFor, raw: Raw):
    assert await queue.get_workers() == []
    gate = Gate()
    async with worker_for(gate, concurrency=3) as worker:
        await queue.add("n")
        await gate.next()
        raw.resp.execute("XGROUP", "CREATECONSUMER", raw.key("stream"), "workers", "worker-1700000000000-0badcafe")
        node = {"addr": "node-host", "pid": 77, "startedAt": 1_700_000_000_000, "activeJobs": 5}
        raw.run("SET", "w:worker-1700000000000-0badcafe", json.dumps(node), "PX", 60_000)
        for consumer, junk in (("junk1", "{"), ("junk2", "[]"), ("junk3", '{"pid":"x","startedAt":[]}')):
            raw.resp.execute("XGROUP", "CREATECONSUMER", raw.key("stream"), "workers", consumer)
            raw.run("SET", f"w:{consumer}", junk, "PX", 60_000)
        first, second = await queue.get_workers()
        assert (first.id, first.host, first.pid, first.started_at, first.active_jobs) == (
            "worker-1700000000000-0badcafe", "node-host", 77, 1_700_000_000_000, 5
        )  # fmt: skip
        assert first.age > 1_000_000
        assert second.id == worker.consumer
        assert second.pid > 0
        assert 0 <= second.age < 60_000
        gate.open()
    ids = [info.id for info in await queue.get_workers()]
    assert worker.consumer not in ids


async def test_workers_of_other_queues_are_not_listed(worker_for: WorkerFor, url: str, queue: Queue, queue_name: str):
    async with (
        Queue(queue_name + "x", url) as other,
        worker_for(noop),
        worker_for(noop),
    ):
        await wait_for_workers(queue, 2)
        assert await other.get_workers() == []


@pytest.mark.exclude("partitioned", reason="the parent of a job in a partition is named by its partition")
async def test_origin_attributes(worker_for: WorkerFor, flows: FlowProducer, queue: Queue, queue_name: str):
    bucket: Any = {"key": "k", "token_bucket": {"capacity": 5, "refill_rate": 1}}
    plain = await queue.get_job((await queue.add("n", ttl=60_000, ordering=bucket, cost=2.5)).id)
    assert plain is not None
    assert (plain.ordering_key, plain.opts["cost"], plain.opts["ttl"]) == ("k", 2.5, 60_000)
    assert await plain.get_parents() == []
    node = await flows.add({"name": "root", "queue": queue_name, "children": [{"name": "leaf", "queue": queue_name}]})
    leaf = await queue.get_job(node.children[0].job.id)
    assert leaf is not None
    assert await leaf.get_parents() == [JobRef(queue_name, node.job.id)]
    jobs = await flows.add_dag([
        {"name": "a", "queue": queue_name},
        {"name": "b", "queue": queue_name, "deps": ["a"]}, {"name": "c", "queue": queue_name, "deps": ["a"]},
    ])  # fmt: skip
    shared = await queue.get_job(jobs["a"].id)
    assert shared is not None
    assert sorted(await shared.get_parents()) == sorted(JobRef(queue_name, jobs[name].id) for name in "bc")


async def test_former_names_of_a_job(queue: Queue):
    job: Any = await queue.add("n")
    for name, place in misuse.REPLACED_OF_JOBS.items():
        with pytest.raises(AttributeError, match=re.escape(f"; use {place}")):
            getattr(job, name)
    with pytest.raises(AttributeError, match=r"; use job\.failed_reason"):
        _ = job.failedReason
