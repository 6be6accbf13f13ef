"""Batch handlers: how batches are collected, and the separate outcome of each job."""

import asyncio
import threading
from typing import Any

import pytest

from glidemq_py import (
    BatchError,
    BatchOptions,
    DelayedError,
    GlideMQValidationError,
    Job,
    JobFailedError,
    Queue,
    RateLimitError,
    UnrecoverableError,
    UnsupportedOptionError,
    Worker,
)
from glidemq_py.testing import RespClient
from tests.server.worker_support import EventRecorder, Raw, until, with_timeout


class BatchGate:
    """An async batch handler that records its batches and returns when the gate is opened."""

    def __init__(self) -> None:
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


async def test_batch_has_the_ready_jobs_up_to_its_size(core_url: str, core_resp: RespClient, queue_name: str):
    gate = BatchGate()
    gate.opened.set()
    async with Queue(queue_name, core_url) as queue:
        jobs = await queue.add_bulk([("n", n) for n in range(25)])
        async with Worker(queue_name, gate, core_url, batch={"size": 10}) as worker:
            recorded = EventRecorder(worker)
            await recorded.wait("completed", 25)
        assert gate.sizes == [10, 10, 5]
        assert [job.data for batch in gate.begun for job in batch] == list(range(25))
        raw = Raw(core_resp, queue_name)
        assert [raw.job(job.id)["returnvalue"] for job in jobs] == [str(n) for n in range(25)]
        assert raw.pending() == []


async def test_a_batch_of_many_calls_is_full(url: str, queue_name: str):
    gate = BatchGate()
    gate.opened.set()
    async with Queue(queue_name, url) as queue:
        await queue.add_bulk([("n", n) for n in range(700)])
        async with Worker(queue_name, gate, url, batch=BatchOptions(300)) as worker:
            await EventRecorder(worker).wait("completed", 700)
    assert gate.sizes == [300, 300, 100]


async def test_plain_functions_run_batches_in_a_thread(url: str, queue_name: str):
    threads: list[str] = []

    def handle(jobs: list[Job]) -> list[int]:
        threads.append(threading.current_thread().name)
        jobs[0].blocking.log("first")
        return [job.data * 2 for job in jobs]

    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk([("n", n) for n in range(3)])
        async with Worker(queue_name, handle, url, batch={"size": 3}):
            assert [await job.wait_until_finished() for job in jobs] == [0, 2, 4]
        assert await jobs[0].logs() == ["first"]
    assert threads[0].startswith("glidemq-")


async def test_it_waits_for_more_until_it_is_full(core_url: str, queue_name: str):
    gate = BatchGate()
    gate.opened.set()
    batch = {"size": 3, "timeout": 60_000}
    async with Queue(queue_name, core_url) as queue, Worker(queue_name, gate, core_url, batch=batch) as worker:  # type: ignore[arg-type]
        jobs = [await queue.add("n", 0)]
        await with_timeout(until(lambda: worker.active_count == 1))
        jobs.append(await queue.add("n", 1))
        await with_timeout(until(lambda: worker.active_count == 2))
        assert gate.begun == []
        jobs.append(await queue.add("n", 2))
        assert [await job.wait_until_finished() for job in jobs] == [0, 1, 2]
    assert gate.sizes == [3]


async def test_batch_starts_at_the_deadline_with_the_collected_jobs(url: str, queue_name: str):
    gate = BatchGate()
    gate.opened.set()
    async with Queue(queue_name, url) as queue, Worker(queue_name, gate, url, batch=BatchOptions(10, timeout=60)):
        loop = asyncio.get_running_loop()
        before = loop.time()
        job = await queue.add("n", 7)
        assert await job.wait_until_finished() == 7
        assert loop.time() - before >= 0.055
    assert gate.sizes == [1]


async def test_partial_batches_count_against_concurrency(core_url: str, queue_name: str):
    gate = BatchGate()
    async with (
        Queue(queue_name, core_url) as queue,
        Worker(queue_name, gate, core_url, batch={"size": 5}, concurrency=2) as worker,
    ):
        recorded = EventRecorder(worker)
        for n in range(2):  # two batches of one
            await queue.add("n", n)
            await gate.next()
        await queue.add_bulk([("n", n) for n in range(8)])
        # A third would have to be taken first: see that the worker leaves them alone.
        await worker_is_quiet(worker)
        assert (gate.running, worker.active_count, (await queue.get_job_counts()).waiting) == (2, 2, 8)
        gate.opened.set()
        await recorded.wait("completed", 10)
    assert gate.most == 2
    assert gate.sizes[:2] == [1, 1]


async def worker_is_quiet(worker: Worker) -> None:
    fetching = worker._fetching
    assert fetching is not None
    fetching.request_jobs()
    await with_timeout(until(lambda: fetching.engine.requested_slots == 0 and not fetching.engine.calls_in_flight))


