"""structlog: lines of a handler name their job, and nothing of it stays in the context."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from glidemq_py import GlideMQValidationError, Job, Queue, Worker

structlog = pytest.importorskip("structlog")
from structlog.testing import CapturingLogger  # noqa: E402

from glidemq_py.integrations.structlog import StructlogMiddleware  # noqa: E402


async def test_lines_of_a_handler_name_the_job_and_what_it_carries(url: str, queue_name: str):
    captured = CapturingLogger()
    log: Any = structlog.wrap_logger(captured, processors=[structlog.contextvars.merge_contextvars])
    carried = StructlogMiddleware(carry=["request_id"])
    left: list[dict[str, Any]] = []

    async def work(job: Job):
        structlog.contextvars.bind_contextvars(own=job.data)
        await asyncio.sleep(0)
        log.info("works")

    async with Queue(queue_name, url, middleware=[carried]) as queue:
        structlog.contextvars.bind_contextvars(request_id=17, user="not carried")
        jobs = await queue.add_bulk([("work", n) for n in range(3)])
        structlog.contextvars.clear_contextvars()
        other = await queue.add("work", 3)
        ended = asyncio.Semaphore(0)
        worker = Worker(queue_name, work, url, middleware=[carried])

        def end(*_: object):
            left.append(structlog.contextvars.get_contextvars())
            ended.release()

        worker.on("completed", end)
        async with worker, asyncio.timeout(100):
            for _ in range(4):
                await ended.acquire()
    found = {call.kwargs["job_id"]: call.kwargs for call in captured.calls}
    common = {"event": "works", "queue": queue_name, "job_name": "work", "attempt": 1}
    expected = {job.id: {**common, "job_id": job.id, "own": n, "request_id": "17"} for n, job in enumerate(jobs)}
    expected[other.id] = {**common, "job_id": other.id, "own": 3}
    assert found == expected
    assert left == [{}] * 4


@pytest.mark.parametrize("carry", ["request_id", [1], [""]])
def test_wrong_names(carry: Any):
    with pytest.raises(GlideMQValidationError, match="carry"):
        StructlogMiddleware(carry=carry)
