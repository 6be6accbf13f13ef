"""Administration of a queue and its jobs: pause, remove, requeue, obliterate, and updates of jobs from outside."""

from typing import Any, cast

import pytest

from glidemq_py import (
    GlideMQValidationError,
    Job,
    JobNotFoundError,
    JobStateError,
    Worker,
)
from glidemq_py.testing import RespClient
from tests.contract.api import Queue
from tests.contract.observe import Raw, wait_for_workers
from tests.key_leaks import KeyLeaks
from tests.server.worker_support import EventRecorder, Gate, WorkerFor, with_timeout


async def fail(job: Job):
    raise ValueError("on purpose")


async def noop(job: Job):
    return job.data


# -- events -----------------------------------------------------------------------------------------------


# -- pause ------------------------------------------------------------------------------------------------


async def test_paused_queue_starts_no_jobs(worker_for: WorkerFor, url: str, queue_name: str):
    async with (
        Queue(queue_name, url) as queue,
        Queue(queue_name, url) as operator,
        worker_for(noop) as worker,
    ):
        recorded = EventRecorder(worker)
        await queue.add_and_wait("n")
        await operator.pause()
        jobs = await queue.add_bulk([("n", 1), ("n", 2, {"priority": 1}), ("n", 3, {"lifo": True})])
        async with worker_for(noop):  # one that starts now gets nothing either
            await wait_for_workers(queue, 2)
            assert (await queue.get_job_counts()).active == 0
        assert await queue.count() == 3
        await operator.resume()
        assert sorted([await with_timeout(job.wait_until_finished()) for job in jobs]) == [1, 2, 3]
        await recorded.wait("completed", 4)


# -- remove -----------------------------------------------------------------------------------------------


async def in_state(queue: Queue, url: str, state: str) -> tuple[Job, Worker | None, Gate | None]:
    """A job in a state; for an active one its worker and gate too."""
    options: Any = {
        "delayed": {"delay": 60_000}, "prioritized": {"priority": 4}, "lifo": {"lifo": True}, "active": {},
        "active-lifo": {"lifo": True}, "delayed-priority": {"delay": 60_000, "priority": 2},
    }.get(state, {})  # fmt: skip
    job = await queue.add("n", {"some": "data"}, **options)
    await job.log("a line")
    await job.update_progress(5)
    if state in ("completed", "failed"):
        async with Worker(queue.name, fail if state == "failed" else noop, url) as worker:
            await EventRecorder(worker).wait(state)
    if state.startswith("active"):
        gate = Gate()
        held = Worker(queue.name, gate, url)
        await held.__aenter__()
        await gate.next()
        return job, held, gate
    return job, None, None


STATES = [
    "waiting",
    "lifo",
    "delayed",
    "prioritized",
    "delayed-priority",
    "completed",
    "failed",
    "active",
    "active-lifo",
]


@pytest.mark.parametrize("state", STATES)
async def test_remove_leaves_nothing_of_a_job(url: str, queue: Queue, raw: Raw, key_leaks: KeyLeaks, state: str):
    job, worker, gate = await in_state(queue, url, state)
    assert await job.remove() is True
    assert await job.remove() is False
    assert await queue.remove(job.id) is False
    assert await queue.get_job(job.id) is None
    assert raw.resp.keys(raw.key(f"*:{job.id}")) == []
    for key, command in (("scheduled", "ZCARD"), ("completed", "ZCARD"), ("failed", "ZCARD"), ("lifo", "LLEN")):
        assert raw.run(command, key) == 0
    assert raw.run("XLEN", "stream") == 0
    counts = await queue.get_job_counts()
    assert (counts.total, counts.active) == (0, 0)
    assert raw.event_names(job.id)[-1] == "removed"
    if worker is not None and gate is not None:
        gate.open()
        recorded = EventRecorder(worker)
        await queue.add("after", 9)
        await gate.next()
        await recorded.wait("completed")
        assert recorded.job_ids("completed")[-1] != job.id
        await worker.close()
        assert raw.resp.keys(raw.key(f"*:{job.id}")) == []
        assert raw.metric("completed") == 1


# -- retry ------------------------------------------------------------------------------------------------


async def test_only_a_failed_job_is_retried(url: str, queue: Queue, raw: Raw):
    for state in STATES:
        if state == "failed":
            continue
        job, worker, gate = await in_state(queue, url, state)
        with pytest.raises(JobStateError, match="retry") as caught:
            await job.retry()
        assert caught.value.job_id == job.id
        assert caught.value.state == await job.get_state()
        if worker is not None and gate is not None:
            gate.open()
            await worker.close()
        await job.remove()
        with pytest.raises(JobNotFoundError):
            await job.retry()


