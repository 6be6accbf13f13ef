"""Helpers of the worker tests: recorders of worker events, handlers that wait, and raw access to a queue's keys.

The helpers wait for an event, a future or a reply, not for a time. Only `until` polls.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from glidemq_py import Job, Worker
from glidemq_py.testing import RespClient, ServerProcess
from tests.inside import base_worker, listeners

T = TypeVar("T")

WorkerFor = Callable[..., Worker]
StartServer = Callable[..., ServerProcess]
PATIENCE = 120.0
"""Default timeout of a wait, seconds."""


async def with_timeout(awaitable: Awaitable[T], seconds: float = PATIENCE) -> T:
    """Return the result; raise TimeoutError instead of letting a test hang."""
    async with asyncio.timeout(seconds):
        return await awaitable


async def until(reached: Callable[[], object]):
    """Poll until the condition is true, for conditions without an event. Use inside `with_timeout`."""
    while not reached():  # noqa: ASYNC110  there is no event for it
        await asyncio.sleep(0.01)


class EventRecorder:
    """Records the events that workers emit, and waits for them."""

    def __init__(self, *workers: base_worker.BaseWorker):
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.count: Counter[str] = Counter()
        self._changed = asyncio.Event()
        for worker in workers:
            self.listen(worker)

    def listen(self, worker: base_worker.BaseWorker):
        for event in listeners.WORKER_EVENTS:
            worker.on(event, partial(self._note, event))

    def _note(self, event: str, *args: Any):
        self.calls.append((event, args))
        self.count[event] += 1
        self._changed.set()

    def of(self, event: str) -> list[tuple[Any, ...]]:
        """Return the arguments of each emitted event of this name."""
        return [args for name, args in self.calls if name == event]

    def job_ids(self, event: str) -> list[str]:
        return [args[0].id for args in self.of(event)]

    async def until(self, reached: Callable[["EventRecorder"], bool]):
        async with asyncio.timeout(PATIENCE):
            while not reached(self):
                self._changed.clear()
                await self._changed.wait()

    async def wait(self, event: str, count: int = 1):
        """Wait until the event has been emitted ``count`` times."""
        await self.until(lambda recorded: recorded.count[event] >= count)


class Gate:
    """An async handler that records its jobs and returns when the gate is opened."""

    def __init__(self):
        self.begun: list[Job] = []
        self.opened = asyncio.Event()
        self.cancelled = 0
        self._begun: asyncio.Queue[Job] = asyncio.Queue()

    async def __call__(self, job: Any):
        self.begun.append(job)
        self._begun.put_nowait(job)
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return job.data

    async def next(self) -> Job:
        """Return the next job that starts."""
        return await with_timeout(self._begun.get())

    def open(self):
        self.opened.set()


class Raw:
    """Raw access to the keys of a queue, without our own code."""

    def __init__(self, resp: RespClient, name: str):
        self.resp = resp
        self.base = f"glide:{{{name}}}"

    def key(self, suffix: str) -> str:
        return f"{self.base}:{suffix}"

    def run(self, command: str, suffix: str, *args: str | bytes | float):
        return self.resp.execute(command, self.key(suffix), *args)

    def job(self, job_id: str) -> dict[str, str]:
        return self.resp.hash(self.key(f"job:{job_id}"))

    def state(self, job_id: str) -> str | None:
        state = self.run("HGET", f"job:{job_id}", "state")
        return None if state is None else str(state)

    def put_job(self, job_id: str, *, place: str = "stream", **fields: object) -> str:
        """Write a ready job as a peer does: hash and source (stream, lifo or priority). None omits a field."""
        record: dict[str, object | None] = {
            "id": job_id, "name": "task", "data": "{}", "opts": "{}", "timestamp": 0, "attemptsMade": 0,
            "delay": 0, "priority": 0, "maxAttempts": 0, "state": "waiting",
        }  # fmt: skip
        record |= fields
        flat = [str(item) for pair in record.items() if pair[1] is not None for item in pair]
        self.run("HSET", f"job:{job_id}", *flat)
        if place == "stream":
            self.push(jobId=job_id, name="task")
        else:
            self.run("RPUSH" if place == "lifo" else "LPUSH", place, job_id)
        return job_id

    def push(self, **fields: str) -> str:
        """Add a stream entry with these fields."""
        return str(self.run("XADD", "stream", "*", *(item for pair in fields.items() for item in pair)))

    def events(self, job_id: str | None = None) -> list[dict[str, str]]:
        found = [
            dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in self.run("XRANGE", "events", "-", "+")
        ]
        return [event for event in found if job_id is None or event.get("jobId") == job_id]

    def event_names(self, job_id: str) -> list[str]:
        return [event["event"] for event in self.events(job_id)]

    def metric(self, kind: str) -> int:
        """Return the number of jobs in the metrics of all minutes."""
        counts = self.resp.hash(self.key(f"metrics:{kind}"))
        return sum(int(value) for field, value in counts.items() if field.endswith(":c"))

    def pending(self) -> list[list[Any]]:
        """Return the pending entries of the group of workers."""
        return list(self.resp.execute("XPENDING", self.key("stream"), "workers", "-", "+", 1000))

    def consumers(self) -> list[str]:
        rows = self.resp.execute("XINFO", "CONSUMERS", self.key("stream"), "workers")
        return [dict(zip(row[::2], row[1::2], strict=True))["name"] for row in rows]
