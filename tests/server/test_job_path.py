"""How many functions of glidemq_py a plain job passes, from `Queue.add` until its result is stored.

The worker never becomes idle: every exchange reports one job and fetches the next one. Each hop should change the
representation of the job once; a function that only forwards to another one does not belong on this path.
"""

import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import glidemq_py
from glidemq_py import Job, Queue, Worker
from tests.server.worker_support import with_timeout

ROOT = f"{Path(glidemq_py.__file__).parent}/"
MOST_FUNCTIONS = 40
MOST_FILES = 15


class Trace:
    """Records the functions of glidemq_py that the current thread calls, in the order of their first call."""

    def __init__(self):
        self.calls: dict[tuple[str, str], int] = {}

    def start(self):
        sys.setprofile(self._called)

    def stop(self):
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: Any):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            key = code.co_filename.removeprefix(ROOT), code.co_qualname
            self.calls[key] = self.calls.get(key, 0) + 1

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.calls}

    def __str__(self) -> str:
        lines = (f"{count:3d}  {file}  {function}" for (file, function), count in self.calls.items())
        return f"{len(self.calls)} functions in {len(self.files)} files (with calls):\n" + "\n".join(lines)


async def trace_of_plain_job(queue: Queue, url: str) -> Trace:
    trace, gate, begun, ended = Trace(), asyncio.Event(), asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    async def handle(job: Job):
        if job.data == "before":
            begun.set()
            await gate.wait()  # its end fetches the traced job
        elif job.data == "after":
            trace.stop()  # fetched by the exchange that has stored the result of the traced job
            ended.set()
        ran.append(job.data)
        return job.data

    await queue.add_bulk([("n", f"warm-up {n}") for n in range(20)])
    await queue.add("n", "before")
    async with Worker(queue.name, handle, url):
        await with_timeout(begun.wait())
        trace.start()
        await queue.add("n", "traced")
        trace.stop()
        await queue.add("n", "after")
        trace.start()
        gate.set()
        await with_timeout(ended.wait())
    assert ran[-3:] == ["before", "traced", "after"]
    return trace


async def test_plain_job_passes_few_functions(url: str, queue_name: str):
    async with Queue(queue_name, url) as queue:
        trace = await trace_of_plain_job(queue, url)
    assert len(trace.calls) <= MOST_FUNCTIONS, str(trace)
    assert len(trace.files) <= MOST_FILES, str(trace)
