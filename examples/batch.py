"""Batches: store measurements a hundred at a time; invalid ones fail individually."""

import asyncio
import sqlite3
from typing import Any

from glidemq_py import BatchOptions, Job, JobFailedError, Queue, Worker

database = sqlite3.connect(":memory:")
database.execute("CREATE TABLE measurements (sensor TEXT, value REAL)")


async def store(jobs: list[Job[dict[str, Any], Any]]) -> list[str | BaseException]:
    answers: list[str | BaseException] = []
    rows = []
    for job in jobs:
        if job.data["value"] is None:
            answers.append(ValueError(f"{job.data['sensor']} gave no value"))
        else:
            rows.append((job.data["sensor"], job.data["value"]))
            answers.append("stored")
    database.executemany("INSERT INTO measurements VALUES (?, ?)", rows)
    print(f"batch of {len(jobs)}, {len(rows)} stored")
    return answers


async def main() -> None:
    async with Queue("measurements") as queue:
        jobs = await queue.add_bulk(
            ("measurement", {"sensor": f"s{n}", "value": None if n == 42 else n / 10}) for n in range(250)
        )
        # The third batch is not full: it starts 30 ms after its first job was fetched.
        async with Worker("measurements", store, batch=BatchOptions(100, timeout=30)):
            for job in jobs:
                try:
                    await job.wait_until_finished()
                except JobFailedError as error:
                    print(f"failed: {error.failed_reason}")
    total, mean = database.execute("SELECT count(*), avg(value) FROM measurements").fetchone()
    print(f"{total} rows, mean {mean:.2f}")


if __name__ == "__main__":
    asyncio.run(main())
