"""Handlers that call a method of their job without ``await``: the job fails with a hint."""

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any
from unittest.mock import create_autospec

import pytest

from glidemq_py import Job, Queue, UnrecoverableError, Worker
from glidemq_py.testing import TestBroadcast, TestQueue

pytestmark = pytest.mark.filterwarnings("ignore:coroutine '.*' was never awaited:RuntimeWarning")


def log_in_plain(job: Job) -> str:
    job.log("lost")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    return "done"


async def log_in_async(job: Job) -> str:
    job.log("lost")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    await job.log("kept")
    return "done"


async def assigned(job: Job) -> str:
    forgotten = job.update_progress(5)
    assert inspect.iscoroutine(forgotten)
    return "done"


def many_before_it(job: Job):
    for number in range(40):
        job.blocking.log(str(number))
    _ = job.update_data(5)


@pytest.mark.parametrize(
    ("handler", "method"),
    [
        (log_in_plain, "log"), (log_in_async, "log"), (assigned, "update_progress"),
        (many_before_it, "update_data"),
    ],
)  # fmt: skip
async def test_job_fails_with_a_hint(handler: Callable[[Job], Any], method: str):
    async with TestQueue() as queue, queue.worker(handler) as worker:
        job = await queue.add("a", attempts=3)
        run = await worker.run_one()
        assert run is not None
        assert run.outcome == "failed"  # without another attempt: it would repeat the work
        assert isinstance(run.error, UnrecoverableError)
        assert f"job.{method}() without await" in str(run.error)
        await job.reload()
        assert job.failed_type == "UnrecoverableError"
        assert f"job.blocking.{method}(...)" in (job.failed_reason or "")


async def test_batch_fails_the_job_with_the_call():
    def handler(jobs: list[Job]) -> list[int]:
        _ = jobs[1].log("lost")
        return [1, 2]

    async with TestQueue() as queue, queue.worker(handler, batch={"size": 2}) as worker:
        await queue.add_bulk([("a",), ("b",)])
        runs = await worker.run_until_idle()
        assert [(run.job.name, run.outcome) for run in runs] == [("a", "completed"), ("b", "failed")]


async def test_message_of_a_broadcast():
    async with TestBroadcast() as broadcast, broadcast.worker(log_in_plain) as worker:
        await broadcast.publish("a")
        run = await worker.run_one()
        assert run is not None
        assert isinstance(run.error, UnrecoverableError)
        assert "without await" in str(run.error)


async def test_calls_with_an_owner_are_no_mistake():
    tasks: list[asyncio.Task[None]] = []

    async def handler(job: Job) -> str:
        await asyncio.gather(*(job.log(str(number)) for number in range(40)))
        tasks.append(asyncio.create_task(job.log("later")))  # has not started when the handler returns
        job.log("given up").close()
        return "done"

    async with TestQueue() as queue, queue.worker(handler) as worker:
        job = await queue.add("a")
        run = await worker.run_one()
        assert run is not None
        assert (run.outcome, run.result) == ("completed", "done")
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(await job.logs()) >= 40


async def test_error_of_the_handler_is_kept():
    def handler(job: Job):
        job.log("lost")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
        raise ValueError("mine")

    async with TestQueue() as queue, queue.worker(handler) as worker:
        await queue.add("a")
        run = await worker.run_one()
        assert run is not None
        assert isinstance(run.error, ValueError)


def test_methods_stay_coroutine_functions():
    double = create_autospec(Job, instance=True)
    assert inspect.iscoroutinefunction(double.log)
    assert list(inspect.signature(Job.log).parameters) == ["self", "line", "level", "keep"]


@pytest.mark.parametrize("is_task", [True, False])
def test_forgotten_add_is_logged_with_its_place(caplog: pytest.LogCaptureFixture, is_task: bool):
    worker = Worker("emails")

    @worker.task
    async def welcome(to: str) -> None: ...

    queue = Queue("emails")
    with caplog.at_level(logging.ERROR, "glidemq_py"):
        if is_task:
            welcome.add("ann")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
        else:
            queue.add("welcome")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    frame = inspect.currentframe()
    assert frame is not None
    line = frame.f_lineno - (5 if is_task else 3)
    name, cure = "<Queue 'emails'>", "a class of glidemq_py.sync"
    if is_task:
        name, cure = "<Task 'welcome'>", ".blocking.add()"
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{__file__}:{line}: {name}.add() was called without await, so it had no effect: "
        f"use await, or in blocking code {cure}"
    )


@pytest.mark.filterwarnings("always")
def test_python_warns_at_the_place_of_the_call():
    async def foreign() -> None: ...

    queue = Queue("emails")
    with pytest.warns(RuntimeWarning, match="was never awaited") as warned:  # noqa: PT031
        foreign()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
        queue.add("a")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    first, second = warned
    assert (first.filename, second.filename, second.lineno - first.lineno) == (__file__, __file__, 1)


async def test_awaited_and_foreign_coroutines_are_not_logged(caplog: pytest.LogCaptureFixture):
    async def foreign() -> None: ...

    with caplog.at_level(logging.ERROR, "glidemq_py"):
        async with TestQueue() as queue:
            await queue.add("a")
            queue.add("closed").close()
        foreign()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    assert caplog.records == []