async def test_global_concurrency_bounds_batches_and_strands_nothing(
    core_url: str, core_resp: RespClient, queue_name: str
):
    """W17: entries beyond the limit were read and dropped, "active" until they stalled."""
    most = 0
    raw = Raw(core_resp, queue_name)

    async def handle(jobs: list[Job]) -> list[int]:
        nonlocal most
        most = max(most, len(raw.pending()))
        return [job.data for job in jobs]

    async with Queue(queue_name, core_url) as queue:
        await queue.set_global_concurrency(6)
        await queue.add_bulk([("n", n) for n in range(20)])
        workers = [Worker(queue_name, handle, core_url, batch={"size": 10}) for _ in range(2)]
        recorded = EventRecorder(*workers)
        async with workers[0], workers[1]:
            await recorded.wait("completed", 20)
        assert (await queue.get_job_counts()).active == 0
    assert 1 <= most <= 6


async def test_the_rate_limit_bounds_batches(url: str, queue_name: str):
    gate = BatchGate()
    gate.opened.set()
    async with Queue(queue_name, url) as queue:
        await queue.set_global_rate_limit(3, 60_000)
        await queue.add_bulk([("n", n) for n in range(8)])
        async with Worker(queue_name, gate, url, batch={"size": 5}) as worker:
            await EventRecorder(worker).wait("completed", 3)
            await worker_is_quiet(worker)
        assert gate.sizes == [3]


async def test_groups_give_one_job_at_a_time(url: str, queue_name: str):
    gate = BatchGate()
    gate.opened.set()
    async with Queue(queue_name, url) as queue:
        await queue.add_bulk([("n", n, {"ordering": {"key": "abc"[n % 3]}}) for n in range(9)])
        async with Worker(queue_name, gate, url, batch={"size": 10}) as worker:
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
async def test_wrong_number_of_results_fails_every_job(url: str, queue_name: str, answer: Any, expected: str):
    async def handle(jobs: list[Job]) -> Any:
        return answer

    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk([("n", n) for n in range(3)])
        async with Worker(queue_name, handle, url, batch={"size": 3}):
            for job in jobs:
                kind, reason = await failure(job)
                assert kind == "BatchMismatchError"
                assert expected in reason


async def test_an_exception_fails_every_job_and_each_has_its_own_attempts(url: str, queue_name: str):
    async def handle(jobs: list[Job]) -> Any:
        if len(jobs) == 3:
            raise ValueError("all of you")
        return [job.attempts_made for job in jobs]

    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk([("n", 0), ("n", 1, {"attempts": 2}), ("n", 2)])
        async with Worker(queue_name, handle, url, batch={"size": 3}):
            assert await failure(jobs[0]) == ("ValueError", "all of you")
            assert await jobs[1].wait_until_finished() == 1
            assert await failure(jobs[2]) == ("ValueError", "all of you")


async def test_batch_error_reports_the_outcome_of_each_job(core_url: str, queue_name: str):
    async def handle(jobs: list[Job]) -> Any:
        if len(jobs) == 1:
            return ["again"]
        raise BatchError(["fine", UnrecoverableError("never"), KeyError("once more"), DelayedError(1)])

    async with Queue(queue_name, core_url) as queue:
        jobs = await queue.add_bulk([("n", n, {"attempts": 2 if n == 1 else 1}) for n in range(5)])
        async with Worker(queue_name, handle, core_url, batch={"size": 5}):
            assert await jobs[0].wait_until_finished() == "fine"
            assert await failure(jobs[1]) == ("UnrecoverableError", "never")
            assert (await failure(jobs[2]))[0] == "KeyError"
            assert await jobs[3].wait_until_finished() == "again"
            kind, reason = await failure(jobs[4])
        assert kind == "BatchMismatchError"
        assert "BatchError has no result for this job" in reason
        read = await queue.get_job(jobs[3].id)
        assert read is not None
        assert read.attempts_made == 0


