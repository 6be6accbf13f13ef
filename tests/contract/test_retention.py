"""Retention of finished jobs: every form of the option, for both outcomes and every kind of end; removed jobs leave no
keys.
"""

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest

from glidemq_py import Job, JobFailedError, JobNotFoundError, KeepJobs, Worker
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.inside import keyed
from tests.server.faults_support import worker_process
from tests.server.worker_support import EventRecorder, Gate, WorkerFor, until, with_timeout

SATELLITES = ("log", "deps", "parents", "jstream", "signals")
numbers = itertools.count()
OPTION = {"completed": "remove_on_complete", "failed": "remove_on_fail"}


async def handle(job: Job):
    await job.log("a line")
    if job.name == "failed":
        raise ValueError("no")
    return job.id


def put_satellites(raw: Raw, job_id: str):
    """Every key that may belong to a job."""
    raw.run("RPUSH", f"log:{job_id}", "line")
    raw.run("SADD", f"deps:{job_id}", "x")
    raw.run("SADD", f"parents:{job_id}", "x")
    raw.run("XADD", f"jstream:{job_id}", "*", "a", "b")
    raw.run("RPUSH", f"signals:{job_id}", "{}")


def left_of(raw: Raw, ids: Iterable[str]) -> list[str]:
    """Keys of these jobs."""
    return [
        f"{kind}:{job_id}" for job_id in ids for kind in ("job", *SATELLITES) if raw.run("EXISTS", f"{kind}:{job_id}")
    ]


async def new_id(queue: Queue, state: str) -> str:
    """Return the id of another job in the first partition: each partition keeps so many jobs."""
    return keyed(0, (await queue.settings.get_partitions()).count, f"{state}-{next(numbers)}-")


async def end(queue: Queue, raw: Raw, url: str, state: str, count: int, **options: Any) -> list[Job]:
    """Jobs that end one after the other in a state."""
    jobs: list[Job] = []
    async with Worker(queue.name, handle, url) as worker:
        recorded = EventRecorder(worker)
        for i in range(count):
            job_id = await new_id(queue, state)
            put_satellites(raw, job_id)  # before the job, which may be removed immediately after its add
            jobs.append(await queue.add(state, job_id=job_id, **options))
            await recorded.wait(state, i + 1)
    return jobs


def age(raw: Raw, state: str, ids: Iterable[str], seconds: int):
    """Make jobs look as if they had ended that long ago."""
    for job_id in ids:
        raw.run("ZINCRBY", state, -seconds * 1000, job_id)


# -- the forms ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["completed", "failed"])
@pytest.mark.parametrize(
    ("form", "kept"),
    [
        (None, 5), (False, 5), (True, 0), (0, 0), (2, 2), ({"count": 3}, 3), (KeepJobs(count=1), 1), ({"count": 0}, 0),
        ({"age": 3_600}, 5), ({"age": 3_600, "count": 2}, 2),
    ],
    ids=str,
)  # fmt: skip
async def test_every_form(url: str, raw: Raw, queue: Queue, state: str, form: Any, kept: int):
    jobs = await end(queue, raw, url, state, 5, **{OPTION[state]: form})
    ids = [job.id for job in jobs]
    stay, go = ids[5 - kept :], ids[: 5 - kept]
    assert raw.run("ZRANGE", state, 0, -1) == stay
    assert left_of(raw, go) == []
    assert len(left_of(raw, stay)) == len(stay) * (1 + len(SATELLITES))
    assert [job.id for job in await queue.get_jobs(state)] == stay


@pytest.mark.parametrize("state", ["completed", "failed"])
async def test_age_and_count_together(url: str, raw: Raw, queue: Queue, state: str):
    jobs = await end(queue, raw, url, state, 4)
    ids = [job.id for job in jobs]
    age(raw, state, ids[:2], 100)
    (last,) = await end(queue, raw, url, state, 1, **{OPTION[state]: {"age": 50, "count": 3}})
    assert raw.run("ZRANGE", state, 0, -1) == [*ids[2:], last.id]
    (newest,) = await end(queue, raw, url, state, 1, **{OPTION[state]: {"age": 50, "count": 3}})
    assert raw.run("ZRANGE", state, 0, -1) == [ids[3], last.id, newest.id]
    assert left_of(raw, ids[:3]) == []


