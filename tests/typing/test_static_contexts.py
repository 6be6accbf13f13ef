"""What mypy and pyright see of `Job.context`, of wrong names and of wrong blocks. Both check this
file; pytest runs it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, assert_type

import pytest

from glidemq_py import BroadcastWorker, GlideMQError, Job, Message, Queue, Worker, sync


class Pool:
    size = 5


@asynccontextmanager
async def lifespan(_: Worker) -> AsyncGenerator[Pool]:
    yield Pool()


async def sized(job: Job[str, int, Pool]) -> int:
    assert_type(job.context, Pool)
    assert_type(job.blocking.context, Pool)
    return job.context.size


def batched(jobs: list[Job[str, int, Pool]]) -> list[int]:
    return [job.context.size for job in jobs]


def plain(job: Job) -> int:
    assert_type(job.context, Any)
    return 1


def other(job: Job[str, int, bytes]) -> int:
    return len(job.context)


def message(message: Message[str, None, Pool]) -> int:
    return message.context.size


worker = Worker("contexts", sized, lifespan=lifespan)


@worker.task
async def count(job: Job[Any, Any, Pool], /, n: int) -> int:
    return job.context.size + n


def test_worker_is_typed_by_its_lifespan() -> None:
    assert_type(worker, Worker[Pool])
    assert_type(Worker("contexts", plain), Worker[Any])
    Worker("contexts", batched, batch={"size": 2}, lifespan=lifespan)
    Worker("contexts", plain, lifespan=lifespan)
    Worker("contexts", lambda job: job.id, lifespan=lifespan)
    Worker("contexts", other, lifespan=lifespan)  # type: ignore[misc] # pyright: ignore[reportArgumentType]
    BroadcastWorker("contexts", message, subscription="s", lifespan=lifespan)
    assert count.call(1).data == {"n": 1}


async def test_mistakes_are_reported_statically() -> None:
    with pytest.raises(TypeError):
        Queue("q", prefx="x")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError):
        Worker("q", plain, prefetch=3)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    with pytest.raises(GlideMQError):
        Queue("q", 5)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with pytest.raises(GlideMQError):
        await Queue("q").add("name", {}, {"attempts": 3})  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        await Queue("q").add("name", countdown=5)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    with pytest.raises(GlideMQError), Queue("q"):  # type: ignore[attr-defined] # pyright: ignore[reportGeneralTypeIssues]
        pass
    with pytest.raises(GlideMQError):
        async with sync.Queue("q"):  # type: ignore[attr-defined] # pyright: ignore[reportGeneralTypeIssues]
            pass