async def test_every_job_can_return_its_own_signal(core_url: str, core_resp: RespClient, queue_name: str):
    rounds: list[list[str]] = []

    async def one(job: Job) -> str:
        if job.name == "later" and (job.data or {}).get("step") is None:
            job.move_to_delayed(5, next_step="second")
        if job.name == "group" and len(rounds) == 1:
            job.rate_limit_group(5)
        if job.name == "limited" and len(rounds) == 1:
            raise RateLimitError(5)
        if job.name == "signal":
            return (await job.wait_for_signal("go")).data
        if job.name == "discard":
            job.discard()
            raise OSError("no more")
        if job.name == "moved":
            job.move_to_failed("moved away")
        if job.name == "tokens":
            await job.report_tokens(12)
            await job.update_progress(50)
            await job.log("a line")
        return f"{job.name} {job.data}"

    async def handle(jobs: list[Job]) -> list[Any]:
        rounds.append([job.name for job in jobs])
        return await asyncio.gather(*map(one, jobs), return_exceptions=True)

    names = ["plain", "later", "group", "limited", "discard", "moved", "tokens", "signal"]
    async with Queue(queue_name, core_url) as queue:
        jobs = await queue.add_bulk(
            [(name, {}, {"attempts": 3, **({"ordering": {"key": "k"}} if name == "group" else {})}) for name in names]
        )
        by_name = {job.name: job for job in jobs}
        async with Worker(queue_name, handle, core_url, batch={"size": 10}) as worker:
            recorded = EventRecorder(worker)
            assert await by_name["plain"].wait_until_finished() == "plain {}"
            assert await by_name["later"].wait_until_finished() == "later {'step': 'second'}"
            assert await by_name["group"].wait_until_finished() == "group {}"
            assert await by_name["limited"].wait_until_finished() == "limited {}"
            assert await failure(by_name["discard"]) == ("OSError", "no more")
            assert await failure(by_name["moved"]) == ("UnrecoverableError", "moved away")
            assert await by_name["tokens"].wait_until_finished() == "tokens {}"
            await recorded.wait("suspended")
            await queue.signal(by_name["signal"].id, "go", "gone")
            assert await by_name["signal"].wait_until_finished() == "gone"
            await recorded.wait("completed", 6)
        assert sorted(recorded.job_ids("delayed")) == sorted(by_name[name].id for name in ("later", "group", "limited"))
        raw = Raw(core_resp, queue_name)
        for name in ("later", "group", "limited"):
            assert raw.job(by_name[name].id).get("attemptsMade", "0") == "0"
        assert raw.job(by_name["tokens"].id)["tpmTokens"] == "12"
        assert await by_name["tokens"].logs() == ["a line"]
    assert rounds[0] == names


async def test_raised_signal_applies_only_to_its_job(url: str, queue_name: str):
    async def handle(jobs: list[Job]) -> list[Any]:
        if len(jobs) == 2:
            jobs[1].move_to_delayed(1, data="moved on")
        return [job.data for job in jobs]

    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk([("n", 0), ("n", 1)])
        async with Worker(queue_name, handle, url, batch={"size": 2}):
            kind, reason = await failure(jobs[0])
            assert kind == "BatchMismatchError"
            assert f"raised DelayedError of job {jobs[1].id!r}" in reason
            assert await jobs[1].wait_until_finished() == "moved on"


async def test_signal_of_another_job_is_rejected(url: str, queue_name: str):
    async def handle(jobs: list[Job]) -> list[Any]:
        try:
            jobs[1].move_to_delayed(1)
        except DelayedError as signal:
            return [signal, "fine"]

    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk([("n", 0), ("n", 1)])
        async with Worker(queue_name, handle, url, batch={"size": 2}):
            assert "was returned in place of the result of" in (await failure(jobs[0]))[1]
            assert await jobs[1].wait_until_finished() == "fine"


async def test_a_rate_limit_raised_outright_is_for_all(url: str, queue_name: str):
    calls = 0

    async def handle(jobs: list[Job]) -> list[Any]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RateLimitError(10)
        return [job.attempts_made for job in jobs]

    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk([("n", 0), ("n", 1)])
        async with Worker(queue_name, handle, url, batch={"size": 2}):
            assert [await job.wait_until_finished() for job in jobs] == [0, 0]


# -- ends from outside ----------------------------------------------------------------------------------------


async def test_timeout_applies_to_one_job_and_keeps_its_reason(core_url: str, queue_name: str):
    """W19: the reason of a timeout was lost in batches, and the handler continued during the retry."""
    gate = BatchGate()
    async with Queue(queue_name, core_url) as queue:
        jobs = await queue.add_bulk([("n", 0), ("n", 1, {"timeout": 40}), ("n", 2)])
        async with Worker(queue_name, gate, core_url, batch={"size": 3}):
            kind, reason = await failure(jobs[1])
            assert (kind, "40 ms" in reason) == ("JobTimeoutError", True)
            assert [job.cancelled.is_set() for job in gate.begun[0]] == [False, True, False]
            gate.opened.set()
            assert [await jobs[n].wait_until_finished() for n in (0, 2)] == [0, 2]
    assert gate.cancelled == 0


async def test_handler_is_cancelled_if_all_its_jobs_timed_out(url: str, queue_name: str):
    gate = BatchGate()
    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk([("n", n, {"timeout": 30 + 20 * n}) for n in range(3)])
        async with Worker(queue_name, gate, url, batch={"size": 3}) as worker:
            for job in jobs:
                assert (await failure(job))[0] == "JobTimeoutError"
            await with_timeout(until(lambda: worker.active_count == 0))
            assert gate.cancelled == 1


