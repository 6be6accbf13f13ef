"""pydantic: models in and out of queues, and of typed tasks."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, computed_field

from glidemq_py import GlideMQValidationError, Job, JobFailedError, Queue, SerializationError, Worker
from glidemq_py.errors import JobDataError
from glidemq_py.integrations.pydantic import PydanticSerializer


class Shrink(BaseModel):
    width: PositiveInt


class Resize(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["resize"] = "resize"
    path: str
    width: PositiveInt = Field(alias="w")

    @computed_field
    def height(self) -> int:
        """Not stored: the model could not be read again."""
        return self.width * 2


class Resized(BaseModel):
    kind: Literal["resized"] = "resized"
    size: int


async def resize(job: Job[Resize, Resized]) -> Resized | None:
    assert isinstance(job.data, Resize)
    if job.name == "nothing":
        return None
    return Resized(size=job.data.width * 2)


MODELS = PydanticSerializer(Resize | Resized)


async def test_models_in_and_out(url: str, queue_name: str):
    async with (
        Queue(queue_name, url, serializer=MODELS) as queue,
        Queue(queue_name, url) as plain,
        Worker(queue_name, resize, url, serializer=MODELS, log_failures=False),
    ):
        assert await queue.add_and_wait("a", Resize(path="a.png", w=7), timeout=100_000) == Resized(size=14)
        # Another producer's plain JSON, with the alias.
        job = await plain.add("a", {"kind": "resize", "path": "b.png", "w": 8})
        await job.wait_until_finished(timeout=100_000)
        read = await queue.get_job(job.id)
        assert read is not None
        assert (read.data, read.returnvalue) == (Resize(path="b.png", w=8), Resized(size=16))
        stored = await plain.get_job(job.id)
        assert stored is not None
        assert stored.returnvalue == {"kind": "resized", "size": 16}
        no_result = await queue.add_and_wait("nothing", Resize(path="d.png", w=1), timeout=100_000)
        assert no_result is None
        with pytest.raises(SerializationError, match="greater than 0"):
            await queue.add("a", {"kind": "resize", "path": "c.png", "w": -1})
        broken = await plain.add("a", {"kind": "resize", "path": "c.png", "w": -1}, attempts=3)
        with pytest.raises(JobFailedError, match="greater than 0"):
            await broken.wait_until_finished(timeout=100_000)
    with pytest.raises(GlideMQValidationError, match="pydantic cannot handle it"):
        PydanticSerializer(object())


async def test_models_of_typed_tasks(url: str, queue_name: str):
    worker = Worker(queue_name, connection=url, log_failures=False)

    @worker.task
    async def shrink(image: Shrink, factor: int = 2) -> Resized:
        return Resized(size=image.width // factor)

    async with worker:
        assert await shrink.add_and_wait(Shrink(width=9)) == Resized(size=4)
        async with Queue(queue_name, url) as queue:
            job = await queue.add("shrink", {"image": {"width": "wide"}}, attempts=3)
            with pytest.raises(JobFailedError, match="image"):
                await job.wait_until_finished(timeout=100_000)
            await job.reload()
            assert job.failed_type == JobDataError.__name__
