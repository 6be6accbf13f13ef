"""Batch handlers: how batches are collected, and the separate outcome of each job."""

import asyncio
import threading
from typing import Any

import pytest

from glidemq_py import (
    BatchOptions,
    DelayedError,
    GlideMQValidationError,
    Job,
    JobFailedError,
    RateLimitError,
    UnrecoverableError,
    Worker,
)
from glidemq_py.errors import BatchError, JobSignal
from tests.contract.api import Queue
from tests.contract.observe import assert_order
from tests.server.worker_support import EventRecorder, WorkerFor, until, with_timeout


class BatchGate:
    """An async batch handler that records its batches and returns when the gate is opened."""

    def __init__(self):
        self.begun: list[list[Job]] = []
        self.opened = asyncio.Event()
        self.cancelled = 0
        self.running = 0
        self.most = 0
        self._begun: asyncio.Queue[list[Job]] = asyncio.Queue()

    async def __call__(self, jobs: list[Job]) -> list[Any]:
        self.begun.append(jobs)
        self._begun.put_nowait(jobs)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return [job.data for job in jobs]

    async def next(self) -> list[Job]:
        return await with_timeout(self._begun.get())

    @property
    def sizes(self) -> list[int]:
        return [len(jobs) for jobs in self.begun]


async def test_a_batch_of_many_calls_is_full(queue: Queue, worker_for: WorkerFor):
    gate = BatchGate()
    gate.opened.set()
    await queue.add_bulk([("n", n) for n in range(700)])
    async with worker_for(gate, batch=BatchOptions(300)) as worker:
        await EventRecorder(worker).wait("completed", 700)
    assert gate.sizes == [300, 300, 100]
    assert_order([job for batch in gate.begun for job in batch], range(700))


async def test_plain_functions_run_batches_in_a_thread(queue: Queue, worker_for: WorkerFor):
    threads: list[str] = []

    def handle(jobs: list[Job]) -> list[int]:
        threads.append(threading.current_thread().name)
        jobs[0].blocking.log("first")
        return [job.data * 2 for job in jobs]

    jobs = await queue.add_bulk([("n", n) for n in range(3)])
    async with worker_for(handle, batch={"size": 3}):
        assert [await job.wait_until_finished() for job in jobs] == [0, 2, 4]
    assert await jobs[0].logs() == ["first"]
    assert threads[0].startswith("glidemq-")


async def test_it_waits_for_more_until_it_is_full(queue: Queue, worker_for: WorkerFor):
    gate = BatchGate()
    gate.opened.set()
    batch = {"size": 3, "timeout": 60_000}
    async with worker_for(gate, batch=batch) as worker:
        jobs = [await queue.add("n", 0)]
        await with_timeout(until(lambda: worker.active_count == 1))
        jobs.append(await queue.add("n", 1))
        await with_timeout(until(lambda: worker.active_count == 2))
        assert gate.begun == []
        jobs.append(await queue.add("n", 2))
        assert [await job.wait_until_finished() for job in jobs] == [0, 1, 2]
    assert gate.sizes == [3]


async def test_batch_starts_at_the_deadline_with_the_collected_jobs(queue: Queue, worker_for: WorkerFor):
    gate = BatchGate()
    gate.opened.set()
    async with worker_for(gate, batch=BatchOptions(10, timeout=60)):
        loop = asyncio.get_running_loop()
        before = loop.time()
        job = await queue.add("n", 7)
        assert await job.wait_until_finished() == 7
        assert loop.time() - before >= 0.055
    assert gate.sizes == [1]


async def test_groups_give_one_job_at_a_time(queue: Queue, worker_for: WorkerFor):
    gate = BatchGate()
    gate.opened.set()
    await queue.add_bulk([("n", n, {"ordering": {"key": "abc"[n % 3]}}) for n in range(9)])
    async with worker_for(gate, batch={"size": 10}) as worker:
        await EventRecorder(worker).wait("completed", 9)
    assert gate.sizes == [3, 3, 3]
    assert [sorted(job.data for job in batch) for batch in gate.begun] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


