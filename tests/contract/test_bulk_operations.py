"""Operations on many jobs (drain, clean, requeue, revoke, reschedule, search) while workers run."""

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from glidemq_py import GlideMQValidationError, Job, JobFailedError, JobNotFoundError, JobStateError
from glidemq_py.records import Metrics
from glidemq_py.telemetry.prometheus import QueueCollector
from glidemq_py.testing import RespClient
from tests.contract.api import Queue, QueueEvents
from tests.contract.observe import Raw, assert_order
from tests.key_leaks import KeyLeaks
from tests.server.worker_support import EventRecorder, Gate, WorkerFor, with_timeout


async def fail(job: Job):
    raise ValueError(job.name)


# -- revoking ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"lifo": True}, {"priority": 5}, {"ordering": {"key": "k"}}])
async def test_revoking_an_active_job_cancels_its_handler(
    worker_for: WorkerFor, resp: RespClient, queue: Queue, queue_name: str, options: Any
):
    gate = Gate()
    async with worker_for(gate, lock_duration=1_000) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", attempts=3, **options)
        await gate.next()
        assert await job.revoke() == "flagged"
        assert await job.is_revoked()
        await recorded.wait("failed")
        assert gate.cancelled == 1
        with pytest.raises(JobFailedError, match="revoked") as failure:
            await job.wait_until_finished()
        assert failure.value.failed_type == "JobRevokedError"
        raw = Raw(resp, queue_name)
        assert raw.pending() == []
        assert raw.event_names(job.id)[-2:] == ["revoked", "failed"]
        # Its slot is free, and a retry takes the mark off.
        await job.retry()
        assert not await job.is_revoked()
        gate.open()
        assert await job.wait_until_finished() is None


async def test_revoking_sets_cancelled_in_a_thread_handler(queue: Queue, worker_for: WorkerFor):
    began = threading.Event()

    def handle(job: Job) -> str:
        began.set()
        return "stopped" if job.cancelled.wait(30) else "went on"

    async with worker_for(handle, lock_duration=1_000) as worker:
        recorded = EventRecorder(worker)
        job = await queue.add("n", attempts=3)
        await asyncio.to_thread(began.wait, 30)
        assert await queue.revoke(job.id) == "flagged"
        await recorded.wait("failed")
        assert recorded.of("failed")[0][0].cancelled.is_set()
        assert await job.get_state() == "failed"
        # The slot is free when the handler has returned.
        other = await queue.add("n")
        await recorded.until(lambda _: worker.active_count <= 1)
        assert await queue.revoke(other.id) in ("revoked", "flagged")


async def test_revoked_jobs_are_not_run(
    worker_for: WorkerFor, url: str, resp: RespClient, queue: Queue, queue_name: str
):
    gate = Gate()
    gate.open()
    async with QueueEvents(queue_name, url) as events:
        recorded: asyncio.Queue[str] = asyncio.Queue()
        events.on("revoked", lambda event: recorded.put_nowait(event.job_id or ""))
        jobs = [
            await queue.add("n"),
            await queue.add("n", lifo=True),
            await queue.add("n", priority=1),
            await queue.add("n", delay=60_000),
            *await queue.add_bulk([("n", None, {"ordering": {"key": "k"}})] * 3),
        ]
        last = jobs.pop()
        assert [await job.revoke() for job in jobs] == ["revoked"] * 6
        assert await queue.revoke("nobody") == "not_found"
        assert {await with_timeout(recorded.get()) for _ in jobs} == {job.id for job in jobs}
        async with worker_for(gate):
            await last.wait_until_finished()
        assert [job.id for job in gate.begun] == [last.id]
        counts = await queue.get_job_counts()
        assert (counts.failed, counts.completed, counts.unfinished) == (6, 1, 0)
        with pytest.raises(JobFailedError, match="revoked"):
            await jobs[0].wait_until_finished()
        assert Raw(resp, queue_name).run("HGET", "group:k", "active") == "0"


# -- many jobs ---------------------------------------------------------------------------------------------