async def test_revoking_one_job_of_a_batch_cancels_it_alone(core_url: str, queue_name: str):
    gate = BatchGate()
    async with Queue(queue_name, core_url) as queue:
        jobs = await queue.add_bulk([("n", n) for n in range(3)])
        async with Worker(queue_name, gate, core_url, batch={"size": 3}, lock_duration=1_000):
            batch = await gate.next()
            assert await jobs[1].revoke() == "flagged"
            await with_timeout(until(batch[1].cancelled.is_set))
            assert (await failure(jobs[1]))[0] == "JobRevokedError"
            gate.opened.set()
            assert [await jobs[n].wait_until_finished() for n in (0, 2)] == [0, 2]
    assert gate.cancelled == 0


async def test_revoking_a_collected_job(url: str, queue_name: str):
    gate = BatchGate()
    gate.opened.set()
    async with (
        Queue(queue_name, url) as queue,
        Worker(queue_name, gate, url, batch=BatchOptions(2, 60_000), lock_duration=1_000) as worker,
    ):
        first = await queue.add("n", 0)
        await with_timeout(until(lambda: worker.active_count == 1))
        await first.revoke()
        assert (await failure(first))[0] == "JobRevokedError"
        others = await queue.add_bulk([("n", 1), ("n", 2)])
        assert [await job.wait_until_finished() for job in others] == [1, 2]
    assert gate.sizes == [2]


async def test_close_releases_collected_jobs_and_waits_for_active_ones(
    core_url: str, core_resp: RespClient, queue_name: str
):
    gate = BatchGate()
    async with Queue(queue_name, core_url) as queue:
        worker = Worker(queue_name, gate, core_url, batch=BatchOptions(2, 60_000), concurrency=2)
        await worker.start()
        running = await queue.add_bulk([("n", 0), ("n", 1)])
        await gate.next()
        waits = await queue.add("n", 2)
        await with_timeout(until(lambda: worker.active_count == 3))
        closing = asyncio.ensure_future(worker.close())
        raw = Raw(core_resp, queue_name)
        await with_timeout(until(lambda: raw.state(waits.id) == "waiting"))
        assert not closing.done()
        gate.opened.set()
        await with_timeout(closing)
        assert [raw.state(job.id) for job in running] == ["completed", "completed"]
        assert raw.job(waits.id).get("attemptsMade", "0") == "0"
        assert raw.pending() == []


async def test_forced_close_releases_every_job_of_a_batch(url: str, resp: RespClient, queue_name: str):
    gate = BatchGate()
    async with Queue(queue_name, url) as queue:
        jobs = await queue.add_bulk([("n", n) for n in range(3)])
        worker = Worker(queue_name, gate, url, batch={"size": 3})
        await worker.start()
        await gate.next()
        await with_timeout(worker.close(force=True))
        raw = Raw(resp, queue_name)
        assert [raw.state(job.id) for job in jobs] == ["waiting"] * 3
        assert [raw.job(job.id).get("attemptsMade", "0") for job in jobs] == ["0"] * 3
    assert gate.cancelled == 1


async def test_a_paused_worker_takes_no_batch(url: str, queue_name: str):
    gate = BatchGate()
    gate.opened.set()
    async with Queue(queue_name, url) as queue, Worker(queue_name, gate, url, batch={"size": 3}) as worker:
        worker.pause()
        await worker_is_quiet(worker)
        await queue.add_bulk([("n", n) for n in range(3)])
        await worker_is_quiet(worker)
        assert gate.begun == []
        worker.resume()
        await gate.next()
        await queue.pause()
        await queue.add("n", 3)
        await worker_is_quiet(worker)
        assert gate.sizes == [3]


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
    with pytest.raises(UnsupportedOptionError, match="tasks run one job each"):

        @worker.task
        async def one() -> None: ...


async def test_batches_with_every_option_at_once(url: str, queue_name: str) -> None:
    """Groups, retries, fallbacks, signals, limits and dead letters work per job, as without batches."""

    async def one(job: Job) -> Any:
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
        worker = Worker(
            queue_name, handle, url, batch={"size": 10, "timeout": 20}, concurrency=3,
            limiter={"max": 200, "duration": 100}, dead_letter_queue=dead,
        )  # fmt: skip
        async with worker:
            ends = await with_timeout(
                asyncio.gather(*(job.wait_until_finished() for job in jobs), return_exceptions=True)
            )
        assert [n for n, end in enumerate(ends) if end != n] == [n for n in range(60) if n % 5 in (0, 2)]
        letters = await queue.get_dead_letter_jobs()
        assert sorted(letter.data["data"] for letter in letters) == [n for n in range(60) if n % 5 in (0, 2)]
        report = await queue.check(recheck_after=50)
        assert not report.findings, str(report)
