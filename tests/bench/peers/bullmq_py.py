"""Driver for bullmq (Python, PyPI): its defaults, a URL, results and events kept as it keeps them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tests.bench.peers.protocol import Hit, main

bullmq: Any = import_module("bullmq")


class BullMQ:
    """One queue and, on request, one worker."""

    def __init__(self, url: str):
        self._options = {"connection": url}
        self._queue = bullmq.Queue("bench", self._options)
        self._worker: Any = None

    async def add(self, data: dict[str, Any], delay: int) -> object:
        return await self._queue.add("noop", data, {"delay": delay} if delay else {})

    async def add_bulk(self, rows: list[dict[str, Any]]) -> object:
        return await self._queue.addBulk([{"name": "noop", "data": row, "opts": {}} for row in rows])

    async def start_worker(self, hit: Hit, concurrency: int, threads: bool):
        if threads:
            raise NotImplementedError("bullmq runs async handlers only")

        async def handle(job: Any, token: str) -> Any:
            return hit(job.data)

        self._worker = bullmq.Worker("bench", handle, {**self._options, "concurrency": concurrency})

    async def stop_worker(self):
        await self._worker.close()

    async def completed(self) -> int | None:
        return int(await self._queue.getCompletedCount())

    async def close(self):
        await self._queue.close()


if __name__ == "__main__":
    main(BullMQ)
