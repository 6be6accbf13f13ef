"""No log line and no output contains a password or the data of a job, whatever goes wrong."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from glidemq_py import AmbiguousResultError, GlideMQConnectionError, Job, Queue, QueueEvents, Worker
from glidemq_py.errors import ConnectionRejectedError
from glidemq_py.sync import Queue as BlockingQueue
from glidemq_py.telemetry.prometheus import ProcessMetrics, QueueCollector
from glidemq_py.testing import ServerProcess
from tests.chaos.fault_proxy import FaultProxy
from tests.server.command import Command
from tests.server.worker_support import EventRecorder, StartServer, until, with_timeout

PASSWORD = "hunter2secret"
DATA = "4111-1111-1111-1111"
MakeServer = StartServer


@pytest.fixture
def server(restartable_server: MakeServer) -> ServerProcess:
    return restartable_server(requirepass=PASSWORD)


@pytest.fixture
def no_secrets(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Collect all log lines, from DEBUG on, and the output; fail if one contains a secret."""
    caplog.set_level(logging.DEBUG)
    yield
    output = capfd.readouterr()
    text = f"{caplog.text}{output.out}{output.err}" + "".join(
        f"{vars(record)}" for record in [*caplog.get_records("setup"), *caplog.get_records("call")]
    )
    assert caplog.get_records("call")
    for secret in (PASSWORD, DATA):
        assert secret not in text


def url_of(port: int, password: str = PASSWORD, query: str = "") -> str:
    return f"valkey://:{password}@127.0.0.1:{port}{query}"


async def fail(job: Job):
    raise ValueError("the card was declined")


@pytest.mark.usefixtures("no_secrets")
async def test_failing_jobs(server: ServerProcess, queue_name: str):
    url = url_of(server.port)
    async with Queue(queue_name, url) as queue, Worker(queue_name, fail, url) as worker:
        recorded = EventRecorder(worker)
        await queue.add("pay", {"card": DATA}, attempts=2)
        await recorded.wait("failed")


@pytest.mark.slow
@pytest.mark.usefixtures("no_secrets")
async def test_server_restarts(server: ServerProcess, queue_name: str):
    url = url_of(server.port, query="?request_timeout=2000")
    async with Queue(queue_name, url) as queue, Worker(queue_name, fail, url) as worker, QueueEvents(queue_name, url):
        recorded = EventRecorder(worker)
        server.kill()
        with pytest.raises(GlideMQConnectionError):
            await queue.add("pay", {"card": DATA})
        await recorded.wait("error")
        server.start()
        await with_timeout(until(lambda: worker.unresponsive_seconds < 1))


@pytest.mark.usefixtures("no_secrets")
async def test_half_open_connection(server: ServerProcess, queue_name: str, caplog: pytest.LogCaptureFixture):
    with FaultProxy(server.url, seed=1) as proxy:
        async with Queue(queue_name, url_of(proxy.port, query="?request_timeout=300")) as queue:
            await queue.add("pay")
            proxy.half_open()
            with pytest.raises(AmbiguousResultError):
                await queue.add("pay", {"card": DATA})
            await with_timeout(until(lambda: "half-open" in caplog.text))


@pytest.mark.usefixtures("no_secrets")
async def test_rejected_password(server: ServerProcess, queue_name: str, caplog: pytest.LogCaptureFixture):
    rejected = url_of(server.port, f"{PASSWORD}-of-yesterday")
    for connect in (Queue(queue_name, rejected).connect, Worker(queue_name, fail, rejected).start):
        with pytest.raises(ConnectionRejectedError, match="rejects the password") as caught:
            await connect()
        logging.getLogger("application").error("cannot connect", exc_info=caught.value)
    with pytest.raises(ConnectionRejectedError, match="rejects the password"), BlockingQueue(queue_name, rejected):
        pass


@pytest.mark.slow
async def test_worker_command(server: ServerProcess, queue_name: str, tmp_path: Path):
    (tmp_path / "jobs.py").write_text("def handle(job):\n    raise ValueError('the card was declined')\n")
    url = url_of(server.port)
    arguments = ("jobs:handle", "--queue", queue_name, "--log-level", "debug")
    async with Queue(queue_name, url) as queue:
        with Command(tmp_path, "glidemq_py.worker", *arguments, env={"GLIDEMQ_URL": url}) as command:
            await command.printed("working on")
            await queue.add("pay", {"card": DATA})
            await command.printed("failed in attempt")
            await asyncio.to_thread(server.restart, kill=True)
            await queue.add("pay", {"card": DATA})
            await command.printed("failed in attempt", 2)
    assert PASSWORD not in command.text
    assert DATA not in command.text


async def test_metrics(server: ServerProcess, queue_name: str):
    registry = CollectorRegistry()
    url = url_of(server.port)

    def scrape() -> str:
        registry.register(QueueCollector([queue_name], url))
        with contextlib.closing(ProcessMetrics(registry)):
            return generate_latest(registry).decode()

    async with Queue(queue_name, url) as queue, Worker(queue_name, fail, url) as worker:
        recorded = EventRecorder(worker)
        await queue.add("pay", {"card": DATA})
        await recorded.wait("failed")
        text = await asyncio.to_thread(scrape)
    assert queue_name in text
    assert PASSWORD not in text
    assert DATA not in text