# -- ends -----------------------------------------------------------------------------------------------------


async def failure(job: Job) -> tuple[str | None, str]:
    with pytest.raises(JobFailedError) as caught:
        await job.wait_until_finished()
    return caught.value.failed_type, caught.value.failed_reason


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ([1], "one result per job (got 1 results for 3 jobs)"),
        ([1, 2, 3, 4], "one result per job (got 4 results for 3 jobs)"),
        (None, "a list of 3 results (got NoneType)"),
        ("abc", "a list of 3 results (got str)"),
    ],
)
async def test_wrong_number_of_results_fails_every_job(queue: Queue, worker_for: WorkerFor, answer: Any, expected: str):
    async def handle(jobs: list[Job]):
        return answer

    jobs = await queue.add_bulk([("n", n) for n in range(3)])
    async with worker_for(handle, batch={"size": 3}):
        for job in jobs:
            kind, reason = await failure(job)
            assert kind == "HandlerError"
            assert expected in reason


async def test_an_exception_fails_every_job_and_each_has_its_own_attempts(queue: Queue, worker_for: WorkerFor):
    async def handle(jobs: list[Job]):
        if len(jobs) == 3:
            raise ValueError("all of you")
        return [job.attempts_made for job in jobs]

    jobs = await queue.add_bulk([("n", 0), ("n", 1, {"attempts": 2}), ("n", 2)])
    async with worker_for(handle, batch={"size": 3}):
        assert await failure(jobs[0]) == ("ValueError", "all of you")
        assert await jobs[1].wait_until_finished() == 1
        assert await failure(jobs[2]) == ("ValueError", "all of you")


async def test_batch_error_reports_the_outcome_of_each_job(queue: Queue, worker_for: WorkerFor):
    async def handle(jobs: list[Job]):
        if len(jobs) == 1:
            return ["again"]
        raise BatchError(["fine", UnrecoverableError("never"), KeyError("once more"), DelayedError(1)])

    jobs = await queue.add_bulk([("n", n, {"attempts": 2 if n == 1 else 1}) for n in range(5)])
    async with worker_for(handle, batch={"size": 5}):
        assert await jobs[0].wait_until_finished() == "fine"
        assert await failure(jobs[1]) == ("UnrecoverableError", "never")
        assert (await failure(jobs[2]))[0] == "KeyError"
        assert await jobs[3].wait_until_finished() == "again"
        kind, reason = await failure(jobs[4])
    assert kind == "HandlerError"
    assert "BatchError has no result for this job" in reason
    read = await queue.get_job(jobs[3].id)
    assert read is not None
    assert read.attempts_made == 0


@pytest.mark.parametrize("raised", [True, False])
@pytest.mark.parametrize("way", ["move_to_delayed", "suspend", "wait_for_signal"])
async def test_a_signal_of_one_job_leaves_the_others_of_its_batch_unharmed(
    queue: Queue, worker_for: WorkerFor, way: str, raised: bool
):
    async def handle(jobs: list[Job]) -> list[Any]:
        results: Any = [job.data for job in jobs]
        for n, job in enumerate(jobs):
            if job.data == "signals":
                try:
                    if way == "move_to_delayed":
                        job.move_to_delayed(1, data="moved on")
                    await job.wait_for_signal("go") if way == "wait_for_signal" else job.suspend()
                except JobSignal as signal:
                    if raised:
                        raise
                    results[n] = signal
        return results

    jobs = await queue.add_bulk([("n", data, {"attempts": 3, "backoff": 60_000}) for data in (0, "signals", 2)])
    async with worker_for(handle, batch={"size": 3}):
        if way == "move_to_delayed":
            assert await jobs[1].wait_until_finished() == "moved on"
        else:
            kind, reason = await failure(jobs[1])
            assert kind == "UnrecoverableError"
            assert f"job {jobs[1].id!r} cannot be suspended in a batch handler" in reason
        for job in (jobs[0], jobs[2]):
            assert await job.wait_until_finished() == job.data
            await job.reload()
            assert job.attempts_made == 0


