"""Lifespan: open a resource, here a database, once per worker process; close it after the last job."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator

from glidemq_py import Job, Queue, Worker, current_job


@contextlib.asynccontextmanager
async def opened_database(worker: Worker) -> AsyncIterator[sqlite3.Connection]:
    """Open the database for the lifetime of the worker; a connection pool would be opened here too."""
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
    """Use the current job without passing it as an argument."""
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
