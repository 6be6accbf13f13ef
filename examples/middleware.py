"""Middleware: carry a tenant and a request id from a web request to its jobs, and measure every job."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from glidemq_py import ContextHeaders, Job, Middleware, NewJob, Queue, Worker

tenant: ContextVar[str] = ContextVar("tenant")
request_id: ContextVar[str] = ContextVar("request_id")


class Limits(Middleware):
    """Reject the jobs of blocked tenants before they are added."""

    def add(self, job: NewJob) -> None:
        """Check the tenant of the request."""
        if tenant.get() == "blocked":
            raise PermissionError(f"tenant {tenant.get()} may not add {job.name!r}")


class Durations(Middleware):
    """Add up the time that the jobs of each tenant take."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def run(self, job: Job) -> Generator[None]:
        """Measure one attempt."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[tenant.get()] += time.perf_counter() - started


carried = ContextHeaders({"tenant": tenant, "request-id": request_id})
durations = Durations()
worker = Worker("invoices", concurrency=2, middleware=[carried, durations])


@worker.task
async def render(invoice: int) -> None:
    print(f"tenant {tenant.get()}, request {request_id.get()}: invoice {invoice}")
    await send.add(invoice)  # added with the same headers


@worker.task
def send(invoice: int) -> None:
    # A plain function runs in a thread, and has the variables, too.
    print(f"tenant {tenant.get()}, request {request_id.get()}: sent invoice {invoice}")


async def handle_request(queue: Queue, name: str, number: str, invoice: int) -> None:
    """Handle a web request; a web framework would set the variables."""
    tenant.set(name)
    request_id.set(number)
    await queue.add("render", {"invoice": invoice})


async def main() -> None:
    async with Queue("invoices", middleware=[carried, Limits()]) as queue:
        await asyncio.create_task(handle_request(queue, "acme", "r-1", 17))
        await asyncio.create_task(handle_request(queue, "globex", "r-2", 18))
        try:
            await asyncio.create_task(handle_request(queue, "blocked", "r-3", 19))
        except PermissionError as error:
            print("rejected:", error)
    await worker.start()
    await worker.drain()
    print("measured:", ", ".join(sorted(durations.seconds)))


if __name__ == "__main__":
    asyncio.run(main())
