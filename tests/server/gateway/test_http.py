"""The HTTP API, with plain requests."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Self

import pytest

from glidemq_py import Queue
from glidemq_py.gateway import Gateway
from glidemq_py.gateway.figures import SharedRead

TOKEN = "a-long-token"
ORIGIN = "https://pages.example"


class Client:
    """Sends one request per connection."""

    def __init__(self, gateway: Gateway):
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


async def test_client_that_left_takes_no_job_along(client: Client, queue_name: str, queue: Queue):
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


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("POST", "/queues/q/jobs", b"[" * 100_000, 400, "Invalid JSON body"),
        ("POST", "/queues/q/jobs", b'{"priority": 1%0400d}' % 0, 400, "priority must be at most 1000000"),
        ("POST", "/queues/q/jobs", b'{"priority": -1%0400d}' % 0, 400, "priority must be at least -1000000"),
        ("POST", "/queues/q/jobs", b'{"delay": 1%0400d}' % 0, 400, "delay must be at most 31536000000"),
        ("POST", "/queues/q/jobs", b'{"backoff": 1%0400d}' % 0, 400, "backoff must be at most 86400000"),
        ("POST", "/queues/q/jobs", b'{"removeOnFail": {"age": 1%0400d}}' % 0, 400, None),
    ],
)
async def test_bad_requests(
    client: Client, method: str, path: str, body: bytes, status: int, error: str | None
):  # fmt: skip
    given, _, content = await client.send(method, path, body)
    answer = json.loads(content)
    assert (given, answer["ok"]) == (status, False)
    assert error in (None, answer["error"])


async def test_tokens_and_public_paths(guarded: Client):
    status, headers, content = await guarded.send("GET", "/queues")
    assert (status, headers["www-authenticate"]) == (401, "bearer")
    assert json.loads(content) == {"ok": False, "error": "Unauthorized"}
    for path in ("/healthz", "/live", "/ready", "/health", "/prometheus"):
        assert (await guarded.send("GET", path))[0] == 200
    guarded.headers["authorization"] = f"Bearer {TOKEN}"
    await guarded.good("GET", "/queues")


async def test_invalid_requests_and_tokens_do_not_fill_the_log(guarded: Client, caplog: pytest.LogCaptureFixture):
    for _ in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", guarded.port)
        writer.write(b"nonsense\r\n\r\n")
        assert b"400 Bad Request" in await reader.read()
        writer.close()
        assert (await guarded.send("GET", "/stats", authorization="Bearer wrong"))[0] == 401
    assert (await guarded.send("GET", "/stats"))[0] == 401
    assert caplog.messages == [
        "HTTP connection of 127.0.0.1: Invalid HTTP request received.",
        "gateway: rejected an invalid token of 127.0.0.1",
    ]


async def test_declared_body_above_the_limit_is_rejected_at_once(client: Client, queue_name: str):
    """The client announces the body, and waits for the answer before it sends any of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    lines = [f"POST /queues/{queue_name}/jobs HTTP/1.1", f"host: 127.0.0.1:{client.port}", "content-length: 67108865"]
    writer.write("\r\n".join([*lines, "expect: 100-continue", "", ""]).encode())
    async with asyncio.timeout(10):
        answer = await reader.readuntil(b"bytes")
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"Request body too large: must be at most 67108864 bytes" in answer


async def test_health_checks_share_one_count():
    counts = 0

    async def count() -> dict[str, int]:
        nonlocal counts
        counts += 1
        await asyncio.sleep(0)
        return {"waiting": 7}

    totals = SharedRead(count)
    assert await asyncio.gather(*(totals.latest() for _ in range(20))) == [{"waiting": 7}] * 20
    assert await totals.latest() == {"waiting": 7}
    assert counts == 1
    await totals.close()


async def test_cors(guarded: Client):
    status, headers, _ = await guarded.send("OPTIONS", "/queues", origin=ORIGIN)
    assert (status, headers["access-control-allow-origin"]) == (204, ORIGIN)
    _, headers, _ = await guarded.send("OPTIONS", "/queues", origin="https://other.example")
    assert "access-control-allow-origin" not in headers


async def test_pages_of_other_sites_are_rejected(client: Client):
    status, _, _ = await client.send("POST", "/queues/q/pause", origin="https://other.example")
    assert status == 403
    status, _, content = await client.send("GET", "/queues", host="rebound.example")
    error = json.loads(content)["error"]
    assert status == 403
    assert "header Host = 'rebound.example': must be one of localhost, 127.0.0.1, [::1]" in error
    assert "AUTH_TOKENS" in error
    assert "hosts" not in error  # an option of other servers


async def test_waiting_fetch_is_answered_when_the_gateway_closes(url: str, queue_name: str):
    gateway = Gateway(url, port=0, http_port=0)
    await gateway.start()
    client = Client(gateway)
    waiting = asyncio.create_task(client.good("GET", f"/queues/{queue_name}/jobs?timeout=60000"))
    await client.good("GET", f"/queues/{queue_name}/jobs")
    await gateway.close()
    assert (await waiting)["job"] is None