@pytest.mark.parametrize("options", [{}, {"priority": 3}, {"lifo": True}, {"delay": 1}])
async def test_a_retried_job_has_all_its_attempts(queue: Queue, worker_for: WorkerFor, raw: Raw, options: Any):
    runs: list[int] = []

    async def fourth_time(job: Job) -> str:
        runs.append(job.attempts_made)
        if len(runs) < 4:
            raise ValueError("not yet")
        return "well"

    async with worker_for(fourth_time) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", attempts=3, **options)
        await recorded.wait("failed")
        assert runs == [0, 1, 2]
        await job.retry()
        assert await with_timeout(job.wait_until_finished()) == "well"
        assert runs == [0, 1, 2, 0]
        found = await queue.get_job(job.id)
        assert found is not None
        assert (found.failed_reason, found.failed_type, found.stacktrace) == (None, None, ())
        assert raw.run("ZCARD", "failed") == 0
        assert "retried" in raw.event_names(job.id)


# -- updates of a job from outside ---------------------------------------------------------------------------


async def test_updated_data_is_used_by_the_next_attempt(queue: Queue, worker_for: WorkerFor):
    seen: Any = []

    async def handle(job: Job):
        seen.append(job.data)
        await job.update_data({"step": len(seen)})
        if len(seen) < 3:
            raise ValueError("again")

    async with worker_for(handle):
        job = await queue.add("n", {"step": 0}, attempts=3)
        await with_timeout(job.wait_until_finished())
    assert seen == [{"step": 0}, {"step": 1}, {"step": 2}]


# -- obliterate -------------------------------------------------------------------------------------------


@pytest.mark.exclude("partitioned", reason="what only peers write")
async def test_obliterate_leaves_no_key(url: str, queue: Queue, queue_name: str, resp: RespClient):
    async with Queue(queue_name + "-other", url) as other:
        await other.add("n", job_id="stays")
        for state in STATES:
            _, worker, gate = await in_state(queue, url, state)
            if worker is not None and gate is not None:
                gate.open()
                await worker.close()
        await queue.add_bulk([("n", i, {"delay": i % 2 * 60_000}) for i in range(700)])
        raw = Raw(resp, queue_name)
        # What only a Node peer writes.
        for suffix in ("deps:1", "parents:1"):
            raw.run("SADD", suffix, "x")
        for suffix in ("log:2", "signals:2"):  # of a job that its retention has removed
            raw.run("RPUSH", suffix, "x")
        raw.run("HSET", "dedup", "d", "1:1")
        resp.execute("XGROUP", "CREATECONSUMER", raw.key("stream"), "workers", "worker-1-a")
        raw.run("SET", "w:worker-1-a", "{}")
        raw.run("HINCRBY", "ordering", "g", 1)
        raw.run("HSET", "group:g", "active", "0")
        raw.run("ZADD", "groupq:g", 1, "parked")
        raw.run("HSET", "job:parked", "id", "parked", "state", "group-waiting", "groupKey", "g")
        parent = raw.run("INCR", "id")
        raw.run("HSET", f"job:{parent}", "id", parent, "state", "waiting-children")
        raw.run("SADD", f"deps:{parent}", "glide:{another}:1")
        before = (await queue.get_job_counts()).total
        assert await queue.obliterate() >= before
        assert resp.keys(f"*{{{queue_name}}}*") == []
        assert await queue.obliterate() == 0
        assert (await queue.get_job_counts()).total == 0
        assert await other.count() == 1
        assert (await queue.add("n")).id == "1"
        await queue.obliterate()
        await other.obliterate()


@pytest.mark.parametrize("state", ["active", "active-lifo"])
async def test_obliterate_rejects_active_jobs(url: str, queue: Queue, raw: Raw, state: str):
    _, worker, gate = await in_state(queue, url, state)
    assert worker is not None
    assert gate is not None
    await queue.add_bulk([("n",)] * 5)
    before = raw.keys("job:*")
    with pytest.raises(JobStateError, match=r"cannot obliterate queue '.*': 1 job is active\. .*force=True"):
        await queue.obliterate()
    with pytest.raises(GlideMQValidationError, match="force"):
        await queue.obliterate(force=cast("bool", "no"))
    assert raw.keys("job:*") == before
    assert (await queue.get_job_counts()).total == 6
    assert await queue.obliterate(force=True) == 6
    # The worker lives on, its job's result is dropped, and later jobs are worked on.
    gate.open()
    later = await queue.add("later", 3)
    assert await with_timeout(later.wait_until_finished()) == 3
    await worker.close()
    await queue.obliterate(force=True)
    assert set(raw.keys("*")) <= {"deleted-layout"}