async def test_signal_of_another_job_is_rejected(queue: Queue, worker_for: WorkerFor):
    async def handle(jobs: list[Job]) -> list[Any]:
        try:
            jobs[1].move_to_delayed(1)
        except DelayedError as signal:
            return [signal, "fine"]

    jobs = await queue.add_bulk([("n", 0), ("n", 1)])
    async with worker_for(handle, batch={"size": 2}):
        assert "was returned in place of the result of" in (await failure(jobs[0]))[1]
        assert await jobs[1].wait_until_finished() == "fine"


async def test_a_rate_limit_raised_outright_is_for_all(queue: Queue, worker_for: WorkerFor):
    calls = 0

    async def handle(jobs: list[Job]) -> list[Any]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RateLimitError(10)
        return [job.attempts_made for job in jobs]

    jobs = await queue.add_bulk([("n", 0), ("n", 1)])
    async with worker_for(handle, batch={"size": 2}):
        assert [await job.wait_until_finished() for job in jobs] == [0, 0]


# -- ends from outside ----------------------------------------------------------------------------------------


async def test_timeout_applies_to_one_job_and_keeps_its_reason(queue: Queue, worker_for: WorkerFor):
    """W19: the reason of a timeout was lost in batches, and the handler continued during the retry."""
    gate = BatchGate()
    jobs = await queue.add_bulk([("n", 0), ("n", 1, {"timeout": 40}), ("n", 2)])
    async with worker_for(gate, batch={"size": 3}):
        kind, reason = await failure(jobs[1])
        assert (kind, "40 ms" in reason) == ("JobTimeoutError", True)
        assert [job.cancelled.is_set() for job in gate.begun[0]] == [False, True, False]
        gate.opened.set()
        assert [await jobs[n].wait_until_finished() for n in (0, 2)] == [0, 2]
    assert gate.cancelled == 0


async def test_handler_is_cancelled_if_all_its_jobs_timed_out(queue: Queue, worker_for: WorkerFor):
    gate = BatchGate()
    jobs = await queue.add_bulk([("n", n, {"timeout": 30 + 20 * n}) for n in range(3)])
    async with worker_for(gate, batch={"size": 3}) as worker:
        for job in jobs:
            assert (await failure(job))[0] == "JobTimeoutError"
        await with_timeout(until(lambda: worker.active_count == 0))
        assert gate.cancelled == 1


async def test_revoking_one_job_of_a_batch_cancels_it_alone(queue: Queue, worker_for: WorkerFor):
    gate = BatchGate()
    jobs = await queue.add_bulk([("n", n) for n in range(3)])
    async with worker_for(gate, batch={"size": 3}, lock_duration=1_000):
        batch = await gate.next()
        assert await jobs[1].revoke() == "flagged"
        await with_timeout(until(batch[1].cancelled.is_set))
        assert (await failure(jobs[1]))[0] == "JobRevokedError"
        gate.opened.set()
        assert [await jobs[n].wait_until_finished() for n in (0, 2)] == [0, 2]
    assert gate.cancelled == 0


async def test_revoking_a_collected_job(queue: Queue, worker_for: WorkerFor):
    gate = BatchGate()
    gate.opened.set()
    async with (
        worker_for(gate, batch=BatchOptions(2, 60_000), lock_duration=1_000) as worker,
    ):
        first = await queue.add("n", 0)
        await with_timeout(until(lambda: worker.active_count == 1))
        await first.revoke()
        assert (await failure(first))[0] == "JobRevokedError"
        others = await queue.add_bulk([("n", 1), ("n", 2)])
        assert [await job.wait_until_finished() for job in others] == [1, 2]
    assert gate.sizes == [2]