async def test_jobs_with_the_other_outcome_are_kept(url: str, raw: Raw, queue: Queue):
    (failed,) = await end(queue, raw, url, "failed", 1, remove_on_complete=True)
    (completed,) = await end(queue, raw, url, "completed", 1, remove_on_fail=True)
    assert await failed.get_state() == "failed"
    assert await completed.get_state() == "completed"


async def test_retried_attempt_removes_nothing(raw: Raw, queue: Queue, worker_for: WorkerFor):
    async with worker_for(handle) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("failed", attempts=2, backoff=60_000, remove_on_fail=True)
        await recorded.wait("retrying")
    assert await job.get_state() == "delayed"
    await job.promote()
    async with worker_for(handle) as worker:
        await EventRecorder(worker).wait("failed")
    assert left_of(raw, [job.id]) == []
    assert not raw.run("EXISTS", "failed")


def sorted_keys(ids: Iterable[str]) -> list[str]:
    return [f"{kind}:{job_id}" for job_id in sorted(ids, key=int) for kind in ("job", "log")]


@pytest.mark.exclude("partitioned", reason="each partition keeps that many")
async def test_retention_count_holds_for_many_ends_in_one_call(raw: Raw, queue: Queue, worker_for: WorkerFor):
    async with worker_for(handle, concurrency=50) as worker:
        recorded = EventRecorder(worker)
        await queue.add_bulk([("completed", i, {"remove_on_complete": 7}) for i in range(300)])
        await recorded.wait("completed", 300)
    assert raw.run("ZCARD", "completed") == 7
    stay = raw.run("ZRANGE", "completed", 0, -1)
    assert left_of(raw, map(str, range(1, 301))) == sorted_keys(stay)


# -- ends without a worker ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "kept"), [(True, 0), (0, 0), (2, 2), ({"age": 50}, 2), ({"age": 50, "count": 1}, 1)])
async def test_revoked_jobs(raw: Raw, queue: Queue, form: Any, kept: int):
    old = [await queue.add("n", delay=60_000, job_id=await new_id(queue, "n")) for _ in range(2)]
    for job in old:
        assert await job.revoke() == "revoked"
    age(raw, "failed", [job.id for job in old], 100)
    for i in range(2):
        job = await queue.add("n", delay=60_000, remove_on_fail=form, job_id=await new_id(queue, "n"))
        put_satellites(raw, job.id)
        await job.revoke()
        assert raw.run("ZCARD", "scheduled") == 0, i
    assert raw.run("ZCARD", "failed") == (kept if form not in (True, 0) else 2)
    if form in (True, 0):
        assert left_of(raw, [job.id]) == []


@pytest.mark.parametrize("how", ["delayed", "waiting", "grouped"])
async def test_expired_jobs(raw: Raw, queue: Queue, worker_for: WorkerFor, how: str):
    cases: dict[str, dict[str, Any]] = {"delayed": {"delay": 5}, "grouped": {"ordering": {"key": "g"}}}
    options = cases.get(how, {})
    job = await queue.add("n", ttl=1, remove_on_fail=True, **options)
    put_satellites(raw, job.id)
    await with_timeout(until(lambda: time_is_over(raw, job)))
    async with worker_for(handle):
        with pytest.raises(JobNotFoundError):
            await job.wait_until_finished()
    assert left_of(raw, [job.id]) == []
    assert not raw.run("EXISTS", "failed")
    assert raw.pending() == []
    assert "expired" in raw.event_names(job.id)
    if how == "grouped":
        # The turn that it never took is the next one's.
        async with worker_for(handle):
            after = await queue.add("completed", ordering={"key": "g"})
            assert await after.wait_until_finished() == after.id
    assert (await queue.check()).findings == ()


