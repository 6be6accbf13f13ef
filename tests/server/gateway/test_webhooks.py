"""Webhooks: commands with raw frames, and a receiver that listens on this machine."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import signal
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_network
from typing import Any, NamedTuple, Self, TypeVar

import pytest

from glidemq_py import Job, Queue, Worker
from glidemq_py.gateway import Gateway
from glidemq_py.gateway.chosen_ids import claim_ids
from glidemq_py.gateway.webhook_events import ReadingLock
from glidemq_py.gateway.webhook_registry import Webhook
from glidemq_py.gateway.webhooks import DELIVERIES, WebhookError, post
from tests.inside import connected
from tests.server.gateway.wire import Wire, failure, good

T = TypeVar("T")
LOCAL = ["127.0.0.0/8"]
ALL = ["job.pushed", "job.started", "job.completed", "job.failed", "job.progress"]


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


class Receiver:
    """An HTTP server; `answer` returns the status for a request."""

    def __init__(self):
        self.received: list[Received] = []
        self.answer: Callable[[Received], str] = lambda _: "204 No Content"
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object):
        self._server.close()

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        body = await reader.readexactly(int(headers["content-length"]))
        request = Received(first.split(" ")[1], headers, body)
        async with self._changed:
            self.received.append(request)
            self._changed.notify_all()
        writer.write(f"HTTP/1.1 {self.answer(request)}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async def wait_for(self, enough: Callable[[list[Received]], bool]) -> list[Received]:
        async with asyncio.timeout(120), self._changed:
            await self._changed.wait_for(lambda: enough(self.received))
        return self.received

    async def wait_for_count(self, count: int) -> list[Received]:
        return await self.wait_for(lambda received: len(received) >= count)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        yield receiver


@pytest.fixture
def prefix() -> str:
    """A prefix of its own: webhooks belong to a prefix."""
    return f"hooks{secrets.token_hex(4)}"


@pytest.fixture
async def gateways(url: str, prefix: str) -> AsyncIterator[tuple[Gateway, Gateway]]:
    options: dict[str, Any] = {"prefix": prefix, "webhook_networks": LOCAL, "webhook_backoff": 1}
    async with Gateway(url, port=0, **options) as first, Gateway(url, port=0, **options) as second:
        yield first, second


async def until(read: Callable[[], Awaitable[T]], enough: Callable[[T], Any]) -> T:
    """Read again and again until the value is the expected one."""
    async with asyncio.timeout(60):
        while True:
            found = await read()
            if enough(found):
                return found
            await asyncio.sleep(0.02)


async def add(wire: Wire, receiver: Receiver, **fields: Any) -> str:
    given = {"url": receiver.url(), "events": ALL, **fields}
    webhook_id: str = (await good(wire, "AddWebhook", **given))["data"]["webhookId"]
    return webhook_id


async def listed(wire: Wire, webhook_id: str) -> dict[str, Any]:
    webhooks = (await good(wire, "ListWebhooks"))["data"]["webhooks"]
    found: dict[str, Any] = next(each for each in webhooks if each["id"] == webhook_id)
    return found


async def run_one(wire: Wire, queue: str, error: str | None = None) -> str:
    """Fetch a job; complete it with a result, or fail it."""
    pulled = await good(wire, "PULL", queue=queue, owner="w", timeout=60_000)
    job_id: str = pulled["job"]["id"]
    if error is None:
        await good(wire, "ACK", id=job_id, token=pulled["token"], result={"r": 1})
    else:
        await good(wire, "FAIL", id=job_id, token=pulled["token"], error=error)
    return job_id


async def test_events_of_a_job_are_delivered_in_order_and_signed(
    wire: Wire, other: Wire, receiver: Receiver, queue_name: str
):
    key = secrets.token_bytes(24)
    secret = f"whsec_{base64.b64encode(key).decode()}"
    webhook_id = await add(wire, receiver, queue=queue_name, secret=secret)
    job_id = (await good(other, "PUSH", queue=queue_name, data={"x": 1}, maxAttempts=2, backoff=0))["id"]
    await run_one(other, queue_name, error="boom")
    pulled = await good(other, "PULL", queue=queue_name, owner="w", timeout=60_000)
    await good(other, "Progress", id=job_id, progress=50, message="half")
    await good(other, "ACK", id=job_id, token=pulled["token"], result={"r": 1})
    received = await receiver.wait_for_count(6)
    assert [each.content["event"] for each in received] == [
        "job.pushed", "job.started", "job.failed", "job.started", "job.progress", "job.completed",
    ]  # fmt: skip
    contents = [each.content for each in received]
    assert {(each["jobId"], each["queue"]) for each in contents} == {(job_id, queue_name)}
    assert (contents[2]["error"], contents[2]["data"]) == ("boom", {"x": 1})
    assert (contents[4]["progress"], contents[5]["data"]) == (50, {"r": 1})
    for each in received:
        assert each.headers["x-webhook-event"] == each.content["event"]
        assert each.headers["x-webhook-timestamp"] == str(each.content["timestamp"])
        assert each.headers["x-webhook-signature"] == hmac.new(secret.encode(), each.body, hashlib.sha256).hexdigest()
        signed = f"{each.headers['webhook-id']}.{each.headers['webhook-timestamp']}.".encode() + each.body
        signature = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
        assert each.headers["webhook-signature"] == f"v1,{signature}"
    assert len({each.headers["webhook-id"] for each in received}) == 6
    found = await listed(other, webhook_id)
    assert (found["url"], found["queue"], found["enabled"]) == (receiver.url(), queue_name, True)
    assert "secret" not in found
    assert found["lastTriggered"] >= found["createdAt"]


async def test_events_of_the_deliveries_are_not_sent(
    gateways: tuple[Gateway, Gateway], wire: Wire, receiver: Receiver, queue_name: str
):
    error = "queue gateway@webhooks has the messages of webhooks: its events are not sent"
    assert await failure(wire, "AddWebhook", url=receiver.url(), events=["job.pushed"], queue=DELIVERIES) == error
    webhooks = gateways[0].webhooks
    now = await webhooks.registry.now()
    stored = Webhook(
        url=receiver.url("/loop"), events=("job.pushed",), queue=DELIVERIES, secret=None, created=now, since=now
    )
    await webhooks.registry.add(stored)  # of an earlier version
    await add(wire, receiver, queue=queue_name, events=["job.pushed"])
    for number in range(1, 4):
        await good(wire, "PUSH", queue=queue_name, data=number)
        await receiver.wait_for_count(number)
    assert [each.path for each in receiver.received] == ["/hook"] * 3
    assert all(DELIVERIES not in each.webhooks._readings for each in gateways)


async def test_pause_of_the_deliveries_is_rejected_or_logged(
    wire: Wire, receiver: Receiver, queue_name: str, url: str, prefix: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    error = "queue gateway@webhooks has the messages of all webhooks; use SetWebhookEnabled"
    assert await failure(wire, "Pause", queue=DELIVERIES) == error

    async def logged() -> str:
        return caplog.text

    async with Queue(DELIVERIES, url, prefix=prefix) as deliveries:
        await deliveries.pause()
        await add(wire, receiver, queue=queue_name)
        await until(logged, lambda text: "paused; no webhooks are delivered until it is resumed" in text)
        await deliveries.resume()
        await add(wire, receiver, queue=queue_name)
        await until(logged, lambda text: "resumed; webhooks are delivered again" in text)


async def test_failed_deliveries_are_repeated_in_order_and_given_up(
    gateways: tuple[Gateway, Gateway], wire: Wire, receiver: Receiver, queue_name: str, url: str, prefix: str
):
    failures: dict[str, int] = defaultdict(int)

    def answer(request: Received) -> str:
        event = request.content["event"]
        failures[event] += 1
        if event == "job.pushed":
            return "500 Oops" if failures[event] <= 2 else "200 OK"
        return "302 Found"

    receiver.answer = answer
    webhook_id = await add(wire, receiver, queue=queue_name, events=["job.pushed", "job.completed"])
    await good(wire, "PUSH", queue=queue_name, data=1)
    await run_one(wire, queue_name)
    attempts = gateways[0].options.webhook_attempts
    received = await receiver.wait_for_count(3 + attempts)
    events = [each.content["event"] for each in received]
    assert events == ["job.pushed"] * 3 + ["job.completed"] * attempts
    assert len({each.headers["webhook-id"] for each in received}) == 2
    found = await until(lambda: listed(wire, webhook_id), lambda each: each["failureCount"] == 1)
    async with Queue(DELIVERIES, url, prefix=prefix) as deliveries:
        (failed,) = await until(lambda: deliveries.get_jobs("failed"), bool)
        assert "answered 302: redirects are not followed" in str(failed.failed_reason)
        assert (await deliveries.check()).ok
    assert (found["successCount"], found["failureCount"]) == (1, 1)


async def test_name_that_leads_into_the_own_network_is_not_connected_to(
    url: str, prefix: str, receiver: Receiver, queue_name: str, monkeypatch: pytest.MonkeyPatch
):
    """The name passes the check of its text; its addresses are checked before the connection is made."""
    addresses = [["127.0.0.1"], ["93.184.215.14", "127.0.0.1"]]

    async def resolved(_: str, __: int) -> list[str]:
        return addresses.pop(0)

    monkeypatch.setattr("glidemq_py.gateway.webhooks._resolved", resolved)
    options: dict[str, Any] = {"prefix": prefix, "webhook_attempts": 2, "webhook_backoff": 1}
    async with Gateway(url, port=0, **options) as gateway, Wire(gateway) as wire:
        error = await failure(wire, "AddWebhook", url=receiver.url(), events=ALL)
        assert error == "Webhook URL cannot point to localhost"
        webhook_id = await add(wire, receiver, url=f"http://hooks.example.com:{receiver.port}/", events=["job.pushed"])
        await good(wire, "PUSH", queue=queue_name, data=1)
        await until(lambda: listed(wire, webhook_id), lambda found: found["failureCount"] == 1)
    async with Queue(DELIVERIES, url, prefix=prefix) as deliveries:
        (failed,) = await until(lambda: deliveries.get_jobs("failed"), bool)
        assert failed.failed_reason == "hooks.example.com leads to 127.0.0.1, and webhooks cannot point to localhost"
    assert (receiver.received, addresses) == ([], [])


async def test_request_goes_to_the_address_that_was_checked(receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    async def resolved(_: str, __: int) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr("glidemq_py.gateway.webhooks._resolved", resolved)
    url = f"http://no-such-host.invalid:{receiver.port}/a?b=1"  # connecting by name would fail
    assert await post(url, {"X-A": "b"}, b"{}", [ip_network("127.0.0.0/8")], 60.0) == 204
    (request,) = receiver.received
    assert (request.path, request.headers["host"]) == ("/a?b=1", f"no-such-host.invalid:{receiver.port}")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", "IncompleteReadError"),
        (b"SSH-2.0-x\r\n", "is not HTTP/1.1"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1_000, "more than 200 headers"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 100, "interim answers"),
        (b"HTTP/1.1 200 " + b"x" * 200_000, "LimitOverrunError"),
        (b"HTTP/1.1 500 Oops\r\n\r\n", "answered 500"),
    ],
)
async def test_bad_answers(answer: bytes, error: str):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        await reader.readuntil(b"{}")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(WebhookError, match=error):
            await post(f"http://127.0.0.1:{port}/", {}, b"{}", [ip_network("127.0.0.0/8")], 60.0)


@pytest.mark.parametrize("url", ["http://.../", "ftp://example.com/", f"http://{70 * 'a'}.example.com/"])
async def test_stored_url_that_is_invalid_is_an_error_of_the_webhook(url: str):
    with pytest.raises(WebhookError):
        await post(url, {}, b"{}", [], 5.0)


async def test_receiver_that_does_not_answer():
    has_ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        with contextlib.suppress(ConnectionError):
            await reader.read()  # until the gateway gives up
        writer.close()
        has_ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(WebhookError, match=r"did not answer within 0\.1 s"):
            await post(f"http://127.0.0.1:{port}/", {}, b"{}", [ip_network("127.0.0.0/8")], 0.1)
        await has_ended.wait()


async def test_receiver_that_does_not_answer_delays_no_others(
    wire: Wire, other: Wire, receiver: Receiver, queue_name: str
):
    """It has far more messages than there are slots, and each of them occupies a slot until its time is over."""
    has_begun, is_over = asyncio.Event(), asyncio.Event()
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        nonlocal connections
        connections += 1
        has_begun.set()
        await is_over.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        dead = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        await add(wire, receiver, queue=f"{queue_name}-dead", events=["job.pushed"], url=dead)
        await add(wire, receiver, queue=queue_name, events=["job.pushed", "job.completed"])
        await good(wire, "PUSHB", queue=f"{queue_name}-dead", jobs=[{"data": 1}] * 500)
        await has_begun.wait()
        start = asyncio.get_running_loop().time()
        await good(other, "PUSH", queue=queue_name, data=1)
        await run_one(other, queue_name)
        received = await receiver.wait_for_count(2)
        assert [each.content["event"] for each in received] == ["job.pushed", "job.completed"]
        assert asyncio.get_running_loop().time() - start < 8  # before any of the others ends, after 10 s
        assert connections <= 2 * 20, "the share of a receiver in each of the two processes"
        is_over.set()


async def test_new_messages_for_a_dead_receiver_come_last(
    gateways: tuple[Gateway, Gateway], wire: Wire, receiver: Receiver, queue_name: str, url: str, prefix: str
):
    """Also if another gateway has noticed that it does not answer."""
    webhook_id = await add(wire, receiver, queue=queue_name, events=["job.pushed"])
    registry = gateways[1].webhooks.registry
    assert await registry.dead([webhook_id]) == set()
    await registry.note_dead(webhook_id)
    assert await registry.dead([webhook_id]) == {webhook_id}
    await good(wire, "PUSH", queue=queue_name, data=1)
    await receiver.wait_for_count(1)
    async with Queue(DELIVERIES, url, prefix=prefix) as deliveries:
        (message,) = await until(lambda: deliveries.get_jobs("completed"), bool)
        assert message.rank == -1


async def test_paused_reader_cannot_advance_what_another_one_has_read(
    wire: Wire, receiver: Receiver, queue_name: str, url: str, prefix: str
):
    await add(wire, receiver, queue=queue_name, events=["job.pushed"])
    first = (await good(wire, "PUSH", queue=queue_name, data=1))["id"]
    await receiver.wait_for_count(1)
    async with Queue(queue_name, url, prefix=prefix) as queue:
        transport = (await connected(queue)).transport
        cursors = f"{prefix}:gateway:webhook-cursors"

        async def cursor() -> bytes | None:
            found: bytes | None = await transport.command("HGET", cursors, queue_name)
            return found

        before = await until(cursor, bool)
        assert before is not None
        # Another gateway has read on, to an event that does not exist yet for the first one.
        text = before.decode()
        ahead = f"{text.partition('-')[0]}-99999"
        assert await transport.call(claim_ids(cursors, [queue_name, text, ahead])) == [text]
        second = (await good(wire, "PUSH", queue=queue_name, data=2))["id"]
        await receiver.wait_for_count(2)
        await until(cursor, lambda found: found not in (before, ahead.encode()))
    third = (await good(wire, "PUSH", queue=queue_name, data=3))["id"]
    received = await receiver.wait_for_count(3)
    assert [each.content["jobId"] for each in received] == [first, second, third]


async def test_lock_is_taken_over_when_its_holder_is_gone(wire: Wire, url: str, prefix: str):
    async with Queue("x", url, prefix=prefix) as queue:
        transport = (await connected(queue)).transport
        first, second = ReadingLock(transport, prefix), ReadingLock(transport, prefix)
        assert await first.hold()
        assert await first.hold()
        assert not await second.hold()
        assert (first.is_surely_held(), second.is_surely_held()) == (True, False)
        await first.release()
        assert await second.hold()
        assert not await first.hold()


@pytest.mark.slow
async def test_killed_gateway_loses_no_event(url: str, prefix: str, receiver: Receiver, queue_name: str):
    """One gateway reads and delivers alone, and is killed; the other one continues where it stopped."""
    command = [
        sys.executable, "-m", "glidemq_py.gateway", "--url", url, "--prefix", prefix, "--port", "0",
        "--webhook-networks", "127.0.0.0/8",
    ]  # fmt: skip
    killed = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert killed.stderr is not None
    async with asyncio.timeout(120):
        while b"listening on" not in (line := await killed.stderr.readline()):
            pass
    async with Wire(int(line.rpartition(b":")[2])) as wire:  # this makes it the one that reads
        webhook_id = await add(wire, receiver, queue=queue_name)
        await good(wire, "PUSH", queue=queue_name, data=0)
        await receiver.wait_for_count(1)
    count = 150
    options: dict[str, Any] = {"prefix": prefix, "webhook_networks": LOCAL, "webhook_backoff": 1}
    async with (
        Gateway(url, port=0, **options) as survivor,
        Wire(survivor) as wire,
        Queue(queue_name, url, prefix=prefix) as queue,
    ):
        assert (await listed(wire, webhook_id))["enabled"]
        async with Worker(queue_name, run_job, url, prefix=prefix, concurrency=5):
            ids = [
                each
                for _ in range(count // 10)
                for each in (await good(wire, "PUSHB", queue=queue_name, jobs=[{"data": 1}] * 10))["ids"]
            ]
            await receiver.wait_for_count(50)
            os.kill(killed.pid, signal.SIGKILL)
            await killed.wait()
            more = (await good(wire, "PUSHB", queue=queue_name, jobs=[{"data": 2}] * 10))["ids"]

            def is_complete(received: list[Received]) -> bool:
                done = {each.content["jobId"] for each in received if each.content["event"] == "job.completed"}
                return done >= {*ids, *more}

            received = await receiver.wait_for(is_complete)
            assert (await queue.check()).ok
    events: dict[str, list[str]] = defaultdict(list)
    for each in received:
        of_job = events[each.content["jobId"]]
        if each.content["event"] not in of_job:  # a delivery that was interrupted is repeated
            of_job.append(each.content["event"])
    steps = ["job.pushed", "job.started", "job.progress", "job.completed"]
    assert [found for found in events.values() if found != steps] == []


async def run_job(job: Job) -> int:
    await job.update_progress(50)
    return 1