@pytest.mark.parametrize(
    ("batch", "option"),
    [
        ({"size": 0}, "batch.size"), ({"size": 1001}, "batch.size"), ({"size": 2.0}, "batch.size"), ({}, "batch"),
        ({"size": 5, "timeout": -1}, "batch.timeout"), ({"size": 5, "wait": 1}, "batch.wait"), (5, "batch"),
    ],
)  # fmt: skip
def test_invalid_batch_options_are_rejected(batch: Any, option: str):
    with pytest.raises(GlideMQValidationError) as caught:
        Worker("q", lambda jobs: jobs, batch=batch)
    assert caught.value.option == option


def test_tasks_and_batches_do_not_go_together():
    worker = Worker("q", batch={"size": 5})
    with pytest.raises(GlideMQValidationError, match="tasks run one job each"):

        @worker.task
        async def one(): ...


async def test_batches_with_every_option_at_once(worker_for: WorkerFor, url: Any, queue_name: str):
    """Groups, retries, fallbacks, signals, limits and dead letters work per job, as without batches."""

    async def one(job: Job):
        kind = job.data % 5
        if kind == 0:
            raise UnrecoverableError("never")
        if kind == 1 and job.attempts_made == 0:
            raise ValueError("not yet")
        if kind == 2:
            await job.wait_for_signal("go", timeout=100)
        if kind == 3 and job.progress == 0:
            await job.update_progress(1)
            job.rate_limit_group(30)
        return job.data

    async def handle(jobs: list[Job]) -> list[Any]:
        return await asyncio.gather(*map(one, jobs), return_exceptions=True)

    dead = f"{queue_name}-dead"
    options = {"attempts": 3, "backoff": 10, "timeout": 3_000, "ttl": 60_000, "fallbacks": ["a", "b"]}
    rows = [("n", n, options | {"ordering": {"key": f"g{n % 3}", "concurrency": 1}}) for n in range(60)]
    async with Queue(queue_name, url, dead_letter_queue=dead) as queue:
        jobs = await queue.add_bulk(rows)
        worker = worker_for(
            handle, batch={"size": 10, "timeout": 20}, concurrency=3,
            limiter={"max": 200, "duration": 100}, dead_letter_queue=dead,
        )  # fmt: skip
        async with worker:
            ends = await with_timeout(
                asyncio.gather(*(job.wait_until_finished() for job in jobs), return_exceptions=True)
            )
        assert [n for n, end in enumerate(ends) if end != n] == [n for n in range(60) if n % 5 in (0, 2)]
        letters = await queue.dead_letters.get_all()
        assert sorted(letter.data["data"] for letter in letters) == [n for n in range(60) if n % 5 in (0, 2)]
        report = await queue.check(recheck_after=50)
        assert not report.findings, str(report)


async def test_close_releases_collected_jobs_and_waits_for_active_ones(queue: Queue, worker_for: WorkerFor):
    gate = BatchGate()
    worker = worker_for(gate, batch=BatchOptions(2, 60_000), concurrency=2)
    await worker.start()
    running = await queue.add_bulk([("n", 0), ("n", 1)])
    await gate.next()
    waits = await queue.add("n", 2)
    await with_timeout(until(lambda: worker.active_count == 3))
    closing = asyncio.ensure_future(worker.close())
    await with_timeout(until(lambda: worker.active_count == 2))
    assert not closing.done()
    gate.opened.set()
    await with_timeout(closing)
    assert [await job.get_state() for job in (*running, waits)] == ["completed", "completed", "waiting"]
    (left,) = await queue.get_jobs("waiting")
    assert left.attempts_made == 0


async def test_forced_close_releases_every_job_of_a_batch(queue: Queue, worker_for: WorkerFor):
    gate = BatchGate()
    jobs = await queue.add_bulk([("n", n) for n in range(3)])
    worker = worker_for(gate, batch={"size": 3})
    await worker.start()
    await gate.next()
    await with_timeout(worker.close(force=True))
    assert [await job.get_state() for job in jobs] == ["waiting"] * 3
    assert [job.attempts_made for job in await queue.get_jobs("waiting")] == [0] * 3
    assert gate.cancelled == 1
