"""structlog: every line of a handler names its job and the request that added it."""

import asyncio

import structlog

from glidemq_py import Job, Queue, Worker
from glidemq_py.integrations.structlog import StructlogMiddleware

structlog.configure(
    processors=[structlog.contextvars.merge_contextvars, structlog.processors.JSONRenderer(sort_keys=True)]
)
log = structlog.get_logger()
bound = StructlogMiddleware(carry=["request_id"])


async def send(job: Job) -> None:
    log.info("sending", to=job.data["to"])


async def main() -> None:
    async with Queue("emails", middleware=[bound]) as queue:
        with structlog.contextvars.bound_contextvars(request_id="8f3a"):
            log.info("adding")
            await queue.add("welcome", {"to": "ada@example.org"})
        async with Worker("emails", send, middleware=[bound]) as worker:
            await worker.drain()
    log.info("done")


if __name__ == "__main__":
    asyncio.run(main())