async def test_clean(raw: Raw, queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    gate.open()
    jobs = await queue.add_bulk([("n", n) for n in range(500)])
    async with worker_for(gate, concurrency=50) as worker:
        await EventRecorder(worker).wait("completed", 500)
    await jobs[3].log("a line")
    assert await queue.clean(timedelta(hours=1), 1_000, "completed") == []
    assert await queue.clean(0, 1_000, "failed") == []
    first = await queue.clean(0, 180)
    assert len(first) == 180
    rest = await queue.clean(0, 1_000)
    assert sorted(first + rest) == sorted(job.id for job in jobs)
    assert raw.keys("job:*") == raw.keys("log:*") == []
    cleaned = [int(event["jobId"]) for event in raw.events() if event["event"] == "cleaned"]
    assert (cleaned, sum(cleaned)) == ([180, 320] if len(raw.bases) == 1 else cleaned, 500)
    rejected: dict[tuple[Any, ...], str] = {
        (-1,): "'grace' = -1", (1.5,): "'grace' = 1.5", (0, 0): "'limit' = 0", (0, -1): "'limit' = -1",
        (0, True): "'limit' = True", (0, 1, "active"): "'state' = 'active'",
    }  # fmt: skip
    for arguments, message in rejected.items():
        with pytest.raises(GlideMQValidationError, match=message):
            await queue.clean(*arguments)


async def test_drain_while_a_worker_runs(
    worker_for: WorkerFor, resp: RespClient, queue: Queue, queue_name: str, key_leaks: KeyLeaks
):
    """Active jobs finish, all others are deleted, and later jobs run, also in the same group."""
    gate = Gate()
    async with worker_for(gate, concurrency=2) as worker:
        recorded = EventRecorder(worker)
        await queue.add_bulk([("n", n, {"ordering": {"key": "k"}} if n % 2 else {}) for n in range(400)])
        await gate.next()
        await gate.next()
        deleted = await queue.drain()
        assert deleted == 398
        gate.open()
        await recorded.wait("completed", 2)
        later = await queue.add("n", "later", ordering={"key": "k"})
        assert await later.wait_until_finished() == "later"
    assert len(gate.begun) == 3
    assert Raw(resp, queue_name).run("HGET", "group:k", "active") == "0"
    assert await queue.drain(delayed=True) == 0
    await queue.clean(0)
    key_leaks.allow(f"glide:{{{queue_name}}}:group:k")


async def test_retry_jobs_while_a_worker_fails_them_again(queue: Queue, worker_for: WorkerFor):
    async with worker_for(fail, concurrency=20) as worker:
        recorded = EventRecorder(worker)
        await queue.add_bulk([("n", n) for n in range(400)])
        await recorded.wait("failed", 400)
        assert await queue.retry_jobs() == 400
        await recorded.wait("failed", 800)
        assert (await queue.get_job_counts()).failed == 400
        for wrong in (0, -1):  # 0 may have been computed, and would be taken for all
            with pytest.raises(GlideMQValidationError, match=f"option 'count' = {wrong}: must be .* 1"):
                await queue.retry_jobs(wrong)
        assert (await queue.get_job_counts()).failed == 400


# -- when a job has its turn -------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_polling")
async def test_priority_delay_and_promotion(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    gate.open()
    plain, urgent, late, delayed = await queue.add_bulk(
        [("plain",), ("urgent",), ("late", None, {"priority": 1}), ("delayed", None, {"delay": 60_000})]
    )
    await urgent.change_priority(2)
    assert urgent.priority == 2
    await queue.jobs.change_priority(late.id, 9)
    await plain.change_delay(timedelta(hours=1))
    assert plain.delay == 3_600_000
    assert await plain.get_state() == "delayed"
    await queue.promote(delayed.id)
    async with worker_for(gate) as worker:
        recorded = EventRecorder(worker)
        await recorded.wait("completed", 3)
        assert [job.name for job in gate.begun] == ["urgent", "late", "delayed"]
        # An idle worker is woken: it does not poll.
        await queue.jobs.change_delay(plain.id, 0)
        await with_timeout(plain.wait_until_finished())
        for action in (plain.promote(), plain.change_priority(1), queue.jobs.change_delay(plain.id, 5)):
            with pytest.raises(JobStateError, match="completed"):
                await action
    for option, action in (("priority", plain.change_priority(2048)), ("delay", plain.change_delay(-1))):
        with pytest.raises(GlideMQValidationError, match=option):
            await action


async def test_changing_missing_or_active_jobs_is_rejected(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    async with worker_for(gate):
        for action in (queue.promote("no"), queue.jobs.change_delay("no", 1), queue.jobs.change_priority("no", 1)):
            with pytest.raises(JobNotFoundError):
                await action
        await queue.add("n")
        job = await gate.next()
        with pytest.raises(JobStateError, match="active"):
            await job.change_priority(1)
        gate.open()


# -- looking -----------------------------------------------------------------------------------------------


@pytest.mark.exclude("partitioned", reason="the lists of partitions follow each other")
async def test_search(queue: Queue):
    await queue.add_bulk([(f"n{n % 3}", {"x": n, "even": n % 2 == 0, "list": [n]}) for n in range(600)])
    await queue.add_bulk([("later", {"x": 7, "even": True}, {"delay": 60_000}), ("later", 7, {"priority": 1})])
    found = await queue.search_jobs(name="n1", data={"even": True}, limit=3)
    assert [job.data["x"] for job in found] == [4, 10, 16]
    # The filter comes before the limit.
    assert [job.data["x"] for job in await queue.search_jobs("waiting", data={"x": 599}, limit=1)] == [599]
    assert len(await queue.search_jobs(name="n1", limit=1_000)) == 200
    assert {job.name for job in await queue.search_jobs(data={"x": 7})} == {"n1", "later"}
    assert [job.state for job in await queue.search_jobs(name="later")] == ["delayed", "prioritized"]
    assert await queue.search_jobs("completed", "later") == []
    assert [job.data["x"] for job in await queue.search_jobs(data={"list": [5]})] == [5]
    when = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    await queue.add("at", {"at": when})
    assert len(await queue.search_jobs(data={"at": when})) == 1
    # 1 is not accepted as True.
    assert [job.data["x"] for job in await queue.search_jobs(data={"x": True})] == []
    for bad in (
        {"limit": 0}, {"state": "unknown"}, {"name": ""}, {"data": [1]}, {"data": "x"}, {"data": {1: 2}},
        {"data": {None: 2}}, {"data": {("a", "b"): 2}}, {"data": {"a": object()}},
        {"data": {"a": {1, 2}}},
    ):  # fmt: skip
        with pytest.raises(GlideMQValidationError):
            await queue.search_jobs(**bad)


async def test_search_can_be_resumed(queue: Queue):
    await queue.add_bulk([("a", {"even": n % 2 == 0, "n": n}) for n in range(900)])
    await queue.add_bulk([("a", {"even": True, "n": n}, {"delay": 60_000}) for n in range(900, 903)])
    search = queue.jobs.iter_search(name="a", data={"even": True})
    first = [job async for job in until_number(search, 300)]
    await queue.add("a", {"even": False, "n": -1})
    rest = [job async for job in search]
    assert_order(first + rest, [*range(0, 900, 2), 900, 901, 902], lambda job: job.data["n"])
    assert [job.data async for job in queue.jobs.iter_search("delayed", exclude_data=True)] == [None] * 3
    with pytest.raises(GlideMQValidationError):
        queue.jobs.iter_search("paused")


async def until_number(search: AsyncIterator[Job], last: int) -> AsyncIterator[Job]:
    async for job in search:
        yield job
        if job.data["n"] == last:
            return


async def test_search_compares_serialized_values(url: str, queue_name: str):
    async with Queue(queue_name, url, serializer="msgpack") as queue:
        await queue.add("a", {7: b"bytes", "k": (1, 2)})
        assert len(await queue.search_jobs(data={7: b"bytes"})) == 1  # type: ignore[dict-item]
        assert len(await queue.search_jobs(data={"7": b"bytes"})) == 0
        assert len(await queue.search_jobs(data={"k": [1, 2]})) == 1


async def test_group_waiting_jobs_are_listed_found_and_counted(queue: Queue, worker_for: WorkerFor):
    gate = Gate()
    async with worker_for(gate, concurrency=9):
        await queue.add_bulk([("n", n, {"ordering": {"key": "k"}}) for n in range(5)])
        await gate.next()
        assert [job.data for job in await queue.get_jobs("group-waiting")] == [1, 2, 3, 4]
        assert [job.data for job in await queue.search_jobs("group-waiting", limit=1)] == [1]
        counts = await queue.get_job_counts()
        assert (counts.group_waiting, counts.active, counts.unfinished, counts.total) == (4, 1, 5, 5)
        assert await queue.count() == 4
        gate.open()


@pytest.mark.slow
async def test_counts_of_many_groups_and_many_priorities(
    worker_for: WorkerFor, url: str, queue: Queue, queue_name: str
):
    """More than one call sees."""
    await queue.add_bulk([("n", None, {"ordering": f"g{n % 600}"}) for n in range(1_800)])
    await queue.add_bulk([("n", None, {"priority": 1 + n, "delay": 60_000}) for n in range(600)])
    gate = Gate()
    async with worker_for(gate, concurrency=700):
        async with asyncio.timeout(120):
            while (counts := await queue.get_job_counts()).waiting:
                pass  # every question waits for the server
        assert (counts.active, counts.waiting, counts.group_waiting) == (600, 0, 1_200)
        assert (counts.delayed, counts.prioritized) == (600, 0)
        registry = CollectorRegistry()
        collector = QueueCollector([queue_name], url)
        registry.register(collector)
        for state, number in (("group-waiting", 1_200), ("delayed", 600), ("prioritized", 0), ("active", 600)):
            assert registry.get_sample_value("glidemq_jobs", {"queue": queue_name, "state": state}) == number
        collector.close()
        gate.open()


async def test_metrics_and_logs(worker_for: WorkerFor, resp: RespClient, queue: Queue, queue_name: str):
    async def handle(job: Job):
        for n in range(450):
            await job.log(f"line {n}")
        if job.data:
            raise ValueError

    async with worker_for(handle) as worker:
        assert await queue.get_metrics("completed") == Metrics(count=0)
        job, _ = await queue.add_bulk([("n",), ("n", 1)])
        await EventRecorder(worker).wait("failed")
        metrics = await queue.get_metrics("completed")
        assert metrics.count == 1
        (point,) = metrics.data
        assert (point.count, point.timestamp % 60_000) == (1, 0)
        assert point.avg_duration > 0
        assert (await queue.get_metrics("failed")).data[0].count == 1

        logs = await queue.get_job_logs(job.id)
        assert logs.count == 450
        assert logs.logs == [f"line {n}" for n in range(450)]
        for start, end in ((0, 0), (10, 19), (-2, -1), (440, 1_000), (-1_000, 3), (5, 4), (600, -1)):
            part = await queue.get_job_logs(job.id, start, end)
            assert (part.logs, part.count) == (await job.logs(start, end), 450)
        assert (await queue.get_job_logs("nobody")).logs == []

        raw = Raw(resp, queue_name)
        raw.run("HSET", "metrics:completed", "m:60000:c", 4, "m:60000:d", 10, "m:120000:c", 1, "junk", "x", "m:0:d", 5)
        data = (await queue.get_metrics("completed")).data
        figures = [(point.timestamp, point.count, point.avg_duration) for point in data[:2]]
        assert figures == [(60_000, 4, 2), (120_000, 1, 0)]
        assert (await queue.get_metrics("completed", 1, 1)).data == data[1:2]
        assert (await queue.get_metrics("completed", -2, -1)).data == data[1:]
        with pytest.raises(GlideMQValidationError):
            await queue.get_metrics("waiting")  # type: ignore[arg-type]
        with pytest.raises(GlideMQValidationError, match="end"):
            await queue.get_metrics("completed", 3, 1)
