"""Driver for glidemq_py, used as a user would: Queue, Worker, a URL, every default left alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from glidemq_py import Broadcast, BroadcastWorker, FlowJob, FlowProducer, Job, Queue, Worker
from tests.bench.peers.protocol import Hit, main

FAILURE = "the first attempt of each job fails"

OPTIONS_OF_KIND: dict[str, Callable[[int], dict[str, Any]]] = {
    "ordered": lambda number: {"ordering": {"key": f"key-{number % 1000}"}},
    "grouped": lambda number: {"ordering": {"key": f"key-{number % 20}", "concurrency": 10}},
    "rated": lambda number: {
        "ordering": {
            "key": f"key-{number % 100}",
            "concurrency": 100,
            "rate_limit": {"max": 1_000_000, "duration": 1_000},
        }
    },
    "prioritized": lambda number: {"priority": 1 + number % 5},
    "ranked": lambda number: {"rank": 5_000 + number % 100},
    "lifo": lambda number: {"lifo": True},
    "fair": lambda number: {"fair_key": f"tenant-{number % 1000}"},
    "failing": lambda number: {"attempts": 2},
    "failing-unrecorded": lambda number: {"attempts": 2},
}


class GlideMQ:
    """One queue and, on request, one worker; the environment's BENCH_KIND names the jobs that it adds."""

    def __init__(self, url: str):
        kind = os.environ.get("BENCH_KIND", "plain")
        self._kind = kind
        self._is_set = False
        self._fails = kind.startswith("failing")
        self._options = OPTIONS_OF_KIND.get(kind)
        self._limiter: Any = {"max": 1_000_000, "duration": 1_000} if kind == "limited" else None
        self._url = url.replace("redis://", "valkey://", 1)
        self._flows = FlowProducer(self._url) if kind == "flow" else None
        self._broadcast: Broadcast | None = Broadcast("bench", self._url) if kind == "broadcast" else None
        self._queue: Queue = Queue("bench", connection=self._url)
        self._worker: Any = None

    async def add(self, data: dict[str, Any], delay: int) -> object:
        if delay:
            return await self._queue.add("noop", data, delay=delay)
        if self._options is not None:
            return await self._queue.add("noop", data, **self._options(data["n"]))
        return await self._queue.add("noop", data)

    async def _set_queue(self):
        if self._kind.startswith("timeline"):
            await self._queue.timelines.set(0.01 if self._kind == "timeline-sampled" else 1.0)
        elif self._kind == "by-name":
            await self._queue.metrics_by_name.set()
        elif self._kind == "failing-unrecorded":
            await self._queue.failures.set_attempt_history(max_attempts=0)

    async def add_bulk(self, rows: list[dict[str, Any]]) -> object:
        if not self._is_set:
            self._is_set = True
            await self._set_queue()
        options = self._options
        if self._broadcast is not None:
            return await self._broadcast.publish_bulk([("noop", row) for row in rows])
        if self._flows is not None:
            # The first waits for all others, and runs as one more job of the drain.
            root, *leaves = (FlowJob("noop", "bench", row) for row in rows)
            return await self._flows.add(FlowJob("noop", "bench", root.data, None, leaves))
        if options is None:
            return await self._queue.add_bulk([("noop", row) for row in rows])
        return await self._queue.add_bulk([("noop", row, options(row["n"])) for row in rows])

    async def start_worker(self, hit: Hit, concurrency: int, threads: bool):
        async def handle(job: Job) -> Any:
            return hit(job.data)

        async def fail_once(job: Job) -> Any:
            if not job.attempts_made:
                raise ValueError(FAILURE)
            return hit(job.data)

        def handle_in_thread(job: Job) -> Any:
            return hit(job.data)

        handler: Any = handle_in_thread if threads else fail_once if self._fails else handle
        if self._broadcast is not None:
            self._worker = BroadcastWorker(
                "bench", handler, self._url, subscription="all", start_from="0-0", concurrency=concurrency
            )
        else:
            self._worker = Worker(
                "bench", handler, connection=self._url, concurrency=concurrency, limiter=self._limiter,
                log_failures=not self._fails,
            )  # fmt: skip
        await self._worker.__aenter__()

    async def stop_worker(self):
        await self._worker.close()

    async def completed(self) -> int | None:
        if self._broadcast is not None:
            # It keeps no index of completed jobs.
            return sum(point.count for point in (await self._queue.get_metrics("completed")).data)
        return (await self._queue.get_job_counts()).completed

    async def close(self):
        if self._flows is not None:
            await self._flows.close()
        if self._broadcast is not None:
            await self._broadcast.close()
        await self._queue.close()


if __name__ == "__main__":
    main(GlideMQ)
