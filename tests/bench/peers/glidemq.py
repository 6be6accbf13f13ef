"""Driver for glidemq_py, used as a user would: Queue, Worker, a URL, every default left alone."""

from __future__ import annotations

from typing import Any

from glidemq_py import Job, Queue, Worker
from tests.bench.peers.protocol import Hit, main


class GlideMQ:
    """One queue and, when asked, one worker."""

    def __init__(self, url: str) -> None:
        self._url = url.replace("redis://", "valkey://", 1)
        self._queue: Queue[Any, Any] = Queue("bench", connection=self._url)
        self._worker: Any = None

    async def add(self, data: dict[str, Any], delay: int) -> object:
        if delay:
            return await self._queue.add("noop", data, delay=delay)
        return await self._queue.add("noop", data)

    async def add_bulk(self, rows: list[dict[str, Any]]) -> object:
        return await self._queue.add_bulk([("noop", row) for row in rows])

    async def start_worker(self, hit: Hit, concurrency: int, threads: bool) -> None:
        async def handle(job: Job[Any, Any]) -> Any:
            return hit(job.data)

        def handle_in_thread(job: Job[Any, Any]) -> Any:
            return hit(job.data)

        handler: Any = handle_in_thread if threads else handle
        self._worker = Worker("bench", handler, connection=self._url, concurrency=concurrency)
        await self._worker.__aenter__()

    async def stop_worker(self) -> None:
        await self._worker.close()

    async def completed(self) -> int | None:
        return (await self._queue.get_job_counts()).completed

    async def close(self) -> None:
        await self._queue.close()


if __name__ == "__main__":
    main(GlideMQ)