async def test_values_without_json(client: Client, queue_name: str, url: str):
    data = {"bytes": b"\0\xff", "date": datetime(2026, 5, 1, 12, 30, tzinfo=UTC), 1: math.inf}
    async with Queue(queue_name, url, serializer="msgpack") as queue:
        job = await queue.add("n", data)
    answer = await client.good("GET", f"/jobs/{queue_name}:{job.id}")
    assert answer["job"]["data"] == {"bytes": "AP8=", "date": "2026-05-01T12:30:00.000Z", "1": None}


# -- events and limits ------------------------------------------------------------------------------------------


class Events:
    """Reads the events of a path: pairs of id and event, and the data."""

    def __init__(self, client: Client, path: str, last_id: str | None = None):
        self.client, self.path, self.last_id = client, path, last_id

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.client.port)
        resumed = "" if self.last_id is None else f"last-event-id: {self.last_id}\r\n"
        self.writer.write(f"GET {self.path} HTTP/1.1\r\nhost: localhost\r\n{resumed}\r\n".encode())
        await self.until(b'"connected":true')
        return self

    async def __aexit__(self, *_: object):
        self.writer.close()

    async def until(self, text: bytes) -> bytes:
        """Return the line that contains a text."""
        async with asyncio.timeout(60):
            while True:
                line = await self.reader.readline()
                assert line, "the stream has ended"
                if text in line:
                    return line.strip()

    async def next(self, event: str) -> tuple[str, dict[str, Any]]:
        """Return the id and the data of the next event of this name; those before it are skipped."""
        async with asyncio.timeout(60):
            event_id = ""
            while True:
                line = (await self.reader.readline()).decode().strip()
                if line.startswith("id: "):
                    event_id = line[4:]
                if line == f"event: {event}":
                    data: dict[str, Any] = json.loads((await self.until(b"data: "))[6:])
                    return event_id, data


async def test_events_of_a_queue_are_resumed_by_another_gateway(client: Client, url: str, queue: Queue):
    path = f"/events/queues/{queue.name}"
    async with Events(client, path) as events:
        first = await queue.add("n", 1)
        event_id, data = await events.next("job:pushed")
        assert data["jobId"].endswith(first.id)
    second, third = await queue.add("n", 2), await queue.add("n", 3)
    async with Gateway(url, port=0, http_port=0) as other, Events(Client(other), path, event_id) as events:
        for job in (second, third):
            assert (await events.next("job:pushed"))[1]["jobId"].endswith(job.id)


async def test_events_of_all_queues(client: Client, url: str, queue: Queue):
    await queue.add("n", 0)
    async with Events(client, "/events") as events:
        job = await queue.add("n", 1)
        while True:
            event_id, data = await events.next("job:pushed")
            if data["queue"] == queue.name:
                break
        assert data["jobId"].endswith(job.id)
    newest = await queue.add("n", 2)
    async with Events(client, "/events", event_id) as events:
        while True:
            _, data = await events.next("job:pushed")
            if data["queue"] == queue.name:
                break
        assert data["jobId"].endswith(newest.id)


async def test_paused_queue_and_an_unknown_id(client: Client, queue: Queue):
    async with Events(client, f"/events/queues/{queue.name}", "570") as events:
        assert (await client.good("GET", "/health"))["connections"]["sse"] == 1
        await queue.pause()
        assert (await events.next("queue:paused"))[1] == {"queue": queue.name}
        assert (await events.next("job:paused"))[1]["jobId"] == ""


@pytest.mark.parametrize("last_id", ["9999999999999-0", "9999999999999999-9999999999999999"])
async def test_id_that_is_later_than_the_stream_starts_it_now(client: Client, queue: Queue, last_id: str):
    await queue.add("n", 1)
    async with (
        Events(client, f"/events/queues/{queue.name}", last_id) as events,
        Events(client, "/events", f"{last_id}:{queue.name}") as of_all,
    ):
        second = await queue.add("n", 2)
        assert (await events.next("job:pushed"))[1]["jobId"].endswith(second.id)
        while (await of_all.next("job:pushed"))[1]["queue"] != queue.name:
            pass


async def test_streams_end_when_the_gateway_closes(url: str, queue_name: str):
    gateway = Gateway(url, port=0, http_port=0)
    await gateway.start()
    async with Events(Client(gateway), f"/events/queues/{queue_name}") as events, asyncio.timeout(60):
        await gateway.close()
        await events.reader.read()


async def test_rate_limit_by_the_address_of_the_client(url: str):
    options: dict[str, Any] = {"rate_limit": 2, "rate_limit_window": 3_600_000, "trusted_proxies": ["127.0.0.0/8"]}
    async with Gateway(url, port=0, http_port=0, **options) as gateway:
        client = Client(gateway)

        async def status(forwarded: str) -> int:
            client.headers["x-forwarded-for"] = forwarded
            return (await client.send("GET", "/ping"))[0]

        assert [await status("203.0.113.1") for _ in range(3)] == [200, 200, 429]
        assert await status("203.0.113.1, 203.0.113.2") == 200  # what the client wrote before the proxy does not count
        assert await status("203.0.113.2, 203.0.113.1") == 429
        assert (await client.send("GET", "/healthz"))[0] == 200
