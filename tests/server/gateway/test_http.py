"""The HTTP API, with plain requests."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

from glidemq_py import Queue
from glidemq_py.errors import GlideMQValidationError
from glidemq_py.gateway import Gateway
from glidemq_py.gateway.commands import COMMANDS
from glidemq_py.gateway.routes import ROUTES, fields_of, find_route
from glidemq_py.gateway.table import CommandError
from glidemq_py.gateway.totals import Totals

TOKEN = "a-long-token"
ORIGIN = "https://pages.example"


class Client:
    """Sends one request per connection."""

    def __init__(self, gateway: Gateway) -> None:
        assert gateway.http_port is not None
        self.port = gateway.http_port
        self.headers: dict[str, str] = {}

    async def send(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:  # fmt: skip
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        sent = {"host": f"127.0.0.1:{self.port}", "connection": "close", "content-length": str(len(body))}
        lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in {**sent, **self.headers, **headers}.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        async with asyncio.timeout(60):
            received = await reader.read(-1)
        writer.close()
        head, _, content = received.partition(b"\r\n\r\n")
        status, *rest = head.decode().split("\r\n")
        found = dict(line.lower().split(": ", 1) for line in rest)
        return int(status.split()[1]), found, content

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        data = b"" if body is None else json.dumps(body).encode()
        status, _, content = await self.send(method, path, data)
        answer: dict[str, Any] = json.loads(content)
        return status, answer

    async def good(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        status, answer = await self.call(method, path, body)
        assert (status, answer["ok"]) == (200, True), answer
        return answer


@pytest.fixture
async def client(url: str) -> AsyncIterator[Client]:
    async with Gateway(url, port=0, http_port=0) as gateway:
        yield Client(gateway)


@pytest.fixture
async def guarded(url: str) -> AsyncIterator[Client]:
    """A client without a token of a gateway that requires one."""
    async with Gateway(url, port=0, http_port=0, tokens=[TOKEN], cors_origins=[ORIGIN]) as gateway:
        yield Client(gateway)


async def test_job_is_added_fetched_and_completed(client: Client, queue_name: str) -> None:
    added = await client.good("POST", f"/queues/{queue_name}/jobs", {"data": {"n": 1}, "attempts": 5})
    job = (await client.good("GET", f"/queues/{queue_name}/jobs"))["job"]
    assert (job["id"], job["data"], job["maxAttempts"]) == (added["id"], {"n": 1}, 5)
    await client.good("POST", f"/jobs/{job['id']}/ack", {"result": [1]})
    assert (await client.good("GET", f"/jobs/{job['id']}/result"))["result"] == [1]
    assert (await client.good("GET", f"/queues/{queue_name}/counts"))["counts"]["completed"] == 1


async def test_fetched_job_stays_locked_after_the_request(client: Client, queue_name: str) -> None:
    await client.good("POST", f"/queues/{queue_name}/jobs", {"data": 1})
    fetched = await client.good("GET", f"/queues/{queue_name}/jobs?owner=me")
    assert (await client.good("GET", f"/queues/{queue_name}/jobs"))["job"] is None
    job_id, token = fetched["job"]["id"], fetched["token"]
    status, _ = await client.call("POST", f"/jobs/{job_id}/fail", {"error": "bad"})
    assert status == 400  # without its token
    await client.good("POST", f"/jobs/{job_id}/fail", {"error": "bad", "token": token, "unrecoverable": True})
    assert (await client.good("GET", f"/jobs/{job_id}/state"))["state"] == "failed"


async def test_client_that_left_takes_no_job_along(client: Client, queue_name: str, queue: Queue) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(f"GET /queues/{queue_name}/jobs?timeout=60000 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    await writer.drain()
    # Its fetch waits once this one, which was sent later, has been answered.
    await client.good("GET", f"/queues/{queue_name}/jobs")
    writer.close()
    await writer.wait_closed()
    job = await queue.add("n", 1)
    fetched = (await client.good("GET", f"/queues/{queue_name}/jobs?timeout=60000"))["job"]
    assert fetched["id"].endswith(job.id)


async def test_many_jobs(client: Client, queue_name: str) -> None:
    jobs = [{"data": number} for number in range(3)]
    assert len((await client.good("POST", f"/queues/{queue_name}/jobs/bulk", jobs))["ids"]) == 3
    pulled = await client.good("POST", f"/queues/{queue_name}/jobs/pull-batch", {"count": 2})
    assert [job["data"] for job in pulled["jobs"]] == [0, 1]
    await client.good("POST", "/jobs/ack-batch", {"ids": [job["id"] for job in pulled["jobs"]]})
    assert (await client.good("GET", f"/queues/{queue_name}/count"))["count"] == 1


async def test_chosen_id_with_a_slash(client: Client, queue_name: str) -> None:
    chosen = f"{queue_name}/1"
    await client.good("POST", f"/queues/{queue_name}/jobs", {"data": 1, "jobId": chosen})
    assert (await client.good("GET", f"/jobs/{quote(chosen, safe='')}"))["job"]["id"] == chosen


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("GET", "/nothing", b"", 404, "Not found"),
        ("PATCH", "/queues", b"", 404, "Not found"),
        ("GET", "/jobs/nothing", b"", 404, "Job not found"),
        ("POST", "/queues/q/jobs", b"{", 400, "Invalid JSON body"),
        ("POST", "/queues/q/jobs", b"[1]", 400, "Invalid JSON body"),
        ("POST", "/queues/q/jobs", b'{"data": NaN}', 400, "Invalid JSON body"),
        ("POST", "/queues/q/jobs", b"[" * 100_000, 400, "Invalid JSON body"),
        ("POST", "/queues/q/jobs", b'{"priority": "x"}', 400, "priority must be a number"),
        ("GET", "/queues/q/jobs?timeout=x", b"", 400, "timeout must be a number"),
        ("GET", "/queues/%00/counts", b"", 400, None),
    ],
)
async def test_bad_requests(
    client: Client, method: str, path: str, body: bytes, status: int, error: str | None
) -> None:  # fmt: skip
    given, _, content = await client.send(method, path, body)
    answer = json.loads(content)
    assert (given, answer["ok"]) == (status, False)
    assert error in (None, answer["error"])


async def test_tokens_and_public_paths(guarded: Client) -> None:
    status, headers, content = await guarded.send("GET", "/queues")
    assert (status, headers["www-authenticate"]) == (401, "bearer")
    assert json.loads(content) == {"ok": False, "error": "Unauthorized"}
    for path in ("/healthz", "/live", "/ready", "/health", "/prometheus"):
        assert (await guarded.send("GET", path))[0] == 200
    guarded.headers["authorization"] = f"Bearer {TOKEN}"
    await guarded.good("GET", "/queues")


async def test_health(client: Client) -> None:
    assert (await client.send("GET", "/healthz"))[2] == b"OK"
    assert await client.good("GET", "/ready") == {"ok": True, "ready": True}
    health = await client.good("GET", "/health")
    assert (health["status"], health["connections"]["tcp"]) == ("healthy", 0)
    assert b"bunqueue_jobs_pushed_total" in (await client.send("GET", "/prometheus"))[2]


async def test_health_checks_share_one_count() -> None:
    counts = 0

    async def count() -> dict[str, int]:
        nonlocal counts
        counts += 1
        await asyncio.sleep(0)
        return {"waiting": 7}

    totals = Totals(count)
    assert await asyncio.gather(*(totals.get() for _ in range(20))) == [{"waiting": 7}] * 20
    assert await totals.get() == {"waiting": 7}
    assert counts == 1
    await totals.close()


async def test_cors(guarded: Client) -> None:
    status, headers, _ = await guarded.send("OPTIONS", "/queues", origin=ORIGIN)
    assert (status, headers["access-control-allow-origin"]) == (204, ORIGIN)
    _, headers, _ = await guarded.send("OPTIONS", "/queues", origin="https://other.example")
    assert "access-control-allow-origin" not in headers


async def test_pages_of_other_sites_are_rejected(client: Client) -> None:
    status, _, _ = await client.send("POST", "/queues/q/pause", origin="https://other.example")
    assert status == 403
    assert (await client.send("GET", "/queues", host="rebound.example"))[0] == 403


async def test_waiting_fetch_is_answered_when_the_gateway_closes(url: str, queue_name: str) -> None:
    gateway = Gateway(url, port=0, http_port=0)
    await gateway.start()
    client = Client(gateway)
    waiting = asyncio.create_task(client.good("GET", f"/queues/{queue_name}/jobs?timeout=60000"))
    await client.good("GET", f"/queues/{queue_name}/jobs")
    await gateway.close()
    assert (await waiting)["job"] is None


async def test_webhooks(client: Client, queue_name: str) -> None:
    url = "http://example.com/hook"
    made = (await client.good("POST", "/webhooks", {"url": url, "events": ["job.pushed"], "queue": queue_name}))["data"]
    path = f"/webhooks/{made['webhookId']}"

    async def listed() -> list[dict[str, Any]]:
        found = (await client.good("GET", "/webhooks"))["data"]["webhooks"]
        return [each for each in found if each["id"] == made["webhookId"]]

    (found,) = await listed()
    assert (found["url"], found["queue"], found["enabled"]) == (url, queue_name, True)
    await client.good("PUT", f"{path}/enabled", {"enabled": False})
    assert [each["enabled"] for each in await listed()] == [False]
    await client.good("DELETE", path)
    assert await listed() == []
    assert (await client.call("DELETE", path))[1]["error"] == "Webhook not found"
    status, answer = await client.call("POST", "/webhooks", {"url": "http://10.0.0.1/", "events": ["job.pushed"]})
    assert (status, answer["error"]) == (400, "Webhook URL cannot point to private IP")


async def test_values_without_json(client: Client, queue_name: str, url: str) -> None:
    data = {"bytes": b"\0\xff", "date": datetime(2026, 5, 1, 12, 30, tzinfo=UTC), 1: math.inf}
    async with Queue(queue_name, url, serializer="msgpack") as queue:
        job = await queue.add("n", data)
    answer = await client.good("GET", f"/jobs/{queue_name}:{job.id}")
    assert answer["job"]["data"] == {"bytes": "AP8=", "date": "2026-05-01T12:30:00.000Z", "1": None}


def test_routes_name_commands_and_their_fields() -> None:
    for route in ROUTES:
        names = {field.name for field in COMMANDS[route.command].fields}
        in_path = {part[1:-1] for part in route.path.split("/") if part.startswith("{")}
        assert in_path <= names, route
        assert set(route.renamed.values()) <= names, route
        assert not route.wrapped or route.wrapped in names, route
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)


def test_literal_segments_outrank_fields() -> None:
    found = find_route("POST", "/jobs/ack-batch")
    assert found is None or found[0].command == "ACKB"
    summary, custom = find_route("GET", "/queues/summary"), find_route("GET", "/jobs/custom/state")
    assert summary is not None
    assert summary[0].command == "DashboardQueues"
    assert custom is not None
    assert (custom[0].command, custom[1]) == ("GetJobByCustomId", {"customId": "state"})
    assert find_route("GET", "/queues//counts") is None


def test_precedence_of_fields() -> None:
    found = find_route("POST", "/queues/a%2Fb/jobs")
    assert found is not None
    route, in_path = found
    query = [("priority", "1"), ("delay", "2"), ("other", "x")]
    fields = fields_of(route, in_path, query, {"priority": 3, "queue": "c"})
    assert fields == {"queue": "a/b", "priority": 3, "delay": 2}
    with pytest.raises(CommandError, match="Invalid JSON body"):
        fields_of(route, in_path, [], [1])


def test_invalid_options() -> None:
    invalid: list[tuple[str, Any]] = [
        ("http_port", 65_536), ("cors_origins", "https://a.example"), ("cors_origins", ["a.example"])
    ]  # fmt: skip
    for name, value in invalid:
        options: dict[str, Any] = {name: value}
        with pytest.raises(GlideMQValidationError, match=name):
            Gateway(**options)
