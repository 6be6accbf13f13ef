"""pydantic: models as data and results of jobs; invalid data is rejected by the queue and by the worker."""

import asyncio
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PositiveInt

from glidemq_py import Job, JobFailedError, Queue, SerializationError, Worker
from glidemq_py.integrations.pydantic import PydanticSerializer


class Resize(BaseModel):
    """Data of a job."""

    kind: Literal["resize"] = "resize"
    path: str
    width: PositiveInt
    height: PositiveInt


class Resized(BaseModel):
    """Result of a job."""

    kind: Literal["resized"] = "resized"
    size: int


models = PydanticSerializer(Annotated[Resize | Resized, Field(discriminator="kind")])


async def resize(job: Job[Resize, Resized]) -> Resized:
    print(f"resized {job.data.path} to {job.data.width}x{job.data.height}")
    return Resized(size=job.data.width * job.data.height)


async def main() -> None:
    async with (
        Queue[Resize | dict[str, Any], Resized]("images", serializer=models) as queue,
        Worker("images", resize, serializer=models, log_failures=False),
        # A producer in another language, or an old one, which does not know the models.
        Queue[Any, Any]("images") as other,
    ):
        job = await queue.add("resize", Resize(path="a.png", width=640, height=480))
        print(f"job {job.id}:", await job.wait_until_finished(timeout=30_000))
        try:
            await queue.add("resize", {"kind": "resize", "path": "b.png", "width": -1, "height": 480})
        except SerializationError as error:
            print("not added:", " ".join(str(error).split()))
        foreign = await other.add("resize", {"kind": "resize", "path": "c.png", "height": 480}, attempts=5)
        try:
            await foreign.wait_until_finished(timeout=30_000)
        except JobFailedError as error:
            print(f"job {foreign.id} failed:", " ".join(error.failed_reason.split()))


if __name__ == "__main__":
    asyncio.run(main())
