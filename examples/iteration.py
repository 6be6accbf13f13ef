"""A long job: a worker closes in the middle of it, as in a deploy, and the next one continues with the next row."""

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing

from glidemq_py import Job, Queue, Worker

PATH = "file:customers?mode=memory&cache=shared"
started, deployed = threading.Event(), threading.Event()


def customers(after: int | None) -> Iterator[tuple[int, str]]:
    """Yield the rows after the cursor: pairs of the cursor and the item."""
    with closing(sqlite3.connect(PATH, uri=True)) as database:
        yield from database.execute("select id, name from customers where id > ? order by id", (after or 0,))


def send_invoices(job: Job) -> str:
    count = 0
    for name in job.blocking.iterate(customers):
        print(f"invoice for {name}")
        count += 1
        if name == "cy":
            started.set()
            deployed.wait()
    return f"the last attempt sent {count}"


async def main() -> None:
    with closing(sqlite3.connect(PATH, uri=True)) as database:
        database.execute("create table customers (id integer primary key, name text)")
        names = [(name,) for name in ("ada", "bob", "cy", "dee", "eve")]
        database.executemany("insert into customers (name) values (?)", names)
        database.commit()
        async with Queue("invoices") as queue:
            async with Worker("invoices", send_invoices) as worker:
                worker.on("closing", lambda: deployed.set())
                job = await queue.add("monthly")
                await asyncio.to_thread(started.wait)
            print("deployed; continue after row", await job.get_cursor())
            async with Worker("invoices", send_invoices):
                print(await job.wait_until_finished())


if __name__ == "__main__":
    asyncio.run(main())
