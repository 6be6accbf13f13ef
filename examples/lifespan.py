"""What every handler needs is opened once per worker process, and closed after its last job: here, a database."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator

from glidemq_py import Job, Queue, Worker, current_job


@contextlib.asynccontextmanager
async def opened_database(worker: Worker) -> AsyncIterator[sqlite3.Connection]:
    """Runs around the worker's life. With a driver that has pools, this is where the pool is made."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE orders (job TEXT PRIMARY KEY, item TEXT, pieces INTEGER)")
    print("database opened for", worker.queue_name)
    try:
        yield connection
    finally:
        orders, pieces = connection.execute("SELECT count(*), sum(pieces) FROM orders").fetchone()
        print(f"database closed with {orders} orders of {pieces} pieces")
        connection.close()


async def store(job: Job) -> int:
    # A job may run twice (its worker may die after the write and before the report): keyed by the job's id,
    # the second write changes nothing.
    row = (job.id, job.data["item"], pieces_of_current_job())
    database: sqlite3.Connection = job.context
    return database.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", row).rowcount


def pieces_of_current_job() -> int:
    """Deep inside a program the job is at hand without being passed down."""
    job = current_job()
    return 0 if job is None else job.data["pieces"]


async def main() -> None:
    async with Queue("orders") as queue:
        await queue.add_bulk(
            ("store", {"item": item, "pieces": n}) for n, item in enumerate(["nut", "bolt", "gear"], 1)
        )
        worker = Worker("orders", store, concurrency=3, lifespan=opened_database)
        await worker.start()
        await worker.drain()


if __name__ == "__main__":
    asyncio.run(main())