def time_is_over(raw: Raw, job: Job) -> bool:
    seconds, microseconds = raw.resp.execute("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000 > int(raw.job(job.id)["expireAt"])


async def test_parked_job_above_the_token_bucket(raw: Raw, queue: Queue, worker_for: WorkerFor):
    bucket: Any = {"key": "g", "token_bucket": {"capacity": 5, "refill_rate": 1}}
    job = await queue.add("n", ordering=bucket, cost=5, remove_on_fail=True)
    put_satellites(raw, job.id)
    raw.run("HSET", "group:g", "tbCapacity", "1000")
    async with worker_for(handle):
        with pytest.raises(JobNotFoundError):
            await job.wait_until_finished()
    assert left_of(raw, [job.id]) == []


async def test_options_of_a_node_peer_keep_their_meaning(raw: Raw, queue: Queue, worker_for: WorkerFor):
    """There, 0 keeps everything; and what cannot be read keeps everything too."""
    forms: Any = [0, {"count": 0, "age": 0}, {"count": -1}, "yes", None, [1], {"age": "x"}]
    for i, form in enumerate(forms):
        raw.put_job(f"n{i}", opts=json.dumps({"removeOnFail": form}), expireAt=1)
    raw.put_job("broken", opts='{"removeOnFail":', expireAt=1)
    async with worker_for(handle):
        await with_timeout(until(lambda: raw.run("XLEN", "stream") == 0))
    assert raw.run("ZCARD", "failed") == len(forms) + 1
    assert (await queue.get_job_counts()).failed == len(forms) + 1


# -- jobs that must be kept -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["completed", "failed"])
@pytest.mark.parametrize("form", [{"age": 50}, 1], ids=["age", "count"])
async def test_requeued_job_is_not_removed(
    url: str, raw: Raw, queue: Queue, worker_for: WorkerFor, state: str, form: Any
):
    gate = Gate()
    async with worker_for(gate):
        running = await queue.add("n", job_id=await new_id(queue, "n"))
        await gate.next()
        raw.run("ZADD", state, 1, running.id)  # left behind by a peer
        await end(queue, raw, url, state, 2, **{OPTION[state]: form})
        assert await running.get_state() == "active"
        assert raw.run("ZSCORE", state, running.id) is None
        gate.open()
        await running.wait_until_finished()


@pytest.mark.exclude("partitioned", reason="each partition keeps that many")
async def test_retention_removes_a_limited_number_per_call(url: str, raw: Raw, queue: Queue, worker_for: WorkerFor):
    await queue.add_bulk([("failed", i) for i in range(1_500)])
    async with worker_for(handle, concurrency=100) as worker:
        await EventRecorder(worker).wait("failed", 1_500)
    await end(queue, raw, url, "failed", 1, remove_on_fail=1)
    assert raw.run("ZCARD", "failed") == 501
    await end(queue, raw, url, "failed", 1, remove_on_fail=1)
    assert raw.run("ZCARD", "failed") == 1


QUICK: Any = {"lock_duration": 1_000, "stalled_interval": 1_000}


@pytest.mark.slow
@pytest.mark.exclude("memory", reason="needs a process")
async def test_stalled_jobs(worker_for: WorkerFor, url: str, raw: Raw, queue: Queue, queue_name: str):
    gate = Gate()
    async with worker_process("wait", url, queue_name, **QUICK) as child:
        job = await queue.add("n", remove_on_fail=True)
        await child.line("began")
        put_satellites(raw, job.id)
        await child.kill()
        async with worker_for(gate, max_stalled_count=0, **QUICK):
            with pytest.raises((JobNotFoundError, JobFailedError)):
                await job.wait_until_finished()
            await with_timeout(until(lambda: not left_of(raw, [job.id])))
        assert (await queue.check()).findings == ()
        assert not raw.run("EXISTS", "failed")
        assert raw.pending() == []
