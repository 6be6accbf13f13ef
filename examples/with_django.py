"""Django in one file: a job is added when the transaction of an order is committed, and never if it is rolled back."""

import asyncio
import tempfile
from pathlib import Path

import django
from django.conf import settings

folder = tempfile.TemporaryDirectory()
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path(folder.name) / "shop.sqlite3")}},
    USE_TZ=True,
    # Without CONNECTION: GLIDEMQ_URL, or here a private server.
    GLIDEMQ={},
)
django.setup()

from django.db import connection, transaction  # noqa: E402 - after the settings

from glidemq_py import Job, Worker  # noqa: E402
from glidemq_py.integrations.django import DjangoMiddleware, add_on_commit, close_queues, get_queue  # noqa: E402

worker = Worker("orders", connection=settings.GLIDEMQ.get("CONNECTION"), middleware=[DjangoMiddleware()])


@worker.task(attempts=5, backoff=20)
def ship(job: Job, /, order: int) -> None:
    # The row is there: the job was added after the commit.
    with connection.cursor() as cursor:
        cursor.execute("SELECT item FROM orders WHERE id = %s", [order])
        (item,) = cursor.fetchone()
    if job.attempts_made == 0:
        raise ConnectionError("the carrier does not answer")
    print(f"shipped {item} at attempt {job.attempts_made + 1} of {job.opts['attempts']}")


def order(item: str, in_stock: bool) -> None:
    """Handle a request: store an order, and add the job that ships it, with the options of its task."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders (item) VALUES (%s)", [item])
        add_on_commit(ship.call(cursor.lastrowid))
        print("jobs before the commit:", get_queue("orders").count())
        if not in_stock:
            raise LookupError(f"no {item} in stock")


async def run_jobs() -> None:
    async with worker:
        await worker.drain()


def main() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
    for item, in_stock in (("nut", True), ("gear", False)):
        try:
            order(item, in_stock)
        except LookupError as error:
            print("rolled back:", error)
    print("jobs:", get_queue("orders").count())
    asyncio.run(run_jobs())
    close_queues()
    connection.close()
    folder.cleanup()


if __name__ == "__main__":
    main()
