"""`job.step`: set by `next_step`, separate from the arguments of a task, stored in the data for peers."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Job, JobFailedError, Worker
from glidemq_py.errors import JobDataError
from glidemq_py.testing import TestQueue, TestWorker
from tests.contract.api import Queue
from tests.contract.observe import Raw
from tests.server.worker_support import WorkerFor

HANDLERS = "tests.server.sandboxed_handlers"


async def test_typed_task_continues_after_its_children(url: Any, queue_name: str):
    worker = Worker(queue_name, connection=url, concurrency=3)

    @worker.task
    async def count(text: str) -> int:
        return len(text)

    @worker.task
    async def report(job: Job, texts: list[str]) -> int:
        if job.step != "add up":
            await worker.queue.add_bulk([("count", {"text": text}, {"parent": job}) for text in texts])
            await job.move_to_waiting_children(next_step="add up")
        return sum((await job.get_children_values()).values())

    async with worker:
        assert await report.add_and_wait(["one", "three"]) == 8


async def test_step_that_a_peer_wrote(url: Any, queue_name: str):
    worker = Worker(queue_name, connection=url)

    @worker.task
    async def order(job: Job, customer: str) -> list[str | None]:
        return [job.step, customer]

    async with worker, Queue(queue_name, url) as queue:
        assert await queue.add_and_wait("order", {"customer": "ann", "step": "collect"}) == ["collect", "ann"]
        for wrong in ({"customer": "ann", "step": 3}, {"customer": "ann", "other": "collect"}):
            with pytest.raises(JobFailedError, match="unknown parameter"):
                await queue.add_and_wait("order", wrong)


async def test_parameter_called_step_gets_the_step():
    worker = Worker("q")

    @worker.task
    async def order(job: Job, step: str = "first") -> list[str | None]:
        if step == "first":
            job.move_to_delayed(0, next_step="second")
        return [step, job.step]

    async with TestQueue("q") as queue, TestWorker.of(worker, queue) as test:
        await order.add()
        assert [run.result for run in await test.run_until_empty()] == [None, ["second", "second"]]


@pytest.mark.parametrize("wait", [
    lambda job: asyncio.to_thread(job.move_to_delayed, 0, next_step="second"),
    lambda job: job.move_to_waiting_children(next_step="second"),
])  # fmt: skip
async def test_step_that_the_task_s_own_parameter_cannot_take_is_rejected(
    wait: Callable[[Job], Awaitable[None]],
):
    worker = Worker("q")

    @worker.task
    async def order(job: Job, step: int):
        await wait(job)

    async with TestQueue("q") as queue, TestWorker.of(worker, queue) as test:
        await order.add(3)
        (run,) = await test.run_until_idle()
        assert isinstance(run.error, GlideMQValidationError)
        assert "'next_step' = 'second': does not match parameter 'step' of task 'order'" in str(run.error)
        (job,) = await queue.get_jobs("failed")
        assert job.data == {"step": 3}  # the argument is unchanged


@pytest.mark.parametrize(
    ("data", "step"), [(None, None), ({}, None), ({"step": "two"}, "two"), ({"step": 2}, None), (["step"], None)]
)
async def test_step_of_any_data(data: Any, step: str | None):
    async with TestQueue() as queue:
        job = await queue.add("n", data)
        read = await queue.get_job(job.id)
        assert read is not None
        assert (read.step, read.blocking.step) == (step, step)


async def test_step_of_unreadable_data_raises():
    async with TestQueue() as queue:
        job = await queue.add("n", {})
        queue.server.execute("HSET", f"glide:{{test}}:job:{job.id}", "data", "{")
        read = await queue.get_job(job.id)
        assert read is not None
        with pytest.raises(JobDataError):
            _ = read.step


async def test_plain_handler_and_serializer():
    async def handle(job: Job):
        if job.step is None:
            job.move_to_delayed(10, next_step="two", data={"n": job.data["n"] + 1})
        return [job.step, job.data]

    async with TestQueue(serializer="msgpack", compression="gzip") as queue, queue.worker(handle) as worker:
        await queue.add("n", {"n": 1})
        runs = await worker.run_until_empty()
        assert [run.result for run in runs] == [None, ["two", {"n": 2, "step": "two"}]]


@pytest.mark.parametrize(
    ("data", "replacement", "problem"),
    [
        ({"step": 3}, {}, "the job's data has a key 'step' that is not a step (3)"),
        ({"step": ["a"]}, {"data": {"step": "next"}}, None),
        ({"step": "one"}, {"data": {"a": 1, "step": "stairs"}}, "the new data has a key 'step' of its own ('stairs')"),
        ({"a": 1}, {"data": {"step": 2}}, "the new data has a key 'step' of its own (2)"),
        ({"step": "one"}, {"data": {"step": "one", "a": 1}}, None),
        ({"step": "one"}, {}, None),
        ({"step": None}, {}, None),
    ],
)
async def test_next_step_does_not_overwrite_another_use_of_its_key(data: Any, replacement: Any, problem: str | None):
    """The key `step` of the data is the step, also one that the producer has set; any other value is rejected."""

    async def handle(job: Job):
        if job.step != "next":
            job.move_to_delayed(10, next_step="next", **replacement)
        return job.data

    async with TestQueue() as queue, queue.worker(handle) as worker:
        job = await queue.add("n", data)
        runs = await worker.run_until_empty()
        if problem is None:
            assert [run.result for run in runs] == [None, {**(replacement.get("data") or data), "step": "next"}]
            return
        read = await queue.get_job(job.id)
        assert read is not None
        assert (read.failed_type, read.data) == ("GlideMQValidationError", data)
        assert problem in str(read.failed_reason)


async def test_batch():
    async def handle(jobs: list[Job]) -> list[Any]:
        return await asyncio.gather(*map(one, jobs), return_exceptions=True)

    async def one(job: Job) -> str | None:
        if job.step is None:
            job.move_to_delayed(10, next_step=f"{job.name} two")
        return job.step

    async with TestQueue() as queue, queue.worker(handle, batch={"size": 5}) as worker:
        await queue.add_bulk([("a", {}), ("b", {})])
        assert [run.result for run in await worker.run_until_empty()] == [None, None, "a two", "b two"]


@pytest.mark.slow
async def test_sandbox(queue: Queue, worker_for: WorkerFor):
    async with worker_for(f"{HANDLERS}:plain"):
        expected = ["second", "second", {"n": 1, "step": "second"}]
        assert await queue.add_and_wait("next_steps", {"n": 1}) == expected


@pytest.mark.parametrize("in_thread", [False, True])
async def test_typed_task_continues_after_a_delay(url: Any, raw: Raw, queue_name: str, in_thread: bool):
    worker = Worker(queue_name, connection=url)
    seen: list[tuple[str | None, str]] = []

    def work(job: Job, customer: str, cents: int) -> str:
        seen.append((job.step, customer))
        if job.step is None:
            job.move_to_delayed(1, next_step="collect")
        if job.step == "collect":
            job.move_to_delayed(1, next_step="ship")
        return f"{customer} owes {cents}"

    async def work_async(job: Job, customer: str, cents: int) -> str:
        return work(job, customer, cents)

    task = worker.task("order")(work if in_thread else work_async)
    async with worker:
        job = await task.add("ann", cents=5)
        assert await job.wait_until_finished() == "ann owes 5"
        assert seen == [(None, "ann"), ("collect", "ann"), ("ship", "ann")]
        # Peers read and write the step in the data.
        assert json.loads(raw.job(job.id)["data"]) == {"customer": "ann", "cents": 5, "step": "ship"}
        read = await worker.queue.get_job(job.id)
        assert read is not None
        assert (read.step, read.attempts_made) == ("ship", 0)


@pytest.mark.parametrize("in_thread", [False, True])
async def test_children_that_have_ended_already_leave_the_next_step(
    url: Any, raw: Raw, queue_name: str, in_thread: bool
):
    """The call returns; the rest of the handler and a later attempt have the new step."""
    worker = Worker(queue_name, connection=url)
    seen: list[str | None] = []

    @worker.task
    async def sum_up(job: Job, first: int) -> int:
        seen.append(job.step)
        if job.step is None:
            if in_thread:
                await asyncio.to_thread(job.blocking.move_to_waiting_children, next_step="sum")
            else:
                await job.move_to_waiting_children(next_step="sum")
            seen.append(job.step)
            raise ValueError("retried")
        if job.step == "sum":
            return first
        return -1

    async with worker:
        job = await worker.queue.add("sum_up", {"first": 3}, attempts=2)  # no children: all have ended
        assert await job.wait_until_finished() == 3
    assert seen == [None, "sum", "sum"]
    assert json.loads(raw.job(job.id)["data"]) == {"first": 3, "step": "sum"}
