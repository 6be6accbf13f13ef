"""Mutual TLS: every client and program works over it, reconnects, and reports a rejected certificate clearly."""

import asyncio
import signal
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from glidemq_py import FlowJob, FlowProducer, Job, Producer, Queue, QueueEvents, Worker, library
from glidemq_py.errors import ConnectionRejectedError
from glidemq_py.sync import Queue as BlockingQueue
from glidemq_py.telemetry.prometheus import QueueCollector
from tests.server.command import Command, checked
from tests.server.tls_support import Certificates, StartTls
from tests.server.worker_support import EventRecorder, with_timeout


@pytest.fixture
def tls_url(start_tls: StartTls, certificates: Certificates) -> str:
    """URL of a server that requires a client certificate."""
    _, port = start_tls(tls_auth_clients="yes")
    return f"valkeys://localhost:{port}?{certificates.pair}"


async def double(job: Job):
    return job.data * 2


async def test_queue_worker_events_and_flows(tls_url: str):
    async with Queue("q", tls_url) as queue, Worker("q", double, tls_url), QueueEvents("q", tls_url) as events:
        await events.wait_until_ready()
        assert await queue.add_and_wait("n", 21) == 42
        assert (await with_timeout(anext(aiter(events)))).event == "added"
        async with FlowProducer(tls_url) as flows, Producer("q", tls_url) as producer:
            root = await flows.add(FlowJob("p", "q", 1, children=[FlowJob("c", "q", 2)]))
            assert await root.job.wait_until_finished() == 2
            assert await producer.add("n", 1)
        assert (await queue.check(recheck_after=50)).ok


async def test_blocking_queue_and_metrics(tls_url: str):
    def use():
        with BlockingQueue("q", tls_url) as queue:
            assert queue.add_and_wait("n", 4) == 8
        registry = CollectorRegistry()
        registry.register(QueueCollector(["q"], tls_url))
        assert registry.get_sample_value("glidemq_jobs", {"queue": "q", "state": "completed"}) == 1

    async with Worker("q", double, tls_url):
        await asyncio.to_thread(use)


async def test_spark(tls_url: str):
    pytest.importorskip("pyspark")
    pytest.importorskip("pyarrow")
    from tests.server import spark_calls

    options = {"queue": "q", "url": tls_url}
    await asyncio.to_thread(spark_calls.write, options)
    assert await asyncio.to_thread(spark_calls.read, options, "jobs") == 5
    async with Queue("q", tls_url) as queue:
        await queue.add("n")
    assert await asyncio.to_thread(spark_calls.read_events, options) > 0


@pytest.mark.slow
async def test_commands(tls_url: str, tmp_path: Path):
    (tmp_path / "jobs.py").write_text("def handle(job):\n    return job.data * 2\n")
    assert await asyncio.to_thread(library.main, ["load", "--url", tls_url]) == 0
    assert await asyncio.to_thread(library.main, ["check", "--url", tls_url]) == 0
    env: dict[str, str | None] = {"GLIDEMQ_URL": tls_url}
    arguments = ("--port", "0", "--queue", "q")
    async with Queue("q", tls_url) as queue:
        with Command(tmp_path, "glidemq_py.worker", "jobs:handle", "--queue", "q", env=env) as worker:
            assert await queue.add_and_wait("n", 3, wait_timeout=60_000) == 6
            assert await checked("q", tls_url) == 0
            worker.signal(signal.SIGTERM)
            assert await worker.ends() == 0
        with Command(tmp_path, "glidemq_py.proxy", *arguments, env=env) as proxy:
            (running,) = await proxy.printed(r"running on (http://127\.0\.0\.1:\d+)")
            async with httpx.AsyncClient(base_url=running[1], timeout=20) as http:
                made = await http.post("/queues/q/jobs", json={"name": "n", "data": 5})
                assert made.status_code == 201
                assert (await http.get(f"/queues/q/jobs/{made.json()['id']}")).json()["data"] == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("auth", "query", "problem"),
    [
        ("no", "", "not signed by a trusted authority; name the authority: ?tls_ca=/path/to/ca.pem"),
        ("yes", "tls_ca={0.ca}", "the server requires a client certificate; give tls_cert and tls_key"),
        ("yes", "tls_ca={0.ca}&tls_cert={0.expired}&tls_key={0.expired_key}", "rejects the client certificate"),
    ],
)
async def test_commands_name_the_cause(
    start_tls: StartTls, certificates: Certificates, tmp_path: Path, auth: str, query: str, problem: str
):
    (tmp_path / "jobs.py").write_text("def handle(job):\n    return 1\n")
    _, port = start_tls(tls_auth_clients=auth)
    url = f"valkeys://localhost:{port}?connection_timeout=1000&{query.format(certificates)}".removesuffix("&")
    commands = {
        "glidemq_py.worker": ("jobs:handle", "--queue", "q"),
        "glidemq_py.library": ("check", "--url", url),
    }
    for module, arguments in commands.items():
        with Command(tmp_path, module, *arguments, env={"GLIDEMQ_URL": url}) as command:
            assert await command.ends() != 0
            assert problem in command.text
            assert "Traceback" not in command.text


async def test_worker_and_queue_reconnect(start_tls: StartTls, certificates: Certificates):
    server, port = start_tls(durable=True, tls_auth_clients="yes")
    url = f"valkeys://localhost:{port}?{certificates.pair}&request_timeout=5000"
    async with Queue("q", url) as queue, Worker("q", double, url) as worker:
        recorded = EventRecorder(worker)
        assert await queue.add_and_wait("n", 1) == 2
        await asyncio.to_thread(server.kill)
        await recorded.wait("error")
        await asyncio.to_thread(server.start)
        job = await queue.add("n", 2, job_id="after")
        assert await job.wait_until_finished() == 4
        assert (await queue.check(recheck_after=50)).ok


async def test_certificate_replaced_by_an_expired_one(start_tls: StartTls, certificates: Certificates):
    """New connections report it; connections that exist continue."""
    server, port = start_tls()
    url = f"valkeys://localhost:{port}?tls_ca={certificates.ca}&request_timeout=2000&connection_timeout=1000"
    async with Queue("q", url) as queue, Worker("q", double, url):
        assert await queue.add_and_wait("n", 1) == 2
        with server.client() as client:
            client.execute("CONFIG", "SET", "tls-cert-file", str(certificates.expired),
                           "tls-key-file", str(certificates.expired_key))  # fmt: skip
            with pytest.raises(ConnectionRejectedError, match="has expired"):
                await Queue("q", f"{url}&share_clients=false").connect()
            client.execute("CONFIG", "SET", "tls-cert-file", str(certificates.server),
                           "tls-key-file", str(certificates.server_key))  # fmt: skip
        assert await queue.add_and_wait("n", 2) == 4
