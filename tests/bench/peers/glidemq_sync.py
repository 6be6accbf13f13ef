"""Driver for `glidemq_py.sync`: a blocking queue that a script would use. It adds only."""

from __future__ import annotations

from typing import Any

from glidemq_py import sync
from tests.bench.peers.protocol import Hit, main


class GlideMQSync:
    """One blocking queue. The coroutines are those that the measuring code awaits; they never suspend."""

    def __init__(self, url: str):
        self._queue: sync.Queue = sync.Queue("bench", url.replace("redis://", "valkey://", 1))

    async def add(self, data: dict[str, Any], delay: int) -> object:
        if delay:
            return self._queue.add("noop", data, delay=delay)
        return self._queue.add("noop", data)

    async def add_bulk(self, rows: list[dict[str, Any]]) -> object:
        return self._queue.add_bulk([("noop", row) for row in rows])

    async def start_worker(self, hit: Hit, concurrency: int, threads: bool):
        raise NotImplementedError("the blocking twins add")

    async def stop_worker(self):
        raise NotImplementedError("the blocking twins add")

    async def completed(self) -> int | None:
        return self._queue.get_job_counts().completed

    async def close(self):
        self._queue.close()


if __name__ == "__main__":
    main(GlideMQSync)
